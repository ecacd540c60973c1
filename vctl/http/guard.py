"""Checks every request before its route: host, origin, token and size. A refused request reaches no route."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import sys
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vctl.core.text import visible
from vctl.errors import BadSpec, VctlError
from vctl.http.answers import MANAGEMENT, TooLarge, Unauthorized, WrongHost, body_for, encode
from vctl.http.context import ASKING, Server
from vctl.spec.source import MAX_BATCH_BYTES, unique_keys
from vctl.spec.text import KERNEL_FIELDS, check_document

PEER = "peer"
"""Where the state of a request says which process has connected."""
MAX_BYTES = 8 << 20
BATCHES = {"/api/v1/jobs:batch": "jobs", "/api/v1/tasks:batch": "tasks"}
"""The path of many jobs or tasks in one request -> the field whose texts the verb checks itself, with their lines."""
MAX_BYTES_OF = dict.fromkeys(BATCHES, MAX_BATCH_BYTES)
LONGEST_PATH = 4096
READING = ("GET", "HEAD", "OPTIONS")
OPEN = ("/healthz", "/metrics", "/api/version", "/openapi.json", MANAGEMENT)
"""Paths that can be read without a token; they contain no jobs, logs or events."""
UPLOADS = "/api/packages/"
"""The path of uploads: large bodies that are not JSON, whose route limits the size."""


def is_loopback(host: str) -> bool:
    """Whether an address or name can only be reached from this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks host, origin, token and size, in this order, and adds the duration to the answer.

    Passes HEAD on as GET, and drops the body of the answer.
    """

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app = app
        self.server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":
            try:
                self._check(scope)
                await self._identify(scope)
            except VctlError as error:
                await _refuse(scope, send, error)
            else:
                await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        only_head = scope["method"] == "HEAD"
        send = _timed(send, only_head=only_head)
        try:
            self._check(scope)
            await self._identify(scope)
            if only_head:
                scope = {**scope, "method": "GET"}
            if scope["path"].startswith(UPLOADS):
                await self.app(scope, receive, send)
                return
            body = await _body(scope, receive)
        except VctlError as error:
            await _refuse(scope, send, error)
            return
        if body is None:
            return  # the client has closed the connection, or was too slow
        try:
            await self.app(_as_json(scope), _again(body, receive), send)
        except RuntimeError as error:  # starlette raises it for an error after the start of an answer
            if not isinstance(error.__cause__, VctlError):
                raise
            said = f"the answer to {scope['path']} broke off: {error.__cause__.problem}"
            sys.stderr.write(f"vctl serve: {visible(said)}\n")  # its client sees that it is not complete

    async def _identify(self, scope: Scope) -> None:
        """In a shared service: say who asks, for everything that opens the state for this request."""
        if (users := self.server.users) is None:
            return
        peer = scope["state"][PEER]
        identity = users.known(peer)
        if identity is None:  # the host's database of users may be far away
            identity = await asyncio.to_thread(users.identity, peer)
        ASKING.set(identity)

    def _check(self, scope: Scope) -> None:
        headers = _headers(scope["headers"])
        if len(scope["path"]) > LONGEST_PATH:
            raise TooLarge("the path is too long", fix=f"at most {LONGEST_PATH} characters")
        if self.server.loopback:
            _check_host(headers.get("host", ""), headers.get("origin"))
        if self.server.token is not None and not _is_open(scope.get("method", "GET"), scope["path"]):
            _check_token(headers.get("authorization", ""), self.server.token)


def _timed(send: Send, *, only_head: bool) -> Send:
    """A send function that adds the duration until now to the head of an answer, and drops a body not asked for."""
    started = time.perf_counter_ns()

    async def timed(message: Message) -> None:
        if message["type"] == "http.response.start":
            took_ms = (time.perf_counter_ns() - started) / 1e6
            timing = (b"server-timing", f"app;dur={took_ms:.1f}".encode())
            await send({**message, "headers": [*message.get("headers", ()), timing]})
            if only_head:  # at once, as the first part of a stream may never come
                await send({"type": "http.response.body"})
        elif not only_head:
            await send(message)

    return timed


def _as_json(scope: Scope) -> Scope:
    """The request with the content type of JSON; curl calls a body a form by default."""
    if not _is_json(scope):
        return scope
    others = [pair for pair in scope["headers"] if pair[0].lower() != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", b"application/json")]}


def _is_json(scope: Scope) -> bool:
    return bool((scope["path"] + "/").startswith((MANAGEMENT + "/", "/api/v1/", "/api/jobs/")))


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}


def _is_open(method: str, path: str) -> bool:
    """Whether a request needs no token: it reads an open path, or an unknown path outside of ``/api/``."""
    return method in READING and (path in OPEN or not path.startswith("/api/"))


_HOST = r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?"


def _check_host(host: str, origin: str | None) -> None:
    """Refuse requests of a page of another site, whose name may resolve to this address (DNS rebinding)."""
    match = re.fullmatch(_HOST, host)
    if match is None or not is_loopback((match[1] or match[2]).lower()):
        raise WrongHost(
            "this server answers on loopback only, and the request names another host",
            fix="ask for http://127.0.0.1 or http://localhost, with the port of the server",
        )
    if origin is not None and origin != f"http://{host}":
        raise WrongHost(
            "a page of another origin sent this request", fix="send it from a program, not from a page"
        )


def _check_token(given: str, token: str) -> None:
    scheme, _, value = given.strip().partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(value.strip().encode("latin-1"), token.encode()):
        return
    problem = "the token is wrong" if given else "a token is needed"
    raise Unauthorized(
        problem,
        fix="send the header Authorization: Bearer TOKEN; the token is in the file `token`"
        " of the server's state directory",
    )


async def _body(scope: Scope, receive: Receive) -> bytes | None:
    """The whole body; None when the client disconnects before its end.

    Refuses a body that is too large, and JSON that cannot be stored or is ambiguous.
    """
    headers = _headers(scope["headers"])
    limit = MAX_BYTES_OF.get(scope["path"], MAX_BYTES)
    length = headers.get("content-length")
    if length is None and "transfer-encoding" not in headers:
        return b""
    if length is not None and length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            break
    body = b"".join(parts)
    if _is_json(scope):
        _check_json(body, checked=BATCHES.get(scope["path"]))
    return body


def _too_large(limit: int) -> TooLarge:
    return TooLarge("the request is too large", fix=f"at most {limit >> 20} MiB are accepted")


def _check_json(body: bytes, *, checked: str | None = None) -> None:
    """Refuse JSON that is not UTF-8, or has a NUL, a duplicate key or a lone surrogate, which is no text.

    ``checked``: a field whose texts the route checks.
    """
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise BadSpec(
            f"Invalid request, the body is not valid UTF-8 (byte {error.start})", fix="send UTF-8"
        ) from None
    if b"\0" in body:
        raise BadSpec("Invalid request, the body contains a NUL byte", fix="send JSON in UTF-8")
    lowered = body.lower()
    try:
        document = json.loads(body, object_pairs_hook=unique_keys)
        if b"\\ud" in lowered or b"\\u0000" in lowered:
            if checked is not None:
                own = document if isinstance(document, dict) else {}
                document = {name: value for name, value in own.items() if name != checked}
            check_document(document, kernel=KERNEL_FIELDS)
    except BadSpec as error:
        raise BadSpec(f"Invalid request, {error.problem}", fix=error.fix, details=error.details) from None
    except (ValueError, RecursionError):
        return  # the route refuses it


def _again(body: bytes, receive: Receive) -> Receive:
    """A receive function that returns a body that was read already, then the next messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def _refuse(scope: Scope, send: Send, error: VctlError) -> None:
    body = encode(body_for(scope, error))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.http_status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="vctl"'))
    answer = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    await send({"type": f"{answer}.start", "status": error.http_status, "headers": headers})
    await send({"type": f"{answer}.body", "body": body})
