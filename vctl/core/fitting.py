"""Checks that values have the declared types of their fields: values from a table row may have others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from vctl.core.values import fields, is_value

hints_of = cache(get_type_hints)
"""The types of the fields of a class, by name."""


def fits(value: Any, kind: Any) -> bool:
    """Whether a value, with everything inside it, is of the type ``kind``."""
    return _checker(kind)(value)


def _by_type(kind: Any) -> bool:
    """Whether the class of a value alone decides if it is of the type ``kind``."""
    if get_origin(kind) in (Union, UnionType):
        return all(map(_by_type, get_args(kind)))
    return kind in (str, int, bool, bytes, type(None))


_INFINITY = float("inf")
MOST_SHARED = 256
"""The most values of one field that are remembered as good."""


def _once(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Make a check remember the objects that it accepted: equal rows share the values made of their texts."""
    good: dict[int, Any] = {}

    def check_once(value: Any) -> bool:
        if good.get(id(value)) is value and value is not None:
            return True
        if not check(value):
            return False
        if len(good) >= MOST_SHARED:
            good.clear()
        good[id(value)] = value
        return True

    return check_once


def _value_checker(kind: type) -> Callable[[Any], bool]:
    hints = hints_of(kind)
    simple = [member.name for member in fields(kind) if _by_type(hints[member.name])]
    checks = [_checker(hints[name]) for name in simple]
    simple_of = attrgetter(*simple, "__class__", "__class__")  # so that a single name also gives a tuple
    others = [
        (member.name, _checker(hint) if hint is float else _once(_checker(hint)))
        for member in fields(kind)
        if member.name not in simple and (hint := hints[member.name])
    ]
    good: set[tuple[type, ...]] = set()

    def check_all(value: Any) -> bool:
        if not isinstance(value, kind):
            return False
        values = simple_of(value)
        if (types := tuple(map(type, values))) not in good:
            if not all(check(member) for check, member in zip(checks, values, strict=False)):
                return False
            good.add(types)
        return all(check(getattr(value, name)) for name, check in others)

    return check_all


@cache
def _checker(kind: Any) -> Callable[[Any], bool]:
    origin, parts = get_origin(kind), get_args(kind)
    if is_value(kind):
        return _value_checker(kind)
    each = [_checker(part) for part in parts if part is not Ellipsis]
    if origin in (Union, UnionType):
        return lambda value: any(check(value) for check in each)
    if origin is tuple and parts[-1] is Ellipsis:
        return lambda value: isinstance(value, tuple) and all(map(each[0], value))
    if origin is tuple:
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(each)
            and all(check(element) for check, element in zip(each, value, strict=True))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = each
        return lambda value: (
            isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))
        )
    if kind is Any:
        return lambda _: True
    if kind is float:
        return lambda value: isinstance(value, int | float) and -_INFINITY < value < _INFINITY
    plain = origin or kind
    return lambda value: isinstance(value, plain)
