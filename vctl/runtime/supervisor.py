"""The process that stands over one run: starts it, waits, clears up what it left, records how it ended.

It runs stand-alone in a fork of the launcher (see launcher.py) and outlives both launcher and scheduler. The same
process may stand over another run afterwards, never over two at once.
Files, all below the state directory; a run is one attempt to run one process of a job:

    runs/<run>/lock     held (flock) while the supervisor lives; says "<pid> <start time>" of it
    stops/<run>         a request to stop, "<monotonic ns at which to kill> <signal>"; may precede the run; the
                        supervisor takes it away, which is its answer
    exits/<run>.start   the process runs; renamed into place, so a watch of exits/ wakes on it
    exits/<run>.exit    nothing of the run is left; renamed into place, the last thing a supervisor does

A directory runs/<run> without a held lock and without an exit record is a run whose supervisor was killed.
Its processes go on until the scheduler clears them: a parent-death signal would reach only the main one of
them. Records are not synced: they outlive every process, and after a power cut the boot id says the run is
lost.
"""

import errno
import fcntl
import os
import time

MYPY = False
if MYPY or __package__:
    from vctl.runtime import logfile, processes, spawning
else:
    import logfile
    import processes
    import spawning

if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py

NAME = b"vctl-supervisor"  # as ps shows it
BACKGROUND_WORDS = [
    b"--background",
    b"--home",
]  # before the directory: how a scheduler that belongs to nobody ends
STOP_SIGNAL = signal.SIGUSR1  # tells a supervisor to read its stop file
_AWAITED = (signal.SIGCHLD, STOP_SIGNAL)
_DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.ENFILE, errno.EMFILE, errno.ENOMEM, errno.EIO)
_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY)
_LONG_S = 3600.0
_MOST_STOP_BYTES = 200
_LABEL = (os.fsencode(os.path.dirname(os.path.abspath(__file__))) + b"/relay.py", b"label")
_DRAIN_S = 1.0  # for the relay to write what the command wrote before it was killed
_TRIES = 3  # of a file whose directory somebody removes or blocks
_RETRY_S = 1.0
_KILL_PAUSE_S = (0.001, 0.25)  # first and longest wait between rounds of SIGKILL

# state directory, run, grace in ms, bytes that the log may have (0: any number), and what to start
Request = tuple[bytes, bytes, int, int, spawning.Plan]


