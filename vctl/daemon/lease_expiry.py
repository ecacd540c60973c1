"""Giving leases back: at their end or when nobody has used them for a while, level by level, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from vctl.core.leases import Lease
from vctl.core.queue_policy import FAIR
from vctl.daemon.following import FollowedState
from vctl.engine.rules.leases import called_in, give_back
from vctl.scheduler.fairness import Shares, must_yield
from vctl.scheduler.leasing import free_part, newest_first
from vctl.store.store import Store


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """``idle_s``: unused that long, a lease returns. ``cooldown_s``: never sooner than that after it was granted.

    ``reclaim_grace_s``: what a borrower gets between being told and being cut. ``duration_s`` None: while used.
    """

    idle_s: float = 10.0
    cooldown_s: float = 2.0
    duration_s: float | None = None
    reclaim_grace_s: float = 30.0


class LeaseExpiry:
    """Watches which leases are idle and gives them back when they are due."""

    def __init__(self, store: Store, terms: LeaseTerms) -> None:
        self.store = store
        self.terms = terms
        self._idle_since: dict[int, float] = {}
        self._due: float | None = None
        self._shares: Shares | None = None
        self._wanted: set[int] = set()
        """Idle leases that others can use: returned when they are cool."""

    def due_s(self) -> float:
        """Seconds until a lease may be due."""
        return float("inf") if self._due is None else max(0.0, self._due - time.monotonic())

    def turn(self, state: FollowedState) -> None:
        """Give back what is due now."""
        now, wall = time.monotonic(), self.store.clock()
        self._due = None
        self._shares = None
        due: list[Lease] = []
        kept, called = _kept(state), called_in(state)
        for lease in newest_first(list(state.leases.values())):
            wanted = lease.vnode_id in kept and lease.lease_id not in called
            if wanted or not free_part(state.ledger, lease):
                self._idle_since.pop(lease.lease_id, None)
                continue
            since = self._idle_since.setdefault(lease.lease_id, now)
            at_once = lease.lease_id in called or self._must_yield(state, lease)
            wait_s = 0.0 if at_once else self._wait_s(lease, since, now, wall)
            if wait_s <= 0:
                due.append(lease)
            elif self._due is None or now + wait_s < self._due:
                self._due = now + wait_s
        for gone in set(self._idle_since) - set(state.leases):
            del self._idle_since[gone]
        self._wanted &= set(state.leases)
        if due:
            self._give_back(state, due)

    def returnable(self, state: FollowedState) -> list[Lease]:
        """Leases of which a part is idle, and those above them, which may be idle once it is given back."""
        kept = _kept(state)
        leases = [lease for lease in state.leases.values() if lease.vnode_id not in kept]
        return leases if any(free_part(state.ledger, lease) for lease in leases) else []

    def call_back(self, lease_ids: Collection[int]) -> float:
        """Have idle leases returned although they have not been idle for long; in how many seconds that is."""
        self._wanted |= set(lease_ids)
        return self.terms.cooldown_s

    def _must_yield(self, state: FollowedState, lease: Lease) -> bool:
        """Where the order is fair, what comes free goes to the next in order, not to the last borrower."""
        above = state.ledger.clusters[lease.borrower_id].parent_id
        if above is None or state.ledger.clusters[above].queue.order != FAIR:
            return False
        if self._shares is None:
            self._shares = Shares(state.ledger, state.running, state.usage)
        return must_yield(state.ledger, self._shares, state.queues, lease.borrower_id)

    def _wait_s(self, lease: Lease, since: float, now: float, wall: int) -> float:
        if lease.expires_at is not None and lease.expires_at <= wall:
            return 0.0
        until_cool = (lease.since - wall) / 1e9 + self.terms.cooldown_s
        if lease.lease_id in self._wanted:
            return until_cool
        return max(self.terms.idle_s - (now - since), until_cool)

    def _give_back(self, state: FollowedState, due: list[Lease]) -> None:
        with self.store.transaction():
            state.follow(self.store)
            for change in give_back(state, due):
                state.emit(self.store, change)


def _kept(state: FollowedState) -> set[str]:
    """Virtual nodes of which a part is kept for the winner of a preemption."""
    return {part[0] for nomination in state.nominations.values() for part in nomination.pieces}
