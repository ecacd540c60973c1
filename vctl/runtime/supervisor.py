"""The process that stands over runs, one after the other: it starts each, waits, clears up, records how it ended.

It runs stand-alone in a fork of the launcher (see launcher.py) and outlives both launcher and scheduler. It has a
number that is never used again, and says what it does in the file of that number (see lines.py), below the state
directory:

    records/<number>    made by the scheduler, removed by the scheduler; locked by the supervisor while it lives. A
                        process that finds no such file, or finds it locked, starts nothing
    ahead/<run>         an offer to take a run at once after the one that its request names. The supervisor removes it
                        before; one that finds none, or whose last run was another one or was told to stop, declines
    stops/<run>         a request to stop, "<monotonic ns at which to kill> <signal>"; may precede the run; the
                        supervisor takes it away, which is its answer

Requests come on its line to the scheduler. A run that the file says was taken is not started, so a request may be sent
again at any time, also to another process that has the number after this one. A run that was taken, has no end, and
whose file is not locked is lost: its supervisor was killed. Its processes go on until the scheduler clears them: a
parent-death signal would reach only the main one of them. Records are not synced: they outlive every process, and after
a power cut the boot says that the run is lost.
"""

import errno
import marshal
import os
import time

MYPY = False
if MYPY or __package__:
    from vctl.runtime import gate, lines, logfile, processes, spawning
else:
    import gate
    import lines
    import logfile
    import processes
    import spawning

if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py

NAME = b"vctl-supervisor"  # as ps shows it
# Before the directory: how a scheduler that belongs to nobody ends.
BACKGROUND_WORDS = [b"--background", b"--home"]
STOP_SIGNAL = signal.SIGUSR1  # tells a supervisor to read its stop file
LINE, GATE = 3, 4  # to the scheduler; of all supervisors of a launcher
PREFIX_BYTES = 4
_AWAITED = (signal.SIGCHLD, STOP_SIGNAL)
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EIO)
_LONG_S = 3600.0
_SHORT_S, _SHORT_NEXT_S = 0.005, 0.03  # of a run that is over by then the scheduler hears once
_MOST_STOP_BYTES = 200
_LABEL = (os.fsencode(os.path.dirname(os.path.abspath(__file__))) + b"/relay.py", b"label")
_DRAIN_S = 1.0  # for the relay to write what the command wrote before it was killed
_RETRY_S = 1.0
_LOCK_PAUSE_S, _MOST_LOCK_PAUSES = 0.005, 200  # for the process that had the number before to end
_KILL_PAUSE_S = (0.001, 0.25)  # first and longest wait between rounds of SIGKILL
_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT
_number = int.from_bytes
_CHUNK_BYTES = 1 << 14

# run, grace in ms, bytes that the log may have (0: any number), what to start, the run that it follows at once, and
# below the variables of the plan those that runs of a command share, marshalled
Request = tuple[bytes, int, int, spawning.Plan, bytes, bytes]


