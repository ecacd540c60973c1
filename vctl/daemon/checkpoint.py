"""Saves to the tables what rounds leave in memory for the next one, for commands and for the next scheduler: the past
usage and the lag of fair clusters, and reservations."""

from __future__ import annotations

from vctl.core.queue_policy import FAIR
from vctl.core.resources import Amounts
from vctl.daemon.following import FollowedState
from vctl.scheduler.fairness import Member
from vctl.store import observed
from vctl.store.store import Store

EVERY_NS = 5 * 10**9
"""The time between two writes where nothing changes: what is not written by then would be lost in a crash."""


class Checkpoint:
    """Writes the usage of a fair cluster when what its members hold changes, or which of them wait.

    Between two such changes it follows from the time alone. Past usage is also written periodically. A commit has
    written the reservations already (``commit``); here come those that changed in a round that started nothing.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._next = 0
        self._was_used = False
        """Whether resources were held at the last write. Usage that only decays is not written again."""
        self._rates: dict[Member, Amounts] = {}
        self._waiting: set[Member] = set()
        """What members held, and which of them waited, when their clusters were written."""

    def turn(self, state: FollowedState, uptime: int) -> None:
        """Write what has changed, and everything when it is due."""
        if uptime >= self._next:
            self._next = uptime + EVERY_NS
            self.write(state)
        else:
            self._write(state, set())

    def write(self, state: FollowedState) -> None:
        """Write now, unless nothing has been used since the last time."""
        past = state.usage.past
        is_used = any(any(held.values()) for held in state.usage.rates.values())
        self._write(state, {member[0] for member in past} if past and (is_used or self._was_used) else set())
        self._was_used = is_used

    def _write(self, state: FollowedState, cluster_ids: set[str]) -> None:
        """Write these clusters, and those in which somebody holds more or less, or begins or ceases to wait."""
        now, rates, waiting, changed = state.usage, self._rates, self._waiting, cluster_ids
        if now.rates or now.waiting or rates or waiting:  # else no cluster is fair: so it is in most turns
            fair = {name for name in {m[0] for m in (*now.rates, *now.waiting)} if _counts(state, name)}
            rates = {member: held for member, held in now.rates.items() if member[0] in fair}
            waiting = {member for member in now.waiting if member[0] in fair}
            differ = {m[0] for m in rates.keys() | self._rates if rates.get(m) != self._rates.get(m)}
            changed = cluster_ids.union(differ, (member[0] for member in waiting ^ self._waiting))
        is_changed = bool(changed) and now.at_ns is not None
        if is_changed or state.has_reserved():
            with self.store.transaction():
                if is_changed:
                    observed.save_usage(self.store, now, changed)
                state.write_reservations(self.store)
        if is_changed:
            self._rates, self._waiting = rates, waiting


def _counts(state: FollowedState, cluster_id: str) -> bool:
    """Whether usage counts in a cluster."""
    cluster = state.ledger.clusters.get(cluster_id)
    return cluster is not None and (cluster.queue.order == FAIR or cluster.queue.half_life_ns is not None)
