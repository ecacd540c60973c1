"""Values of a call from Python: they have the types and ranges of the declaration of the verb, as a route wants them.

Documents and amounts pass: their readers check them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

from vctl import spec
from vctl.operations.declare import Operation, Param

_KINDS: Mapping[object, tuple[Any, Any, str, str]] = {
    str: (str, (), "a string", "put it in quotes"),
    int: (int, bool, "a whole number", "write a number such as 1"),
    float: ((float, int), bool, "a number", "write a number such as 1.5"),
    bool: (bool, (), "true or false", "write True or False"),
    Sequence[str]: ((list, tuple, Sequence), (str, bytes), "a list of strings", 'write it as ["a", "b"]'),
    Mapping[str, str]: ((dict, Mapping), (), "an object", 'write it as {"NAME": "value"}'),
    type(None): (type(None), (), "null", "leave it out"),
}
"""The types that are checked here: the classes of their values, classes that these are not, the words and the fix."""


def check_call(operation: Operation[Any, Any], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Refuse the values of a call that a server would not accept."""
    params = _params(operation)
    for param, value in zip(params.values(), args, strict=False):
        check(param, value)
    for name, value in kwargs.items():
        if name in params:
            check(params[name], value)


@cache
def _params(operation: Operation[Any, Any]) -> dict[str, Param]:
    return {param.name: param for param in operation.params}


def check(param: Param, value: Any) -> None:
    """Refuse a value of another type or out of range."""
    if value is param.default or not (kinds := _kinds(param)):
        return
    for kind in kinds:
        classes, others, _, _ = _KINDS[kind]
        if isinstance(value, classes) and not isinstance(value, others):
            break
    else:
        _, _, what, fix = _KINDS[kinds[0]]
        raise spec.fields.refuse(param.name, f"{spec.fields.show(value)} is not {what}", fix)
    if kind is int or kind is float:
        _check_range(param, value)
    elif kind == Mapping[str, str]:
        for key, inner in value.items():
            if not (isinstance(key, str) and isinstance(inner, str)):
                _check_text(key, param.name)
                _check_text(inner, spec.fields.child(param.name, key))
    elif kind == Sequence[str]:
        for number, inner in enumerate(value):
            if not isinstance(inner, str):
                _check_text(inner, f"{param.name}[{number}]")


@cache
def _kinds(param: Param) -> tuple[object, ...]:
    """The types that are accepted; none where a reader checks the value."""
    kind = param.annotation.__origin__
    kinds = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    is_amount = float in kinds and str in kinds
    return () if is_amount or any(one not in _KINDS for one in kinds) else kinds


def _check_range(param: Param, value: float) -> None:
    least, most, above = param.info.least, param.info.most, param.info.above
    if (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
    ):
        return
    bounds = (("at least", least), ("above", above), ("at most", most))
    words = ", ".join(f"{word} {bound:.0f}" for word, bound in bounds if bound is not None)
    raise spec.fields.refuse(
        param.name, f"{spec.fields.show(value)} is out of range", f"write a number: {words}"
    )


def _check_text(value: object, path: str) -> None:
    if not isinstance(value, str):
        raise spec.fields.refuse(path, f"{spec.fields.show(value)} is not a string", "put it in quotes")