class Supervisor:
    """One supervisor: its number's file, its line to the scheduler, and who it is."""

    __slots__ = ("file", "home", "line", "number", "received", "shared", "starts", "taken", "unsaid")

    def __init__(self, home: bytes, number: int, boot: bytes, line: int, starts: gate.Gate) -> None:
        """Lock the file of the number. Raises lines.Busy, FileNotFoundError."""
        self.home, self.number, self.line = home, number, line
        self.starts = starts  # the gate before runs that follow another one
        self.file = lines.Writer(b"%b/records/%d" % (home, number))
        pid = os.getpid()
        self.taken = b"%d %d %b" % (pid, processes.start_time(pid) or 0, boot)
        self.unsaid = b""  # what the scheduler has not been told of the run
        self.received = b""
        self.shared = spawning.Shared()

    def serve(self) -> None:
        """Carry out what comes until the scheduler has nothing more, or this process has changed for good."""
        last = b""  # the run that was carried out last and that nobody told to stop
        while request := self.next_request():
            run = Supervision(self, marshal.loads(request))
            if run.follows and run.follows == last:
                self.starts.enter(self.number)
            if run.follows and not (run.follows == last and self.accept(run.name)):
                self.decline(run.name)
            elif self.take(run.name):
                cpus = os.sched_getaffinity(0) if run.plan[4] is not None else None
                run.carry_out()
                last = b"" if run.stopped else run.name
                if not run.leaves_nothing():
                    return
                if cpus is not None:
                    os.sched_setaffinity(0, cpus)
            self.starts.leave()

    def next_request(self) -> bytes:
        """Wait for the next request; empty when the scheduler is gone or needs us no more."""
        while True:
            received = self.received
            if len(received) >= PREFIX_BYTES:
                end = PREFIX_BYTES + _number(received[:PREFIX_BYTES], "little")
                if len(received) >= end:
                    self.received = received[end:]
                    return received[PREFIX_BYTES:end]
            try:
                chunk = os.read(self.line, _CHUNK_BYTES)
            except ConnectionResetError:
                return b""  # gone without having read what we wrote
            if not chunk:
                return b""
            self.received += chunk

    def accept(self, run: bytes) -> bool:
        """Whether a run may start that was assigned ahead: it was not taken back, and cannot be from now on."""
        try:
            os.unlink(self.home + b"/ahead/" + run)
        except OSError:
            return False
        return True

    def decline(self, run: bytes) -> None:
        """Tell the scheduler that a run is not taken; one that is gone takes all back."""
        self.unsaid += lines.line(lines.DECLINED, run, b"")
        self.say()

    def take(self, run: bytes) -> bool:
        """Take a run: from now on nobody else starts it. False when somebody did. Waits while the disk is full."""
        while True:
            try:
                return self.take_now(run)
            except OSError as error:
                if not is_disk_trouble(error):
                    raise
            self.starts.leave()
            time.sleep(_RETRY_S)

    def take_now(self, run: bytes) -> bool:
        """The same; raises OSError when the disk is full."""
        whole = lines.line(lines.TAKEN, run, self.taken)
        if not self.file.take(run, whole):
            return False
        self.unsaid += whole
        return True

    def write(self, whole: bytes) -> None:
        """Write one or more whole lines. Raises OSError."""
        self.file.write(whole)
        self.unsaid += whole

    def say(self) -> None:
        """Tell the scheduler what it has not been told; one that is gone will read the file."""
        if self.unsaid:
            try:
                os.write(self.line, self.unsaid)
            except (BrokenPipeError, ConnectionResetError):
                self.unsaid = b""
            self.unsaid = b""


def live(home: bytes, number: int, boot: bytes, line: int, starts: gate.Gate) -> None:
    """Have a number, as soon as who had it before has ended, and serve; not when there is no such number."""
    for _ in range(_MOST_LOCK_PAUSES):
        try:
            own = Supervisor(home, number, boot, line, starts)
        except lines.Busy:
            time.sleep(_LOCK_PAUSE_S)
        except FileNotFoundError:
            return
        else:
            own.serve()
            return


