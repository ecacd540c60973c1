"""The client side of a server: requests, errors of the server raised as exceptions, and waiting."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from vctl import ops
from vctl.core.caller import Caller
from vctl.errors import (
    BadSpec,
    Conflict,
    Infeasible,
    NotFound,
    NotPermitted,
    TimedOut,
    Unreachable,
    VctlError,
    from_parts,
)

if TYPE_CHECKING:
    from vctl.config import Config
    from vctl.ops.waiting import Kind, Watched

CONNECT_S = 10.0
ANSWER_S = 120.0
PATIENCE_S = 15.0
PAUSE_S = 0.3
BLOCK = 1 << 16
API = "/api/v1"
_BY_EXIT_CODE: dict[int, type[VctlError]] = {
    kind.exit_code: kind
    for kind in (BadSpec, Infeasible, NotFound, Conflict, Unreachable, TimedOut, NotPermitted)
}


class Connection:
    """Requests to one server."""

    def __init__(self, address: str, token: str | None) -> None:
        self.address = address
        self._token = token
        self._open: http.client.HTTPConnection | None = None
        parts = urlsplit(address)
        self._scheme, self._prefix = parts.scheme, "" if parts.scheme == "unix" else parts.path.rstrip("/")
        self._unix = parts.path if parts.scheme == "unix" else ""
        try:
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            self._host, self._port = "", None
        if parts.scheme == "unix" and parts.netloc:  # unix://run/x, one slash short
            raise BadSpec(
                f"VCTL_ADDRESS: {address!r} names no socket",
                fix=f"write unix:///{parts.netloc}{parts.path}",
            )
        if self._scheme not in ("http", "https", "unix") or not (self._host or self._unix):
            raise BadSpec(
                f"VCTL_ADDRESS: {address!r} is not the address of a server",
                fix="write http://HOST:PORT or unix:/PATH, or unset it to use this machine",
            )

    def close(self) -> None:
        """Close the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # ---- requests ----

    def ask(self, method: str, path: str, values: Mapping[str, object], *, in_query: bool) -> Any:
        """Send the request of a verb; returns the reply as JSON values."""
        return self._answer(method, path, values if in_query else {}, None if in_query else values)

    def get(self, path: str, *, patient: bool = False, **query: object) -> Any:
        """Send a GET request. ``patient``: if the server is unreachable, retry for ``PATIENCE_S`` seconds."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._answer("GET", path, query, None)
            except Unreachable:
                if not patient or time.monotonic() > give_up:
                    raise
            time.sleep(PAUSE_S)

    def stream(self, path: str, *, every_s: float | None = None, **query: object) -> Iterator[bytes]:
        """The blocks of an answer as they arrive; raises Unreachable when the connection breaks.

        It has a connection of its own, so that others can be asked meanwhile. ``every_s``: after so many seconds
        without a block comes an empty one.
        """
        own = Connection(self.address, self._token)
        try:
            response = own._send("GET", path, query, None, wait_s=None)
            if response.status >= 400:
                raise own._refusal(response.status, response.read())
            try:
                while True:
                    if every_s is not None and not own._has_more(response, every_s):
                        yield b""
                    elif block := response.read1(BLOCK):
                        yield block
                    else:
                        break
                if not response.isclosed():
                    raise http.client.IncompleteRead(b"")
            except (OSError, http.client.HTTPException) as error:
                raise own._unreachable(error) from None
        finally:
            own.close()

    def _has_more(self, response: http.client.HTTPResponse, within_s: float) -> bool:
        """Whether something can be read within a time: from what was received already, or from the connection."""
        assert self._open is not None
        if (line := self._open.sock) is None or response.isclosed():
            return True
        line.settimeout(0)  # what was received already is read, and not waited for
        try:
            if response.fp.peek(1):
                return True
        except OSError:  # TLS has nothing
            pass
        finally:
            line.settimeout(None)
        poll = select.poll()
        poll.register(line, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def _answer(
        self, method: str, path: str, query: Mapping[str, object], body: Mapping[str, object] | None
    ) -> Any:
        response = self._send(method, path, query, body, wait_s=ANSWER_S)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from None
        if response.status >= 400:
            raise self._refusal(response.status, content)
        return self._parsed(content)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: Mapping[str, object] | None,
        *,
        wait_s: float | None,
    ) -> http.client.HTTPResponse:
        target = self._prefix + API + path + _query(query)
        content = None if body is None else json.dumps(body, default=_plain).encode()
        headers = {"Accept": "*/*", "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if (caller := Caller.of(os.environ)) is not None:
            headers["X-Vctl-Job-Id"] = str(caller.job_id)
            headers["X-Vctl-Submission-Id"] = caller.submission_id
        if method != "GET":
            self.close()  # a request that is lost on an old connection may have been carried out
        reused = self._open is not None
        try:
            connection = self._connection(wait_s)
            connection.request(method, target, content, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # a server closes idle connections; it has not carried out the request then
            if reused and isinstance(
                error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
            ):
                return self._send(method, path, query, body, wait_s=wait_s)
            raise self._unreachable(error) from None

    def _connection(self, wait_s: float | None) -> http.client.HTTPConnection:
        if self._open is None:
            if self._unix:
                self._open = _UnixConnection(self._unix)
            else:
                kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
                self._open = kind(self._host, self._port, timeout=CONNECT_S)
            self._open.connect()
        if self._open.sock is not None:
            self._open.sock.settimeout(wait_s)
        return self._open

    # ---- errors ----

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Unreachable(
            f"the server at {self.address} cannot be reached: {reason}",
            fix="ask who administers it to start it (`vctl daemon --shared`), or set VCTL_HOME to work without it"
            if self._unix
            else "start it with `vctl serve`, correct VCTL_ADDRESS, or unset it to use this machine",
        )

    def _parsed(self, content: bytes) -> Any:
        try:
            return json.loads(content)
        except ValueError:
            raise Unreachable(
                f"the server at {self.address} is not a vctl server", fix="correct VCTL_ADDRESS"
            ) from None

    def _refusal(self, status: int, content: bytes) -> VctlError:
        answer = self._parsed(content)
        fields = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(fields, dict):
            return Unreachable(
                f"the server at {self.address} is not a vctl server (status {status})",
                fix="correct VCTL_ADDRESS",
            )
        fix = fields.get("hint", "")
        if status == 401 and "vctl login" not in fix:
            fix = "set VCTL_TOKEN to the server's token, or VCTL_TOKEN_FILE to a file that holds it"
        code = int(fields.get("exit_code", 1))
        details = dict(fields.get("details") or {})
        texts = {"message": str(fields.get("message", "")), "hint": fix, **details}
        texts |= {field: from_parts(parts) for field, parts in details.pop("parts", {}).items()}
        error = _BY_EXIT_CODE.get(code, VctlError)(
            texts["message"], fix=texts["hint"], details={name: texts[name] for name in details}
        )
        # the server may have a class of errors that this version does not know
        error.code, error.exit_code = str(fields.get("code", error.code)), code
        return error


def _plain(value: object) -> object:
    """A value of a document as JSON has it: exact numbers, objects of the Python API, other maps."""
    if isinstance(value, Decimal):
        return float(value)
    return dict(value) if isinstance(value, Mapping) else getattr(value, "as_dict")()  # noqa: B009  # a Written


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _query(values: Mapping[str, object]) -> str:
    given = [
        (name, str(element).lower() if isinstance(element, bool) else str(element))
        for name, value in values.items()
        for element in (value if isinstance(value, (list, tuple)) else [value])
        if element is not None
    ]
    return f"?{urlencode(given)}" if given else ""


_LISTED = {"jobs": "job list -a", "tasks": "task list -a", "nodes": "node list"}
"""The first part of a path -> the command that lists the ids for its second part."""


def at(*parts: str) -> str:
    """A path of quoted parts, because ids may contain any character. Raises NotFound for an impossible id."""
    if not all(parts) or (parts[0] in _LISTED and "/" in parts[1 % len(parts)]):
        # no object has such an id, and a server would read it as another path
        if (listed := _LISTED.get(parts[0])) is None:
            raise NotFound("an id is empty", fix="write the id")
        kind, ref = parts[0][:-1], parts[1]
        raise NotFound(f"there is no {kind} {ref!r}", fix=f"see `vctl {listed}`", details={kind: ref})
    # a part of dots alone would be read as this or the parent directory
    return "".join("/" + (quote(part, safe="") if part.strip(".") else "%2E" * len(part)) for part in parts)


def connect(config: Config) -> Connection:
    """The connection to the server in the settings, with its token; opened by the first request."""
    token = config.env.get("VCTL_TOKEN") or None
    file = config.get("token_file")
    if token is None and file:
        try:
            with open(os.path.expanduser(str(file)), encoding="utf-8") as stream:
                token = stream.read().strip()
        except (OSError, UnicodeDecodeError):
            raise BadSpec(
                f"cannot read the token in {file}", fix="correct VCTL_TOKEN_FILE, or set VCTL_TOKEN"
            ) from None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise BadSpec(
            "VCTL_TOKEN is not a token", fix="copy it from the file token of the server's state directory"
        )
    return Connection(str(config.get("address")), token)


_LONGEST_S = 20.0
"""The longest time for which one request waits."""
_ONE = {"jobs": "job", "tasks": "task"}
LEAST_S = 0.05
"""The least time between two requests that wait: a server that is about to end answers at once."""


def wait(server: Connection, kind: Kind, ref: str, timeout_s: float | None) -> Watched:
    """Wait until something is over, at most ``timeout_s``; a new request every ``_LONGEST_S``."""
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    path = at(kind, ref, "wait")
    while True:
        began = time.monotonic()
        remaining_s = _LONGEST_S if give_up is None else max(0.0, give_up - began)
        try:
            answer = server.get(path, patient=True, timeout_s=min(remaining_s, _LONGEST_S))
        except NotFound:
            return ops.waiting.GONE
        over, form = (answer["over"], answer[_ONE[kind]]) if kind in _ONE else (answer["gone"], None)
        now = time.monotonic()
        if over or (give_up is not None and now >= give_up):
            return ops.waiting.Watched(over, form)
        time.sleep(max(0.0, min(remaining_s, LEAST_S) - (now - began)))


def follow(server: Connection, kind: Kind, ref: str, offset: int, every_s: float | None) -> Iterator[bytes]:
    """The output of a job or task until that is over. When the server ends, it goes on where it was, with the next."""
    path = at(kind, ref, "logs")
    begin, give_up = offset, None
    while True:
        try:
            for block in server.stream(path, every_s=every_s, follow=True, offset=offset):
                offset, give_up = offset + len(block), None
                yield block
            # the server ends, or no scheduler may run, which this raises
            if not wait(server, kind, ref, 0).over:
                continue
            yield from server.stream(path, offset=offset)  # what was written while no server ran
        except NotFound:
            if offset == begin:
                raise
        except Unreachable:
            now = time.monotonic()
            give_up = give_up or now + PATIENCE_S
            if now > give_up:
                raise
            time.sleep(PAUSE_S)
            continue
        return
