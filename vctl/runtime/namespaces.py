"""Gives a command a /tmp of its own, and a PID namespace in which it sees and reaches no process but its own.

Run as a script, `python -I -S namespaces.py WHAT STORE CWD JOIN -- COMMAND`, as the main process of a run:

    WHAT   tmp, pids or tmp,pids; a word with a ? at its end only if the kernel lets it
    STORE  the name of directories in /tmp and /var/tmp: the files of the job's own ones are in them
    CWD    the directory in which the command starts, as the command sees it
    JOIN   0, or the main process of a run whose namespaces the command joins

Root gets the namespaces as they are. For others they are inside a user namespace in which only the own user
and group exist: files of other users seem to belong to nobody, and sudo does not work.

In a /tmp of its own, the command still sees what its own command line, directory and program need of the
real one, and the state directory. All runs of a job on a machine have the same STORE, so they share the files.

The process that the supervisor has started stays outside, as the parent of the command: it passes on signals, but
for those of the supervisor, which it sends to all processes of the run, and ends as soon as the command has, in the
same way. With pids there is a third one, the init of the namespace, which collects orphans; the command is no child
of it, as programs that are children of process 1 take themselves for orphans (Ray's do). If processes are left, so
is the init, and the supervisor ends them.
"""

import ctypes
import os
import select
import sys

MYPY = False
if MYPY or __package__:
    from vctl.runtime import own_tmp, processes
    from vctl.runtime.becoming import end_as, execute, fail
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import own_tmp
    import processes
    from becoming import end_as, execute, fail

if MYPY:
    import signal
else:
    import _signal as signal  # see processes.py

TMP, PIDS = WORDS = ("tmp", "pids")
"""What a job can have for itself."""
IN_FORCE = "VCTL_PRIVATE"
"""The variable that says to the command what it has for itself."""
SCRIPT = os.path.abspath(__file__)
WORDS_BEFORE = 9
"""How many words stand before a command that this script starts."""
_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
_CHUNK_BYTES, _INIT_S, _MNT_DETACH = 4096, 0.02, 2
_INFO_BYTES, _SENDER = 128, 12  # of a signalfd_siginfo: its size, and where the pid of the sender is
_libc = ctypes.CDLL(None, use_errno=True)


class NotPossible(Exception):
    """The kernel, or what is in /tmp, does not let us."""


def main(words: list[str]) -> None:
    """Carry out; never returns. Without words: says why there can be no tmp, and no pids."""
    if not words:
        os.write(1, "\n".join(why_not([word]) for word in WORDS).encode())
        os._exit(0)
    what, store, cwd, join, _, *command = words
    wanted = what.split(",")
    try:
        if joins := join != "0":
            wanted = enter(int(join))
        elif "?" in what:
            wanted = possible(wanted)
        tmp = held(store) if TMP in wanted and not joins else None
        if wanted and not joins:
            unshare(pids=PIDS in wanted)
        if tmp is not None:
            cover(tmp, cwd, command)
        os.environ[IN_FORCE] = ",".join(wanted)
        if wanted:
            run(cwd, command, tmp, has_init=joins or PIDS not in wanted)
    except NotPossible as error:
        fail(f"the job cannot have {what.replace('?', '')} for itself: {error}; see `vctl doctor`", 126)
    become(cwd, command)


def become(cwd: str, command: list[str]) -> None:
    """Become the command, in its directory."""
    try:
        os.chdir(cwd)
    except OSError as error:
        fail(f"cannot enter directory {cwd}: {error.strerror}", 126)
    execute(command)


# ---- namespaces ----


