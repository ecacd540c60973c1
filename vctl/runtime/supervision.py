"""One run under supervision, from its request to the record of its end; supervisor.py goes on with it.

A run is written as a generator: it yields for how many seconds it waits at most, and is continued when they are over,
when a process of it has ended, or when somebody asks for a stop. It knows nothing of other runs of its supervisor.

Stand-alone, like processes.py. Imports only built-in modules.
"""

import errno
import os
import time

MYPY = False
if MYPY or __package__:
    from vctl.runtime import lines, logfile, memory, processes, spawning
else:
    import lines
    import logfile
    import memory
    import processes
    import spawning

if MYPY:
    import resource
    import signal
    from collections.abc import Callable, Generator, Iterator

    from vctl.runtime.supervisor import Number
else:
    import _signal as signal  # see processes.py

NEVER = float("inf")
RETRY_S = 1.0
_AT_ONCE_S = 0.001  # the start of a run that is over by then is written with its end
_SHORT_S, _SHORT_NEXT_S = 0.005, 0.03  # of a run that is over by then the scheduler hears once
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EIO)
_MOST_STOP_BYTES = 200
_LABEL = (os.fsencode(os.path.dirname(os.path.abspath(__file__))) + b"/relay.py", b"label")
_DRAIN_S = 1.0  # for the relay to write what the command wrote before it was killed
_KILL_PAUSE_S = (0.001, 0.25)  # first and longest wait between rounds of SIGKILL
_LOOK_S, _FAR_LOOK_S = 0.1, 0.5  # between looks at the memory of a run; the second where half of it is free

# run, grace in ms, bytes that the log may have, bytes of memory that it may use (0: any number), what to start, the run
# that it follows at once, and below the variables of the plan those that runs of a command share, marshalled
Request = tuple[bytes, int, int, int, spawning.Plan, bytes, bytes]