class Supervisor:
    """One run under supervision. The run exists from `claim` on; `record_exit` is its end."""

    def __init__(self, request: Request, boot_id: str) -> None:
        self.home, run, grace_ms, self.log_bytes, self.plan = request
        self.boot_id, home = boot_id, self.home
        self.runs_dir, self.run_dir = home + b"/runs", home + b"/runs/" + run
        self.stop_path, self.record_path = home + b"/stops/" + run, home + b"/exits/" + run
        self.grace_s = grace_ms / 1000
        self.labelled = self.plan[0][3:5] == _LABEL
        self.lock = -1
        self.main = 0
        self.status: int | None = None  # wait status of the main process once it ended
        self.deadline: float | None = None  # when asking ends and killing starts
        self.asked: int | None = None  # the signal that last asked the tree to end
        self.stopped = False
        self.log: logfile.Bounded | None = None
        self.unwritten = b""  # a start record the disk had no room for
        self.kill_pause_s = _KILL_PAUSE_S[0]
        self.max_rss_kib, self.user_s, self.system_s = 0, 0.0, 0.0  # of all that was collected

    def run(self) -> None:
        """Take a run that was claimed to its exit record."""
        self.heed_stop()
        if self.stopped:
            self.record_exit(128 + signal.SIGTERM, signal.SIGTERM)
            return
        while not self.main:
            try:
                self.start()
            except spawning.SpawnError as failed:
                if not failed.passes:
                    self.record_exit(failed.exit_code, launch_errno=failed.errno, message=str(failed))
                    return
                if self.pause():
                    self.record_exit(128 + signal.SIGTERM, signal.SIGTERM)
                    return
        self.wait()
        if self.log is not None:
            self.log.close()
        code = os.waitstatus_to_exitcode(self.status or 0)
        self.record_exit(code if code >= 0 else 128 - code, -code if code < 0 else 0)

    def leaves_nothing(self) -> bool:
        """Give the run up after its end; whether the process is now as it was before, fit for another run."""
        os.close(self.lock)
        niceness = self.plan[-1]  # which cannot be taken back
        return not niceness and not self.reap()

    def claim(self) -> bool:
        """Create the run's directory with its lock already held; False when the directory exists.

        The rename decides which of several supervisors has the run: it fails on a directory that is not
        empty, and nobody ever sees the directory without its lock held.
        """
        for _ in range(_TRIES):
            try:
                return self.take()
            except FileNotFoundError:
                if not spawning.make_folder(self.runs_dir, self.home):
                    return False  # the state directory is gone, and with it whoever wanted the run
        return self.take()

    def take(self) -> bool:
        """Claim the run once; FileNotFoundError when somebody removed the directory of runs meanwhile."""
        if os.path.exists(self.run_dir):
            return False
        staged = self.runs_dir + b"/.%d" % os.getpid()
        if not os.path.isdir(staged):  # else left by a supervisor that was killed here and had our pid
            os.mkdir(staged, 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self.lock = os.open(staged + b"/lock", flags, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.write(self.lock, b"%d %d\n" % (os.getpid(), processes.start_time(os.getpid()) or 0))
        try:
            os.rename(staged, self.run_dir)
        except OSError as error:
            os.close(self.lock)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            os.unlink(staged + b"/lock")
            os.rmdir(staged)
            return False
        return True

    def pause(self) -> bool:
        """Wait a moment before the process is started again; True when a stop is asked for."""
        signal.sigtimedwait((STOP_SIGNAL,), _RETRY_S)
        self.heed_stop()
        return self.stopped

    def start(self) -> None:
        """Start the main process in a session of its own and record it, or raise SpawnError."""
        started_at = time.time_ns()
        self.main = spawning.spawn(self.plan, self.home)
        if self.log_bytes:
            self.log = logfile.Bounded(spawning.log_path(self.plan), self.log_bytes)
        self.unwritten = _lines(
            pid=self.main,
            pid_started=processes.start_time(self.main) or 0,
            supervisor=os.getpid(),
            supervisor_started=processes.start_time(os.getpid()) or 0,
            boot_id=self.boot_id,
            started_at=started_at,
        )
        self.publish_start()

    def wait(self) -> None:
        """Return when the main process and everything that came from it has ended."""
        while self.reap():
            if self.status is not None and not self.below():
                return
            now = time.monotonic()
            if self.status is not None and self.deadline is None:
                self.ask(signal.SIGTERM, now + self.grace_s)
            timeout_s = _LONG_S if self.deadline is None else max(0.0, self.deadline - now)
            if self.deadline is not None and now >= self.deadline:
                timeout_s = self.kill()
            if self.unwritten:
                timeout_s = min(timeout_s, _RETRY_S)
            if self.log is not None:
                timeout_s = min(timeout_s, self.log.trim())
            told = signal.sigtimedwait(_AWAITED, timeout_s)
            if told is not None and told.si_signo == STOP_SIGNAL:
                self.heed_stop()
            if self.unwritten:
                self.publish_start()

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
            for pid in set(self.below()) - told:
                told.add(pid)
                processes.send(pid, signo)
                processes.send(pid, signal.SIGCONT)  # a suspended process sleeps through any other signal

    def kill(self) -> float:
        """SIGKILL everything below us; return how long to wait before looking again.

        A relay that labels lines still has lines to write that the command wrote before it was killed.
        """
        drains = self.main if self.labelled and time.monotonic() < (self.deadline or 0) + _DRAIN_S else 0
        processes.kill_all(lambda: [pid for pid in self.below() if pid != drains])
        if drains:
            processes.send(drains, signal.SIGCONT)  # it was suspended with its group
        pause_s = self.kill_pause_s
        self.kill_pause_s = min(
            2 * pause_s, _KILL_PAUSE_S[1]
        )  # they may be in the kernel, or not ours to kill
        return pause_s

    def publish_start(self) -> None:
        """Put the start record in place; with no room for it the job goes on and we try again."""
        try:
            self.publish(b".start", self.unwritten)
        except OSError as error:
            if not is_disk_trouble(error):
                raise
            return
        self.unwritten = b""

    def record_exit(
        self, exit_code: int, signo: int = 0, *, launch_errno: int = 0, message: str = ""
    ) -> None:
        """Put the exit record in place, however long a full disk takes to have room for it."""
        record = _lines(
            exit_code=exit_code,
            signal=signo,
            launch_errno=launch_errno,
            stopped=int(self.stopped),
            ended_at=time.time_ns(),
            max_rss_kib=self.max_rss_kib,
            user_us=int(self.user_s * 1_000_000),
            system_us=int(self.system_s * 1_000_000),
            message=message,
        )
        while True:
            try:
                return self.publish(b".exit", record)
            except OSError as error:
                if not is_disk_trouble(error):
                    raise
            time.sleep(_RETRY_S)

    def publish(self, suffix: bytes, record: bytes) -> None:
        """Rename a record into place, whole; what stands in its way is moved aside."""
        place = self.record_path + suffix
        folder, name = os.path.split(place)
        staged = folder + b"/." + name
        for left in reversed(range(_TRIES)):
            try:
                with open(_private(staged), "wb") as file:
                    file.write(record)
                os.rename(staged, place)
                return
            except FileNotFoundError:
                if not spawning.make_folder(folder, self.home):
                    return  # the state directory is gone, and with it whoever wanted to know
                if not left:
                    raise
            except OSError as error:
                _move_aside(staged)
                if not left or error.errno not in _IN_THE_WAY:
                    raise
                if os.path.isdir(place):
                    _move_aside(place)


def is_disk_trouble(error: BaseException) -> bool:
    """Whether a file could not be written for want of room: that passes."""
    return isinstance(error, OSError) and error.errno in _DISK_TROUBLE


def serves_all(pid: int, home: bytes) -> bool:
    """Say whether this is a scheduler or supervisor of the same state directory, whoever started it."""
    words = processes.command(pid)
    if processes.name(pid) == NAME and words[-1:] == [home]:
        return True
    return words[-3:-1] == BACKGROUND_WORDS and os.path.realpath(words[-1]) == os.path.realpath(home)


def _lines(**fields: int | str) -> bytes:
    text = "".join(f"{name}={str(value).replace(chr(10), ' ')}\n" for name, value in fields.items())
    return text.encode(errors="surrogateescape")


def _move_aside(path: bytes) -> None:
    """Remove a file, or give a directory another name."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        os.rename(path, os.path.dirname(path) + b"/.aside-" + os.urandom(6).hex().encode())


def _private(path: bytes) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