def _call(function: str, *arguments: object) -> None:
    """Call a function of libc. Raises OSError."""
    if getattr(_libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    """Mount. Raises NotPossible."""
    try:
        _call("mount", source.encode(errors="surrogateescape"), target.encode(errors="surrogateescape"),
              kind.encode() if kind else None, ctypes.c_ulong(flags), None)  # fmt: skip
    except OSError as error:
        raise NotPossible(f"mount {target}: {error.strerror}") from None


def unshare(*, pids: bool) -> None:
    """Leave the namespace of mounts, and let children have a PID namespace; as root, or in a user namespace."""
    flags = _NEWNS | (_NEWPID if pids else 0)
    uid, gid = os.geteuid(), os.getegid()
    try:
        try:
            _call("unshare", flags)
        except PermissionError:
            _call("unshare", flags | _NEWUSER)
            for name, text in (
                ("uid_map", f"{uid} {uid} 1"),
                ("setgroups", "deny"),
                ("gid_map", f"{gid} {gid} 1"),
            ):
                with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                    file.write(text)
    except OSError as error:
        raise NotPossible(f"unshare: {error.strerror}") from None
    mount(
        "none", "/", None, _MS_REC | _MS_SLAVE
    )  # what is mounted outside later is seen here, not vice versa


def enter(main_pid: int) -> list[str]:
    """Join the namespaces of a run, of which this is the main process; what its command has for itself."""
    inner = command_of(main_pid)
    try:
        handle = os.pidfd_open(inner)
        flags = 0
        for name, flag in (("user", _NEWUSER), ("mnt", _NEWNS), ("pid", _NEWPID)):
            if os.stat(f"/proc/{inner}/ns/{name}").st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:
                flags |= flag
        has = processes.environment(inner).get(IN_FORCE, "").split(",")
        if flags:
            _call("setns", handle, flags)
        os.close(handle)
    except OSError as error:
        raise NotPossible(f"join the namespaces of process {main_pid}: {error.strerror}") from None
    return [word for word in has if word]


def possible(wanted: list[str]) -> list[str]:
    """What is wanted, without words with a ? that the kernel does not let us have."""
    plain = [word for word in WORDS if word in wanted or f"{word}?" in wanted]
    less = [word for word in plain if word == TMP or word in wanted]
    least = [word for word in plain if word in wanted]
    return next((some for some in (plain, less) if some == least or not why_not(some)), least)


def why_not(wanted: list[str]) -> str:
    """Why a command could not have this for itself; empty if it could. Tries it in another process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            unshare(pids=PIDS in wanted)
            if PIDS in wanted:
                if inner := os.fork():
                    os._exit(os.waitpid(inner, 0)[1] and 1)
                mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
            else:
                mount("/tmp", "/tmp", None, _MS_BIND)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is why not
            os.write(writing, str(error).encode() or b"?")
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as said:
        text = said.read()
    status = os.waitpid(child, 0)[1]
    return text or ("it was killed" if status else "")


# ---- a /tmp of its own ----


def held(store: str) -> own_tmp.OwnTmp:
    """The job's own directories. Raises NotPossible."""
    try:
        tmp = own_tmp.OwnTmp(store)
        tmp.remove_unused()
    except own_tmp.NotOurs as error:
        raise NotPossible(f"{error} in /tmp or /var/tmp is of another user, or no directory") from None
    except OSError as error:
        raise NotPossible(f"make {store} in /tmp and /var/tmp: {error.strerror}") from None
    return tmp


def cover(tmp: own_tmp.OwnTmp, cwd: str, command: list[str]) -> None:
    """Mount the job's own directories over the public ones, but for what the command needs of these."""
    kept = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in needed(tmp.places, cwd, command)}
    for place in tmp.places:
        mount(tmp.folder(place), place, None, _MS_BIND)
    for path, source in kept.items():
        is_folder = os.path.isdir(f"/proc/self/fd/{source}")
        try:
            os.makedirs(path if is_folder else os.path.dirname(path), 0o700, exist_ok=True)
            if not is_folder:
                os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise NotPossible(f"make {path}: {error.strerror}") from None
        mount(f"/proc/self/fd/{source}", path, None, _MS_BIND | _MS_REC)
        os.close(source)
    if (folder := os.environ.get("TMPDIR", "")) and below(tmp.places, folder):
        os.makedirs(folder, 0o700, exist_ok=True)


def uncover(tmp: own_tmp.OwnTmp) -> None:
    """Remove the job's own directories, from where nothing is mounted in them; else what is kept would be emptied."""
    try:
        _call("unshare", _NEWNS)
        for place in tmp.places:
            _call("umount2", place.encode(), _MNT_DETACH)
    except OSError:
        return
    tmp.remove()


def needed(places: list[str], cwd: str, command: list[str]) -> list[str]:
    """The paths in the public directories that the command needs, none below another one."""
    package = os.path.dirname(os.path.dirname(SCRIPT))
    paths = [cwd, package, os.path.dirname(os.path.dirname(sys.executable)), os.environ.get("VCTL_HOME", "")]
    for program in (command[0], found(command[0])):
        folder = os.path.dirname(os.path.join(cwd, program)) if "/" in program else ""
        paths.append(os.path.dirname(folder) if os.path.basename(folder) == "bin" else folder)
    paths += [word for word in command[1:] if word.startswith("/")]
    kept: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if path}, key=len):
        if below(places, path) and os.path.exists(path) and not below(kept, path) and path not in kept:
            kept.append(path)
    return kept


