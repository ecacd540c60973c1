"""Fair order: whose turn it is. The sibling with the least weighted dominant share goes first, at every level.

Siblings below a cluster whose order is ``fair`` are its logical child clusters, each with its weight, and the users
of the jobs sent to the cluster itself, each with weight 1. A share is the largest part that somebody holds of any
resource of that cluster, divided by the weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vctl.core import resources as rs
from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import FAIR
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running, holdings_of

Member = tuple[str, str, str]
"""(cluster, child cluster or '', user or ''): somebody who competes in a cluster."""


class Usage:
    """What members used in the past, halved after every half-life of their cluster. Amounts times seconds."""

    def __init__(self) -> None:
        self.at_ns: int | None = None
        self.past: dict[Member, dict[str, float]] = {}
        self.rates: dict[Member, dict[str, int]] = {}

    def advance(self, ledger: Ledger, now_ns: int) -> None:
        """Let the time since the last look pass, with what was held then."""
        before, self.at_ns = self.at_ns, now_ns
        if before is None or now_ns <= before:
            return
        elapsed = (now_ns - before) / 1e9
        for member in {*self.past, *self.rates}:
            cluster = ledger.clusters.get(member[0])
            if cluster is None or cluster.queue.half_life_ns is None:
                self.past.pop(member, None)
                continue
            half_life = cluster.queue.half_life_ns / 1e9
            left = 0.5 ** (elapsed / half_life)
            # with full use for ever this tends to the amount itself, so past and present are of one size
            used = self.past.setdefault(member, {})
            for name in {*used, *self.rates.get(member, {})}:
                used[name] = used.get(name, 0.0) * left + self.rates.get(member, {}).get(name, 0) * (1 - left)


class Shares:
    """The present shares, counted once a round; what the round starts is added."""

    def __init__(self, ledger: Ledger, running: Running, usage: Usage | None = None) -> None:
        self.ledger = ledger
        self.past: Mapping[Member, Mapping[str, float]] = {} if usage is None else usage.past
        self.held: dict[Member, dict[str, int]] = {}
        self._totals: dict[str, dict[str, int]] = {}
        for job in running.jobs.values():
            self.add(job.parent_id, job.user, rs.total(h.amounts for _, h in holdings_of(ledger, job)))
        if usage is not None:
            usage.rates = self.held  # with what the round starts

    def add(self, parent_id: str, user: str, amounts: Mapping[str, int]) -> None:
        """A job of a user holds something in a cluster: it counts there and for every cluster on the way up."""
        for member in self._members(parent_id, user):
            self.held[member] = rs.add(self.held.get(member, {}), amounts)

    def _members(self, parent_id: str, user: str) -> Iterator[Member]:
        yield (parent_id, "", user)
        for above, child in chain_of(self.ledger, parent_id):
            yield (above, child, "")

    def of_user(self, cluster_id: str, user: str) -> float:
        """A user's share of a cluster."""
        return self._share((cluster_id, "", user), 1)

    def of_child(self, parent_id: str, cluster_id: str) -> float:
        """A child cluster's share of its parent, by its weight."""
        return self._share((parent_id, cluster_id, ""), self.ledger.clusters[cluster_id].queue.weight)

    def turn_of(self, cluster_id: str) -> tuple[float, ...]:
        """The shares of a cluster and of those above it, from the top: less goes first. 0 where order is not fair."""
        return tuple(
            self.of_child(above, child) if self.ledger.clusters[above].queue.order == FAIR else 0.0
            for above, child in reversed(list(chain_of(self.ledger, cluster_id)))
        )

    def _share(self, member: Member, weight: int) -> float:
        total = self._totals.get(member[0])
        if total is None:
            total = self._totals[member[0]] = self.ledger.total(member[0])
        held, past = self.held.get(member, {}), self.past.get(member, {})
        parts = [
            (held.get(name, 0) + past.get(name, 0.0)) / total[name]
            for name in {*held, *past}
            if total.get(name)
        ]
        return max(parts, default=0.0) / weight


def must_yield(ledger: Ledger, shares: Shares, queues: Mapping[str, Queue], cluster_id: str) -> bool:
    """Whether a sibling with a smaller share waits for what a cluster has borrowed and does not use now."""
    cluster = ledger.clusters.get(cluster_id)
    if cluster is None or cluster.parent_id is None or cluster.kind != LOGICAL:
        return False
    parent_id = cluster.parent_id
    if ledger.clusters[parent_id].queue.order != FAIR:
        return False
    mine = shares.of_child(parent_id, cluster_id)
    for waiting_id, queue in queues.items():
        blocked = [shape for shape in queue.shapes.values() if shape.blocked is not None]
        if not blocked or waiting_id not in ledger.clusters:
            continue
        if waiting_id == parent_id:
            users = {lane.user for shape in blocked for lane in shape.lanes.values()}
            if any(shares.of_user(parent_id, user) < mine for user in users):
                return True
        for above, child in chain_of(ledger, waiting_id):
            if above == parent_id and child != cluster_id and shares.of_child(parent_id, child) < mine:
                return True
    return False


def chain_of(ledger: Ledger, cluster_id: str) -> Iterator[tuple[str, str]]:
    """(parent, child) from a cluster up to the primary."""
    while cluster_id != PRIMARY:
        parent_id = ledger.clusters[cluster_id].parent_id
        assert parent_id is not None
        yield parent_id, cluster_id
        cluster_id = parent_id


def is_fair(ledger: Ledger, cluster_id: str) -> bool:
    """Whether shares decide anything about the jobs of a cluster."""
    return cluster_id in ledger.clusters and (
        ledger.clusters[cluster_id].queue.order == FAIR
        or any(ledger.clusters[above].queue.order == FAIR for above, _ in chain_of(ledger, cluster_id))
    )
