"""Hands a command over to a process that has everything imported already, while a scheduler runs.

That process (``command_server``) listens below the state directory. It gets the words, the environment, the directory
and the three standard files, and answers with the exit code: so words, output and codes are the same either way. Where
nobody listens, this process carries the command out itself. Imports next to nothing: that is its point.
"""

import os
import sys

from vctl import SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

QUICK = frozenset((
    "", "status", "nodes", "cluster-resources", "available-resources", "current-cluster", "current-node", "events",
    "list", "get", "summary", "why", "demand", "ps", "logs", "__complete",
    "job list", "job status", "job logs", "job delete", "job hold", "job release", "job edit",
    "task list", "task status", "task logs", "task put", "lease list", "node list", "node drain", "node undrain",
    "vc list", "vc get", "vc tree", "vc create", "vc update", "vc stop", "vc resume",
))  # fmt: skip
"""Commands that answer at once."""
QUICK_WHEN_DETACHED = frozenset(("run", "job submit", "job rerun", "task run"))
DETACHED = frozenset(("-d", "--detach", "--no-wait", "--dry-run"))
LASTING = frozenset(("-f", "--follow", "--watch", "--wait", "--stdin", "--pty", "--home"))
"""With one of these options a command stays, or its state directory is not the one that is looked for here."""
_START_S = 1.0
"""A server that does not even begin is stuck; after this time the command is carried out without it."""
_LONGEST = 4096


def hand_over(words: list[str]) -> int | None:
    """The exit code of a command that a server has carried out; None when it is to be carried out here."""
    if not is_quick(words) or os.environ.get("VCTL_DEBUG") == "1":
        return None
    if (path := _path()) is None or not os.path.exists(path):
        return None
    import _socket  # the public module builds enums at import

    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        return _answered(line, server) if (server := _sent(line, path, words)) else None
    finally:
        line.close()


def _sent(line: "_socket.socket", path: str, words: list[str]) -> int | None:
    """Pid of the process that has got a command; None where nobody listens, answers, or is of this installation."""
    import _socket

    try:
        line.settimeout(_START_S)
        line.connect(path)
        pid, _, installation = line.recv(_LONGEST).partition(b" ")
        if installation != stamp():
            return None
        # Only now, as the message has our standard files in it, which would stay open in a server that is stuck.
        files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
        line.sendmsg([encode(words)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
        line.settimeout(None)
    except OSError:  # or this is too long for one message
        return None
    return int(pid)


def carry_out(words: list[str]) -> int:
    """Carry a command out in this process."""
    if words[:1] == ["__complete"]:
        from vctl.cli.completion import offer

        return offer(words[1:])
    from vctl.cli.app import run

    return run(words)


def is_quick(words: list[str]) -> bool:
    """Whether a command is worth it. What is not in the list works in the same way, in a process of its own."""
    options = words[: words.index("--")] if "--" in words else words
    if not LASTING.isdisjoint(options):
        return False
    first = words[:1]
    if not first or first[0] in QUICK:
        return True
    both = " ".join(words[:2])
    if both in QUICK:
        return True
    return (first[0] in QUICK_WHEN_DETACHED or both in QUICK_WHEN_DETACHED) and not DETACHED.isdisjoint(
        options
    )


def stamp() -> bytes:
    """Which installation this is: another one carries its commands out itself."""
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
    """Where the server of the state directory listens that this command most likely works on."""
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
    try:  # through a descriptor of the directory, as a socket's address is short
        return f"/proc/self/fd/{os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)}/{SOCKET}"
    except OSError:
        return None


def _answered(line: "_socket.socket", pid: int) -> int:
    while True:
        try:
            if code := line.recv(16):
                return int(code)
        except KeyboardInterrupt:
            os.kill(pid, 2)
            continue
        except OSError:
            pass
        sys.stderr.write("Error: the command was killed before it was done\n")
        sys.stderr.write("Fix: see with `vctl status` whether it took effect, and run it again if not\n")
        return 1
