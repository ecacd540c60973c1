"""What people see: a page with or without colour, with or without an edge, and the tables and bars on it.

Drawn here and not by rich: the same table then serves terminals, pipes and files, and a command that only
shows one does not spend 60 ms on imports. Without an edge (piped) nothing is ever cut.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36",
    "strong red": "1;31",
}  # fmt: skip
GAP = "  "
LEAST_WIDTH = 8


class Cell:
    """A text with a colour; a plain string is a cell without one."""

    __slots__ = ("colour", "text")

    def __init__(self, text: str, colour: str = "") -> None:
        self.text = text
        self.colour = colour


class Column:
    """A column of a table: heading, what it shows of an item, and how it behaves when room is short.

    ``optional`` columns are left out when empty everywhere. Where room is short the ``give`` columns are cut,
    then the ``spare`` ones left out, the last one first, then all others cut; the first column, the key, never.
    """

    def __init__(
        self,
        heading: str,
        show: str | Callable[[Mapping[str, Any]], Any],
        *,
        right: bool = False,
        optional: bool = False,
        give: bool = False,
        spare: bool = False,
    ) -> None:
        self.heading = heading
        self.show = show
        self.right = right
        self.optional = optional
        self.give = give
        self.spare = spare

    def cell(self, item: Mapping[str, Any]) -> Cell:
        """What this column shows of an item."""
        value = item.get(self.show) if isinstance(self.show, str) else self.show(item)
        if isinstance(value, Cell):
            return value
        return Cell("" if value is None else str(value))


class Page:
    """Where text goes: whether it takes colour and █ (``fine``), and how wide it is (None: no edge)."""

    def __init__(
        self, *, colour: bool = False, width: int | None = None, header: bool = True, fine: bool = True
    ) -> None:
        self.colour = colour
        self.width = width
        self.header = header
        self.fine = fine

    @classmethod
    def on(cls, stream: TextIO, *, color: str, header: bool) -> "Page":
        """The page that fits a stream; ``color`` is auto, always or never."""
        terminal = stream.isatty()
        width = None
        if terminal:
            import os

            try:
                width = os.get_terminal_size(stream.fileno()).columns or 80
            except OSError:
                width = 80
        fine = (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
        return cls(
            colour=color == "always" or (color == "auto" and terminal), width=width, header=header, fine=fine
        )

    def paint(self, text: str, colour: str) -> str:
        """The text in a colour, where there is colour."""
        return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if self.colour and colour and text else text

    def bar(self, used: float, total: float, size: int = 16) -> str:
        """How much of something is used, as a bar; red when all of it is."""
        share = min(1.0, used / total) if total else 0.0
        full = round(share * size)
        if share and not full:
            full = 1
        ink, paper = ("█", "░") if self.fine else ("#", ".")
        colour = "red" if share >= 1 else "yellow" if share >= 0.8 else "green"
        return self.paint(ink * full, colour) + self.paint(paper * (size - full), "dim")

    def table(self, columns: Sequence[Column], items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """The lines of a table."""
        grid = [[column.cell(item) for column in columns] for item in items]
        cells = list(zip(*grid, strict=True)) if grid else [()] * len(columns)
        widths = [
            max([wide(column.heading), *(wide(cell.text) for cell in below)])
            for column, below in zip(columns, cells, strict=True)
        ]
        shown = [
            index
            for index, column in enumerate(columns)
            if not column.optional or any(cell.text for cell in cells[index])
        ]
        self._fit(columns, widths, shown)
        columns, widths = [columns[index] for index in shown], [widths[index] for index in shown]
        if self.header:
            yield self._line(columns, widths, [Cell(column.heading, "bold") for column in columns])
        for row in grid:
            yield self._line(columns, widths, [row[index] for index in shown])

    def _fit(self, columns: Sequence[Column], widths: list[int], shown: list[int]) -> None:
        """Narrow or leave out columns until the table fits the page."""
        if self.width is None:
            return
        least = [min(w, LEAST_WIDTH) if column.give else w for column, w in zip(columns, widths, strict=True)]
        spare = [index for index in shown if columns[index].spare]
        while spare and self._excess(least, shown) > 0:
            shown.remove(spare.pop())
        while (excess := self._excess(widths, shown)) > 0:
            able = [index for index in shown[1:] if widths[index] > LEAST_WIDTH]
            able = [index for index in able if columns[index].give] or able
            if not able:
                return
            widest = max(able, key=lambda index: widths[index])
            widths[widest] = max(LEAST_WIDTH, widths[widest] - max(1, excess // 4))

    def _excess(self, widths: Sequence[int], shown: Sequence[int]) -> int:
        """By how much these columns are too wide for the page."""
        assert self.width is not None
        return sum(widths[index] for index in shown) + len(GAP) * (len(shown) - 1) - self.width

    def _line(self, columns: Sequence[Column], widths: Sequence[int], row: Sequence[Cell]) -> str:
        parts = []
        for index, (column, width, cell) in enumerate(zip(columns, widths, row, strict=True)):
            text = cell.text if self.width is None else cut(cell.text, width, self.fine)
            space = " " * (width - wide(text))
            painted = self.paint(text, cell.colour)
            last = index == len(columns) - 1
            parts.append(space + painted if column.right else painted if last else painted + space)
        return GAP.join(parts).rstrip()

    def pairs(self, rows: Iterable[tuple[str, Cell | str]]) -> Iterator[str]:
        """``name  value`` lines, the names in one column."""
        rows = list(rows)
        width = max((wide(name) for name, _ in rows), default=0)
        for name, value in rows:
            cell = value if isinstance(value, Cell) else Cell(value)
            yield f"{self.paint(name.ljust(width), 'bold')}{GAP}{self.paint(cell.text, cell.colour)}".rstrip()

    def clip(self, text: str, taken: int = 0) -> str:
        """A text cut at the edge of the page, when there is one."""
        return text if self.width is None else cut(text, max(self.width - taken, LEAST_WIDTH), self.fine)


def wide(text: str) -> int:
    """How many places a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, width: int, fine: bool = True) -> str:
    """The text, or its beginning with a mark that there is more."""
    if wide(text) <= width:
        return text
    mark = "…" if fine else "~"
    while text and wide(text) > width - 1:
        text = text[:-1]
    return text + mark
