"""What is no HTTP at all is refused in our envelope too, not in uvicorn's plain words."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vctl.errors import BadSpec
from vctl.http.answers import encode, error_body


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
