"""Reads processes from /proc, and sends signals safely.

Shared by the scheduler and, stand-alone, by the launcher. It imports only built-in modules, because every
import delays the first job of a new launcher. Knows nothing of jobs, runs or files of vctl.
"""

import os
import time

MYPY = False
if MYPY:
    import signal
    from collections.abc import Callable
else:
    # The public module builds enums at import, 4 ms of the launcher's start; the functions are the same.
    import _signal as signal

TAG = 10
"""RLIMIT_LOCKS: a limit that no kernel since 2.4.25 enforces, and that every process inherits."""
_TAG_NAME = b"Max file locks"
RUN_MARK, HOME_MARK = "VCTL_RUN_ID", "VCTL_HOME"
"""Every process of a run has these variables; they identify what a killed supervisor left."""
_READ = os.O_RDONLY | os.O_CLOEXEC
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""The unit of start times in /proc, in ns."""
# Position in /proc/<pid>/stat after the command name, which may itself hold blanks and brackets.
_STATE, _PARENT, _GROUP, _SESSION, _START = 0, 1, 2, 3, 19


class Process:
    """One process as /proc/<pid>/stat showed it; `started` is in clock ticks since boot."""

    __slots__ = ("group", "parent", "pid", "session", "started", "state")

    def __init__(self, pid: int, stat: bytes) -> None:
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[_STATE].decode()
        self.parent, self.group, self.session = (int(fields[i]) for i in (_PARENT, _GROUP, _SESSION))
        self.started = int(fields[_START])


def boot_id() -> str:
    """Name this boot of the machine; a pid means nothing under another one."""
    return read("/proc/sys/kernel/random/boot_id").decode().strip()


def process(pid: int) -> Process | None:
    """One process, possibly a zombie; None if there is none."""
    try:
        return Process(pid, read(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def ticks_now() -> int:
    """The present time in the unit of start times in /proc: clock ticks since boot.

    A process that starts between two calls with equal results has this start time.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // TICK_NS


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process."""
    try:
        stat = read(b"/proc/%d/stat" % pid, 1024)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[_START])


def alive(pid: int, started: int, boot: str) -> bool:
    """Whether exactly this process still runs: same pid, same start, same boot, and not a zombie."""
    seen = process(pid)
    return seen is not None and seen.started == started and seen.state not in "ZX" and boot == boot_id()


def all_processes() -> list[Process]:
    """All processes that /proc shows now, without zombies."""
    seen = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [proc for proc in seen if proc is not None and proc.state not in "ZX"]


def name(pid: int) -> bytes:
    """The name of a process in ps, at most 15 bytes; empty if there is no such process."""
    try:
        return read(f"/proc/{pid}/comm").rstrip(b"\n")
    except (FileNotFoundError, ProcessLookupError):
        return b""


def uids(pid: int) -> tuple[int, ...]:
    """The real, effective, saved and file system's user of a process; empty if there is no such process."""
    try:
        text = read(b"/proc/%d/status" % pid)
    except (FileNotFoundError, ProcessLookupError):
        return ()
    words = text[text.index(b"\nUid:") + 5 :].split(None, 4)[:4]
    return tuple(map(int, words))


def command(pid: int) -> list[bytes]:
    """The arguments of a process; empty if there is no such process, or if it is a zombie."""
    try:
        return read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def environment(pid: int) -> dict[str, str]:
    """The variables that a process began with; none of a process that is gone. Raises PermissionError."""
    try:
        text = read(f"/proc/{pid}/environ")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    pairs = (os.fsdecode(pair).partition("=") for pair in text.split(b"\0") if b"=" in pair)
    return {name: value for name, _, value in pairs}


