"""Lets waiting jobs into their queue: the jobs that they wait for ended, their time came, their array has a place."""

from __future__ import annotations

from functools import partial

from vctl.daemon.following import FollowedState
from vctl.engine.rules.gates import admit_members, begin_due
from vctl.ops import dependencies as ops
from vctl.store import dependencies as table
from vctl.store.store import Store


def open_gates(store: Store, state: FollowedState) -> None:
    """Admit the jobs of which the begin time is over, and members of arrays for which there is a place."""
    if any(begin_due(state, store.clock())) or state.array_limits.due():
        with store.transaction():
            state.follow(store)
            for change in (*begin_due(state, store.clock()), *admit_members(state)):
                state.emit(store, change)
    state.array_limits.changed.clear()


class Dependencies:
    """Which jobs ended is told by the scheduler state; at the start everything that is awaited is looked at."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._fresh = True

    def clear(self) -> None:
        """Look at everything again, after a reload."""
        self._fresh = True

    def turn(self, state: FollowedState) -> None:
        """Settle what follows from the jobs that ended: one look at the tables."""
        names = []
        if self._fresh:
            names = table.awaited_names(self.store)
            self._fresh = False
        elif state.ended and state.gated:  # a job that waits for others is one of these
            names = table.any_waits(self.store, sorted(state.ended))
        state.ended.clear()
        if names:
            with self.store.transaction():
                state.follow(self.store)
                ops.settle(self.store, names, partial(state.emit, self.store))
