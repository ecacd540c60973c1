"""Encodes changes as JSON and decodes them: fields by name, without fields that have their default."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from json.encoder import encode_basestring_ascii
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from vctl.core.compact import dumps
from vctl.core.fitting import fits, hints_of
from vctl.core.values import MISSING, Field, compiled, fields, is_value
from vctl.engine.changes import CHANGES, Change
from vctl.engine.changes.submits import OUTSIDE

T = TypeVar("T")


def encode(change: Change) -> str:
    """A change as JSON text."""
    kind: Any = type(change)
    return f'{{"type":"{kind.__name__}"{_members(kind)(change)}}}'


def decode(text: str) -> Change:
    """The change in a text. Raises ValueError, KeyError or TypeError if the text is no change."""
    data = json.loads(text)
    kind: Any = CHANGES[data.pop("type")]
    change: Change = _reader(kind)(data)
    return change


def text_of(value: Any) -> str:
    """A value that lies in a change, or in a row, as JSON text."""
    kind: Any = type(value)
    return f"{{{_members(kind)(value)[1:]}}}"


def value_of(kind: type[T], data: Any) -> T:
    """The value of this type in data read from JSON. Raises ValueError, KeyError, AttributeError or TypeError if it
    is none."""
    reader: Any = _reader
    result: T = reader(kind)(data)
    if not fits(result, kind):
        raise ValueError(f"{data!r} is no {kind.__name__}")
    return result


Writer = Callable[[Any], str]


@cache
def _writer(kind: Any) -> Writer | None:
    """The function that turns a value of a type into text; None if that is plain JSON."""
    if is_value(kind):
        members = _members(kind)
        return lambda value: f"{{{members(value)[1:]}}}"
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple and parts[-1] is not Ellipsis:
        return _tuple_writer([_writer(part) for part in parts])
    inner = [writer for part in parts if (writer := _writer(part)) is not None]
    if not inner:
        return None
    (write,) = inner
    if origin in (Union, UnionType):
        return lambda value: "null" if value is None else write(value)
    assert origin is tuple, kind
    return lambda value: f"[{','.join([write(part) for part in value])}]"


def _tuple_writer(each: list[Writer | None]) -> Writer | None:
    if not any(each):
        return None
    writers = [write or dumps for write in each]
    return lambda value: f"[{','.join([write(part) for write, part in zip(writers, value, strict=True)])}]"


def _inside(kind: type) -> list[Field[Any]]:
    """The fields that the journal stores: all without the metadata ``OUTSIDE``."""
    return [member for member in fields(kind) if OUTSIDE not in member.metadata]


_PLAIN = "quoted(part) if part.__class__ is str else repr(part) if part.__class__ is int else dumps(part)"


@cache
def _members(kind: type) -> Writer:
    """The function that turns a value into the members of its JSON object, with a comma before each.

    It is compiled because each job is written several times, and a loop over the fields takes three times
    as long.
    """
    hints = hints_of(kind)
    scope: dict[str, Any] = {"dumps": dumps, "quoted": encode_basestring_ascii}
    lines = ["def members(one):", " text = ''"]
    for member in _inside(kind):
        name, content = member.name, _PLAIN
        if (write := _writer(hints[name])) is not None:
            scope[f"write_{name}"] = write
            content = f"write_{name}(part)"
        added = f"text += ',\"{name}\":' + ({content})"
        lines.append(f" part = one.{name}")
        default = member.default if member.default_factory is MISSING else member.default_factory()
        if default is not MISSING:
            scope[f"default_{name}"] = default
            added = f"if part is not default_{name} and part != default_{name}: {added}"
        lines.append(f" {added}")
    return compiled("members", "\n".join([*lines, " return text"]), scope)


Reader = Callable[[Any], Any]


@cache
def _reader(kind: Any) -> Reader:
    """The function that turns plain JSON into a value of a type."""
    if is_value(kind):
        hints = hints_of(kind)
        readers = {member.name: _reader(hints[member.name]) for member in _inside(kind)}
        return lambda value: kind(**{name: readers[name](part) for name, part in value.items()})
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = [_reader(part) for part in parts if part is not NoneType]
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        if parts[-1] is Ellipsis:
            read = _reader(parts[0])
            return lambda value: tuple([read(part) for part in value])
        each = [_reader(part) for part in parts]
        return lambda value: tuple(reader(part) for reader, part in zip(each, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        read_item = _reader(parts[1])
        if parts[0] is int:
            return lambda value: {int(name): read_item(part) for name, part in value.items()}
        return lambda value: {name: read_item(part) for name, part in value.items()}
    return lambda value: value
