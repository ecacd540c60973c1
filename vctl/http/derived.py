"""Routes of declared verbs: request and answer of a route follow from the parameters and the reply of its verb."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import APIRouter, Query, Request
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    create_model,
)

from vctl.errors import VctlError
from vctl.http import documents
from vctl.http.answers import JSONResponse
from vctl.http.context import context_of
from vctl.operations.declare import Operation
from vctl.spec import documents as forms
from vctl.spec import reports
from vctl.spec.ids import SUBMISSION_PATTERN
from vctl.spec.job_request import CAUSES, IN_RUNTIME_ENV
from vctl.spec.options import CONDITIONS, PRIVATE
from vctl.spec.params import NOT_GIVEN, Opt, Param, Written
from vctl.spec.quantities import LARGEST

API = "/api/v1"
LONGEST_ID = 1024
LONGEST_WORD = 100_000


def _kernel_text(value: object) -> str:
    """Accept a string with surrogates, unlike pydantic: arguments, paths and variables may be any bytes."""
    if not isinstance(value, str):
        raise ValueError("it must be a string")  # pydantic makes a validation error of it
    if len(value) > LONGEST_WORD:
        raise ValueError(f"it has more than {LONGEST_WORD} characters")
    return value


KernelText = Annotated[
    str,
    PlainValidator(_kernel_text, json_schema_input_type=str),
    WithJsonSchema({"type": "string", "maxLength": LONGEST_WORD}),
]
AmountNumber = Annotated[StrictFloat, WithJsonSchema({"type": "number", "minimum": 0, "maximum": LARGEST})]
AmountText = Annotated[StrictStr, WithJsonSchema({"type": "string", "pattern": "[0-9]"})]
"""An amount of a resource, such as 2 or "8GiB"; its reader checks it, in words of its own."""
_STRICT: dict[object, object] = {str: StrictStr, int: StrictInt, float: StrictFloat, bool: StrictBool}
_KERNEL: dict[object, object] = {
    str: KernelText,
    Sequence[str]: list[KernelText],
    Mapping[str, str]: dict[KernelText, KernelText],
}
_ID = SUBMISSION_PATTERN.removesuffix(r"\Z")
_LABEL = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_NAMES = {"propertyNames": {"minLength": 1}}


def _each(**form: object) -> dict[str, Any]:
    return {"allOf": [{"items": form}]}


FORMS: dict[str, dict[str, Any]] = {
    "after": _each(pattern=f"^(({'|'.join(CONDITIONS)}):)?{_ID}$"),
    "array": {"pattern": r"^\s*[0-9][0-9,:\s-]*(%[0-9]+)?\s*$"},
    "borrow_limit": _NAMES,
    "cluster": {"pattern": f"^{_ID}(##{_ID})*$"},
    "clusters": _each(required=["id"]),
    "cwd": {"pattern": "^/"},
    "entrypoint": {"prefixItems": [{"minLength": 1}], "minItems": 1},
    "entrypoint_memory": {"multipleOf": 1},
    "entrypoint_resources": _NAMES,
    "env": {"propertyNames": {"pattern": "^[^=]+$"}},
    "environment": {"propertyNames": {"pattern": "^[^=]+$"}},
    "filter": _each(pattern=r"[^\s=!>][^=]*="),
    "jobs": {"minItems": 1},
    "lending_limit": _NAMES,
    "memory": {"multipleOf": 1},
    "node_id": {"pattern": f"^{_ID}$"},
    "node labels": {
        "propertyNames": {"pattern": f"^([^/]+/)?{_LABEL}$"},
        "allOf": [{"additionalProperties": {"pattern": f"^({_LABEL})?$"}}],
    },
    "node_resources": _NAMES,
    "notify": {"minLength": 1},
    "replica_sets": _NAMES,
    "resources": _NAMES,
    "private": _each(enum=[*PRIVATE]),
    "retry_on": _each(enum=[*CAUSES]),
    "runtime_env": {"propertyNames": {"enum": [*IN_RUNTIME_ENV]}},
    "signal": {"pattern": r"^\s*[A-Za-z0-9]+\s*(@|$)"},
    "submission_id": {"pattern": f"^{_ID}$"},
    "tasks": {"minItems": 1},
    "time_limit_s": {"exclusiveMinimum": 0},
}  # fmt: skip
"""Parameter (with the kind of the verb, where it has another meaning there) -> what its schema says beside its type.

