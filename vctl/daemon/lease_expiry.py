"""Giving leases back: at their end or when nobody has used them for a while, level by level, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Collection

from vctl.core.leases import Lease
from vctl.daemon.following import FollowedState
from vctl.engine.rules.leases import LeaseTerms, give_back, kept, waits
from vctl.scheduler.leasing import free_part
from vctl.store.store import Store

__all__ = ["LeaseExpiry", "LeaseTerms"]


class LeaseExpiry:
    """Watches which leases are idle and gives them back when they are due."""

    def __init__(self, store: Store, terms: LeaseTerms) -> None:
        self.store = store
        self.terms = terms
        self._idle_since: dict[int, float] = {}
        self._due: float | None = None
        self._wanted: set[int] = set()
        """Idle leases that others can use: returned when they are cool."""

    def due_s(self) -> float:
        """Seconds until a lease may be due."""
        return float("inf") if self._due is None else max(0.0, self._due - time.monotonic())

    def turn(self, state: FollowedState) -> None:
        """Give back what is due now."""
        now = time.monotonic()
        self._wanted &= set(state.leases)
        idle_s = {lease_id: now - since for lease_id, since in self._idle_since.items()}
        found = waits(state, idle_s, self._wanted, self.terms, self.store.clock())
        self._idle_since = {one.lease_id: self._idle_since.get(one.lease_id, now) for one, _ in found}
        self._due = min((now + wait_s for _, wait_s in found if wait_s > 0), default=None)
        if due := [lease for lease, wait_s in found if wait_s <= 0]:
            state.emit_all(self.store, lambda: give_back(state, due))

    def returnable(self, state: FollowedState) -> list[Lease]:
        """Leases of which a part is idle, and those above them, which may be idle once it is given back."""
        nominated = kept(state)
        leases = [lease for lease in state.leases.values() if lease.vnode_id not in nominated]
        return leases if any(free_part(state.ledger, lease) for lease in leases) else []

    def call_back(self, lease_ids: Collection[int]) -> float:
        """Have idle leases returned although they have not been idle for long; in how many seconds that is."""
        self._wanted |= set(lease_ids)
        return self.terms.cooldown_s
