"""What people see: lines, tables, trees and bars, drawn by rich so that they fit the terminal.

Imported only when something is drawn; data (json, yaml, csv, names) needs none of it. Without a terminal there is no
edge, and nothing is cut. Whatever text comes in is shown by ``visible``; only what was drawn here may carry colour.
"""

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.style import Style
from rich.table import Table
from rich.text import Text

from vctl.cli.table import GIVES, LEAST, MATTERS, Bar, Cell, Column
from vctl.cli.words import named
from vctl.core.text import visible

GAP = 2
BAR = 12
NO_EDGE = 1_000_000
"""As wide as any page that goes to a file."""

Part = str | tuple[str, str]
"""A text, or a text and its colour."""


class Drawn(str):
    """A line that is ready for the terminal; any other string is shown as text."""

    __slots__ = ()


class Screen:
    """Where pages go: whether it takes colour and letters beyond ASCII (``fine``), how wide and how high it is."""

    def __init__(
        self,
        *,
        colour: bool = False,
        width: int | None = None,
        height: int | None = None,
        header: bool = True,
        fine: bool = True,
    ) -> None:
        self.colour = colour
        self.width = width
        self.height = height
        self.header = header
        self.fine = fine

    @classmethod
    def on(cls, stream: TextIO, *, color: str, header: bool = True) -> "Screen":
        """The screen behind a stream; ``color`` is auto, always or never."""
        terminal = stream.isatty()
        width = height = None
        if terminal:
            try:
                width, height = os.get_terminal_size(stream.fileno())
            except OSError:
                width, height = 0, 0
            width, height = width or 80, height or 24
        fine = (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
        colour = color == "always" or (color == "auto" and terminal)
        return cls(colour=colour, width=width, height=height, header=header, fine=fine)

    @property
    def mark(self) -> str:
        """Says that there is more."""
        return "…" if self.fine else "~"

    @cached_property
    def console(self) -> Console:
        """rich's console with exactly these properties, whatever the environment says."""
        return Console(
            file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8" if self.fine else "ascii"),
            width=self.width or NO_EDGE,
            height=self.height or 25,
            force_terminal=self.colour,
            color_system="standard" if self.colour else None,
            no_color=not self.colour,
            legacy_windows=False,
            markup=False,
            emoji=False,
            highlight=False,
            _environ={},
        )

    def draw(self, thing: RenderableType, *, wrap: bool = True) -> Iterator[Drawn]:
        """The lines of anything that rich can draw."""
        with self.console.capture() as capture:
            self.console.print(thing, crop=False, no_wrap=not wrap, overflow="fold" if wrap else "ignore")
        for line in capture.get().split("\n")[:-1]:
            yield Drawn(line.rstrip())

    def text(self, *parts: Part, raw: bool = False) -> Iterator[Drawn]:
        """A sentence, broken between words where the terminal ends."""
        return self.draw(self._assemble(parts, raw=raw))

    def command(self, text: str, indent: int = 0) -> Iterator[Drawn]:
        """A command to copy: never cut, never broken."""
        line = Text(" " * indent)
        return self.draw(line.append(visible(text), self._style("cyan")), wrap=False)

    def title(self, text: str) -> Iterator[Drawn]:
        """A heading after an empty line."""
        yield Drawn("")
        yield from self.text((text, "bold"))

    def section(self, title: str, lines: Iterable[str]) -> Iterator[Drawn]:
        """A heading with what stands below it, made with ``inner``."""
        yield from self.title(title)
        for line in self.finish(lines):
            yield Drawn("  " + line if line else "")

    @cached_property
    def inner(self) -> "Screen":
        """The part of the screen that is left inside a section."""
        width = None if self.width is None else max(1, self.width - 2)
        return Screen(colour=self.colour, width=width, height=self.height, header=self.header, fine=self.fine)

    def finish(self, lines: Iterable[str]) -> Iterator[Drawn]:
        """Lines as they go to the terminal: what was not drawn here is text."""
        for line in lines:
            if isinstance(line, Drawn):
                yield line
            else:
                yield from self.text(line)

    def bar(self, used: float, total: float) -> ProgressBar:
        """How much of something is used; red when all of it is."""
        share = min(1.0, used / total) if total else 0.0
        colour = self._style("red" if share >= 1 else "yellow" if share >= 0.8 else "green")
        return ProgressBar(
            total=1.0, completed=max(share, 1 / BAR / 2 if share else 0.0), width=BAR,
            style=self._style("dim"), complete_style=colour, finished_style=colour,
        )  # fmt: skip

    def table(self, columns: Sequence[Column], items: Sequence[Any]) -> Iterator[Drawn]:
        """A table that is no wider than the terminal."""
        edge = self.width or NO_EDGE
        columns = [column for column in columns if column.at <= edge or self.width is None]
        grid = [[self._shown(column, item) for column in columns] for item in items]
        widths = self._widths(columns, grid)
        if dropped := len(columns) - len(widths):  # a terminal of a few columns
            columns = columns[:-dropped]
        gap = " " * GAP
        if self.header:
            cells = (
                _filled(self._cut(visible(column.heading), width, middle=False), width, right=column.right)
                for column, width in zip(columns, widths, strict=True)
            )
            yield Drawn(self._painted(gap.join(cells).rstrip(), "bold"))
        for row in grid:
            yield Drawn(gap.join(map(self._fitted, columns, row, widths)).rstrip())

    def _shown(self, column: Column, item: Any) -> Cell | Bar:
        cell = column.cell(item)
        if isinstance(cell, Bar):
            return cell
        text = visible(cell.text if column.raw else named(cell.text))
        return cell if text == cell.text else Cell(text, cell.colour)

    def _fitted(self, column: Column, cell: Cell | Bar, width: int) -> str:
        """A cell, as wide as its column."""
        if isinstance(cell, Cell):
            text = self._cut(cell.text, width, middle=column.middle)
            drawn = self._painted(text, "dim" if cell.text == "-" else cell.colour)
            return _filled(text, width, right=column.right, drawn=drawn)
        if not cell.total:
            return " " * width
        options = self.console.options.update(width=width)
        parts = list(self.console.render(self.bar(cell.used, cell.total), options))
        drawn = "".join(self._painted(part.text, part.style or "") for part in parts)
        return _filled("".join(part.text for part in parts), width, drawn=drawn)

    def _widths(self, columns: Sequence[Column], grid: Sequence[Sequence[Cell | Bar]]) -> list[int]:
        """How wide each column is: as its content, then narrower in the order of the ranks until the table fits."""
        widths = [_cells(visible(column.heading)) for column in columns]
        for row in grid:
            for index, cell in enumerate(row):
                size = BAR if isinstance(cell, Bar) else _cells(cell.text)
                widths[index] = max(widths[index], size)
        if self.width is None:
            return widths
        capacity = self.width - GAP * (len(widths) - 1)
        while capacity < len(widths):  # not even one letter each
            widths.pop()
            capacity = self.width - GAP * (len(widths) - 1)
        widths = [min(width, self.width) for width in widths]
        floors = [
            width if column.whole else min(width, max(LEAST[column.rank], cell_len(column.heading)))
            for column, width in zip(columns, widths, strict=False)
        ]
        ranks = [column.rank for column in columns[: len(widths)]]
        for rank in range(GIVES, MATTERS + 1):
            _narrow(widths, floors, [i for i, one in enumerate(ranks) if one == rank], capacity)
        for rank in range(GIVES, MATTERS + 1):
            _narrow(widths, [1] * len(widths), [i for i, one in enumerate(ranks) if one == rank], capacity)
        return widths

    def pairs(self, rows: Iterable[tuple[str, Cell | str]], *, raw: Sequence[str] = ()) -> Iterator[Drawn]:
        """``name  value`` lines; long values go on below themselves. Names in ``raw`` have users' own text."""
        grid = Table.grid(padding=(0, GAP, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows:
            cell = value if isinstance(value, Cell) else Cell(value)
            text = visible(cell.text if name in raw else named(cell.text))
            grid.add_row(
                Text().append(visible(name), self._style("bold")),
                Text().append(text, self._style(cell.colour)),
            )
        return self.draw(grid)

    def branches(self, names: Sequence[str], depths: Sequence[int]) -> list[str]:
        """Names in the order of a tree, each behind the lines that say where it hangs."""
        from rich.tree import Tree

        root = Tree("", hide_root=True)
        path = [root]
        for name, depth in zip(names, depths, strict=True):
            del path[depth + 1 :]
            path.append(path[-1].add(Text(visible(named(name)), no_wrap=True)))
        plain = Screen(fine=self.fine)
        return [str(line) for line in plain.draw(root)]

    def _assemble(self, parts: Sequence[Part], *, raw: bool) -> Text:
        text = Text()
        for part in parts:
            words, colour = (part, "") if isinstance(part, str) else part
            text.append(visible(words if raw else named(words)), self._style(colour))
        return text

    def _style(self, colour: str) -> str:
        return {"strong red": "bold red"}.get(colour, colour) if self.colour else ""

    def _painted(self, text: str, style: str | Style) -> str:
        """The text between the escapes of a style."""
        style = Style.parse(self._style(style)) if isinstance(style, str) else style
        return style.render(text, color_system=ColorSystem.STANDARD if self.colour else None)

    def _cut(self, text: str, width: int, *, middle: bool) -> str:
        """The text, or what fits of it with a mark that there is more."""
        if _cells(text) <= width:
            return text
        if width < 2:
            return self.mark
        right = (width - 1) // 2 if middle else 0
        left = set_cell_size(text, width - 1 - right)
        return left + self.mark + (set_cell_size(text[::-1], right)[::-1] if right else "")


def _cells(text: str) -> int:
    """How many columns of the terminal a text takes that is ``visible``."""
    return len(text) if text.isascii() else cell_len(text)


def _filled(text: str, width: int, *, right: bool = False, drawn: str | None = None) -> str:
    """What is drawn of a text, with blanks up to the width of its column."""
    blanks = " " * (width - _cells(text))
    drawn = text if drawn is None else drawn
    return blanks + drawn if right else drawn + blanks


def _narrow(widths: list[int], floors: Sequence[int], able: Sequence[int], capacity: int) -> None:
    """Take from the widest of some columns, down to their floors, until all of them fit."""
    excess = sum(widths) - capacity
    while excess > 0:
        able = [index for index in able if widths[index] > floors[index]]
        if not able:
            return
        widths[max(able, key=lambda index: widths[index])] -= 1
        excess -= 1
