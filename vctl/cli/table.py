"""What a table is made of: columns and cells. Declarations only; ``screen`` draws them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

GIVES, NORMAL, KEY, MATTERS = range(4)
"""The order in which columns become narrower where the terminal is: the column that matters last."""
LEAST = {GIVES: 8, NORMAL: 8, KEY: 13, MATTERS: 21}
"""How narrow a column gets while another can still give way."""


class Cell:
    """A text with a colour; a plain string is a cell without one."""

    __slots__ = ("colour", "text")

    def __init__(self, text: str, colour: str = "") -> None:
        self.text = text
        self.colour = colour


class Bar:
    """A cell that shows how much of something is used; empty where there is nothing of it."""

    __slots__ = ("total", "used")

    def __init__(self, used: float, total: float) -> None:
        self.used = used
        self.total = total


class Column:
    """A column of a table: its heading and what it shows of an item.

    ``rank`` says when it gives way, ``middle`` that ids in it are shortened in the middle, ``whole`` that it is never
    cut (numbers and fixed words), ``at`` from which width of the terminal on it is there. ``reads`` are the fields that
    ``show`` looks at: where these are equal, so are the cells. A column never comes or goes with what is in it.
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
        """The text is a user's own: a cluster id in it is not a name to be shortened."""

    def cells(
        self, items: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Any], dict[Any, "str | Cell | Bar"]]:
        """For each item a key, and for each key what the items show that have it: what is alike is made once."""
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
    """Equal keys for equal values: themselves, or where the same number may be another text, which object it is."""
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
    """The column for which people read the table: cut last."""
    return Column(heading, show, rank=MATTERS, raw=raw)
