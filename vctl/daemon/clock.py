"""The time of a scheduler that nobody can set: handed in as one object, so that a test turns it by hand."""

from __future__ import annotations

import time


class Clock:
    """Since the machine started, sleep included."""

    def uptime_ns(self) -> int:
        """Now."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def uptime_s(self) -> float:
        """Now, in seconds."""
        return self.uptime_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
