"""Hands a command over to the command server, which has everything imported already, while a scheduler runs.

The server (``command_server``) listens in the state directory. It gets the words, the environment, the
directory and the three standard files, and answers with the exit code, so output and exit codes are the same
either way. If no server listens, this process carries the command out itself. This module imports almost
nothing, to be fast.

The one of a shared service listens beside the socket of the service, and runs as another user. It gets words and a few
variables, and sends back what is to be written (``user_fork``).
"""

import os
import sys

from vctl import SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

NOT_HERE = -1
"""The answer of a server that has not begun a command: it takes long, or is about another state directory."""
WAITS = -2
"""What a server says first of a command that waits: signals are passed on to it from now on."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_START_S = 1.0
"""Seconds within which a server must take a command; after that, this process carries it out itself."""
_LONGEST = 4096
_UNREAD = 141
"""Exit code where nobody reads the output any more."""
SERVICE = "/run/vctl/vctl.sock"
WORDS = "words.sock"
"""The socket for words, beside that of the service."""
TO_STDOUT, TO_STDERR, EXIT_CODE = b"1", b"2", b"="
"""The first bytes of the messages of a service."""
PART = 1 << 15
"""The most bytes of output in one message."""
TO_SERVICE = (
    b"VCTL_OUTPUT", b"VCTL_COLOR", b"NO_COLOR", b"TERM", b"COLUMNS", b"LINES", b"TZ", b"VCTL_CLUSTER", b"VCTL_JOB_ID",
    b"VCTL_SUBMISSION_ID", b"VCTL_TASK_ID", b"VCTL_CLUSTER_ID", b"VCTL_CLUSTER_PATH", b"VIRTUAL_CLUSTER_ID",
    b"VCTL_VNODE_ID", b"VCTL_NODE_ID", b"VCTL_JOB_SCOPE", b"VCTL_NOTIFY", b"VCTL_KILL_GRACE",
)  # fmt: skip
"""The variables that a service gets: how output looks, where in a job a command runs, and settings of its own."""
_FORMAT, _READ_ONCE = 0o170000, (0o010000, 0o140000, 0o100000)
"""The bits of a file's mode that say its kind; pipes, sockets and ordinary files. The module stat has them, too."""
_SUBMITS = ("run", "job", "task")
"""The first words of commands that submit something, for which the service gets the whole environment, as data."""


def hand_over(words: list[str]) -> int | None:
    """The exit code of a command that a server has carried out; None if this process must carry it out."""
    if os.environ.get("VCTL_DEBUG") == "1":
        return None
    is_service = (path := _service()) is not None
    if is_service and not _is_for_the_service(words):
        return None
    if not is_service:
        if os.environ.get("VCTL_PRIVATE"):
            return None  # a server sees another /tmp, and other processes
        path = _path()
    if path is None or not os.path.exists(path):
        return None
    import _socket  # the public module builds enums at import, which is slow

    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        if not (server := _sent(line, path, words, is_service=is_service)):
            return None
        return _written(line) if is_service else _answered(line, server)
    finally:
        line.close()


