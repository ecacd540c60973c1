"""The help pages of vctl, of a group of commands and of a command, drawn without typer and rich.

Their import takes ten times as long as everything else that a help page costs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vctl import config
from vctl.cli.declare import Command
from vctl.cli.screen import Screen
from vctl.errors import VctlError
from vctl.spec.params import Param

WIDTH = 80
"""The width of a page that does not go to a terminal, if COLUMNS does not say another one."""
MIN_HELP = 24
"""The least width of an explanation beside its names; where less is left, it is below them."""
HELP = ("--help", "-h", "", "Show this message and exit.")
GAP = "  "
_COLOURS = {"usage": "33", "names": "1;36", "short": "1;32", "value": "1;33", "dim": "2"}

Row = tuple[str, str, str, str]
"""Long names, short names, the word for the value, and the explanation."""


def show_command(command: Command, color: str | None = None) -> None:
    """Print the page of a command."""
    arguments = [param for param in command.params if param.is_argument]
    options = [param for param in command.params if not param.is_argument]
    panels: dict[str, list[Row]] = {"Arguments": [*map(_row, arguments)]} if arguments else {}
    panels["Options"] = [*map(_row, options), HELP]
    usage = " ".join([f"vctl {command.path} [OPTIONS]", *map(_usage, arguments)])
    _show(usage, [command.help, command.details], panels, command.examples, color)


def show_group(
    name: str,
    help: str,
    members: Mapping[str, Iterable[tuple[str, str]]],
    examples: Sequence[str],
    color: str | None = None,
) -> None:
    """Print the page of a group, or of vctl itself when the name is empty; ``members`` by section."""
    options = [HELP] if name else [("--version", "", "", "Print the version."), HELP]
    panels: dict[str, list[Row]] = {"Options": options}
    panels |= {section: [(word, "", "", line) for word, line in lines] for section, lines in members.items()}
    _show(f"{f'vctl {name}'.strip()} [OPTIONS] COMMAND [ARGS]...", [help], panels, examples, color)


def _usage(param: Param) -> str:
    word = param.metavar + "..." if param.many else param.metavar
    return word if param.required else f"[{word}]"


def _row(param: Param) -> Row:
    text = f"{param.info.help} [required]" if param.required else param.info.help
    if param.is_argument:
        return param.metavar, "", "", text
    long = ",".join(name for name in param.info.names if name.startswith("--"))
    short = ",".join(name for name in param.info.names if not name.startswith("--"))
    if param.info.off:
        long += f"/{param.info.off}"
    return long, short, "" if param.is_flag else param.metavar, text


def _show(
    usage: str,
    texts: Sequence[str],
    panels: Mapping[str, Sequence[Row]],
    examples: Sequence[str],
    color: str | None,
) -> None:
    try:
        color = config.load(flags={"color": color}).get("color")
    except VctlError:  # a page helps also where a setting is wrong
        color = "auto"
    page = _Page(Screen.on(sys.stdout, color=color or "auto"))
    columns = _widths([row for section, rows in panels.items() if section != "Options" for row in rows])
    lines = ["", *page.text(f"Usage: {usage}", "usage"), ""]
    for text in filter(None, texts):
        lines += [*page.text(text), ""]
    for section, rows in panels.items():
        widths = _widths(rows) if section in ("Options", "Arguments") else columns
        lines += page.panel(section, rows, widths)
    # below the panels, which would break the lines that users copy
    lines += ["", "Examples:", *(f"  {example}" for example in examples), ""]
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in lines))
    sys.stdout.flush()


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max((len(row[column]) for row in rows), default=0) for column in range(3)]


class _Page:
    def __init__(self, screen: Screen) -> None:
        given = os.environ.get("COLUMNS", "")
        width = int(given) if given.isdecimal() and int(given) else screen.width or WIDTH
        self.width = max(width, 20)
        self.colour = screen.colour
        self.corners, self.rule, self.side = ("╭╮╰╯", "─", "│") if screen.fine else ("++++", "-", "|")

    def text(self, text: str, colour: str = "") -> Iterator[str]:
        """A paragraph."""
        for line in _wrapped(text, self.width - 2):
            yield " " + (self._painted(line, colour) if colour else line)

    def panel(self, title: str, rows: Sequence[Row], widths: Sequence[int]) -> Iterator[str]:
        """A box with a row for each entry."""
        corners, inside = self.corners, self.width - 4
        head = f"{corners[0]}{self.rule} {title} "
        yield self._painted(head + self.rule * (self.width - len(head) - 1) + corners[1], "dim")
        names = sum(width + len(GAP) for width in widths if width)
        beside = inside - names >= MIN_HELP
        for row in rows:
            for shown, line in self._row(row, widths, inside, names if beside else 4, beside=beside):
                side = self._painted(self.side, "dim")
                yield f"{side} {line}{' ' * (inside - shown)} {side}"
        yield self._painted(corners[2] + self.rule * (self.width - 2) + corners[3], "dim")

    def _row(
        self, row: Row, widths: Sequence[int], inside: int, indent: int, *, beside: bool
    ) -> Iterator[tuple[int, str]]:
        """The lines of an entry, each with its width."""
        cells = [
            (cell.ljust(width) if beside else cell, colour)
            for cell, width, colour in zip(row, widths, ("names", "short", "value"), strict=False)
            if (width if beside else cell)
        ]
        plain = GAP.join(cell for cell, _ in cells)
        painted = GAP.join(self._painted(cell, colour) for cell, colour in cells)
        explanation = _wrapped(row[3], inside - indent)
        if beside:
            first, *explanation = explanation
            yield len(plain) + len(GAP) + len(first), f"{painted}{GAP}{first}"
        elif len(plain) <= inside:
            yield len(plain), painted
        else:
            yield from ((len(line), line) for line in _wrapped(plain, inside))
        for line in explanation:
            yield indent + len(line), " " * indent + line

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colour and text else text


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, broken between words; a word that is too long is broken itself."""
    lines = [""]
    for word in text.split():
        rest = word
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        while len(rest) > width:
            lines[-1], rest = rest[:width], rest[width:]
            lines.append("")
        lines[-1] = f"{lines[-1]} {rest}" if lines[-1] else rest
    return lines
