"""Bodies of error answers: every error has the envelope of its API."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse as _JSONResponse
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from vctl.core.text import harmless
from vctl.errors import BadSpec, NotFound, NotPermitted, VctlError, known
from vctl.spec.fields import nearest
from vctl.spec.launch import COMMAND_FIX

MANAGEMENT = "/virtual_clusters"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CREATE, REMOVE_NODES, REMOVE = "create or update", "remove nodes from", "remove"
"""The actions of the management API, as they appear in its messages about failures."""
_ALWAYS: dict[str, tuple[str, Any]] = {
    CREATE: ("replicaSetsToRecommend", {}),
    REMOVE_NODES: ("nodesWithFailure", []),
}
"""The field that ``data`` of a failure always has, and its empty value."""

_POSTS = {MANAGEMENT: CREATE, f"{MANAGEMENT}/remove_nodes": REMOVE_NODES}
"""The actions of the management API that are posted, by path."""

_FIELDS = {"cluster_id": "virtualClusterId", "replica_sets": "replicaSets", "nodes": "nodesToRemove"}
"""The fields of the management API, by the parameters that an error names."""


class JSONResponse(_JSONResponse):
    """JSON in UTF-8; characters that are not text, or that control a terminal, are escaped."""

    def render(self, content: Any) -> bytes:
        """The body of the response."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        body = text.encode("utf-8", "vctl.escaped")
        return body if text.isprintable() else harmless(body.decode()).encode()


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """The escape of a surrogate inside a JSON string, which every JSON parser accepts."""
    assert isinstance(error, UnicodeEncodeError)
    escaped = "".join(
        f"\\\\x{ord(char) - 0xDC00:02x}" if "\udc80" <= char <= "\udcff" else f"\\\\u{ord(char):04x}"
        for char in error.object[error.start : error.end]
    )
    return escaped, error.end


codecs.register_error("vctl.escaped", _escaped)


class Unauthorized(NotPermitted):
    """The token is missing or wrong."""

    code, http_status = "Unauthorized", 401


class TooLarge(BadSpec):
    """The request exceeds a limit of size."""

    code, http_status = "TooLarge", 413


class WrongMethod(BadSpec):
    """The path exists, but not with this method."""

    code, http_status = "MethodNotAllowed", 405


class WrongHost(NotPermitted):
    """The request names another host, or a page of another origin sent it."""

    code, http_status = "WrongHost", 403


def envelope(*, result: bool, msg: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The management API's answer."""
    return {"result": result, "msg": msg, "data": dict(data)}


def failure(what: str, cluster_id: str, error: VctlError) -> dict[str, Any]:
    """A refusal of the management API, with its recommendation."""
    data: dict[str, Any] = {"virtualClusterId": cluster_id}
    if what in _ALWAYS:
        name, empty = _ALWAYS[what]
        data[name] = error.details.get(name, empty)
    if "blockers" in error.details:
        data["blockers"] = error.details["blockers"]
    problem = error.spelled(_FIELDS).problem
    return envelope(result=False, msg=f"Failed to {what} virtual cluster {cluster_id}: {problem}", data=data)


def body_for(scope: Scope, error: VctlError) -> dict[str, Any]:
    """The body of an error, in the envelope of the API that the path of the request belongs to."""
    path: str = scope["path"]
    if path == MANAGEMENT or path.startswith(MANAGEMENT + "/"):
        action = _action(scope)
        if action is None or error.http_status != BadSpec.http_status:
            return envelope(result=False, msg=error.problem, data={})
        return failure(*action, error)
    body = error.document()
    if parts := error.parts():
        body["error"]["details"] = {**error.details, "parts": parts}
    return body


def _action(scope: Scope) -> tuple[str, str] | None:
    """The action of a request to the management API, and the cluster in its path; None for other requests."""
    method, path = scope.get("method"), scope["path"]
    if method == "DELETE" and path.startswith(MANAGEMENT + "/"):
        return REMOVE, path.removeprefix(MANAGEMENT + "/")
    return (_POSTS[path], "") if method == "POST" and path in _POSTS else None


def encode(body: Mapping[str, Any]) -> bytes:
    """A body as JSON bytes; values that JSON does not have become strings."""
    return harmless(json.dumps(body, default=str, allow_nan=False)).encode()


def install(app: FastAPI) -> None:
    """Answer every kind of failure of an application in the envelope of its API."""

    @app.exception_handler(VctlError)
    async def refused(request: Request, error: VctlError) -> JSONResponse:
        return answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problem = _first_problem(error, _known(request))
        action = _action(request.scope)
        if action is None:
            return answer(request, problem)
        what, cluster_id = action
        if isinstance(error.body, dict) and isinstance(named := error.body.get("virtualClusterId"), str):
            cluster_id = named
        body = failure(what, cluster_id, problem)
        return JSONResponse(json.loads(encode(body)), problem.http_status)

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:  # the framework names the methods of one route only
            allowed = ", ".join(_methods(request))
            error = HTTPException(405, headers={"Allow": allowed})
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=error.headers)
        return answer(request, _of_framework(request, error), error.headers)

    @app.exception_handler(Exception)
    async def crashed(request: Request, error: Exception) -> JSONResponse:
        if (trouble := known(error)) is not None:
            return answer(request, trouble)
        detail = f"{type(error).__name__}: {error}".splitlines()[0]
        return answer(
            request,
            VctlError(
                f"internal error: {detail}", fix="the server's log has the traceback; please report it"
            ),
        )


