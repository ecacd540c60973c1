"""Many objects of one kind, field by field: tables and JSON are written so, without an object for each row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Mapping[str, Any])
Values = list[Any] | tuple[Any, ...]


class Listed(Sequence[F]):
    """``fields`` has for each field the value of every object, or a function that makes these values on demand.

    An object, which is a dict, is made when it is asked for; no two of them share a value that can be changed.
    """

    def __init__(self, count: int, fields: Mapping[str, Values | Callable[[], Values]]) -> None:
        self._count = count
        self._fields = dict(fields)

    def field(self, name: str) -> Values:
        """The values of a field, in the order of the objects; None for a field that they do not have."""
        found = self._fields.get(name)
        if callable(found):
            found = self._fields[name] = found()
        return [None] * self._count if found is None else found

    def fields(self) -> dict[str, Values]:
        """All fields, in the order of the form."""
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
        at = range(self._count)[at]  # IndexError where there is none
        return next(iter(self[at : at + 1]))

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
    """The values that a field has in each of many objects; None where an object does not have it."""
    return items.field(name) if isinstance(items, Listed) else [item.get(name) for item in items]


def keyed(values: Values) -> tuple[Values, dict[Any, Any]]:
    """A key for each value, and the value of each key: one where all are the same.

    Keys are the values themselves, or where the same number may be another text, which object it is.
    """
    kinds = set(map(type, values)) - {type(None)}
    keys = values if len(kinds) < 2 and kinds <= {str, int} else list(map(id, values))
    if keys and keys.count(keys[0]) == len(keys):
        return keys, {keys[0]: values[0]}
    return keys, dict(zip(keys, values, strict=True))
