"""Hands a command over to the command server, which has everything imported already, while a scheduler runs.

The server (``command_server``) listens in the state directory. It gets the words, the environment, the
directory and the three standard files, and answers with the exit code, so output and exit codes are the same
either way. If no server listens, this process carries the command out itself. This module imports almost
nothing, to be fast.
"""

import os
import sys

from vctl import SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

NOT_HERE = -1
"""The answer of a server that has not begun a command: it takes long, or is about another state directory."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_START_S = 1.0
"""Seconds within which a server must take a command; after that, this process carries it out itself."""
_LONGEST = 4096


def hand_over(words: list[str]) -> int | None:
    """The exit code of a command that a server has carried out; None if this process must carry it out."""
    if os.environ.get("VCTL_DEBUG") == "1":
        return None
    if (path := _path()) is None or not os.path.exists(path):
        return None
    import _socket  # the public module builds enums at import, which is slow

    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        return _answered(line, server) if (server := _sent(line, path, words)) else None
    finally:
        line.close()


def _sent(line: "_socket.socket", path: str, words: list[str]) -> int | None:
    """Send a command. The pid of the process that has it; None if no server of this installation takes it."""
    import _socket

    try:
        line.settimeout(_START_S)
        line.connect(path)
        peer = line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[4:8], sys.byteorder) != os.geteuid():
            return None  # it would get our environment and our files
        pid, _, installation = line.recv(_LONGEST).partition(b" ")
        if installation != stamp():
            return None
        # Only now, because the message has our standard files in it, which a stuck server would keep open.
        files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        line.sendmsg([encode(words)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
        line.settimeout(None)
    except OSError:  # no server answers, or the command is too long for one message
        return None
    return int(pid)


def carry_out(words: list[str], served: os.stat_result | None = None) -> int:
    """Carry a command out in this process. ``served``: the state directory of the server that it belongs to."""
    if words[:1] == ["__complete"]:
        from vctl.cli.completion import offer

        return offer(words[1:])
    from vctl.cli.app import run

    return run(words, served)


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
    was_interrupted = False
    while True:
        try:
            if code := line.recv(16):
                if int(code) != NOT_HERE:
                    return int(code)
                return INTERRUPTED if was_interrupted else None
        except KeyboardInterrupt:
            was_interrupted = True
            os.kill(pid, 2)
            continue
        except OSError:
            pass
        sys.stderr.write("Error: the command was killed before it was done\n")
        sys.stderr.write("Fix: see with `vctl status` whether it took effect, and run it again if not\n")
        return 1