def answer(
    request: HTTPConnection, error: VctlError, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error as a response."""
    body = json.loads(encode(body_for(request.scope, error)))
    return JSONResponse(body, error.http_status, dict(headers or {}))


_BODY = {
    "missing": "the body is missing, a JSON object is needed",
    "model_attributes_type": "the body is not a JSON object",
    "json_invalid": "the body is not JSON: {error}",
}
_FIELD = {
    "missing": "it is missing",
    "extra_forbidden": "unknown {kind}",
    "value_error": "{error}",
    "literal_error": "it must be {expected}",
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be above {gt}",
    "less_than_equal": "it must be at most {le}",
    "string_too_long": "it has more than {max_length} characters",
    "too_long": "it has more than {max_length} entries",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "it must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "it must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "it must be true or false"),
    "string_type": "it must be a string",
    "list_type": "it must be a list",
    "dict_type": "it must be an object",
}
"""The problem of a field (in ``_BODY``: of a body as a whole), by the type of pydantic's error."""


async def refuse_unread(request: Request) -> None:
    """A dependency of routes: refuse query parameters and bodies that they would not read.

    The model of a body refuses its unknown fields.
    """
    route = request.scope["route"]
    repeat = {
        parameter.alias: get_origin(parameter.field_info.annotation) is list
        for parameter in route.dependant.query_params
    }
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in repeat:
            raise _unread("extra_forbidden", "query", name)
        if count > 1 and not repeat[name]:
            raise _unread("twice", "query", name, msg="it is there twice")
    if route.body_field is None and b"".join((await request.body()).split()) not in (b"", b"{}", b"null"):
        where = "; its parameters are in the query" if repeat else ""
        raise _unread("no_body", "body", msg=f"it takes no body{where}")


def _unread(kind: str, *loc: str, msg: str = "") -> RequestValidationError:
    return RequestValidationError([{"type": kind, "loc": loc, "msg": msg}])


def _first_problem(error: RequestValidationError, known: Mapping[str, Sequence[str]]) -> BadSpec:
    """The first problem of a request, with its path; ``known`` are the names that its query and its body may have.

    The sent value is not repeated, as it may be a secret.
    """
    first = error.errors()[0]
    path = _sent_path(first["loc"], first["type"], error.body)
    words = (_FIELD if path else _BODY).get(first["type"], "{msg}")
    location, word = first["loc"][0], str(first["loc"][-1])
    kind = "parameter" if location == "query" else "field"
    around = {name: _number(value) for name, value in first.get("ctx", {}).items()}
    problem = words.format_map({"msg": first["msg"], "kind": kind, **around})[:300]
    no_list = first["type"] == "list_type"
    if first["type"] == "extra_forbidden":  # not as a fix, because the management API has no field for it
        if guess := nearest(word, known[location]):
            problem += f", did you mean {guess}?"
        elif word in known["body"]:
            problem += ", it is a field of the body"
    return BadSpec(
        f"Invalid request, {path}: {problem}" if path else f"Invalid request, {problem}",
        fix=COMMAND_FIX
        if no_list and word == "entrypoint"
        else "see /openapi.json for the accepted requests",
        details={"path": path},
    )


def _number(value: object) -> object:
    """A bound as text: whole numbers without a fraction. Values that are not floats stay as they are."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.15g}"
    return value


def _known(request: Request) -> dict[str, list[str]]:
    """The parameters of the query and the fields of the body that the route of a request has."""
    route = request.scope["route"]
    kinds: tuple[Any, ...] = ()
    if route.body_field is not None:
        kind = route.body_field.field_info.annotation
        kinds = (kind, *get_args(kind))
    return {
        "query": [parameter.alias for parameter in route.dependant.query_params],
        "body": [name for kind in kinds for name in getattr(kind, "model_fields", ())],
    }


def _sent_path(loc: Sequence[str | int], kind: str, body: Any) -> str:
    """The path of a value in the sent body. A location of pydantic also names the tried alternatives of a type."""
    if loc[:1] != ("body",):
        return _path(loc[1:] or loc)
    path: list[str | int] = []
    value = body
    for part in loc[1:]:
        if isinstance(value, Mapping) and (part in value or kind == "missing"):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        else:
            break
        path.append(part)
    return _path(path)


def _path(parts: Sequence[str | int]) -> str:
    """A path as in the errors of a cluster spec: ``nodesToRemove[0]``, ``env.PATH``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _methods(request: Request) -> list[str]:
    """All methods that the routes of a path take together. Each is tried, as an included router may show no routes."""
    tried: Scope = {"type": "http", "path": request.scope["path"], "root_path": "", "headers": []}

    def is_allowed(method: str) -> bool:
        method = "GET" if method == "HEAD" else method  # the guard passes HEAD on as GET
        return method == "OPTIONS" or any(
            route.matches({**tried, "method": method})[0] is Match.FULL for route in request.app.routes
        )

    return list(filter(is_allowed, METHODS))


def _of_framework(request: Request, error: HTTPException) -> VctlError:
    path = request.url.path[:200]
    if error.status_code == 404:
        return NotFound(f"there is nothing at {path}", fix="see /openapi.json for the paths")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return WrongMethod(f"{path} does not take {request.method[:20]}", fix=f"it takes {allowed}")
    if error.status_code >= 500:
        return VctlError(str(error.detail), fix="the server's log may say more")
    return BadSpec(f"Invalid request, {error.detail}", fix="see /openapi.json for the accepted requests")
