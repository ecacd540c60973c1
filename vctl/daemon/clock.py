"""The clock of a scheduler, which nobody can set: it is passed as an object, so that a test advances it."""

from __future__ import annotations

import time


class Clock:
    """The time since the machine started, including the time that it was suspended."""

    def uptime_ns(self) -> int:
        """The time now, in nanoseconds."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def uptime_s(self) -> float:
        """The time now, in seconds."""
        return self.uptime_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
