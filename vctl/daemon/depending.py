"""Follows up the end of jobs for those that wait for them: one look at the tables per turn in which jobs ended."""

from __future__ import annotations

from vctl.daemon.following import FollowedState
from vctl.ops import dependencies as ops
from vctl.store import dependencies as table
from vctl.store.store import Store


class Dependencies:
    """Which jobs ended is told by the scheduler state; at the start everything that is awaited is looked at."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._fresh = True

    def clear(self) -> None:
        """Look at everything again, after a reload."""
        self._fresh = True

    def turn(self, state: FollowedState) -> None:
        """Settle what follows from the jobs that ended; the scheduler state hears of it through the feed."""
        if self._fresh:
            names = table.awaited_names(self.store)
            self._fresh = False
        elif state.ended:
            names = table.any_waits(self.store, sorted(state.ended))
        else:
            return
        state.ended.clear()
        if names:
            with self.store.transaction():
                ops.settle(self.store, names)
            state.follow(self.store)
