"""Saves the past usage of fair clusters to the tables, so that a crash loses only a few seconds of it."""

from __future__ import annotations

from vctl.daemon.following import FollowedState
from vctl.store import observed
from vctl.store.store import Store

EVERY_NS = 5 * 10**9
"""The time between two writes: at worst, the usage of this time is lost."""


class UsageCheckpoint:
    """Writes the past usage of fair clusters periodically, if some of them have a half-life."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._next = 0
        self._was_used = False
        """Whether resources were held at the last write. Usage that only decays is not written again."""

    def turn(self, state: FollowedState, uptime: int) -> None:
        """Write when it is due."""
        if uptime >= self._next:
            self._next = uptime + EVERY_NS
            self.write(state)

    def write(self, state: FollowedState) -> None:
        """Write now, unless nothing has been used since the last time."""
        is_used = any(any(held.values()) for held in state.usage.rates.values())
        if state.usage.past and (is_used or self._was_used):
            with self.store.transaction():
                observed.save_usage(self.store, state.usage)
        self._was_used = is_used