def found(name: str) -> str:
    """The path of a command on PATH; its name if there is none."""
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        if folder and "/" not in name and os.access(f"{folder}/{name}", os.X_OK):
            return f"{folder}/{name}"
    return name


def below(folders: list[str], path: str) -> bool:
    """Whether a path is inside one of these directories."""
    return any(path.startswith(f"{folder}/") for folder in folders)


# ---- a PID namespace of its own ----


def run(cwd: str, command: list[str], tmp: "own_tmp.OwnTmp | None", *, has_init: bool) -> None:
    """Run the command, in the PID namespace of the children of this process if they have one, and end as it ends.

    ``has_init``: that namespace is another run's, or there is none.
    """
    asker = asker_of(os.getpid())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    signals = _descriptor_of_all()
    init, life = (-1, -1) if has_init else start_init(tmp)
    child = os.fork()
    if child == 0:
        os.setsid()  # as any command of a run is
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        become(cwd, command)
    status = follow(child, asker, signals)
    if not has_init:
        os.close(life)
        select.select(
            [init], [], [], _INIT_S
        )  # it ends soon where nothing is left, and is an orphan of the run else
    elif tmp is not None:
        uncover(tmp)
    end_as(status)


def start_init(tmp: "own_tmp.OwnTmp | None") -> tuple[int, int]:
    """Start the init: a handle of its process, and what to close when the command has ended. Raises NotPossible."""
    reading, saying = os.pipe()
    life, ours = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(ours)
        be_init(tmp, life, saying)
    os.close(life)
    os.close(saying)
    if (said := os.read(reading, _CHUNK_BYTES)) != b"\n":
        os.waitpid(init, 0)
        raise NotPossible(said.decode(errors="replace") or "the init of the namespace was killed")
    return os.pidfd_open(init), ours


def be_init(tmp: "own_tmp.OwnTmp | None", life: int, saying: int) -> None:
    """Collect orphans until the command has ended (then ``life`` ends) and no process is left; remove its files.

    All signals stay blocked.
    """
    try:
        mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except NotPossible as error:
        os.write(saying, str(error).encode())
        os._exit(1)
    os.chdir("/")
    for number in (0, 1, 2):  # what reads the output of the command sees its end while others are left
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    os.write(saying, b"\n")
    signals = _descriptor_of_all()
    poll = select.poll()
    for descriptor in (life, signals):
        poll.register(descriptor, select.POLLIN)
    is_over = False
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == life:
                poll.unregister(life)
                is_over = True
            else:
                os.read(signals, _INFO_BYTES)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if is_over:
                if tmp is not None:
                    uncover(tmp)
                os._exit(0)


def follow(child: int, asker: int, signals: int) -> int:
    """Pass on signals until the command has ended; its wait status."""
    ended = os.pidfd_open(child)
    poll = select.poll()
    for descriptor in (ended, signals):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if ended in ready:
            return os.waitpid(child, 0)[1]
        info = os.read(signals, _INFO_BYTES)
        number = int.from_bytes(info[:4], sys.byteorder)
        if number != signal.SIGCHLD and int.from_bytes(info[_SENDER : _SENDER + 4], sys.byteorder) != asker:
            processes.send(child, number)


def asker_of(pid: int) -> int:
    """Who sends signals to all processes of the run: the supervisor, the parent of the leader of the session."""
    own = processes.process(pid)
    leader = None if own is None else processes.process(own.session)
    return 0 if leader is None else leader.parent


def behind(argv: "tuple[str, ...]") -> "tuple[str, ...]":
    """The command of a run, without this script before it."""
    return argv[WORDS_BEFORE:] if argv[3:4] == (SCRIPT,) else argv


def command_of(main_pid: int) -> int:
    """The process of the command, where the main process of a run stands before it."""
    if processes.command(main_pid)[3:4] != [os.fsencode(SCRIPT)]:
        return main_pid
    return (processes.children(main_pid) or [main_pid])[-1]  # the first one is the init


def _descriptor_of_all() -> int:
    """A signalfd of all signals."""
    descriptor: int = _libc.signalfd(-1, b"\xff" * 128, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise NotPossible(f"signalfd: {os.strerror(ctypes.get_errno())}")
    return descriptor


if __name__ == "__main__":
    main(sys.argv[1:])