class Supervision:
    """One run. `main` is 0 until its process is started; `status` is the wait status of that once it has ended."""

    __slots__ = (
        "asked", "deadline", "follows", "grace_s", "is_told", "kill_pause_s", "log", "log_bytes", "main", "max_rss_kib",
        "memory_at", "memory_bytes", "name", "number", "plan", "status", "stop_path", "stopped", "system_s",
        "unwritten", "user_s", "why",
    )  # fmt: skip

    def __init__(self, number: "Number", request: Request) -> None:
        self.number = number
        self.name, grace_ms, self.log_bytes, self.memory_bytes, plan, self.follows, shared = request
        self.plan = plan[0], number.above.shared.with_own(shared, plan[1]), *plan[2:]
        self.stop_path = number.above.home + b"/stops/" + self.name
        self.grace_s = grace_ms / 1000
        self.main = 0
        self.status: int | None = None
        self.is_told = False  # that somebody may ask for a stop
        self.deadline: float | None = None  # when asking ends and killing starts
        self.asked: int | None = None  # the signal that last asked the tree to end
        self.stopped = False
        self.why: str | None = None  # it was killed, other than on request
        self.memory_at = 0.0  # when its memory is looked at again
        self.log: logfile.Bounded | None = None
        self.unwritten = b""  # the line of a start that is not in the file
        self.kill_pause_s = _KILL_PAUSE_S[0]
        self.max_rss_kib, self.user_s, self.system_s = 0, 0.0, 0.0  # of all that was collected

    def carry_out(self) -> "Generator[float, None, bool]":
        """Take the run to the record of its end; False when somebody has taken it before."""
        if not (yield from self._retried(self._take)):
            return False
        self.heed_stop()
        while not self.main and not self.stopped:
            try:
                self.start()
            except spawning.SpawnError as failed:
                if not failed.passes:
                    yield from self._end(failed.exit_code, launch_errno=failed.errno, why=str(failed))
                    return True
                yield RETRY_S
                self.heed_stop()
        if not self.main:
            yield from self._end(128 + signal.SIGTERM, signal.SIGTERM)
            return True
        yield from self.wait()
        if self.log is not None:
            self.log.close()
        signo = (self.status or 0) & 0x7F  # 0: it ended by itself
        why = self.why if signo == signal.SIGKILL else None
        yield from self._end(128 + signo if signo else (self.status or 0) >> 8, signo, why=why)
        return True

    def _take(self) -> bool:
        """Take the run: from now on nobody else starts it. False when somebody did. Raises OSError on a full disk."""
        whole = lines.line(lines.TAKEN, self.name, self.number.above.taken)
        if not self.number.file.take(self.name, whole):
            return False
        self.number.unsaid += whole
        return True

    def start(self) -> None:
        """Start the main process in a session of its own, or raise SpawnError."""
        started_at, before = time.time_ns(), processes.ticks_now()
        self.main = self.number.above.spawn(self)
        started = processes.ticks_now()
        if started != before:
            started = processes.start_time(self.main) or 0
        if self.log_bytes:
            self.log = logfile.Bounded(spawning.log_path(self.plan), self.log_bytes)
        self.unwritten = lines.line(lines.STARTED, self.name, b"%d %d %d" % (self.main, started, started_at))

    def wait(self) -> "Iterator[float]":
        """Until the main process and all that came from it have ended. The start is written here, or at the end."""
        above = self.number.above
        yield from self._first_wait()
        while self.status is None or above.orphans(self):
            now = time.monotonic()
            if self.unwritten:
                self.record_start()
                self.number.say()
            if self.is_told:
                self.heed_stop()
            if self.status is not None and self.deadline is None:
                self.ask(signal.SIGTERM, now + self.grace_s)
            if self.memory_bytes and self.status is None and self.deadline is None and now >= self.memory_at:
                self.look_at_memory(now)
            if self.deadline is not None and now >= self.deadline:
                timeout_s = self.kill()
            else:
                timeout_s = NEVER if self.deadline is None else self.deadline - now
            if self.unwritten:
                timeout_s = min(timeout_s, RETRY_S)
            if self.log is not None:
                timeout_s = min(timeout_s, self.log.trim())
            if self.memory_bytes and self.status is None and self.deadline is None:
                timeout_s = min(timeout_s, self.memory_at - now)
            yield timeout_s

    def _first_wait(self) -> "Iterator[float]":
        """A run that is over soon is written and told whole."""
        yield _AT_ONCE_S
        if self.status is None and not self.is_told:
            self.record_start()
            if self.log is None:  # else that is looked after from now on
                yield _SHORT_NEXT_S if self.follows else _SHORT_S
        if self.status is None:
            self.number.say()

    def ended(self, pid: int, status: int, usage: "resource.struct_rusage") -> None:
        """A process of the run was collected."""
        self.max_rss_kib = max(self.max_rss_kib, usage.ru_maxrss)
        self.user_s += usage.ru_utime
        self.system_s += usage.ru_stime
        if pid == self.main:
            self.status = status
        self.kill_pause_s = _KILL_PAUSE_S[0]

    def below(self) -> list[int]:
        """All that came from the job, except a scheduler that a command in it started, and the runs of that."""
        above = self.number.above
        roots = above.orphans(self)
        if self.main and self.status is None:
            roots.append(self.main)
        return processes.trees(roots, above.spares)

    def heed_stop(self) -> None:
        """Follow the stop file, if there is one: ask the tree to end, or shorten the grace it has left."""
        self.is_told = False
        if not os.access(self.stop_path, os.F_OK):
            return
        taken = self.number.above.home + b"/stops/.taken-%d" % os.getpid()
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

    def look_at_memory(self, now: float) -> None:
        """Have the tree killed at once when it uses more memory than it has."""
        used = memory.used_bytes(self.below(), self.memory_bytes)
        if used > self.memory_bytes:
            has = memory.shown(self.memory_bytes)
            self.why = f"it used {memory.shown(used)} of memory and had {has}: ask for more with --memory"
            self.deadline = now
        self.memory_at = now + (_LOOK_S if 2 * used > self.memory_bytes else _FAR_LOOK_S)

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
            self.number.write(self.unwritten)
        except OSError as error:
            if not is_disk_trouble(error):
                raise
            return
        self.unwritten = b""

    def _end(
        self, code: int, signo: int = 0, *, launch_errno: int = 0, why: str | None = None
    ) -> "Iterator[float]":
        """Write how the run ended, however long the disk stays full, and tell the scheduler."""
        rest = b"%d %d %d %d %d %d %d %d %b" % (
            code, signo, launch_errno, self.stopped, time.time_ns(), self.max_rss_kib,
            int(self.user_s * 1_000_000), int(self.system_s * 1_000_000), lines.message(why) if why else b"",
        )  # fmt: skip
        whole = self.unwritten + lines.line(lines.ENDED, self.name, rest)
        yield from self._retried(lambda: self.number.write(whole))
        self.number.say()

    @staticmethod
    def _retried(do: "Callable[[], bool | None]") -> "Generator[float, None, bool | None]":
        """Do something as soon as the disk is not full."""
        while True:
            try:
                return do()
            except OSError as error:
                if not is_disk_trouble(error):
                    raise
            yield RETRY_S


def is_disk_trouble(error: BaseException) -> bool:
    """Whether a file could not be written for want of disk space: that passes."""
    return isinstance(error, OSError) and error.errno in _DISK_TROUBLE


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
