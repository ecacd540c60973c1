"""Nominations: the place reserved for a job while jobs of lower priority are ended for it (as in Kubernetes).

In a round the free part of a nominated place is charged in the ledger, so tasks, other queues and growing
clusters do not use it. The charge is lifted only while the job itself is tried, or a job of the same queue
with a higher priority.

Where the job's cluster can grow, a place may lie in clusters above it and in siblings that lend. The cluster
grows over it when the job starts, by the ordinary search; until then its limits count the promised growth as
held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, FreeCapacity, add, total, within
from vctl.core.values import value
from vctl.scheduler.candidate_nodes import candidates_of
from vctl.scheduler.elasticity import Grow, apply_growth, growing, lendable, suppliers, within_limits
from vctl.scheduler.gang_growth import place_with_growth
from vctl.scheduler.placement import Placed, place_on

Part = tuple[str, Allocation]
"""A virtual node of the parent, or of a cluster from which it grows, and the allocation reserved in it."""


def by_vnode(parts: Iterable[Part]) -> dict[str, list[Allocation]]:
    """The allocations by virtual node."""
    parts_of: dict[str, list[Allocation]] = {}
    for vnode_id, allocation in parts:
        parts_of.setdefault(vnode_id, []).append(allocation)
    return parts_of


@value(frozen=True, slots=True)
class Nomination:
    """The place reserved for a job. ``priority``: the priority of the job when it was nominated.

    ``awaited``: jobs that are being ended, for this job or another reason, and will return a part of the
    place.
    """

    job_id: int
    submission_id: str
    priority: int
    parent_id: str
    pieces: tuple[Part, ...]
    awaited: frozenset[int] = frozenset()

    def is_valid(self, ledger: Ledger) -> bool:
        """Whether the virtual nodes of the place still exist and suffice, and its growth is still allowed."""
        for vnode_id, allocations in by_vnode(self.pieces).items():
            vnode = ledger.vnodes.get(vnode_id)
            if vnode is None or not ledger.nodes[vnode.node_id].schedulable:
                return False
            if not within(total(allocation.amounts for allocation in allocations), vnode.allocation.amounts):
                return False
        growth = self.growth(ledger)
        return growth is not None and all(
            within_limits(ledger, ledger.clusters[cluster_id], gained) for cluster_id, gained in growth.gained.items()
        ) and all(
            within(lent, lendable(ledger, ledger.clusters[cluster_id])) for cluster_id, lent in growth.lent.items()
        )  # fmt: skip

    def growth(self, ledger: Ledger) -> Growth | None:
        """The growth of clusters at the start of the job; None: the parent cannot grow over some piece."""
        promised = Growth({}, {})
        chain: list[str] | None = None
        for vnode_id, allocation in self.pieces:
            cluster_id = ledger.vnodes[vnode_id].cluster_id
            if cluster_id == self.parent_id:
                continue
            if chain is None:
                chain = growing(ledger, self.parent_id) if self.parent_id in ledger.clusters else []
            depth = _depth_of(ledger, chain, cluster_id)
            if not depth:
                return None
            for grown_id in chain[:depth]:
                promised.gained[grown_id] = add(promised.gained.get(grown_id, {}), allocation.amounts)
            if cluster_id != ledger.clusters[chain[depth - 1]].parent_id:
                promised.lent[cluster_id] = add(promised.lent.get(cluster_id, {}), allocation.amounts)
        return promised


@value(frozen=True, slots=True)
class Growth:
    """Promised growth: the amounts that clusters are going to gain, and that siblings are going to lend."""

    gained: dict[str, dict[str, int]]
    lent: dict[str, dict[str, int]]

    def promise(self, ledger: Ledger, sign: int = 1) -> None:
        """Count the promise in the limits of these clusters; ``sign`` -1: remove it again."""
        for cluster_id, amounts in self.gained.items():
            ledger.promise(cluster_id, amounts, sign)
        for cluster_id, amounts in self.lent.items():
            ledger.promise(cluster_id, amounts, -sign)


def _depth_of(ledger: Ledger, chain: list[str], cluster_id: str) -> int:
    """The number of clusters of a chain, lowest first, that grow over a piece in a cluster; 0: none can."""
    above = [ledger.clusters[grown_id].parent_id for grown_id in chain]
    if cluster_id in above:
        return above.index(cluster_id) + 1
    parent_id = ledger.clusters[cluster_id].parent_id
    return above.index(parent_id) + 1 if parent_id in above else 0


class Nominations:
    """The nominations of a round, charged in the ledger; ``close`` takes everything back."""

    def __init__(self, ledger: Ledger, nominations: Iterable[Nomination] = ()) -> None:
        self.ledger = ledger
        self.nominations = {nomination.job_id: nomination for nomination in nominations}
        self._names: dict[int, list[str]] = {}
        self._growth: dict[int, Growth] = {}
        self._recharge()

    def reach(self, job: PendingJob) -> frozenset[int]:
        """The nominations that a job may use: its own; without one, those of lower priority in its queue."""
        if not self.nominations:
            return frozenset()
        if job.job_id in self.nominations:
            return frozenset({job.job_id})
        return frozenset(
            nomination.job_id
            for nomination in self.nominations.values()
            if nomination.parent_id == job.parent_id and nomination.priority < job.priority
        )

    def out_of_reach(self, job: PendingJob) -> list[Nomination]:
        """The nominations that a job must leave to others."""
        reach = self.reach(job)
        return [nomination for nomination in self._ordered() if nomination.job_id not in reach]

    def put(self, nomination: Nomination) -> None:
        """Add a nomination."""
        self.nominations[nomination.job_id] = nomination
        self._recharge()

    def drop(self, job_id: int) -> None:
        """Remove the nomination of a job."""
        if self.nominations.pop(job_id, None) is not None:
            self._recharge()

    def placement(self, job: PendingJob) -> tuple[list[Grow], Placed] | None:
        """The growth and the place of a job within its nominated place; None: it has no place there yet.

        Its nomination must be lifted. The growth is applied to the ledger.
        """
        nomination = self.nominations.get(job.job_id)
        if nomination is None or nomination.awaited or not nomination.is_valid(self.ledger):
            return None
        parts = by_vnode(nomination.pieces)
        growth = nomination.growth(self.ledger)
        if growth is not None and growth.gained:
            return self._grown_placement(job, parts)
        capacities = {v: _only(self.ledger.capacities[v], allocations) for v, allocations in parts.items()}
        placed = place_on(candidates_of(self.ledger, capacities), job.spec, job.entry)
        return ([], placed) if isinstance(placed, Placed) else None

    def _grown_placement(
        self, job: PendingJob, parts: dict[str, list[Allocation]]
    ) -> tuple[list[Grow], Placed] | None:
        vnodes = self.ledger.vnodes
        nodes = {vnodes[vnode_id].node_id for vnode_id in parts}
        trial = self.ledger.part(suppliers(self.ledger, job.parent_id))
        for vnode_id, capacity in list(trial.capacities.items()):
            if vnodes[vnode_id].node_id in nodes:
                trial.set_capacity(vnode_id, _only(capacity, parts.get(vnode_id, ())))
        others = frozenset(self.ledger.nodes) - nodes
        grown = place_with_growth(trial, job.parent_id, job.spec, job.entry, avoid=others)
        if not isinstance(grown, tuple):
            return None
        for step in grown[0]:
            apply_growth(self.ledger, step)
        return grown

    @contextmanager
    def lifted(self, reach: Collection[int]) -> Iterator[None]:
        """Lift the charges of these nominations inside the block; after it, charge what is still free."""
        if not reach:
            yield
            return
        for job_id in reach:
            self._discharge(job_id)
        try:
            yield
        finally:
            self._recharge()

    def close(self) -> None:
        """Remove all charges and promises from the ledger."""
        for job_id in [*self._names, *self._growth]:
            self._discharge(job_id)

    def _discharge(self, job_id: int) -> None:
        for name in reversed(self._names.pop(job_id, [])):
            self.ledger.discharge(name)
        if (growth := self._growth.pop(job_id, None)) is not None:
            growth.promise(self.ledger, -1)

    def _ordered(self) -> list[Nomination]:
        """Nominations by priority, then by age; the free capacity is charged for the first ones first."""
        return sorted(self.nominations.values(), key=lambda nomination: -nomination.priority)

    def _recharge(self) -> None:
        self.close()
        for nomination in self._ordered():
            if not nomination.is_valid(self.ledger) or (growth := nomination.growth(self.ledger)) is None:
                continue
            if growth.gained:
                growth.promise(self.ledger)
                self._growth[nomination.job_id] = growth
            for number, part in enumerate(nomination.pieces):
                capacity = self.ledger.capacities[part[0]]
                if capacity.is_overdrawn():
                    continue
                free = capacity.copy().take_most(part[1])
                if any(free.amounts.values()):
                    name = f"nominated:{nomination.job_id}:{number}"
                    self.ledger.charge(name, part[0], free)
                    self._names.setdefault(nomination.job_id, []).append(name)


def _only(capacity: FreeCapacity, parts: Iterable[Allocation]) -> FreeCapacity:
    """A free capacity with only these parts free, as far as they are free now."""
    only = capacity.copy()
    allowed = [only.take_most(allocation) for allocation in parts]
    only.take_most(only.total)
    for allocation in allowed:
        only.give_back(allocation)
    return only
