"""The fork server: a small process that finds a supervisor for each run it is asked to launch.

Run as a script, `python -I -S launcher.py`, with the channel to the scheduler as its standard input. Requests
come length-prefixed, one after the other, and are not answered: the files a supervisor writes are the answer.
Each goes to a supervisor that has nothing to do, else to one that is forked for it: a fork of Python costs more
than all that a supervisor does for a short job, so those that are as good as new afterwards are used again.

When the channel ends the launcher ends; supervisors end with their runs. A request is kept until a supervisor has
taken it up: one that dies or stays silent with it loses it to another, and the claim of a run (see supervisor.py)
decides if both act. Killing the launcher loses nothing but such requests, and those are sent again to the next one.
"""

import _ctypes
import _socket  # the public module builds enums at import
import gc
import marshal
import os
import select
import sys
import time

MYPY = False
if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py

if MYPY or __package__:
    from vctl.runtime import processes, supervisor
else:
    # Behind the standard library, whose names must win over those of this directory.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import processes
    import supervisor

CHANNEL = 0
LINE = 3  # in a supervisor: to its launcher
NO_LINE = -1
PREFIX_BYTES = 4
TAKEN, IDLE = b"t", b"i"  # what supervisors say on their lines
_CHUNK_BYTES = 1 << 18
# A line takes that much without waiting for its reader; longer requests are inherited.
_LONGEST_PASSED_ON = 1 << 15
_REST_S = 1.0  # supervisors that nobody needed for so long may go
MOST_RUNS = 1000  # of one supervisor: without garbage collection nobody is young for ever
_ANSWER_S = 2.0  # a supervisor that has not taken a request up by then is suspended, or as good as dead
_PAUSE_S, _MOST_PAUSES = 1.0, 30  # before a request is tried again that fresh supervisors could not take up
# What ctypes is made of, without its 3 ms of import.
_PRCTL = _ctypes.dlsym(_ctypes.dlopen("", os.RTLD_NOW), "prctl")
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
# Handled by waiting (supervisor) or not at all: a stray kill or a closed terminal must not end supervision.
_BLOCKED = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    """Serve launch requests until the scheduler closes the channel or dies."""
    close_inherited()
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps our supervisors
    _prctl(_PR_SET_NAME, b"vctl-launcher")
    gc.disable()  # a collection in a supervisor would copy every page it touches
    gc.freeze()
    Launcher().serve()


class Line:
    """The line to one supervisor, and the request that it may not have taken up yet."""

    __slots__ = ("fd", "pid", "request", "since", "tries")

    def __init__(self, fd: int, pid: int) -> None:
        self.fd, self.pid = fd, pid
        self.request: bytes | None = None
        self.since, self.tries = 0.0, 0

    def carry(self, request: bytes, tries: int) -> None:
        """From now on the supervisor has a request to take up."""
        self.request, self.tries, self.since = request, tries, time.monotonic()


