"""The output for people: lines, tables, trees and bars, drawn by rich so that they fit the terminal.

rich is imported only when it is needed; a table without colour and data (json, yaml, csv, names) do not need it.
Without a terminal the width is unlimited and nothing is cut. All text passes ``visible``; only lines that were drawn
here may contain colours.
"""

import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TextIO

from vctl.cli.cut import apart
from vctl.cli.table import GIVES, LEAST_WIDTH, MATTERS, MIN_WIDTH, Bar, Cell, Column
from vctl.cli.words import named
from vctl.config import DUMB
from vctl.core.listed import Alike, Values, filled, mapped
from vctl.core.text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress_bar import ProgressBar
    from rich.style import Style
    from rich.text import Text

GAP = 2
BAR = 12
NO_EDGE = 1_000_000
"""The width of output that does not go to a terminal."""


def replaces_text(stream: TextIO) -> bool:
    """Whether this is a terminal on which text can be replaced; elsewhere a page follows the previous one."""
    return stream.isatty() and os.environ.get("TERM") not in DUMB


Part = str | tuple[str, str]
"""A text, or a text and its colour."""


class Drawn(str):
    """One or more lines that are ready for the terminal; any other string is shown as text."""

    __slots__ = ()


def size_of(terminal: TextIO) -> tuple[int, int]:
    """The columns and lines of a terminal; 80 and 24 where it does not say."""
    try:
        width, height = getattr(terminal, "size", None) or os.get_terminal_size(terminal.fileno())
    except OSError:
        width, height = 0, 0
    return width or 80, height or 24


