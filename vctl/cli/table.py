"""Columns and cells of tables. Declarations only; ``screen`` draws them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vctl.core.listed import Alike, Values, field_of, mapped

GIVES, NORMAL, KEY, MATTERS = range(4)
"""The ranks of columns, in the order in which they become narrower on a narrow terminal."""
MIN_WIDTH = {GIVES: 8, NORMAL: 8, KEY: 14, MATTERS: 21}
"""The least width of a column while columns of other ranks can still become narrower."""
LEAST_WIDTH = {GIVES: 4, NORMAL: 4, KEY: 10, MATTERS: 12}
"""The least width of a column while numbers and words of a fixed set are whole."""


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

    def cells(self, items: Sequence[Mapping[str, Any]]) -> Values:
        """What the column shows of each item: texts, numbers, cells, bars."""
        show = self.show
        if isinstance(show, str):
            values = field_of(items, show)
            if isinstance(values, Alike):
                return mapped(_cell, values)
            if {int} == (kinds := set(map(type, values))) or (kinds == {str} and "" not in values):
                return values
            return ["-" if value is None or value == "" else str(value) for value in values]
        if not self.reads:
            return [_cell(show(item)) for item in items]
        fields = [field_of(items, name) for name in self.reads]
        return mapped(lambda *values: _cell(show(dict(zip(self.reads, values, strict=True)))), *fields)


def _cell(value: Any) -> "str | Cell | Bar":
    if isinstance(value, (Cell, Bar)):
        return value
    return "-" if value is None or value == "" else str(value)


def key(heading: str, show: str | Callable[[Mapping[str, Any]], Any]) -> Column:
    """The column that names an object: ids, shortened in the middle."""
    return Column(heading, show, middle=True, rank=KEY)


def matters(heading: str, show: str | Callable[[Mapping[str, Any]], Any], *, at: int = 0) -> Column:
    """The most important column, which is cut last."""
    return Column(heading, show, rank=MATTERS, at=at)
