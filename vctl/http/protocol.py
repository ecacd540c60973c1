"""Where uvicorn's ways are not ours: plain words for what is no HTTP, and streams that outlast the server."""

from __future__ import annotations

from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vctl.errors import BadSpec
from vctl.http.answers import encode, error_body
from vctl.http.context import Changes


class Protocol(H11Protocol):
    """uvicorn's, with one answer of our own."""

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, and hang up."""
        body = encode(error_body(BadSpec(msg, fix="send an HTTP/1.1 request")))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Ending(uvicorn.Server):
    """uvicorn's server, which tells those who wait when it is to end."""

    def __init__(self, settings: uvicorn.Config, changes: Changes) -> None:
        super().__init__(settings)
        self._changes = changes

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM."""
        self._changes.end()
        super().handle_exit(sig, frame)

    def leave(self, *_: object) -> None:
        """The same before the server runs: it ends as soon as it has started.

        An exception would do as well, but for the places where Python drops those that it did not expect.
        """
        self.should_exit = True