class Launcher:
    """The supervisors that were forked, by their lines, and which of them have nothing to do."""

    def __init__(self) -> None:
        self.boot_id = processes.boot_id()
        self.poll = select.poll()
        self.poll.register(CHANNEL, select.POLLIN)
        self.lines: dict[int, Line] = {}
        self.idle: list[int] = []  # the one that was busy last at the end: its pages are warm
        self.waiting: dict[int, None] = {}  # lines with a request to be taken up, the longest wait first
        self.again: list[tuple[float, bytes, int]] = []  # when to try again, request, how often it was tried
        self.most_idle = max(4, 2 * len(os.sched_getaffinity(0)))  # for good; more only while they are needed
        self.least_idle = 0  # since the last look at how many are needed
        self.next_look: float | None = None

    def serve(self) -> None:
        """Pass requests on until the channel ends."""
        received = bytearray()
        while True:
            ready = [fd for fd, _ in self.poll.poll(self.timeout_ms())]
            for line in ready:
                if line != CHANNEL:
                    self.listen(line)
            self.try_again()
            if CHANNEL in ready:
                if not (chunk := os.read(CHANNEL, _CHUNK_BYTES)):
                    return
                received += chunk
                for request in _whole(received):
                    self.launch(request)

    def timeout_ms(self) -> float | None:
        """How long there is nothing to do unless somebody speaks; None: for ever."""
        due = [at for at, _, _ in self.again]
        if self.waiting:
            due.append(self.lines[next(iter(self.waiting))].since + _ANSWER_S)
        left = [max(0.0, at - time.monotonic()) * 1000 for at in due]
        if (rest := self.trim()) is not None:
            left.append(rest)
        return min(left, default=None)

    def listen(self, fd: int) -> None:
        """Hear what a supervisor says; the request of one that died before it took it up goes to another."""
        if said := hear(fd, 64):
            self.lines[fd].request = None
            self.waiting.pop(fd, None)
            if said.endswith(IDLE):
                self.idle.append(fd)
            return
        line = self.hang_up(fd)
        if line.request is not None:
            pause_s = _PAUSE_S * min(line.tries, _MOST_PAUSES)
            self.again.append((time.monotonic() + pause_s, line.request, line.tries + 1))

    def try_again(self) -> None:
        """Hand on requests that were not taken up: those of the dead when it is time, those of the silent."""
        if not self.again and not self.waiting:
            return
        now = time.monotonic()
        due = [one for one in self.again if one[0] <= now]
        self.again = [one for one in self.again if one[0] > now]
        for fd in [fd for fd in self.waiting if self.lines[fd].since + _ANSWER_S <= now]:
            line = self.lines[fd]
            if line.request is not None and not line.tries:  # a fresh one that is slow stays the only one
                due.append((now, line.request, 1))
                line.request = None
            self.waiting.pop(fd)
        for _, request, tries in due:
            self.fork(request, tries)

    def trim(self) -> float | None:
        """End idle supervisors that were not needed lately; after how many ms to look again, None: not yet."""
        if len(self.idle) <= self.most_idle:
            self.next_look = None
            return None
        now = time.monotonic()
        if self.next_look is None or now >= self.next_look:
            if self.next_look is not None:
                for line in self.idle[: max(0, self.least_idle - self.most_idle)]:  # those idle for longest
                    self.hang_up(line)
            self.next_look, self.least_idle = now + _REST_S, len(self.idle)
        return (self.next_look - now) * 1000

    def hang_up(self, fd: int) -> Line:
        """Close the line to a supervisor, which ends it when it is idle."""
        self.poll.unregister(fd)
        os.close(fd)
        if fd in self.idle:
            self.idle.remove(fd)
        self.waiting.pop(fd, None)
        return self.lines.pop(fd)

    def launch(self, request: bytes) -> None:
        """Hand a request to an idle supervisor, or fork one for it."""
        if not self.idle or len(request) > _LONGEST_PASSED_ON:
            self.fork(request)
            return
        line = self.lines[self.idle.pop()]
        self.least_idle = min(self.least_idle, len(self.idle))
        line.carry(request, 0)
        self.waiting[line.fd] = None
        try:
            os.write(line.fd, len(request).to_bytes(PREFIX_BYTES, "little") + request)
            os.kill(line.pid, signal.SIGCONT)  # somebody may have suspended it
        except (BrokenPipeError, ProcessLookupError, PermissionError):
            return  # it was killed: listening to it tells

    def fork(self, request: bytes, tries: int = 1) -> None:
        """Fork a supervisor for a request. When the kernel refuses, the run's exit record says so."""
        try:
            ours, theirs = (end.detach() for end in _socket.socketpair())
        except OSError:
            ours = theirs = NO_LINE  # as many files are open as we may have: this one is used once
        try:
            child = os.fork()
        except OSError as error:
            if ours != NO_LINE:
                os.close(ours)
                os.close(theirs)
            self.refuse(request, tries, error)
            return
        if child:
            if ours != NO_LINE:
                os.close(theirs)
                self.poll.register(ours, select.POLLIN)
                line = self.lines[ours] = Line(ours, child)
                line.carry(request, tries)
                self.waiting[ours] = None
            return
        status = 70
        try:
            if theirs not in (LINE, NO_LINE):
                os.dup2(theirs, LINE, inheritable=False)
            supervise(request, self.boot_id, has_line=theirs != NO_LINE)
            status = 0
        except BaseException as error:  # noqa: BLE001 - nothing may leave the child but by _exit
            if not supervisor.is_disk_trouble(error):  # the request is tried again while that lasts
                sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)

    def refuse(self, request: bytes, tries: int, cause: OSError) -> None:
        """The kernel refuses another process: the run's exit record says so, as soon as there is room for it."""
        refused = supervisor.Supervisor(marshal.loads(request), self.boot_id)
        try:
            claimed = refused.claim()
        except OSError:
            self.again.append((time.monotonic() + _PAUSE_S, request, tries + 1))
            return
        if claimed:
            refused.record_exit(126, launch_errno=cause.errno or 0, message=f"cannot fork: {cause.strerror}")


