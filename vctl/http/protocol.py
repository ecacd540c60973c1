"""Changes to uvicorn: time limits, a limit of connections, errors in vctl's form, and the end of streams."""

from __future__ import annotations

import asyncio
import errno
import resource
import signal
import socket
import sys
from collections import Counter
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vctl.errors import BadSpec, NotPermitted, Unreachable, VctlError
from vctl.http.answers import encode
from vctl.http.context import Changes
from vctl.http.guard import PEER, UPLOADS
from vctl.ops.users import peer_of
from vctl.runtime.keeper import KeeperLine

HEADERS_S = 10.0
"""Seconds for the line and the headers of a request, from the connection or from the first byte on."""
BODY_S = 60.0
"""Seconds for the body of a request."""
UPLOAD_S = 900.0
"""Seconds for the body of an upload, which may be large."""
HALF_OPEN_PART = 4
"""One peer may have this part of the connections (a quarter) with requests that have not arrived completely.

A user of a shared service may have no more than this part at all.
"""
WAITING = 2048
"""The most connections that wait until the server accepts them."""


class Protocol(H11Protocol):
    """uvicorn's protocol with time limits for requests, a limit of connections, and errors in vctl's form."""

    connection_limit = 1000
    """Connections at a time."""
    half_open: ClassVar[dict[str, dict[Protocol, None]]] = {}
    """Peer -> its connections with a request that has not arrived completely, those that wait longest first."""
    _phase: object = None
    _timer: asyncio.TimerHandle | None = None
    _upgraded = False
    _uid: int | None = None
    of_user: ClassVar[Counter[int]] = Counter()
    """The connections of each user of a shared service."""
    names_peers = False
    """Whether a request says who has connected: of a shared service."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client connects."""
        super().connection_made(transport)
        if self.names_peers and not self._name_peer():
            return
        if len(self.connections) > self.connection_limit:
            self._hang_up(Crowded("too many connections", fix="try again in a moment"))
        else:
            self._watch()

    def _name_peer(self) -> bool:
        """Note who has connected, for the requests and for the limits of one peer; False if nobody may."""
        try:
            peer = peer_of(self.transport.get_extra_info("socket"))
        except NotPermitted as error:
            self._hang_up(error)
            return False
        self.client = (f"uid {peer.uid}", 0)
        self.app_state = {**self.app_state, PEER: peer}
        self.of_user[peer.uid] += 1
        self._uid = peer.uid
        if self.of_user[peer.uid] > max(1, self.connection_limit // HALF_OPEN_PART):
            self._hang_up(Crowded("too many connections of one user", fix="close some, or try again"))
            return False
        return True

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """A request is over; another one may have arrived behind it."""
        super().on_response_complete()
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection becomes a websocket, which has no time limit."""
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        if self._timer is not None:
            self._timer.cancel()
        self._note_half_open(awaits=False)
        if self._uid is not None:
            self.of_user[self._uid] -= 1
            if not self.of_user[self._uid]:
                del self.of_user[self._uid]
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Set the timer for the awaited head or body of a request. A part that arrives does not extend the time."""
        phase: tuple[str, float] | None = None
        if not self.transport.is_closing() and not self._upgraded:
            before: object = self.cycle
            if self.conn.their_state is h11.IDLE and (before is None or self.conn.trailing_data[0]):
                phase = ("head", HEADERS_S)
            elif self.conn.their_state is h11.SEND_BODY:
                phase = ("body", UPLOAD_S if self.scope["path"].startswith(UPLOADS) else BODY_S)
        if phase == self._phase:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if phase is None else self.loop.call_later(phase[1], self._too_slow, *phase)
        self._note_half_open(awaits=phase is not None)

    def _note_half_open(self, *, awaits: bool) -> None:
        """Note whether a request is awaited here. A peer that leaves too many of them open loses the oldest."""
        peer = "" if self.client is None else self.client[0]
        mine = self.half_open.setdefault(peer, {})
        if awaits:
            mine.setdefault(self)
            if len(mine) > max(1, self.connection_limit // HALF_OPEN_PART):
                oldest = next(iter(mine))
                del mine[oldest]
                too_many = Crowded(
                    "too many unfinished requests of one peer", fix="send each request at once"
                )
                oldest._hang_up(too_many)  # noqa: SLF001 - another one of this class
        else:
            mine.pop(self, None)
            if not mine:
                del self.half_open[peer]

    def _too_slow(self, what: str, limit_s: float) -> None:
        self._hang_up(
            Slow(f"the {what} of the request did not arrive within {limit_s:g} s", fix="send it at once")
        )

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, and close the connection."""
        self._hang_up(BadSpec(msg, fix="send an HTTP/1.1 request"))

    def _hang_up(self, error: VctlError) -> None:
        """Answer with an error, unless an answer has begun, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say(error)
        self.transport.close()

    def _say(self, error: VctlError) -> None:
        body = encode(error.document())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=error.http_status, headers=headers, reason=error.code.encode()),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")


def capacity() -> tuple[int, int]:
    """The numbers of connections and of threads with an open store that the limit of open files allows."""
    spare = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN_FILES
    return max(4, min(1000, spare // 2)), max(1, min(40, spare // 2 // FILES_OF_A_STORE))


def limited(*, names_peers: bool = False) -> type[Protocol]:
    """The protocol with the limit of connections. ``names_peers``: requests say who has connected."""
    own = {
        "connection_limit": capacity()[0],
        "half_open": {},
        "of_user": Counter(),
        "names_peers": names_peers,
    }
    return type("Limited", (Protocol,), own)


class Complaints:
    """Handles errors outside of requests; a lack of open files is reported once a second, as asyncio tries again."""

    def __init__(self) -> None:
        self._said_at = float("-inf")  # asyncio reports that files ran out for each connection that waits

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Write an error to stderr; the exception handler of an event loop."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() - self._said_at >= 1.0:
            self._said_at = loop.time()
            sys.stderr.write("vctl serve: no more open files; new connections wait\n")


OWN_FILES = 24
"""The open files of the server itself: sockets, pipes, files for child processes."""
FILES_OF_A_STORE = 4


class Slow(BadSpec):
    """A request that does not arrive in time."""

    code, http_status = "RequestTimeout", 408


class Crowded(Unreachable):
    """The server has as many connections as it allows."""

    code, http_status = "TooManyConnections", 503


class Ending(uvicorn.Server):
    """uvicorn's server, which wakes waiting requests when it ends."""

    def __init__(self, settings: uvicorn.Config, changes: Changes, keeper: KeeperLine | None = None) -> None:
        super().__init__(settings)
        self._changes, self._keeper = changes, keeper

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving; connections queue up to the limit of the socket, which asyncio has lowered."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(WAITING)
        if self._keeper is not None:  # it sends nothing, so what can be read is its end
            asyncio.get_running_loop().add_reader(self._keeper.fileno(), self._orphaned)

    def _orphaned(self) -> None:
        """End with the keeper."""
        assert self._keeper is not None
        asyncio.get_running_loop().remove_reader(self._keeper.fileno())
        self.handle_exit(signal.SIGTERM, None)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT or SIGTERM: also let the waiting requests return."""
        self._changes.end()
        super().handle_exit(sig, frame)

    def leave(self, *_: object) -> None:
        """Handle a signal before the server runs: the server ends as soon as it has started.

        It raises no exception, because Python drops unexpected exceptions in some places.
        """
        self.should_exit = True
