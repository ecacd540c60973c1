"""Changes as JSON and back: fields by name, without those that have their default."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from vctl.core.compact import dumps
from vctl.core.fitting import hints_of
from vctl.core.values import MISSING, Field, fields, is_value
from vctl.engine.changes import CHANGES, Change
from vctl.engine.changes.submits import OUTSIDE


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


def _inside(kind: type) -> list[Field[Any]]:
    """The fields of a change that the journal has."""
    return [one for one in fields(kind) if OUTSIDE not in one.metadata]


def _value_writer(kind: type) -> Writer:
    hints = hints_of(kind)
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
    hints = hints_of(kind)
    readers = {one.name: _reader(hints[one.name]) for one in _inside(kind)}
    return lambda value: kind(**{name: readers[name](part) for name, part in value.items()})
