"""``--watch`` on a terminal: each answer replaces the previous one, and is never higher than the terminal.

Keys scroll through the rows that do not fit: arrows, page up and down, home and end, and those of ``less``.
"""

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vctl.cli.screen import Drawn, Screen

if TYPE_CHECKING:
    from vctl.cli.output import Answer


KEYS = re.compile(
    r"(?P<quit>[qQ])|(?P<up>\x1b[\[O]A|k)|(?P<down>\x1b[\[O]B|j|\r|\n)|(?P<page_up>\x1b\[5~|b)"
    r"|(?P<page_down>\x1b\[6~|[ f])|(?P<home>\x1b(?:[\[O]H|\[[17]~)|[g<])|(?P<end>\x1b(?:[\[O]F|\[[48]~)|[G>])"
    r"|\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)|.",
    re.DOTALL,
)
"""What terminals send for the keys of a view; other keys and their sequences are one match without a name."""
STEPS = {
    "up": -1.0,
    "down": 1.0,
    "page_up": -1.0,
    "page_down": 1.0,
    "home": float("-inf"),
    "end": float("inf"),
}


class Keys:
    """Keys that are pressed at the terminal, without Enter and without an echo."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self.open()

    def open(self) -> None:
        """Let the terminal pass each key on at once."""
        if os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp():  # to read in the background would stop us
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0)

    def pressed(self, seconds: float) -> list[str] | None:
        """The keys that are pressed within so many seconds, as soon as there are any; None if the terminal is gone."""
        if self._before is None:
            time.sleep(max(0.0, seconds))
        elif select.select([0], [], [], max(0.0, seconds))[0]:
            given = os.read(0, 1024)
            return (
                [found.lastgroup or "" for found in KEYS.finditer(given.decode("latin-1"))] if given else None
            )
        return []

    def close(self) -> None:
        """Let the terminal pass on whole lines again."""
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)


class LiveView:
    """A view of the whole terminal, whose former content comes back at the end."""

    def __init__(self, command: str, every_s: float, *, color: str) -> None:
        self._title = f"vctl {command}, every {every_s:g} s"
        self._color = color
        self._offset, self._page, self._direction = 0, 1, 1
        """How many rows the user has scrolled, the height of a page, and which way is down."""
        self._shown: Callable[[], None] = lambda: None
        self._at = ""
        console = Console(file=sys.stdout, force_terminal=True, _environ={"TERM": os.environ.get("TERM", "")})
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._keys = Keys()
        self._live.start()
        self._rests = self._is_to_stop = False
        if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:  # ignored where no shell controls jobs
            signal.signal(signal.SIGTSTP, self._to_stop)

    def show(self, answer: "Answer", notice: str | None, *, header: bool) -> None:
        """Draw an answer in the present size of the terminal, with the number of rows that do not fit."""
        self._at = time.strftime("%H:%M:%S")
        self._shown = partial(self._draw, answer, notice, header=header)
        self._shown()

    def _draw(self, answer: "Answer", notice: str | None, *, header: bool) -> None:
        screen = Screen.on(sys.stdout, color=self._color, header=header)
        assert screen.height is not None
        title = f"{self._title}, {self._at}; keys scroll, q ends it"
        top = list(screen.text((title, "dim")))
        bottom = list(screen.text((notice, "yellow"))) if notice else []
        self._page = capacity = max(2, screen.height - len(top) - len(bottom))
        screen.height, screen.prompt = (None if self._offset else capacity), 0
        assert answer.draw is not None
        body = [Drawn(line) for lines in screen.finish(answer.draw(screen)) for line in lines.split("\n")]
        self._direction = -1 if answer.newest_last else 1
        part = self._part(screen, body, answer, int(header and answer.redraw is not None))
        page = Text.from_ansi("\n".join([*top, *part, *bottom]))
        page.no_wrap, page.overflow = True, "crop"
        self._live.update(page, refresh=True)

    def _part(self, screen: Screen, body: list[Drawn], answer: "Answer", head: int) -> list[Drawn]:
        """The lines to which the user has scrolled, and a note on what is above and below them.

        The first ``head`` lines stay. The offset is counted from the newest row.
        """
        rows, keep = body[head:], max(1, self._page - head - 1)
        last = answer.newest_last
        if len(body) + (answer.more > 0) <= self._page:
            keep = len(rows)
        most = len(rows) - keep
        self._offset = min(self._offset, most)
        start = most - self._offset if last else self._offset
        above, below = start + answer.more * last, most - start + answer.more * (not last)
        if not above + below:
            return body
        if not self._offset:
            said = f"{screen.mark} {above + below} more rows do not fit on this screen"
        else:
            said = f"{screen.mark} {above} more rows above, {below} below"
        note, part = list(screen.text((said, "dim"))), rows[start : start + keep]
        return [*body[:head], *note, *part] if last else [*body[:head], *part, *note]

    def _scroll(self, key: str) -> bool:
        """Move by a key; whether it is one that moves."""
        if (step := STEPS.get(key)) is None:
            return False
        step *= max(1, self._page - 3) if key.startswith("page") else 1
        self._offset = int(max(0, min(self._offset + step * self._direction, sys.maxsize)))
        return True

    def quit_within(self, seconds: float) -> bool:
        """Wait so many seconds, and scroll as keys say; True once q is pressed, or when the terminal is gone."""
        self._rests = True
        if self._is_to_stop:
            self._stop()
        ends = time.monotonic() + seconds
        try:
            while (remaining_s := ends - time.monotonic()) > 0:
                if (keys := self._keys.pressed(remaining_s)) is None or "quit" in keys:
                    return True
                if sum(map(self._scroll, keys)):
                    self._shown()
            return False
        finally:
            self._rests = False

    def close(self) -> None:
        """Restore the former content of the terminal."""
        if signal.getsignal(signal.SIGTSTP) == self._to_stop:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._live.stop()
        self._keys.close()

    def _to_stop(self, *_: object) -> None:
        """Handle Ctrl-Z: stop at once while waiting, else after the page is drawn."""
        self._is_to_stop = True
        if self._rests:
            self._stop()

    def _stop(self) -> None:
        """Give the terminal back to the shell and stop; once in the foreground again, draw the page anew."""
        self._is_to_stop = False
        self._live.stop()
        self._keys.close()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        while os.isatty(1) and os.tcgetpgrp(1) != os.getpgrp():
            os.kill(os.getpid(), signal.SIGTTOU)  # in the background there is no terminal to draw on
        signal.signal(signal.SIGTSTP, self._to_stop)
        self._keys.open()
        self._live.start(refresh=True)
