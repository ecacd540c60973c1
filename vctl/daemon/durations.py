"""How long runs take: short ones end close together, so that a commit records several, and others follow them."""

from __future__ import annotations

from collections.abc import Collection

from vctl.daemon.clock import Clock
from vctl.engine.stimuli import ProcessOver
from vctl.runtime.protocol import Runtime

SHORT_S, PAUSES_S = 0.1, (0.001, 0.004)
"""The time of a short run, from launch to end; the least and most time that an end waits for other ends."""
GATHER_S = 0.01
"""The most time that an end waits for other ends while runs are assigned ahead: no slot is idle meanwhile."""
MAX_AHEAD, AHEAD_S, LED_S = 32, 0.1, 0.25
"""The most runs that follow a running one, and their seconds of work; none follows a run above ``LED_S``.

Where many runs share few cores, each takes long, and yet many end. So one follows even if that is more work.
"""


def took_s(end: ProcessOver) -> float | None:
    """How many seconds the process of a run took; None if unknown."""
    if end.exit is None or end.process is None:
        return None
    return max(0, end.exit.ended_at - end.process.started_at) / 1e9


class RunDurations:
    """How long runs take. The ends of short runs come close together, so one commit can record several."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._launched: dict[str, float] = {}
        self._typical_s = float("inf")

    def launched(self, run_id: str) -> None:
        """Note that a run is launched now."""
        self._launched[run_id] = self.clock.uptime_s()

    def over(self, run_id: str, took_s: float | None = None) -> None:
        """Note that a run has ended; ``took_s``: how long its process took, if known."""
        if (began := self._launched.pop(run_id, None)) is not None and took_s is None:
            took_s = self.clock.uptime_s() - began
        if took_s is not None:
            self._typical_s = min(self._typical_s, took_s + SHORT_S)
            self._typical_s += (took_s - self._typical_s) / 8

    @property
    def depth(self) -> int:
        """How many runs may be assigned ahead to follow one: none where runs are not short."""
        if self._typical_s > LED_S:
            return 0
        return min(MAX_AHEAD, max(1, int(AHEAD_S / max(self._typical_s, AHEAD_S / MAX_AHEAD))))

    def changes(self, runtime: Runtime, ahead: float = 0, slots: int = 1) -> set[str]:
        """The runs that have changed, including those that change within a short pause.

        ``slots``: the number of running runs. ``ahead``: how many runs are assigned ahead for each of them.
        The ends in the news have used up some; three quarters of the rest run while this turn records ends.
        """
        news = runtime.changes()
        pause_s = 0.0
        if news and ahead and self._typical_s <= LED_S:
            rest = max(0.0, ahead - len(news) / slots)
            pause_s = min(max(self._typical_s * max(rest / 4, min(rest, 1) / 2), PAUSES_S[0]), GATHER_S)
        elif news and self._typical_s <= SHORT_S and self._others_are_due(news):
            pause_s = min(max(self._typical_s / 8, PAUSES_S[0]), PAUSES_S[1])
        if pause_s:
            self.clock.sleep(pause_s)
            news |= runtime.changes()
        return news

    def _others_are_due(self, news: Collection[str]) -> bool:
        since = self.clock.uptime_s() - 2 * self._typical_s
        return any(began > since and run_id not in news for run_id, began in self._launched.items())