def tag(pid: int) -> int:
    """The soft limit TAG of a process, which may be a zombie; 0 if it has no such limit, or is gone."""
    try:
        text = read(b"/proc/%d/limits" % pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith(_TAG_NAME):
            soft = line[len(_TAG_NAME) :].split()[0]
            return int(soft) if soft.isdigit() else 0
    return 0


def children(pid: int) -> list[int]:
    """Pids of the children of a process; with zombies if the kernel has the file ``children``."""
    if os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return _children(pid)
    return _children_by_parent()(pid)


def descendants(root: int, spare: "Callable[[int], bool] | None" = None) -> list[int]:
    """Pids of the descendants of a process, parents before their children, without spared ones and theirs.

    Processes that fork or end during the call may be missing: call it again.
    """
    children: Callable[[int], list[int]] = _children
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):
        children = _children_by_parent()
    pids: list[int] = []
    front = [root]
    while front:
        below = [pid for pid in children(front.pop()) if spare is None or not spare(pid)]
        pids += below
        front += below
    return pids


def trees(roots: list[int], spare: "Callable[[int], bool]") -> list[int]:
    """These processes and their descendants, without spared descendants and what is below these."""
    return [pid for root in roots for pid in (root, *descendants(root, spare))]


def _children(pid: int) -> list[int]:
    """Children of all threads of a process: the kernel lists a child under the thread that forked it."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        return pids  # the process, or one of its threads, ended meanwhile
    return pids


def _children_by_parent() -> "Callable[[int], list[int]]":
    """Like ``_children``, for kernels without the file ``children``: reads the parents of all processes."""
    below: dict[int, list[int]] = {}
    for proc in all_processes():
        below.setdefault(proc.parent, []).append(proc.pid)
    return lambda pid: below.get(pid, [])


def send(pid: int, signo: int) -> None:
    """Send a signal to a process that was just looked up: the kernel does not reuse its pid that soon."""
    try:
        os.kill(pid, signo)
    except (ProcessLookupError, PermissionError):
        return  # it ended meanwhile, or is a set-uid program, which the caller waits for


def kill_all(find: "Callable[[], list[int]]") -> None:
    """SIGKILL every process that ``find`` finds.

    First sends SIGSTOP to all of them, until ``find`` finds no new one: a tree that is killed one process at
    a time can replace each of them, as a fork bomb does. The kernel stops a process group atomically, also
    against a fork in it.
    """
    frozen: set[int] = set()
    while fresh := set(find()) - frozen:
        seen = [proc for proc in map(process, fresh) if proc is not None]
        for group in {proc.group for proc in seen}:
            send(-group, signal.SIGSTOP)
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        frozen |= fresh
    for pid in frozen:
        send(pid, signal.SIGKILL)


def send_signal(pid: int, started: int, signo: int) -> bool:
    """Send a signal to exactly this process, never to a later one with its pid; False if it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The open handle pins the pid, so the start time is that of the process that gets the signal.
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(handle, signo)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def marked(mark: bytes, *more: bytes) -> "dict[bytes, list[Process]]":
    """Processes with the variable ``mark`` and all of ``more`` (``name=value``), by the value of ``mark``."""
    processes: dict[bytes, list[Process]] = {}
    for proc in all_processes():
        try:
            variables = read(f"/proc/{proc.pid}/environ").split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or of another user: then it is none of our runs
        if all(part in variables for part in more):
            for variable in variables:
                if variable.startswith(mark + b"="):
                    processes.setdefault(variable[len(mark) + 1 :], []).append(proc)
    return processes


def tagged(number: int, spare: "Callable[[int], bool]") -> list[Process]:
    """The processes with this tag, without spared ones and their descendants."""
    tagged_processes = [proc for proc in all_processes() if tag(proc.pid) == number]
    spared = {proc.pid for proc in tagged_processes if spare(proc.pid)}
    spared |= {pid for root in spared for pid in descendants(root)}
    return [proc for proc in tagged_processes if proc.pid not in spared]


def has_open(pid: int, path: str) -> bool:
    """Whether a process has a file open, even a removed one. False if this process may not see its files."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in numbers:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue  # closed meanwhile
        if target in (path, f"{path} (deleted)"):
            return True
    return False


def read(path: str | bytes, chunk_bytes: int = 65536) -> bytes:
    """A whole file. Raises OSError."""
    # os.read instead of open: this runs once per process, and one or two system calls read a file of /proc.
    fd = os.open(path, _READ)
    try:
        text = b""
        while part := os.read(fd, chunk_bytes):
            text += part
        return text
    finally:
        os.close(fd)
