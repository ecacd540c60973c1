"""A scheduler's end of its link to Ray (link.py): starts it, exchanges messages, replaces it when it ends."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from vctl.ray.on_ray import wire
from vctl.ray.on_ray.wire import Packed

LOG = "ray.log"
CONNECT_S = 60.0
"""How long a link may take to connect to Ray."""
LISTEN_S = 3.0
"""How long `nobody_at` tries to connect to the address of Ray."""
_AGAIN_S = (1.0, 15.0)
_FLUSH_S = 0.05
_MAX_LOG_BYTES = 1 << 22
_CHUNK_BYTES = 1 << 18


def nobody_at(address: str) -> str:
    """The problem if nothing listens at HOST:PORT within LISTEN_S, else empty.

    Empty too for an address that only Ray can resolve, such as ``auto``.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return ""
    until, problem = time.monotonic() + LISTEN_S, "nobody listens there"
    while (remaining_s := until - time.monotonic()) > 0:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=remaining_s).close()
        except (OSError, OverflowError) as error:
            problem = str(getattr(error, "strerror", None) or error)
            time.sleep(_FLUSH_S)
        else:
            return ""
    return problem


class LinkConnection:
    """The scheduler's present link to Ray, if there is one."""

    def __init__(self, home: Path, *words: str) -> None:
        self.log, self.words = home / LOG, words
        self.poll = select.epoll()
        self.channel: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.received, self.outbox = bytearray(), deque[bytes]()
        self.connected = False
        """Whether Ray has answered the link."""
        self.failure = ""
        self.pause_s, self.not_before, self.started_at = _AGAIN_S[0], 0.0, 0.0

    def maintain(self) -> None:
        """Start a link if there is none, with pauses in between; end a link that Ray does not answer."""
        if self.channel is None and time.monotonic() >= self.not_before:
            self.start()
        elif (
            self.channel is not None and not self.connected and time.monotonic() > self.started_at + CONNECT_S
        ):
            self.drop()

    def start(self) -> None:
        """Start a link."""
        ours, theirs = socket.socketpair()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(self.log, flags, 0o600)
        if os.fstat(log).st_size > _MAX_LOG_BYTES:
            os.ftruncate(log, 0)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vctl.ray.on_ray.link", *self.words],
                stdin=theirs.fileno(), stdout=log, stderr=log, start_new_session=True, cwd="/",
            )  # fmt: skip
        finally:
            os.close(log)
            theirs.close()
        ours.setblocking(False)  # noqa: FBT003
        self.channel = ours
        self.poll.register(ours, select.EPOLLIN)
        self.started_at = time.monotonic()
        self.connected, self.failure = False, ""
        self.received.clear()
        self.outbox.clear()

    def drop(self) -> None:
        """End the link."""
        if self.channel is not None:
            self.poll.unregister(self.channel)
            self.channel.close()
            self.channel = None
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self.connected = False
        self.not_before = time.monotonic() + self.pause_s
        self.pause_s = min(2 * self.pause_s, _AGAIN_S[1])

    def answered(self) -> None:
        """Note that Ray has answered the link."""
        self.connected, self.pause_s = True, _AGAIN_S[0]

    def receive(self) -> Iterator[Packed]:
        """The messages of the link; a link that has ended is dropped."""
        while self.channel is not None:
            try:
                data = self.channel.recv(_CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.failure = self.failure or "the process that connects has ended"
                self.drop()
                break
            self.received += data
            yield from wire.unframed(self.received)
        self._flush()

    def send(self, message: Packed) -> None:
        """Send a message to a connected link. Without one it is dropped: a new link gets everything again."""
        if self.connected:
            self.outbox.append(wire.framed(message))
            self._flush()

    def _flush(self) -> None:
        while self.outbox and self.channel is not None:
            try:
                sent = self.channel.send(self.outbox[0])
            except OSError:
                return  # the socket is full, or the next read shows its end
            if sent < len(self.outbox[0]):
                self.outbox[0] = self.outbox[0][sent:]
            else:
                self.outbox.popleft()

    def due_s(self, limit_s: float) -> float:
        """Seconds until the next look at the latest, at most ``most_s``."""
        if self.channel is None:
            return max(0.0, self.not_before - time.monotonic())
        return _FLUSH_S if self.outbox else limit_s
