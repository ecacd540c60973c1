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

from vctl.core.identity import Identity
from vctl.core.text import visible
from vctl.core.values import replace
from vctl.core.wording import timestamp
from vctl.errors import BadSpec, VctlError
from vctl.http.answers import MANAGEMENT, TooLarge, Unauthorized, WrongHost, body_for, encode
from vctl.http.context import ASKING, Server
from vctl.ops import tokens
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
NOBODY = Identity(-1, "nobody")
"""Who asks without a token for what is open to all."""
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
        if (peer := scope.get("state", {}).get(PEER)) is None:  # over TCP: a token says who asks
            headers = _headers(scope["headers"])
            is_open = _is_open(scope.get("method", "GET"), scope["path"])
            ASKING.set(
                await asyncio.to_thread(self._signed_in, headers.get("authorization", ""), is_open=is_open)
            )
            return
        identity = users.known(peer)
        if identity is None:  # the host's database of users may be far away
            identity = await asyncio.to_thread(users.identity, peer)
        ASKING.set(identity)

    def _signed_in(self, given: str, *, is_open: bool) -> Identity:
        """Who has sent a token of a shared service. Raises Unauthorized, also for a token that has ended."""
        server = self.server
        assert server.users is not None
        if not given and is_open:
            return NOBODY
        token = _bearer(given)
        if server.token is not None and _is_same(token, server.token):
            return server.users.own()
        with server.store() as store:
            row = None if token is None else tokens.presented(store, token)
            now = store.clock()
        fix = "`vctl login`, on the machine of the service, makes one; send it as Authorization: Bearer TOKEN"
        if row is None:
            problem = "the token is wrong, or was revoked" if given else "a token is needed"
            raise Unauthorized(problem, fix=fix)
        if row["ends_at"] <= now:
            raise Unauthorized(f"the token ended at {timestamp(row['ends_at'])}", fix=fix)
        return replace(server.users.of_uid(row["uid"]), token=row["token_id"])

    def _check(self, scope: Scope) -> None:
        headers = _headers(scope["headers"])
        if len(scope["path"]) > LONGEST_PATH:
            raise TooLarge("the path is too long", fix=f"at most {LONGEST_PATH} characters")
        if self.server.loopback:
            _check_host(headers.get("host", ""), headers.get("origin"))
        is_personal = self.server.users is None  # else ``_identify`` reads the token
        if (
            is_personal
            and self.server.token is not None
            and not _is_open(scope.get("method", "GET"), scope["path"])
        ):
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


def _bearer(given: str) -> str | None:
    """The token in a header."""
    scheme, _, value = given.strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def _is_same(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(given.encode("latin-1"), token.encode())


def _check_token(given: str, token: str) -> None:
    if _is_same(_bearer(given), token):
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
