"""Errors that keep a scheduler from working and pass by themselves.

That is a full disk, a launcher that cannot be started, or tables that somebody else keeps locked.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable

from vctl.core.text import visible
from vctl.daemon.clock import Clock
from vctl.errors import Unreachable, disk_trouble
from vctl.ops.forms import timestamp

REST_S = 1.0


class Trouble:
    """The present trouble, if any: told once, and a rest before each new try."""

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say, self._clock = say, clock
        self._problem = ""
        self._until = 0.0

    def rest_s(self) -> float:
        """How long to rest; 0 when there is no trouble."""
        return max(0.0, self._until - self._clock.uptime_s())

    def passes(self, error: BaseException) -> bool:
        """Whether an error passes by itself; then the turn is tried again."""
        trouble = disk_trouble(error) or (error if isinstance(error, Unreachable) else None)
        if trouble is None:
            return False
        if trouble.problem != self._problem:
            self._say(f"{trouble.problem}; next try every {REST_S:g} s")
        self._problem, self._until = trouble.problem, self._clock.uptime_s() + REST_S
        return True

    def is_over(self) -> None:
        """A whole turn went well."""
        if self._problem:
            self._say("the error is gone")
        self._problem, self._until = "", 0.0


def say(message: str) -> None:
    """One line of the daemon's log, on stderr."""
    with contextlib.suppress(OSError):  # a full disk
        sys.stderr.write(f"{timestamp(time.time_ns())} {visible(message)}\n")
        sys.stderr.flush()
