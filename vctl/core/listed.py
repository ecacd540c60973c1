"""Many objects of one kind, stored by column: tables and JSON are written without an object per row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, repeat
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Mapping[str, Any])
BLOCK = 1 << 16
"""The approximate number of characters in a block of text: few system calls, little memory."""


class Alike(Sequence[Any]):
    """A column with one value for many objects: a function of the value is computed once."""

    def __init__(self, value: Any, count: int) -> None:
        self._value = value
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return repeat(self._value, self._count)

    def __getitem__(self, at: int | slice) -> Any:
        there = range(self._count)[at]  # raises IndexError outside of the range
        return Alike(self._value, len(there)) if isinstance(there, range) else self._value


Values = Sequence[Any]
"""A column: the values of a field, in the order of the objects."""


class Listed(Sequence[F]):
    """A sequence of dicts. ``fields``: name -> its column, or a function that makes the column on demand.

    A dict is made when it is read, with copies (shallow ones) of values that are dicts or lists.
    """

    def __init__(self, count: int, fields: Mapping[str, Values | Callable[[], Values]]) -> None:
        self._count = count
        self._fields = dict(fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in the order of the form."""
        return tuple(self._fields)

    def field(self, name: str) -> Values:
        """The column of a field; None for every object if there is no such field."""
        values = self._fields.get(name)
        if callable(values):
            values = self._fields[name] = values()
        return Alike(None, self._count) if values is None else values

    def fields(self) -> dict[str, Values]:
        """All columns by the names of their fields, in the order of the form."""
        return {name: self.field(name) for name in self._fields}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> F: ...
    @overload
    def __getitem__(self, at: slice) -> Listed[F]: ...
    def __getitem__(self, at: int | slice) -> F | Listed[F]:
        if isinstance(at, slice):
            chosen = {name: values[at] for name, values in self.fields().items()}
            return Listed(len(range(self._count)[at]), chosen)
        at = range(self._count)[at]  # raises IndexError outside of the range
        made: Any = {name: values[at] for name, values in self.fields().items()}
        return {name: one.copy() if type(one) in (dict, list) else one for name, one in made.items()}  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, Listed)) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __iter__(self) -> Iterator[F]:
        fields = self.fields()
        owned = [name for name, values in fields.items() if not {dict, list}.isdisjoint(map(type, values))]
        for values in zip(*fields.values(), strict=True):
            made: Any = dict(zip(fields, values, strict=True))
            for name in owned:
                made[name] = made[name].copy()
            yield made


def field_of(items: Sequence[Mapping[str, Any]], name: str) -> Values:
    """The column of a field of many objects; None where an object does not have the field."""
    return items.field(name) if isinstance(items, Listed) else [item.get(name) for item in items]


def ordered(items: Sequence[F], places: Sequence[int]) -> Sequence[F]:
    """The objects at these places, in this order; columns stay columns, each made when it is read."""
    if not isinstance(items, Listed):
        return [items[at] for at in places]
    listed: Listed[F] = items

    def column(name: str) -> Values:
        values = listed.field(name)
        return values[: len(places)] if isinstance(values, Alike) else [values[at] for at in places]

    return Listed(len(places), {name: partial(column, name) for name in listed.names})


def together(parts: Sequence[Sequence[F]]) -> Sequence[F]:
    """The objects of all parts, one part behind the other; columns stay columns."""
    parts = [part for part in parts if len(part)]
    if len(parts) == 1:
        return parts[0]
    columns = [part for part in parts if isinstance(part, Listed)]
    if len(columns) < len(parts) or len({part.names for part in columns}) != 1:
        return list(chain.from_iterable(parts))

    def column(name: str) -> Values:
        values = [part.field(name) for part in columns]
        examples = [one[0] for one in values if isinstance(one, Alike)]
        if len(examples) == len(values) and len(set(_keys(examples))) == 1:
            return Alike(examples[0], count)
        return list(chain.from_iterable(values))

    count = sum(map(len, columns))
    return Listed(count, {name: partial(column, name) for name in columns[0].names})


def joined(values: Values) -> Values:
    """The same column, as ``Alike`` if all values are equal."""
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        return Alike(values[0], len(values))
    return values


def mapped(make: Callable[..., Any], *fields: Values) -> Values:
    """The column that ``make`` returns for the values of each object; called once for equal values."""
    varying = [values for values in fields if not isinstance(values, Alike)]
    if len(fields[0]) == 1 or (not varying and fields[0]):
        return Alike(make(*(values[0] for values in fields)), len(fields[0]))
    keys = _keys(varying[0]) if len(varying) == 1 else list(zip(*map(_keys, varying), strict=True))
    examples = dict(zip(keys, range(len(keys)), strict=True))
    made = {key: make(*(values[at] for values in fields)) for key, at in examples.items()}
    return list(map(made.__getitem__, keys))


def _keys(values: Values) -> Values:
    """Keys that are equal only for values with the same text.

    They are the values if all are str or all are int (None aside), else the ids of the objects: 1 == True.
    """
    kinds = set(map(type, values)) - {type(None)}
    return values if len(kinds) < 2 and kinds <= {str, int} else list(map(id, values))


def runs(*fields: Values) -> Iterator[tuple[tuple[Any, ...], range]]:
    """Groups of neighbouring objects that are equal in all these fields: the values and the positions."""
    if fields[0] and all(isinstance(values, Alike) for values in fields):
        yield tuple(values[0] for values in fields), range(len(fields[0]))
        return
    start = 0
    for kind, neighbours in groupby(zip(*fields, strict=True)):
        yield kind, range(start, start := start + len(list(neighbours)))


def filled(places: Sequence[tuple[str, Values]], count: int) -> Iterator[str]:
    """Text for many objects, in blocks: for each object all places in order, with its values in them.

    A place is a text with ``%s`` for the value, and the column of its values.
    """
    if not count:
        return
    varying = [values for _, values in places if not isinstance(values, Alike)]
    row = "".join(
        (position % values[0]).replace("%", "%%") if isinstance(values, Alike) else position
        for position, values in places
    )
    size = BLOCK // len(row) + 1
    for start in range(0, count, size):
        part = [values[start : start + size] for values in varying]
        yield row * min(size, count - start) % tuple(chain.from_iterable(zip(*part, strict=True)))