def close_inherited() -> None:
    """Keep nothing but the three standard files: a lock held here would outlive the scheduler."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed the directory


def _whole(received: bytearray) -> list[bytes]:
    """Cut the requests that have arrived whole off what was received."""
    found = []
    while len(received) >= PREFIX_BYTES:
        end = PREFIX_BYTES + int.from_bytes(received[:PREFIX_BYTES], "little")
        if len(received) < end:
            break
        found.append(bytes(received[PREFIX_BYTES:end]))
        del received[:end]
    return found


def supervise(request: bytes, boot_id: str, *, has_line: bool) -> None:
    """The life of a supervisor: its first run, and more while it is as good as new and the launcher lives."""
    os.setsid()
    _prctl(_PR_SET_NAME, supervisor.NAME)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(LINE + 1, 1 << 20)
    # The job's standard input, inherited as it is; it also takes the channel away from us.
    null = os.open(
        "/dev/null", os.O_RDWR | os.O_CLOEXEC
    )  # not LINE: that is taken, by our line or another one
    os.dup2(null, CHANNEL)
    if not has_line:
        os.dup2(null, LINE, inheritable=False)  # as if to a launcher that has nothing more for us
    os.close(null)
    cpus = os.sched_getaffinity(0)
    for left in reversed(range(MOST_RUNS)):
        run = supervisor.Supervisor(marshal.loads(request), boot_id)
        claimed = run.claim()
        tell(TAKEN)
        if claimed:
            run.run()
            if not run.leaves_nothing():
                return
            os.sched_setaffinity(0, cpus)
        # The last time it says nothing: who says that it is idle is given a request.
        if not left or not tell(IDLE) or not (request := next_request()):
            return


def tell(word: bytes) -> bool:
    """Say a word to the launcher; False when it is gone."""
    try:
        os.write(LINE, word)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def next_request() -> bytes:
    """Wait for the next request; empty when the launcher is gone or needs us no more."""
    received = bytearray()
    while chunk := hear(LINE, _CHUNK_BYTES):
        received += chunk
        if requests := _whole(received):
            return requests[0]
    return b""


def hear(line: int, most_bytes: int) -> bytes:
    """Read from a line; empty when the other end is gone."""
    try:
        return os.read(line, most_bytes)
    except ConnectionResetError:
        return b""  # gone without having read what we wrote


def _prctl(option: int, value: int | bytes) -> None:
    if _ctypes.call_function(_PRCTL, (option, value, 0, 0, 0)) != 0:
        raise OSError(f"prctl({option}) failed")


if __name__ == "__main__":
    main()
