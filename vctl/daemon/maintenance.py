"""The maintenance round: when the rules about nodes are asked (``engine/rules/nodes.py``), and by which clock.

At its interval, when a node joined, changed or died, and when something happened while work is left to be done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.daemon.following import FollowedState
from vctl.engine.rules import nodes
from vctl.store import upkeep
from vctl.store.store import Store

Stop = Callable[[Run, str, float], None]
"""Ends a process: the run, the reason, the grace in seconds."""


class Maintenance:
    """What the scheduler keeps in order besides jobs. ``interval_s`` is the time between rounds at rest."""

    def __init__(self, store: Store, *, interval_s: float = 30.0) -> None:
        self.store = store
        self.interval_s = interval_s
        self._next = 0.0
        self._lost_at: int | None = None
        """When the next heartbeat lease ends, unless it is renewed."""
        self._seen = -1

    def due_s(self) -> float:
        """Seconds until there is something to look at."""
        due = self._next - time.monotonic()
        if self._lost_at is not None:
            due = min(due, (self._lost_at - self.store.clock()) / 1e9)
        return max(0.0, due)

    def turn(self, state: FollowedState, stop: Stop) -> None:
        """Do what is due; ``stop`` is called for each process whose node or gang is lost."""
        at_interval = time.monotonic() >= self._next
        now = self.store.clock()
        if at_interval or state.nodes_changed or (self._lost_at is not None and self._lost_at <= now):
            state.emit_all(self.store, lambda: nodes.silent(upkeep.heartbeats(self.store), now))
            ends = [ends_at for *_, ends_at in upkeep.heartbeats(self.store)]
            self._lost_at = min((at for at in ends if at > now), default=None)
        changed = self.end_lost_work(state, stop)
        if at_interval:
            self._next = time.monotonic() + self.interval_s
        if at_interval or changed or state.seen != self._seen:
            seen = state.seen
            number = self.store.next_lease
            state.emit_all(self.store, lambda: nodes.upkeep(state, now, number, sweep=at_interval))
            self._seen = seen if state.nodes_changed else state.seen

    def end_lost_work(self, state: FollowedState, stop: Stop) -> set[str]:
        """End what ran on nodes that died and the gangs that lost a part; returns the nodes that changed."""
        changed, state.nodes_changed = state.nodes_changed, set()
        for run in nodes.lost(state, changed):
            stop(run, jb.NODE_FAILED, 0.0)
        return changed
