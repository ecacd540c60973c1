"""Changes of clusters, their virtual nodes and their leases. A lease comes whole, as it is afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vctl.core.clusters import ACTIVE, JOB, PRIMARY, REMOVING, STOPPED, Cluster, VNode
from vctl.core.leases import Lease
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.core.values import fields, replace
from vctl.core.wording import in_units, timestamp
from vctl.engine.changes.change import Change, PublicEvent, change, unread

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


_MOVED = {ACTIVE: "cluster.resumed", STOPPED: "cluster.stopped", REMOVING: "cluster.removing"}


@change
class ClusterAdded(Change):
    """There is another cluster; its virtual nodes follow."""

    at: int
    cluster: Cluster
    owner: str | None = None

    def public_event(self) -> PublicEvent:
        return _cluster_event("cluster.created", self.cluster.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        state.ledger.put_cluster(self.cluster)


@change
class ClusterChanged(Change):
    """A cluster has another spec, other limits or another revision."""

    at: int
    cluster: Cluster

    def public_event(self) -> PublicEvent:
        return _cluster_event(
            "cluster.updated", self.cluster.cluster_id, {"revision": str(self.cluster.revision)}
        )

    def apply(self, state: SchedulerState) -> None:
        cluster = self.cluster
        before = state.ledger.clusters.get(cluster.cluster_id, cluster)
        state.ledger.put_cluster(cluster)
        lends = cluster.lending_limit or before.lending_limit  # then its siblings may grow otherwise too
        state.judge_anew(cluster.parent_id or PRIMARY if lends else cluster.cluster_id)


@change
class ClusterMoved(Change):
    """A cluster admits jobs or does not, or is to go when it is empty. ``stopped``: who stopped it and why."""

    at: int
    cluster_id: str
    move: str
    state: str
    stopped: Mapping[str, Any] | None = None

    def public_event(self) -> PublicEvent:
        return _cluster_event(_MOVED[self.state], self.cluster_id, self.stopped or {})

    def apply(self, state: SchedulerState) -> None:
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.put_cluster(replace(cluster, state=self.state))
            state.judge_anew(self.cluster_id)


@change
class QueueChanged(Change):
    """The queue of a cluster is served like this."""

    cluster_id: str
    queue: QueuePolicy

    @property
    def given(self) -> dict[str, Any]:
        """The settings that differ from the default."""
        return {
            one.name: value
            for one in fields(self.queue)
            if (value := getattr(self.queue, one.name)) != getattr(DEFAULT, one.name)
        }

    def public_event(self) -> PublicEvent:
        return _cluster_event("cluster.queue_changed", self.cluster_id, self.given)

    def apply(self, state: SchedulerState) -> None:
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.put_cluster(replace(cluster, queue=self.queue))
            state.judge_anew(cluster.parent_id or PRIMARY)  # it has another weight among its siblings


@change
class ClusterDetached(Change):
    """A sub-cluster outlives its job, or the job of a cluster is over and something detached still lives in it."""

    cluster_id: str

    def public_event(self) -> PublicEvent:
        """For schedulers alone."""
        return _cluster_event("", self.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.put_cluster(replace(cluster, detached=True))


@change
class ClusterRemoved(Change):
    """A cluster is gone with its virtual nodes and leases; what it lent is lent by its parent from now on."""

    cluster_id: str
    returned: tuple[int, ...] = ()
    """Leases that end with it."""
    lent: tuple[int, ...] = ()
    """Leases of which it was the lender."""
    lender_id: str | None = None
    """The lender of these now."""
    silent: bool = False
    """Whether the event of a job says it already."""

    @classmethod
    def of(
        cls, cluster_id: str, parent_id: str | None, leases: Iterable[Lease], *, silent: bool = False
    ) -> ClusterRemoved:
        """The removal of a cluster in which nothing lies; ``leases`` are all that may be its own or lent by it."""
        found = list(leases)
        returned = tuple(one.lease_id for one in found if one.borrower_id == cluster_id)
        lent = tuple(one.lease_id for one in found if one.lender_id == cluster_id)
        return cls(cluster_id, returned, lent, parent_id if lent else None, silent)

    def public_event(self) -> PublicEvent:
        """The public event, unless it is silent."""
        return _cluster_event("" if self.silent else "cluster.removed", self.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        """A cluster is gone, with its leases."""
        for lease_id in self.returned:
            state.leases.pop(lease_id, None)
        for lease_id in self.lent:
            if (lease := state.leases.get(lease_id)) is not None and self.lender_id is not None:
                state.leases[lease_id] = replace(lease, lender_id=self.lender_id)
        state.tasks.last_spread.pop(self.cluster_id, None)
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.remove_cluster(self.cluster_id)
            if cluster.kind != JOB and cluster.lending_limit:
                state.judge_anew(cluster.parent_id or PRIMARY)


@change
class VNodesChanged(Change):
    """Virtual nodes are gone, and others are where and as they are now: each step in this order is possible."""

    removed: tuple[str, ...] = ()
    placed: tuple[VNode, ...] = ()
    for_start: bool = False
    """Whether what they add is for a start of the same transaction: then no node has joined for others."""
    node_id: str | None = None
    """The node whose new totals they have."""

    def public_event(self) -> PublicEvent:
        """The public event, where the totals of a node changed; else that of a cluster or lease says it."""
        return PublicEvent("" if self.node_id is None else "vnodes.resized", "vnodes", self.node_id or "")

    def apply(self, state: SchedulerState) -> None:
        state.ledger.rearrange(self.removed, self.placed, for_start=self.for_start)


@change
class NodeReplaced(Change):
    """In a cluster a dead node gave way to another one, or (None) to nothing."""

    cluster_id: str
    dead: str
    node_id: str | None

    def public_event(self) -> PublicEvent:
        return _cluster_event(
            "cluster.node_replaced", self.cluster_id, {"dead": self.dead, "node": self.node_id}
        )

    apply = unread


@change
class NodesPublished(Change):
    """The nodes of a cluster after a replacement, for the runtime that works there; ``job_id``: whose cluster it is."""

    cluster_id: str
    nodes: tuple[str, ...]
    job_id: int | None = None

    def public_event(self) -> PublicEvent:
        return _cluster_event("cluster.nodes_published", self.cluster_id, {"nodes": list(self.nodes)})

    apply = unread


def _cluster_event(kind: str, cluster_id: str, data: Mapping[str, Any] | None = None) -> PublicEvent:
    return PublicEvent(kind, "cluster", cluster_id, cluster_id, None, data or {})


@change
class LeaseGranted(Change):
    """A cluster has borrowed something."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        data = {"vnode": self.lease.vnode_id, "amounts": in_units(self.lease.amounts)}
        return _lease_event("lease.granted", self.lease, data)

    def apply(self, state: SchedulerState) -> None:
        state.put_lease(self.lease)


@change
class LeaseCalled(Change):
    """The lender wants a lease back; it ends at ``lease.expires_at``, at the latest."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        ends_ns = self.lease.expires_at
        data = {"ends_at": None if ends_ns is None else timestamp(ends_ns)}
        return _lease_event("lease.called_in", self.lease, data)

    def apply(self, state: SchedulerState) -> None:
        state.put_lease(self.lease)


@change
class LeaseReturned(Change):
    """A lease was given back, down to its amounts now; without any it is over."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        return _lease_event("lease.returned", self.lease, {"left": in_units(self.lease.amounts)})

    def apply(self, state: SchedulerState) -> None:
        state.put_lease(self.lease)


def _lease_event(kind: str, lease: Lease, data: Mapping[str, Any]) -> PublicEvent:
    data = {"lender": lease.lender_id, **data}
    return PublicEvent(kind, "lease", str(lease.lease_id), lease.borrower_id, lease.job_id, data)
