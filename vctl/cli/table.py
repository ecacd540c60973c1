"""Columns and cells of tables. Declarations only; ``screen`` draws them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

GIVES, NORMAL, KEY, MATTERS = range(4)
"""The ranks of columns, in the order in which they become narrower on a narrow terminal."""
LEAST = {GIVES: 8, NORMAL: 8, KEY: 13, MATTERS: 21}
"""The least width of a column while columns of other ranks can still become narrower."""


class Cell:
    """A text with a colour; a plain string is a cell without one."""

    __slots__ = ("colour", "text")

    def __init__(self, text: str, colour: str = "") -> None:
        self.text = text
        self.colour = colour


class Bar:
    """A cell with a bar of the used part of a total; empty where the total is 0."""

    __slots__ = ("total", "used")

    def __init__(self, used: float, total: float) -> None:
        self.used = used
        self.total = total


class Column:
    """A column of a table: its heading and the cell for an item.

    ``rank`` is its place in the order of becoming narrower, ``middle`` shortens ids in the middle, ``whole`` forbids
    any cut (numbers and fixed words), ``at`` is the width of the terminal from which on it is shown. ``reads`` are the
    fields on which the cell depends: equal fields give equal cells. Whether a column is shown never depends on its
    content.
    """

    def __init__(
        self,
        heading: str,
        show: str | Callable[[Mapping[str, Any]], Any],
        *,
        right: bool = False,
        whole: bool = False,
        middle: bool = False,
        rank: int = NORMAL,
        at: int = 0,
        raw: bool = False,
        reads: Sequence[str] = (),
    ) -> None:
        self.heading = heading
        self.show = show
        self.reads = reads
        self.right = right
        self.whole = whole or right
        self.middle = middle
        self.rank = rank
        self.at = at
        self.raw = raw
        """Whether the column has text of users, in which no cluster id is replaced by an alias."""

    def cells(
        self, items: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Any], dict[Any, "str | Cell | Bar"]]:
        """A key for each item, and the cell for each key, so that equal cells are made once."""
        keys: Sequence[Any]
        if isinstance(self.show, str):
            values = [item.get(self.show) for item in items]
            keys = _keys(values)
            return keys, {key: _cell(value) for key, value in dict(zip(keys, values, strict=True)).items()}
        if self.reads:
            keys = list(zip(*(_keys([item.get(name) for item in items]) for name in self.reads), strict=True))
        else:
            keys = range(len(items))
        show = self.show
        return keys, {key: _cell(show(item)) for key, item in dict(zip(keys, items, strict=True)).items()}


def _keys(values: list[Any]) -> list[Any]:
    """Equal keys for equal values: the values, or where equal numbers can have different texts, their identities."""
    kinds = set(map(type, values)) - {type(None)}
    return values if len(kinds) < 2 and kinds <= {str, int} else list(map(id, values))


def _cell(value: Any) -> "str | Cell | Bar":
    if isinstance(value, (Cell, Bar)):
        return value
    return "-" if value is None or value == "" else str(value)


def key(heading: str, show: str | Callable[[Mapping[str, Any]], Any]) -> Column:
    """The column that names an object: ids, shortened in the middle."""
    return Column(heading, show, middle=True, rank=KEY)


def matters(heading: str, show: str | Callable[[Mapping[str, Any]], Any], *, raw: bool = False) -> Column:
    """The most important column, which is cut last."""
    return Column(heading, show, rank=MATTERS, raw=raw)
