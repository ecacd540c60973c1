"""Changes as JSON and back: fields by name, without those that have their default."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from vctl.core.values import MISSING, Field, fields, is_value
from vctl.engine.changes import CHANGES, Change
from vctl.engine.changes.submits import OUTSIDE


def _encoder() -> Callable[[Any], str]:
    """Compact JSON. The standard encoder makes its inner one, written in C, anew for each text; here there is one."""
    plain = json.JSONEncoder(separators=(",", ":"), check_circular=False)
    if (made := getattr(json.encoder, "c_make_encoder", None)) is None:
        return plain.encode
    ascii_of = json.encoder.encode_basestring_ascii
    parts = made(
        None, plain.default, ascii_of, None, ":", ",", plain.sort_keys, plain.skipkeys, plain.allow_nan
    )
    return lambda value: "".join(parts(value, 0))


dumps = _encoder()


def encode(change: Change) -> str:
    """A change as text."""
    kind = type(change)
    return dumps({"type": kind.__name__, **_writer(kind)(change)})


def decode(text: str) -> Change:
    """The change of a text. Raises ValueError, KeyError or TypeError where it is none."""
    data = json.loads(text)
    change: Change = _reader(CHANGES[data.pop("type")])(data)
    return change


Writer = Callable[[Any], Any]
_writers: dict[Any, Writer | None] = {}


def _writer(kind: Any) -> Any:
    """The function that turns a value of a type into plain JSON; None if the encoder takes the value as it is."""
    if kind not in _writers:
        _writers[kind] = _new_writer(kind)
    return _writers[kind]


def _new_writer(kind: Any) -> Writer | None:
    if is_value(kind):
        return _value_writer(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple and parts[-1] is not Ellipsis:
        return _tuple_writer([_writer(part) for part in parts])
    inner = [found for part in parts if (found := _writer(part)) is not None]
    if not inner:
        return None
    (write,) = inner
    if origin in (Union, UnionType):
        return lambda value: None if value is None else write(value)
    assert origin is tuple, kind
    return lambda value: [write(one) for one in value]


def _tuple_writer(each: list[Writer | None]) -> Writer | None:
    if not any(each):
        return None
    return lambda value: [
        one if write is None else write(one) for one, write in zip(value, each, strict=True)
    ]


_hints = cache(get_type_hints)


def _inside(kind: type) -> list[Field[Any]]:
    """The fields of a change that the journal has."""
    return [one for one in fields(kind) if OUTSIDE not in one.metadata]


def _value_writer(kind: type) -> Writer:
    hints = _hints(kind)
    known = []
    for one in _inside(kind):
        default = one.default if one.default_factory is MISSING else one.default_factory()
        known.append((one.name, default, _writer(hints[one.name])))
    names = [name for name, *_ in known]
    parts_of = attrgetter(*names, names[0])  # of a single name it would give no tuple

    def write(value: Any) -> dict[str, Any]:
        return {
            name: part if inner is None else inner(part)
            for (name, default, inner), part in zip(known, parts_of(value), strict=False)
            if part is not default and part != default
        }

    return write


Reader = Callable[[Any], Any]
_readers: dict[Any, Reader] = {}


def _reader(kind: Any) -> Reader:
    """The function that turns plain JSON into a value of a type."""
    if (known := _readers.get(kind)) is None:
        known = _readers[kind] = _new_reader(kind)
    return known


def _new_reader(kind: Any) -> Reader:
    if is_value(kind):
        return _value_reader(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = [_reader(part) for part in parts if part is not NoneType]
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        if parts[-1] is Ellipsis:
            one = _reader(parts[0])
            return lambda value: tuple([one(part) for part in value])
        each = [_reader(part) for part in parts]
        return lambda value: tuple(reader(part) for reader, part in zip(each, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(*parts)
    return lambda value: value


def _mapping_reader(key: Any, item: Any) -> Reader:
    read = _reader(item)
    if key is int:
        return lambda value: {int(name): read(one) for name, one in value.items()}
    return lambda value: {name: read(one) for name, one in value.items()}


def _value_reader(kind: type) -> Reader:
    hints = _hints(kind)
    readers = {one.name: _reader(hints[one.name]) for one in _inside(kind)}
    return lambda value: kind(**{name: readers[name](part) for name, part in value.items()})


def fits(value: Any, kind: Any) -> bool:
    """Whether a value, with all that is in it, is of a type: a row may have other JSON than a field is made for."""
    return _checker(kind)(value)


def _by_type(kind: Any) -> bool:
    """Whether the type of a value alone decides."""
    if get_origin(kind) in (Union, UnionType):
        return all(map(_by_type, get_args(kind)))
    return kind in (str, int, bool, bytes, type(None))


MOST_SHARED = 256
"""Values of one field that are known to be good, at most."""


def _once(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A check that accepts a value it has accepted before: equal rows share the values that are made of their texts."""
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
    hints = _hints(kind)
    simple = [one.name for one in fields(kind) if _by_type(hints[one.name])]
    checks = [_checker(hints[name]) for name in simple]
    simple_of = attrgetter(*simple, "__class__", "__class__")  # of a single name it would give no tuple
    others = [
        (one.name, _checker(hint) if hint is float else _once(_checker(hint)))
        for one in fields(kind)
        if one.name not in simple and (hint := hints[one.name])
    ]
    good: set[tuple[type, ...]] = set()

    def check_all(value: Any) -> bool:
        if not isinstance(value, kind):
            return False
        values = simple_of(value)
        if (types := tuple(map(type, values))) not in good:
            if not all(check(one) for check, one in zip(checks, values, strict=False)):
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
            and all(check(one) for check, one in zip(each, value, strict=True))
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, item = each
        return lambda value: (
            isinstance(value, Mapping) and all(map(key, value)) and all(map(item, value.values()))
        )
    if kind is Any:
        return lambda _: True
    if kind is float:
        return lambda value: isinstance(value, int | float) and isfinite(value)
    plain = origin or kind
    return lambda value: isinstance(value, plain)
