"""The progress line on stderr of a command that waits or works long.

On a terminal one line is kept current, and removed before output is shown. Elsewhere the line appears only on request;
then each change is a new line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from vctl import ops
from vctl.cli import words
from vctl.cli.screen import replaces_text
from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.clusters import PRIMARY, PRIMARY_ALIAS
from vctl.core.text import visible
from vctl.core.values import value

if TYPE_CHECKING:
    from rich.console import Console

Form = Mapping[str, Any]

FIRST_S = 0.3
"""Seconds before the first line; a job that ends or writes output earlier gets none."""
MIN_REASON = 24
"""The least columns for a reason that is worth showing."""
_RUNNING = (jb.RUNNING, tk.RUNNING)


class Progress:
    """One line, drawn when it is due and has changed."""

    EVERY_S = 0.5
    START_EVERY_S = 10.0
    """Seconds between two questions for the expected start, which costs time."""
    LINES_EVERY_S = 5.0
    """Seconds between the lines about an array, or about other work that counts, where each change is a new line."""

    def __init__(self, stream: TextIO, *, always: bool) -> None:
        self.stream = stream
        self.terminal = replaces_text(stream)
        self.active = stream.isatty() or always
        self.settled = not self.active
        """Whether no further line is due before the end, so that the output can be followed without checks."""
        self.about = ""
        self.shown = 0
        """How many bytes of its output were shown."""
        self._began = self._looked_at = time.monotonic()
        self._drawn = ""
        self._start = ""
        """The expected start, as the line shows it."""
        self._asked_at: float | None = None
        self._counts = False
        self._console: Console | None = None

    @property
    def is_due(self) -> bool:
        """Whether the state should be looked at now, although nothing has happened."""
        every_s = self.LINES_EVERY_S if self.settled else self.EVERY_S
        return self.active and time.monotonic() - self._looked_at >= every_s

    @property
    def wants_start(self) -> bool:
        """Whether the expected start is to be asked for now: before the first line, then from time to time."""
        now = time.monotonic()
        if not self.active or now - self._began < FIRST_S:
            return False
        return self._asked_at is None or now - self._asked_at >= self.START_EVERY_S

    def expect(self, stamp: str | None) -> None:
        """Note the expected start of what waits; the next lines show it if it is still to come."""
        self._asked_at = time.monotonic()
        said = words.soon(stamp)
        self._start = f"; start {said}" if said not in ("", "now") else ""

    def see(self, form: Form | None, *, over: bool, follows: bool = False) -> None:
        """Show the state of a job or task. ``follows``: its output is shown while it runs."""
        if not self.active:
            return
        now = time.monotonic()
        runs = form is not None and (form.get("status") or form.get("state")) in _RUNNING
        if not runs and not over:
            self.settled = False
        if runs and self.shown and not self._drawn:
            self.settled = True  # its output shows that it runs
        if self.settled:
            self._looked_at = now
        if self.settled or (not over and self._is_early(now, runs=runs)):
            return
        self._looked_at = now
        if form is not None and "array" in form:
            self._counts = True
            self._draw(Line(ops.arrays.progress(form)), stays=over)
        elif over:
            self.end()
        elif form is not None:
            self.settled = runs and follows
            line = _running(form, self.about) if runs else _waiting(form, self.about, self._start)
            self._draw(line, stays=self.settled)

    def tell(self, text: str) -> None:
        """Show how far some work is; '' when it is over."""
        self._counts, now = True, time.monotonic()
        if not text:
            self.end()
        elif not self._is_early(now, runs=False):
            self._looked_at = now
            self._draw(Line(text), stays=False)

    def _is_early(self, now: float, *, runs: bool) -> bool:
        if runs and self._drawn and not self._counts:
            return False
        every = self.EVERY_S if self.terminal or not self._counts else self.LINES_EVERY_S
        return now - self._began < FIRST_S or now - self._looked_at < every

    def end(self) -> None:
        """Remove the line from the terminal."""
        if self._drawn and self.terminal:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()
        self._drawn = ""

    def _draw(self, line: Line, *, stays: bool) -> None:
        text = line.text
        if text == self._drawn and not stays:
            return
        if self.terminal:
            self._on_terminal(line, stays=stays)
        elif text != self._drawn:
            self.stream.write(text + "\n")
        self.stream.flush()
        self._drawn = "" if stays else text

    def _on_terminal(self, line: Line, *, stays: bool) -> None:
        from rich.console import Console
        from rich.text import Text

        if self._console is None:
            self._console = Console(file=self.stream, highlight=False, markup=False, emoji=False)
        self.stream.write("\r\x1b[2K")
        text = Text(line.fitted(self._console.width - 1), no_wrap=True)
        self._console.print(text, end="\n" if stays else "", overflow="crop", soft_wrap=True)


@value(frozen=True, slots=True)
class Line:
    """A line about one job or task.

    If the line does not fit, the reason is cut. If too little of the reason would be left, the ends are left
    out, the last one first. An id or a command to copy is shown completely or not at all.
    """

    head: str
    reason: str = ""
    ends: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole line without control characters."""
        return visible(self.head + self.reason + "".join(self.ends))

    def fitted(self, width: int) -> str:
        """The part of the line that fits; a cut is marked."""
        from rich.cells import cell_len

        if cell_len(self.text) <= width:
            return self.text
        head, reason = visible(self.head), visible(self.reason)
        for count in range(len(self.ends), -1, -1):
            ends = visible("".join(self.ends[:count]))
            room = width - cell_len(head) - cell_len(ends)
            if room >= min(cell_len(reason), MIN_REASON):
                return head + _cut(reason, room) + ends
        return _cut(head + reason, width)


def _cut(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _waiting(form: Form, about: str, start: str = "") -> Line:
    name = form.get("submission_id") or form["task_id"]
    why = form["message"] or form["state_reason"] or "the scheduler has not evaluated it yet"
    position = form.get("queue_position")
    where = (
        f" (#{position} in {form['parent_cluster_id'].replace(PRIMARY, PRIMARY_ALIAS)})" if position else ""
    )
    return Line(f"{name} waits: ", why, (where, start, f"; vctl why {name}", about))


def _running(form: Form, about: str) -> Line:
    name = form.get("submission_id") or form["task_id"]
    nodes = form["node_ids"] if "node_ids" in form else [form["node_id"]]
    where = ", ".join(str(node) for node in nodes if node)
    return Line(f"{name} runs", f" on {where}" if where else "", (about,))