class Screen:
    """The target of output: whether it takes colour and characters beyond ASCII (``fine``), its width and height."""

    def __init__(
        self,
        *,
        colour: bool = False,
        width: int | None = None,
        height: int | None = None,
        header: bool = True,
        fine: bool = True,
        prompt: int = 1,
    ) -> None:
        self.prompt = prompt
        """The lines below the output that the prompt of the shell needs."""
        self.colour = colour
        self.width = width
        self.height = height
        self.header = header
        self.fine = fine

    @classmethod
    def on(cls, stream: TextIO, *, color: str, header: bool = True) -> "Screen":
        """The screen behind a stream; ``color`` is auto, always or never."""
        terminal = stream.isatty()
        width, height = size_of(stream) if terminal else (None, None)
        fine = (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
        colour = color == "always" or (color == "auto" and terminal)
        return cls(colour=colour, width=width, height=height, header=header, fine=fine)

    @property
    def mark(self) -> str:
        """The mark at a cut."""
        return "…" if self.fine else "~"

    @cached_property
    def console(self) -> "Console":
        """A console of rich with exactly these properties, independent of the environment."""
        from rich.console import Console

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

    def draw(self, thing: "RenderableType", *, wrap: bool = True) -> Iterator[Drawn]:
        """The lines of anything that rich can draw."""
        with self.console.capture() as capture:
            self.console.print(thing, crop=False, no_wrap=not wrap, overflow="fold" if wrap else "ignore")
        for line in capture.get().split("\n")[:-1]:
            yield Drawn(line.rstrip())

    def text(self, *parts: Part, raw: bool = False) -> Iterator[Drawn]:
        """A sentence, broken between words where the terminal ends."""
        if self.width is None and not self.colour:  # without rich, which takes longer than most commands
            words = "".join(part if isinstance(part, str) else part[0] for part in parts)
            return iter([Drawn(visible(words if raw else named(words)).rstrip())])
        return self.draw(self._assemble(parts, raw=raw))

    def command(self, text: str, indent: int = 0) -> Iterator[Drawn]:
        """A command to copy: never cut, never broken."""
        from rich.text import Text

        line = Text(" " * indent)
        return self.draw(line.append(visible(text), self._style("cyan")), wrap=False)

    def title(self, text: str, note: str = "") -> Iterator[Drawn]:
        """A heading after an empty line, and a note behind it."""
        yield Drawn("")
        yield from self.text((text, "bold"), (f"  {note}" if note else "", "dim"))

    def section(self, title: str, lines: Iterable[str], note: str = "") -> Iterator[Drawn]:
        """A heading with lines below it, which were made with ``inner``."""
        yield from self.title(title, note)
        for line in self.finish(lines):
            yield Drawn("  " + line if line else "")

    @cached_property
    def inner(self) -> "Screen":
        """The screen inside a section, which is narrower."""
        width = None if self.width is None else max(1, self.width - 2)
        return Screen(colour=self.colour, width=width, height=self.height, header=self.header, fine=self.fine)

    def finish(self, lines: Iterable[str]) -> Iterator[Drawn]:
        """Lines for the terminal; a line that was not drawn here is plain text."""
        for line in lines:
            if isinstance(line, Drawn):
                yield line
            else:
                yield from self.text(line)

    def bar(self, used: float, total: float) -> "ProgressBar":
        """A bar of the used part of a total; red when all is used."""
        from rich.progress_bar import ProgressBar

        share = min(1.0, used / total) if total else 0.0
        colour = self._style("red" if share >= 1 else "yellow" if share >= 0.8 else "green")
        return ProgressBar(
            total=1.0, completed=max(share, 1 / BAR / 2 if share else 0.0), width=BAR,
            style=self._style("dim"), complete_style=colour, finished_style=colour,
        )  # fmt: skip

    def table(self, columns: Sequence[Column], items: Sequence[Any]) -> Iterator[Drawn]:
        """The lines of a table that is no wider than the terminal."""
        for block in self.blocks(columns, items):
            yield from map(Drawn, block.split("\n"))

    def blocks(self, columns: Sequence[Column], items: Sequence[Any]) -> Iterator[Drawn]:
        """The lines of a table, in blocks of many lines."""
        edge = self.width or NO_EDGE
        columns = [column for column in columns if column.at <= edge or self.width is None]
        contents = [_Content(column, items) for column in columns]
        widths = self._widths(columns, [content.width for content in contents])
        if dropped := len(columns) - len(widths):  # a terminal of a few columns
            columns = columns[:-dropped]
        gap = " " * GAP
        if self.header:
            cells = (
                _filled(self._cut(visible(column.heading), width, middle=False), width, right=column.right)
                for column, width in zip(columns, widths, strict=True)
            )
            yield Drawn(self._painted(gap.join(cells).rstrip(), "bold"))
        patterns: list[tuple[str, Values]] = []
        for column, content, width in zip(columns, contents, widths, strict=False):
            texts, pattern = content.texts, f"%{width if column.right else -width}s"
            if content.width > width or content.is_drawn or self.colour:
                cuts = apart(texts, width, self.mark) if column.middle and content.width > width else {}
                texts, pattern = (
                    mapped(partial(self._fitted, column, width, cuts), content.cells, texts),
                    "%s",
                )
            elif column is columns[-1] and not column.right:
                pattern = "%s"
            patterns.append((f"{gap if patterns else ''}{pattern}", texts))
        patterns[-1] = (patterns[-1][0] + "\n", patterns[-1][1])
        for block in filled(patterns, len(items)):
            lines = block[:-1]
            yield Drawn("\n".join(map(str.rstrip, lines.split("\n"))) if " \n" in block else lines)

    def _fitted(
        self,
        column: Column,
        width: int,
        cuts: Mapping[str, str],
        cell: "str | int | Cell | Bar",
        whole: str | int,
    ) -> str:
        """A cell, cut or padded to the width of its column; ``whole`` is its uncut text, ``cuts`` has known cuts."""
        if not isinstance(cell, Bar):
            text = cuts.get(str(whole), str(whole))
            if len(text) > width or not text.isascii():
                text = self._cut(text, width, middle=column.middle)
            if not self.colour:
                return _filled(text, width, right=column.right)
            colour = "dim" if whole == "-" else cell.colour if isinstance(cell, Cell) else ""
            return _filled(text, width, right=column.right, drawn=self._painted(text, colour))
        if not cell.total:
            return " " * width
        options = self.console.options.update(width=width)
        parts = list(self.console.render(self.bar(cell.used, cell.total), options))
        drawn = "".join(self._painted(part.text, part.style or "") for part in parts)
        return _filled("".join(part.text for part in parts), width, drawn=drawn)

    def _widths(self, columns: Sequence[Column], natural: Sequence[int]) -> list[int]:
        """The width of each column: that of its content, reduced in the order of the ranks until the table fits."""
        headings = [_cells(visible(column.heading)) for column in columns]
        widths = list(map(max, headings, natural))
        if self.width is None:
            return widths
        capacity = self.width - GAP * (len(widths) - 1)
        while capacity < len(widths):  # not even one letter each
            widths.pop()
            capacity = self.width - GAP * (len(widths) - 1)
        widths = [min(width, self.width) for width in widths]
        floors = [
            width if column.whole else min(width, max(MIN_WIDTH[column.rank], heading))
            for column, width, heading in zip(columns, widths, headings, strict=False)
        ]
        ranks = [column.rank for column in columns[: len(widths)]]
        for rank in range(GIVES, MATTERS + 1):
            _narrow(widths, floors, [i for i, own in enumerate(ranks) if own == rank], capacity)
        least = [
            width if column.whole else min(width, LEAST_WIDTH[column.rank])
            for column, width in zip(columns, widths, strict=False)
        ]
        for limits in (least, [1] * len(widths)):  # a state is cut after everything else
            for rank in range(GIVES, MATTERS + 1):
                _narrow(widths, limits, [i for i, own in enumerate(ranks) if own == rank], capacity)
        return widths

    def pairs(self, rows: Iterable[tuple[str, Cell | str]], *, raw: Sequence[str] = ()) -> Iterator[Drawn]:
        """``name  value`` lines; long values are wrapped in their column. Names in ``raw`` have text of users."""
        from rich.table import Table
        from rich.text import Text

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
        """Names in the order of a tree, each after the lines that connect it with its parent."""
        from rich.text import Text
        from rich.tree import Tree

        root = Tree("", hide_root=True)
        path = [root]
        for name, depth in zip(names, depths, strict=True):
            del path[depth + 1 :]
            path.append(path[-1].add(Text(visible(named(name)), no_wrap=True)))
        plain = Screen(fine=self.fine)
        return [str(line) for line in plain.draw(root)]

    def _assemble(self, parts: Sequence[Part], *, raw: bool) -> "Text":
        from rich.text import Text

        text = Text()
        for part in parts:
            words, colour = (part, "") if isinstance(part, str) else part
            text.append(visible(words if raw else named(words)), self._style(colour))
        return text

    def _style(self, colour: str) -> str:
        return {"strong red": "bold red"}.get(colour, colour) if self.colour else ""

    def _painted(self, text: str, style: "str | Style") -> str:
        """The text between the escapes of a style."""
        if not self.colour or not style:
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        style = Style.parse(self._style(style)) if isinstance(style, str) else style
        return style.render(text, color_system=ColorSystem.STANDARD)

    def _cut(self, text: str, width: int, *, middle: bool) -> str:
        """The text, cut to the width; a mark shows the cut."""
        if _cells(text) <= width:
            return text
        if width < 2:
            return self.mark
        from rich.cells import set_cell_size

        right = (width - 1) // 2 if middle else 0
        left = set_cell_size(text, width - 1 - right)
        return left + self.mark + (set_cell_size(text[::-1], right)[::-1] if right else "")


class _Content:
    """The content of a column: its cells, and their texts as they are shown."""

    def __init__(self, column: Column, items: Sequence[Any]) -> None:
        self.cells = column.cells(items)
        cells = self.cells[:1] if isinstance(self.cells, Alike) else self.cells
        kinds = set(map(type, cells))
        if kinds == {int}:
            self.texts: Values = self.cells
            self.is_drawn = False
            self.width = max(len(str(min(cells))), len(str(max(cells))))
            return
        texts = cells if kinds <= {str} else mapped(_text, cells)
        together = " ".join(texts)
        if not (column.raw or named(together) == together) or not together.isprintable():
            texts = [visible(text if column.raw else named(text)) for text in texts]
        self.texts = texts if cells is self.cells else Alike(texts[0], len(self.cells))
        self.is_drawn = not together.isascii() or Bar in kinds
        self.width = max(map(len if together.isascii() else _cells, texts), default=0)


def _text(cell: "str | Cell | Bar") -> str:
    return cell if isinstance(cell, str) else " " * BAR if isinstance(cell, Bar) else cell.text


def _cells(text: str) -> int:
    """The columns of the terminal that a ``visible`` text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _filled(text: str, width: int, *, right: bool = False, drawn: str | None = None) -> str:
    """The drawn form of a text, padded to the width of its column."""
    blanks = " " * (width - _cells(text))
    drawn = text if drawn is None else drawn
    return blanks + drawn if right else drawn + blanks


def _narrow(widths: list[int], floors: Sequence[int], able: Sequence[int], capacity: int) -> None:
    """Reduce the widest columns of ``able``, not below their floors, until all columns fit."""
    excess = sum(widths) - capacity
    while excess > 0:
        able = [index for index in able if widths[index] > floors[index]]
        if not able:
            return
        widths[max(able, key=lambda index: widths[index])] -= 1
        excess -= 1
