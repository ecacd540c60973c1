"""How a message travels between two processes of vctl: as a frame of a stream, or as a packet with descriptors.

A *frame* is the length of a body in PREFIX_BYTES, and the body: for streams, which may cut a message anywhere. A
*packet* is one message of a SOCK_SEQPACKET socket, which keeps messages apart, and carries open descriptors. The
content is the matter of those who talk: between Pythons of one machine it is marshalled.

Other ways, for a reason: the lines of a record file, which are sent as they are written (lines.py); the client of the
command server, which imports nothing; a terminal (relay.py), whose bytes have the word of a resize among them.

Stand-alone, like processes.py. Imports only built-in modules.
"""

import _socket  # the public module builds enums at import
import sys

MYPY = False
if MYPY:
    from collections.abc import Sequence

PREFIX_BYTES = 4
_FD_BYTES = 4


def frame(body: bytes) -> bytes:
    """A body after its length."""
    return len(body).to_bytes(PREFIX_BYTES, "little") + body


def cut(received: bytearray, max_bytes: int = 1 << 32) -> bytes | None:
    """Remove the first frame from received bytes, and return its body; None if it is not complete yet.

    Raises ValueError if it is to have more than ``max_bytes``.
    """
    if len(received) < PREFIX_BYTES:
        return None
    end = PREFIX_BYTES + int.from_bytes(received[:PREFIX_BYTES], "little")
    if len(received) < end:
        if end > max_bytes + PREFIX_BYTES:
            raise ValueError(f"a message of {end - PREFIX_BYTES} bytes")
        return None
    body = bytes(received[PREFIX_BYTES:end])
    del received[:end]
    return body


def send(to: _socket.socket, body: bytes, descriptors: "Sequence[int]", *, waits: bool = False) -> None:
    """Send a packet with descriptors. Raises OSError: nobody is there or, unless it ``waits``, nobody reads.

    The program around may have set SIGPIPE to its default action: a dead receiver must not end it.
    """
    rights = b"".join(descriptor.to_bytes(_FD_BYTES, sys.byteorder) for descriptor in descriptors)
    flags = _socket.MSG_NOSIGNAL | (0 if waits else _socket.MSG_DONTWAIT)
    to.sendmsg([body], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)], flags)


def receive(
    line: _socket.socket, max_bytes: int, max_descriptors: int = 1, *, waits: bool = True
) -> tuple[bytes, list[int]]:
    """The next packet and its descriptors, which no other program inherits. An empty body: the line has ended.

    A descriptor that this process has no number for is missing.
    """
    capacity = _socket.CMSG_SPACE(_FD_BYTES * max_descriptors)
    flags = _socket.MSG_CMSG_CLOEXEC | (0 if waits else _socket.MSG_DONTWAIT)
    body, others, _, _ = line.recvmsg(max_bytes, capacity, flags)
    rights = b"".join(data for _, _, data in others)
    whole = len(rights) - len(rights) % _FD_BYTES
    starts = range(0, whole, _FD_BYTES)
    return body, [int.from_bytes(rights[at : at + _FD_BYTES], sys.byteorder) for at in starts]