class Supervision:
    """One run under supervision, from the moment it was taken to the record of its end."""

    __slots__ = (
        "asked", "deadline", "follows", "grace_s", "home", "is_empty", "kill_pause_s", "log", "log_bytes",
        "main", "max_rss_kib", "name", "plan", "starts", "status", "stop_path", "stopped", "supervisor", "system_s",
        "unwritten", "user_s",
    )  # fmt: skip

    def __init__(self, supervisor: Supervisor, request: Request) -> None:
        self.supervisor, self.home, self.starts = supervisor, supervisor.home, supervisor.starts
        self.name, grace_ms, self.log_bytes, plan, self.follows, shared = request
        self.plan = plan[0], supervisor.shared.with_own(shared, plan[1]), *plan[2:]
        self.stop_path = self.home + b"/stops/" + self.name
        self.grace_s = grace_ms / 1000
        self.main = 0
        self.status: int | None = None  # wait status of the main process once it ended
        self.is_empty = False  # when the last process below was collected
        self.deadline: float | None = None  # when asking ends and killing starts
        self.asked: int | None = None  # the signal that last asked the tree to end
        self.stopped = False
        self.log: logfile.Bounded | None = None
        self.unwritten = b""  # the line of a start that is not in the file
        self.kill_pause_s = _KILL_PAUSE_S[0]
        self.max_rss_kib, self.user_s, self.system_s = 0, 0.0, 0.0  # of all that was collected

    def carry_out(self) -> None:
        """Take the run to the record of its end."""
        self.heed_stop()
        if self.stopped:
            self.record_end(128 + signal.SIGTERM, signal.SIGTERM)
            return
        while not self.main:
            try:
                self.start()
            except spawning.SpawnError as failed:
                if not failed.passes:
                    self.record_end(failed.exit_code, launch_errno=failed.errno, why=str(failed))
                    return
                if self.pause():
                    self.record_end(128 + signal.SIGTERM, signal.SIGTERM)
                    return
        self.wait()
        if self.log is not None:
            self.log.close()
        signo = (self.status or 0) & 0x7F  # 0: it ended by itself
        self.record_end(128 + signo if signo else (self.status or 0) >> 8, signo)

    def leaves_nothing(self) -> bool:
        """After the end: whether the process is now as it was before, fit for another run."""
        niceness = self.plan[-1]  # which cannot be taken back
        return not niceness and (self.is_empty or not self.reap())

    def pause(self) -> bool:
        """Wait a moment before the process is started again; True when a stop is asked for."""
        self.starts.leave()
        signal.sigtimedwait((STOP_SIGNAL,), _RETRY_S)
        self.heed_stop()
        return self.stopped

    def start(self) -> None:
        """Start the main process in a session of its own and record it, or raise SpawnError."""
        started_at, before = time.time_ns(), processes.ticks_now()
        self.main = spawning.spawn(self.plan, self.home)
        started = processes.ticks_now()
        if started != before:
            started = processes.start_time(self.main) or 0
        if self.log_bytes:
            self.log = logfile.Bounded(spawning.log_path(self.plan), self.log_bytes)
        rest = b"%d %d %d" % (self.main, started, started_at)
        self.unwritten = lines.line(lines.STARTED, self.name, rest)
        # Where nothing has ended a look takes less memory than a wait.
        self.is_empty = os.waitid(os.P_PID, self.main, _LOOK) is not None and not self.reap()
        if not self.is_empty:  # else it is written with the end
            self.record_start()

    def wait(self) -> None:
        """Return when the main process and everything that came from it has ended."""
        while not self.is_empty:
            if self.status is not None and not self.below():
                return
            now = time.monotonic()
            if self.status is not None and self.deadline is None:
                self.ask(signal.SIGTERM, now + self.grace_s)
            if self.deadline is not None and now >= self.deadline:
                timeout_s = self.kill()
            else:
                timeout_s = _LONG_S if self.deadline is None else self.deadline - now
            told = signal.sigtimedwait(_AWAITED, min(timeout_s, self.patience_s()))
            if told is None and self.starts.is_held:
                self.starts.leave()
                continue
            if told is None and self.supervisor.unsaid:
                self.supervisor.say()
                continue  # nothing has ended: a look would load what tells of it, in memory of this process alone
            if told is not None and told[0] == STOP_SIGNAL:  # si_signo, without a look-up in shared memory
                self.heed_stop()
            self.is_empty = not self.reap()
            if self.unwritten:
                self.record_start()

    def patience_s(self) -> float:
        """How long to wait at most before something else is due than a deadline."""
        least_s = _RETRY_S if self.unwritten else _LONG_S
        if self.log is not None:
            least_s = min(least_s, self.log.trim())
        if self.supervisor.unsaid:
            least_s = min(least_s, _SHORT_NEXT_S if self.follows else _SHORT_S)
        return min(least_s, gate.HOLD_S) if self.starts.is_held else least_s

    def reap(self) -> bool:
        """Collect what has ended; False when nothing is left: a subreaper's orphans are its children."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.max_rss_kib = max(self.max_rss_kib, usage.ru_maxrss)
            self.user_s += usage.ru_utime
            self.system_s += usage.ru_stime
            if pid == self.main:
                self.status = status
            self.kill_pause_s = _KILL_PAUSE_S[0]

    def below(self) -> list[int]:
        """All that came from the job, except a scheduler that a command in it started, and the runs of that."""
        return processes.descendants(os.getpid(), spare=lambda pid: serves_all(pid, self.home))

    def heed_stop(self) -> None:
        """Follow the stop file, if there is one: ask the tree to end, or shorten the grace it has left."""
        if not os.access(self.stop_path, os.F_OK):
            return
        taken = self.home + b"/stops/.taken-%d" % os.getpid()
        try:
            os.rename(self.stop_path, taken)
            with open(taken, "rb", opener=_no_link) as file:
                until_ns, signo = map(int, file.read(_MOST_STOP_BYTES).split())
            os.unlink(taken)
        except (OSError, ValueError):
            return  # nobody asks, or it is none of our scheduler's: it asks again
        if not 0 < signo <= signal.SIGRTMAX:
            return
        self.stopped = self.stopped or self.status is None
        if self.main:
            self.ask(signo, until_ns / 1e9)

    def ask(self, signo: int, until: float) -> None:
        """Send the tree a signal, once, and have it killed at that time, unless that is due earlier."""
        self.deadline = until if self.deadline is None else min(self.deadline, until)
        if signo == self.asked:
            return
        self.asked = signo
        told: set[int] = set()
        for _ in range(2):  # a second look finds what was forked during the first
            for pid in self.below():  # a shell ends before it can see that its command did
                if pid not in told:
                    told.add(pid)
                    processes.send(pid, signo)
                    processes.send(pid, signal.SIGCONT)  # a suspended process sleeps through any other signal

    def kill(self) -> float:
        """SIGKILL everything below us; return how long to wait before looking again.

        A relay that labels lines still has lines to write that the command wrote before it was killed.
        """
        drains = 0
        if self.plan[0][3:5] == _LABEL and time.monotonic() < (self.deadline or 0) + _DRAIN_S:
            drains = self.main
        processes.kill_all(lambda: [pid for pid in self.below() if pid != drains])
        if drains:
            processes.send(drains, signal.SIGCONT)  # it was suspended with its group
        pause_s = self.kill_pause_s
        # They may be in the kernel, or not ours to kill.
        self.kill_pause_s = min(2 * pause_s, _KILL_PAUSE_S[1])
        return pause_s

    def record_start(self) -> None:
        """Write that the process runs; while the disk is full the job goes on and we try again."""
        try:
            self.supervisor.write(self.unwritten)
        except OSError as error:
            if not is_disk_trouble(error):
                raise
            return
        self.unwritten = b""

    def record_end(self, code: int, signo: int = 0, *, launch_errno: int = 0, why: str | None = None) -> None:
        """Write how the run ended, however long the disk stays full, and tell the scheduler."""
        rest = b"%d %d %d %d %d %d %d %d %b" % (
            code, signo, launch_errno, self.stopped, time.time_ns(), self.max_rss_kib,
            int(self.user_s * 1_000_000), int(self.system_s * 1_000_000), lines.message(why) if why else b"",
        )  # fmt: skip
        whole = self.unwritten + lines.line(lines.ENDED, self.name, rest)
        while True:
            try:
                self.supervisor.write(whole)
                break
            except OSError as error:
                if not is_disk_trouble(error):
                    raise
            self.starts.leave()
            time.sleep(_RETRY_S)
        self.supervisor.say()


def is_disk_trouble(error: BaseException) -> bool:
    """Whether a file could not be written for want of disk space: that passes."""
    return isinstance(error, OSError) and error.errno in _DISK_TROUBLE


def serves_all(pid: int, home: bytes) -> bool:
    """Say whether this is a scheduler or supervisor of the same state directory, whoever started it."""
    words = processes.command(pid)
    if processes.name(pid) == NAME and words[-1:] == [home]:
        return True
    return words[-3:-1] == BACKGROUND_WORDS and os.path.realpath(words[-1]) == os.path.realpath(home)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
