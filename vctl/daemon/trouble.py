"""Errors that keep a scheduler from working and pass by themselves.

They are a full disk, a launcher that cannot be started, and tables that another process keeps locked.
"""

from __future__ import annotations

import contextlib
import sys
import time

from vctl.core.text import visible
from vctl.daemon.clock import Clock
from vctl.errors import Unreachable, disk_trouble
from vctl.ops.forms import timestamp

REST_S = 1.0


class Trouble:
    """The present error, if any: it is logged once, and the scheduler rests before each new try."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._problem = ""
        self._until = 0.0

    def rest_s(self) -> float:
        """How long to rest; 0 if there is no error."""
        return max(0.0, self._until - self._clock.uptime_s())

    def passes(self, error: BaseException) -> bool:
        """Whether an error passes by itself. If so, the scheduler rests and tries the turn again."""
        trouble = disk_trouble(error) or (error if isinstance(error, Unreachable) else None)
        if trouble is None:
            return False
        if trouble.problem != self._problem:
            say(f"{trouble.problem}; next try every {REST_S:g} s")
        self._problem, self._until = trouble.problem, self._clock.uptime_s() + REST_S
        return True

    def is_over(self) -> None:
        """Note that a whole turn went well."""
        if self._problem:
            say("the error is gone")
        self._problem, self._until = "", 0.0


def say(message: str) -> None:
    """Write one line of the daemon's log to stderr."""
    with contextlib.suppress(OSError):  # a full disk
        sys.stderr.write(f"{timestamp(time.time_ns())} {visible(message)}\n")
        sys.stderr.flush()
