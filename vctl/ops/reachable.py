"""What the work of a cluster can take: its own virtual nodes, and those of the clusters from which it can grow.

Resources that are reserved by preemptions count as not free.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

from vctl.core.clusters import LOGICAL, PRIMARY, Cluster
from vctl.core.leases import Lease
from vctl.core.resources import Allocation
from vctl.core.wording import cluster_text
from vctl.scheduler.explain.shortage import Above, Slot, Slots
from vctl.store import clusters, leases, preemptions, rows
from vctl.store.free import alike
from vctl.store.store import Store


class Reachable:
    """What clusters and those above them have free, as of one snapshot; each cluster is read once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._slots: dict[tuple[str, int], Slots] = {}
        self._above: dict[tuple[str, int], list[Above]] = {}
        self._clusters: dict[str, Cluster | None] = {}
        self._lenders_in: dict[str, set[str]] = {}
        self._flexible: dict[str, dict[str, int]] = {}
        self.nominations = preemptions.nominations(store)
        self._reserved_in: dict[str, set[int]] = {}
        """Cluster -> jobs with reserved resources on its virtual nodes; complete after ``slots`` of that cluster."""

    def cluster(self, cluster_id: str) -> Cluster | None:
        """A cluster by its id; None for the primary and for a cluster that is gone."""
        if cluster_id not in self._clusters:
            row = None if cluster_id == PRIMARY else clusters.get(self.store, cluster_id)
            self._clusters[cluster_id] = None if row is None else rows.cluster(row)
        return self._clusters[cluster_id]

    def slots(self, cluster_id: str, job_id: int = 0) -> Slots:
        """The virtual nodes of a cluster that accept work; resources that are reserved for that job count as free."""
        key = (cluster_id, winner := self._winner(job_id))
        if key not in self._slots:
            self._slots[key] = Slots(self._read(cluster_id, winner))
            is_empty = not self._slots[key].groups and cluster_id != PRIMARY
            if is_empty and not clusters.vnode_rows(self.store, cluster_id):  # not even such as take no work
                self._slots[key].nothing = f"nothing, {cluster_text(cluster_id)} has no virtual nodes"
        return self._slots[key]

    def above(self, cluster_id: str, job_id: int = 0) -> list[Above]:
        """The clusters from which a cluster can grow, nearest first; the last of them cannot grow itself."""
        key = (cluster_id, self._winner(job_id))
        if key not in self._above:
            self._above[key] = self._read_above(cluster_id, job_id)
        return self._above[key]

    def _winner(self, job_id: int) -> int:
        return job_id if any(nomination.job_id == job_id for nomination in self.nominations) else 0

    def _read_above(self, cluster_id: str, job_id: int) -> list[Above]:
        levels: list[Above] = []
        for cluster, parent_id in self.growing(cluster_id):
            lends = not self._lenders(parent_id) <= {cluster.cluster_id}
            levels.append(
                Above(
                    cluster_text(parent_id), self.slots(parent_id, job_id), cluster_text(cluster.cluster_id),
                    self._allowance(cluster), lends,
                )
            )  # fmt: skip
        return levels

    def growing(self, cluster_id: str) -> Iterator[tuple[Cluster, str]]:
        """The clusters that can grow, from this one up, each with the id of the cluster from which it grows."""
        cluster = self.cluster(cluster_id)
        while cluster is not None and cluster.spec.flexible and cluster.parent_id is not None:
            yield cluster, cluster.parent_id
            cluster = self.cluster(cluster.parent_id)

    def _lenders(self, parent_id: str) -> set[str]:
        if parent_id not in self._lenders_in:
            self._lenders_in[parent_id] = {
                row["cluster_id"]
                for row in clusters.children(self.store, parent_id)
                if row["kind"] == LOGICAL
                and row["settings"] != "{}"
                and any(rows.cluster(row).lending_limit.values())
            }
        return self._lenders_in[parent_id]

    def reserved_for(self, cluster_id: str, job_id: int) -> list[str]:
        """Ids of other jobs with reserved resources in a cluster, or in a cluster from which it can grow."""
        job_ids: set[int] = set()
        for level in (cluster_id, *(parent_id for _, parent_id in self.growing(cluster_id))):
            self.slots(level, job_id)
            job_ids |= self._reserved_in.get(level, set())
        return [n.submission_id for n in self.nominations if n.job_id in job_ids and n.job_id != job_id]

    @cached_property
    def called(self) -> list[Lease]:
        """The leases that their lenders have called back."""
        return leases.called(self.store)

    def coming_back(self, cluster_id: str) -> list[Lease]:
        """The leases that a cluster, or one above it from which it can grow, has lent and called back."""
        lenders = {cluster_id, *(parent_id for _, parent_id in self.growing(cluster_id))}
        return [lease for lease in self.called if lease.lender_id in lenders]

    def to_give_back(self, cluster_id: str) -> list[Lease]:
        """The leases that a cluster, or a cluster above it, has borrowed and must give back."""
        borrowers: set[str] = set()
        cluster = self.cluster(cluster_id)
        while cluster is not None:
            borrowers.add(cluster.cluster_id)
            cluster = None if cluster.parent_id is None else self.cluster(cluster.parent_id)
        return [lease for lease in self.called if lease.borrower_id in borrowers]

    def _allowance(self, cluster: Cluster) -> dict[str, int]:
        """The resources that a cluster can still gain; a name without a limit is missing."""
        return cluster.left_to_grow(self.flexible(cluster.cluster_id)) if cluster.is_limited else {}

    def flexible(self, cluster_id: str) -> dict[str, int]:
        """What a cluster has in flexible virtual nodes."""
        if cluster_id not in self._flexible:
            self._flexible[cluster_id] = clusters.flexible_amounts(self.store, cluster_id)
        return self._flexible[cluster_id]

    def _read(self, cluster_id: str, winner: int) -> Iterator[list[Slot]]:
        reserved: dict[str, list[tuple[int, Allocation]]] = {}
        for nomination in self.nominations:
            for slot_id, allocation in nomination.pieces if nomination.job_id != winner else ():
                reserved.setdefault(slot_id, []).append((nomination.job_id, allocation))
        for group in alike(self.store, cluster_id, reserved):
            if not group.takes_work:
                continue
            for job_id, allocation in reserved.get(group.slots[0][1], ()):
                self._reserved_in.setdefault(cluster_id, set()).add(job_id)
                group.capacity.take_most(Allocation(allocation.amounts, allocation.instances))
            capacity, template, untouched = group.capacity, group.template, group.capacity.is_untouched()
            yield [
                Slot(
                    node_id,
                    capacity,
                    partial(group.labels_of, node_id, slot_id),
                    template,
                    untouched,
                    slot_id,
                )
                for node_id, slot_id in group.slots
            ]