def _sent(line: "_socket.socket", path: str, words: list[str], *, is_service: bool) -> int | None:
    """Send a command. The pid of the process that has it; None if no server of this installation takes it."""
    import _socket

    try:
        line.settimeout(_START_S)
        line.connect(path)
        if not is_service:
            peer = line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
            if int.from_bytes(peer[4:8], sys.byteorder) != os.geteuid():
                return None  # it would get our environment and our files
        pid, _, installation = line.recv(_LONGEST).partition(b" ")
        if installation != stamp():
            return None
        if is_service:
            line.sendmsg([encode_for_service(words)])
            line.settimeout(None)
            return int(pid)
        # Only now, because the message has our standard files in it, which a stuck server would keep open.
        files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        line.sendmsg([encode(words)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
        line.settimeout(None)
    except OSError:  # no server answers, or the command is too long for one message
        return None
    return int(pid)


def stamp() -> bytes:
    """The identity of this installation: the server must be of the same one."""
    from vctl import __version__

    return f"{__version__} {sys.version_info[:3]} {os.path.dirname(__file__)}".encode(
        errors="surrogateescape"
    )


def encode(words: list[str]) -> bytes:
    """A command as one message. Neither words nor variables can have a zero byte in them."""
    os.umask(mask := os.umask(0o077))
    given = [os.fsencode(word) for word in words]
    variables = [name + b"=" + value for name, value in os.environb.items()]
    head = [os.getcwdb(), sys.stdout.encoding.encode(), b"%d" % mask, b"%d" % len(given)]
    return b"\0".join([*head, *given, *variables])


def encode_for_service(words: list[str]) -> bytes:
    """A command as one message for a service: what its output goes to, the directory, words and variables."""
    given = [os.fsencode(word) for word in words]
    names = os.environb if words and words[0] in _SUBMITS else TO_SERVICE
    variables = [name + b"=" + os.environb[name] for name in names if name in os.environb]
    terminals = os.isatty(1), os.isatty(2)
    size = os.get_terminal_size(1 if terminals[0] else 2) if any(terminals) else (0, 0)
    return b"\0".join([b"%d %d %d %d %d" % (*terminals, *size, len(given)), os.getcwdb(), *given, *variables])


def _service() -> str | None:
    """The socket for words of the shared service that commands use here; None where they use something else."""
    if os.environ.get("VCTL_HOME"):
        return None
    path = os.environ.get("VCTL_SOCKET") or SERVICE
    if address := os.environ.get("VCTL_ADDRESS"):
        if not address.startswith("unix:/"):
            return None
        path = "/" + address.removeprefix("unix:").lstrip("/")
    words = os.path.join(os.path.dirname(path), WORDS)
    return words if os.path.exists(words) else None


def _is_for_the_service(words: list[str]) -> bool:
    """Whether the service can carry a command out: it reads no files, so none of the user's settings either."""
    if any(word == "--home" or word.startswith("--home=") for word in words):
        return False
    if sys.stdout.encoding.lower() != "utf-8" or (words and words[0] in _SUBMITS and _has_input()):
        return False
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    return not (os.path.exists(".vctl.toml") or os.path.exists(os.path.join(base, "vctl/config.toml")))


def _has_input() -> bool:
    """Whether standard input has data, of which a submit warns that no job reads it."""
    if os.fstat(0).st_mode & _FORMAT not in _READ_ONCE:
        return False
    import select

    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(events & select.POLLIN for _, events in poll.poll(0))


def _written(line: "_socket.socket") -> int | None:
    """Write what a service sends, in its order, until its exit code; None if it has not begun the command."""
    try:
        while message := line.recv(PART + 1):
            kind, text = message[:1], memoryview(message)[1:]
            if kind == EXIT_CODE:
                code = int(bytes(text))
                return None if code == NOT_HERE else code
            while text:
                text = text[os.write(1 if kind == TO_STDOUT else 2, text) :]
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _UNREAD
    except ConnectionResetError:
        pass
    sys.stderr.write("Error: the service ended before the command was done\n")
    sys.stderr.write("Fix: see with `vctl status` whether it took effect, and run it again if not\n")
    return 1


def _path() -> str | None:
    """The socket of the state directory on which this command most likely works; None if it has none."""
    home = os.environ.get("VCTL_HOME")
    if not home:
        base = os.environ.get("XDG_STATE_HOME", "")
        own = os.environ.get("HOME", "")
        if not os.path.isabs(base) and not os.path.isabs(own):
            return None
        home = os.path.join(base if os.path.isabs(base) else os.path.join(own, ".local/state"), "vctl")
    path = os.path.join(home, SOCKET)
    if len(os.fsencode(path)) < 108:
        return path
    try:  # through a descriptor of the directory, because the address of a socket is limited
        return f"/proc/self/fd/{os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}/{SOCKET}"
    except OSError:
        return None


def _answered(line: "_socket.socket", pid: int) -> int | None:
    was_interrupted, was_terminated = False, [False]
    while True:
        try:
            if answer := line.recv(16):
                if (code := int(answer)) == WAITS:
                    _pass_signals_on(pid, was_terminated)
                    continue
                if code != NOT_HERE:
                    return code
                return INTERRUPTED if was_interrupted else None
        except KeyboardInterrupt:
            was_interrupted = True
            _send(pid, 2)
            continue
        except OSError:
            pass
        if was_terminated[0]:  # end by the signal, as the command has that was carried out for this process
            import _signal  # type: ignore[import-not-found]  # the public module builds enums

            _signal.signal(15, _signal.SIG_DFL)
            os.kill(os.getpid(), 15)
        sys.stderr.write("Error: the command was killed before it was done\n")
        sys.stderr.write("Fix: see with `vctl status` whether it took effect, and run it again if not\n")
        return 1


def _pass_signals_on(pid: int, was_terminated: list[bool]) -> None:
    """Let a process that waits for this one have SIGTERM, and Ctrl-Z with what resumes it after that."""
    import _signal

    def terminate(signo: int, _: object) -> None:
        was_terminated[0] = True
        _send(pid, signo)

    def suspend(*_: object) -> None:
        _send(pid, _signal.SIGSTOP)
        os.kill(os.getpid(), _signal.SIGSTOP)  # until somebody resumes this process
        _send(pid, _signal.SIGCONT)

    _signal.signal(_signal.SIGTERM, terminate)
    if _signal.getsignal(_signal.SIGTSTP) == _signal.SIG_DFL:
        _signal.signal(_signal.SIGTSTP, suspend)


def _send(pid: int, signo: int) -> bool:
    """Send a signal; False if the process has ended, and its answer is on the way."""
    try:
        os.kill(pid, signo)
    except ProcessLookupError:
        return False
    return True