Only the schema: the readers of the parameters refuse what is not so, in words of their own.
"""


def _form(operation: Operation[Any, Any], param: Param) -> dict[str, Any] | None:
    kind = operation.name.partition(" ")[0]
    return FORMS.get(f"{kind} {param.wire}", FORMS.get(param.wire))


def router_of(module: ModuleType) -> APIRouter:
    """The routes of the verbs that a module declares."""
    router = APIRouter(prefix=API, tags=[module.__name__.rpartition(".")[2]], responses=documents.ERRORS)
    for operation in vars(module).values():
        if isinstance(operation, Operation):
            add_route(router, operation)
    return router


def add_route(router: APIRouter, operation: Operation[Any, Any]) -> None:
    """Add the route of a verb."""
    in_path, others = _divided(operation)
    fields = {
        name: param.wire
        for verb in (operation, *(param.info.each for param in others if param.info.each is not None))
        for param in verb.params
        for name in param.references
    }

    names = {word: param.name for word, param in in_path} | {param.wire: param.name for param in others}

    def endpoint(request: Request, **given: Any) -> JSONResponse:
        body = given.pop("body", None)
        if body is not None:
            given.update({name: getattr(body, name) for name in body.model_fields_set})
        with context_of(request) as context:
            try:
                reply = operation.at(context, **{names[word]: value for word, value in given.items()})
            except VctlError as error:
                raise error.spelled(fields) from None
        return JSONResponse(operation.document(reply))

    parameters = [_parameter("request", Request)]
    for word, param in in_path:
        parameters.append(_parameter(word, Literal[param.info.choices] if param.info.choices else str))
    if operation.in_query:
        parameters += [_query(param, _form(operation, param)) for param in others]
    elif others:
        is_required = any(param.required for param in others) or operation.method == "PATCH"
        model = _body(operation)
        parameters.append(
            _parameter("body", model) if is_required else _parameter("body", model | None, default=None)
        )
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # FastAPI reads it
    endpoint.__name__ = _function(operation.name)
    endpoint.__doc__ = operation.run.__doc__
    router.add_api_route(
        operation.path, endpoint, methods=[operation.method], responses=documents.good(_reply(operation)),
        response_model=None, openapi_extra={"x-right": operation.right},
    )  # fmt: skip


def _function(name: str) -> str:
    """The function name for a verb such as ``node list``, from which OpenAPI derives the id of the route."""
    word = name.rpartition(" ")[2].replace("-", "_")
    return "list_" if word == "list" else word


def _divided(operation: Operation[Any, Any]) -> tuple[list[tuple[str, Param]], list[Param]]:
    """The parameters that fill the braces of the path, each with its word there, and the others."""
    words = [part[1:-1].partition(":")[0] for part in operation.path.split("/") if part.startswith("{")]
    params = operation.params
    return list(zip(words, params, strict=False)), params[len(words) :]


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _query(param: Param, form: dict[str, Any] | None) -> inspect.Parameter:
    many = param.many
    given: dict[str, Any] = {"description": param.info.help, "json_schema_extra": form, **_limits(param)}
    if many:
        given["default_factory"] = list
    kind = param.annotation.__origin__
    if get_origin(kind) is Sequence:
        kind = list[str]  # FastAPI accepts no other sequence
    default = inspect.Parameter.empty if many or param.required else param.default
    return _parameter(param.wire, Annotated[kind, Query(**given)], default)


@cache
def _body(operation: Operation[Any, Any]) -> Any:
    """The model of a body, which refuses unknown fields. A list is the value of a field of documents."""
    params = _divided(operation)[1]
    fields: dict[str, Any] = {
        param.wire: (
            Annotated[
                _field(param),
                Field(
                    description=param.info.help,
                    json_schema_extra=_form(operation, param),
                    **_limits(param, _longest(param)),
                ),
            ],
            ... if param.required else None if param.default is NOT_GIVEN else param.default,
        )
        for param in params
    }
    name = "".join(word.capitalize() for word in operation.name.replace("-", " ").split())
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    if (listed := next((param for param in params if param.info.each is not None), None)) is None:
        return model
    bare: Any = fields[listed.wire][0]

    def with_name(body: Any) -> Any:
        return {listed.wire: body} if isinstance(body, list) else body

    return Annotated[model, BeforeValidator(with_name, json_schema_input_type=Union[model, bare])]  # noqa: UP007  # made from values


def _field(param: Param) -> Any:
    """The strict type of a field: a text is not read as a number, nor a number as a boolean."""
    if param.info.choices:
        return Literal[param.info.choices]
    if param.info.each is not None:  # the verb checks the documents, and names their lines
        model = _body(param.info.each)  # type: ignore[arg-type]  # a verb or its fields, by identity
        return list[Annotated[Any, PlainValidator(lambda value: value, json_schema_input_type=model)]]
    kinds = [_KERNEL.get(kind, kind) for kind in param.kinds] if param.to_kernel else param.kinds
    if {float, str} <= set(kinds):
        amounts: dict[object, Any] = {float: AmountNumber, str: AmountText}
        kinds = [amounts.get(kind, kind) for kind in kinds]
    strict = [_strict(kind, param.info) for kind in kinds if kind is not Written]
    return strict[0] if len(strict) == 1 else Union[tuple(strict)]  # noqa: UP007  # made from values


def _strict(kind: Any, info: Opt) -> Any:
    origin = get_origin(kind)
    if origin is Sequence and get_args(kind) == (str,):
        return list[Annotated[StrictStr, Field(max_length=LONGEST_ID)]]
    if origin is Sequence:
        inner = _strict(get_args(kind)[0], info)
        return list[Annotated[inner, Field(**_range(info))]]  # type: ignore[valid-type]  # made from values
    if kind is str and info.pattern is not None:
        return Annotated[str, Field(pattern=info.pattern)]
    if origin is Mapping:
        return dict[get_args(kind)]  # type: ignore[misc]  # made from values
    return _STRICT.get(kind, kind)


def _longest(param: Param) -> int | None:
    return LONGEST_ID if param.is_text and not (param.info.choices or param.to_kernel) else None


def _limits(param: Param, longest: int | None = None) -> dict[str, Any]:
    info = param.info
    limit = info.longest or longest
    return {**({} if param.many else _range(info)), **({} if limit is None else {"max_length": limit})}


def _range(info: Opt) -> dict[str, Any]:
    """The range of a number, or of each number of a list."""
    bounds = {"ge": info.minimum, "le": info.maximum, "gt": info.above}
    return {name: value for name, value in bounds.items() if value is not None}


def _reply(operation: Operation[Any, Any]) -> Any:
    if operation.items:
        return getattr(documents, operation.items, documents.Listing)
    kind = get_type_hints(operation.run, localns={**vars(forms), **vars(reports)})["return"]
    return kind if kind == documents.Amounts else documents.MODELS.get(kind, documents.Document)
