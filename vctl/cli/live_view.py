"""``--watch`` on a terminal: each answer replaces the previous one, and is never higher than the terminal."""

import os
import select
import signal
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from vctl.cli.screen import Drawn, Screen

if TYPE_CHECKING:
    from vctl.cli.output import Answer


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

    def quit_within(self, seconds: float) -> bool:
        """Wait so many seconds; True at once when q is pressed, or when the terminal is gone."""
        ends = time.monotonic() + seconds
        while (remaining_s := ends - time.monotonic()) > 0:
            if self._before is None:
                time.sleep(remaining_s)
            elif select.select([0], [], [], remaining_s)[0]:
                pressed = os.read(0, 1024)
                if not pressed or b"q" in pressed.lower():
                    return True
        return False

    def close(self) -> None:
        """Let the terminal pass on whole lines again."""
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)


class LiveView:
    """A view of the whole terminal, whose former content comes back at the end."""

    def __init__(self, command: str, every_s: float, *, color: str) -> None:
        self._title = f"vctl {command}, every {every_s:g} s"
        self._color = color
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
        screen = Screen.on(sys.stdout, color=self._color, header=header)
        assert screen.height is not None
        assert answer.draw is not None
        top = list(screen.text((f"{self._title}, {time.strftime('%H:%M:%S')}; q ends it", "dim")))
        bottom = list(screen.text((notice, "yellow"))) if notice else []
        capacity = max(2, screen.height - len(top) - len(bottom))
        screen.height = capacity
        body = [Drawn(line) for lines in screen.finish(answer.draw(screen)) for line in lines.split("\n")]
        hidden = answer.more
        if len(body) + (hidden > 0) > capacity:
            hidden += len(body) - capacity + 1
            keep = capacity - 1 - header
            body = [*body[:header], *body[len(body) - keep :]] if answer.newest_last else body[: capacity - 1]
        if hidden:
            text = f"{screen.mark} {hidden} more rows do not fit on this screen"
            note = list(screen.text((text, "dim")))
            body = [*body[:header], *note, *body[header:]] if answer.newest_last else [*body, *note]
        page = Text.from_ansi("\n".join([*top, *body, *bottom]))
        page.no_wrap, page.overflow = True, "crop"
        self._live.update(page, refresh=True)

    def quit_within(self, seconds: float) -> bool:
        """Wait so many seconds; True at once when q is pressed, or when the terminal is gone."""
        self._rests = True
        if self._is_to_stop:
            self._stop()
        try:
            return self._keys.quit_within(seconds)
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
