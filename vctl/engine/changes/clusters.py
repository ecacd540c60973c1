"""Changes of clusters, their virtual nodes and their leases. A lease is given whole, as it is afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vctl.core.clusters import JOB, PRIMARY, Cluster, VNode
from vctl.core.leases import Lease
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.core.values import fields, replace
from vctl.core.wording import in_units, timestamp
from vctl.engine.changes.change import Change, PublicEvent, change, unread

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


_MOVED = {
    "open": "cluster.opened", "resume": "cluster.resumed", "stop": "cluster.stopped", "remove": "cluster.removing",
}  # fmt: skip


@change
class ClusterAdded(Change):
    """A cluster was added; its virtual nodes follow in another change."""

    at: int
    cluster: Cluster
    owner: str | None = None

    def public_event(self) -> PublicEvent:
        cluster_id, booking = self.cluster.cluster_id, self.cluster.booking
        if booking is None:
            return _cluster_event("cluster.created", cluster_id)
        data = {"begin_at": timestamp(booking.begin_ns), "end_at": timestamp(booking.end_ns)}
        return _cluster_event("cluster.booked", cluster_id, data)

    def apply(self, state: SchedulerState) -> None:
        state.ledger.put_cluster(self.cluster)


@change
class ClusterChanged(Change):
    """A cluster has another spec, other limits or a new revision."""

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
        if cluster == replace(before, revision=cluster.revision, queue=cluster.queue):
            return  # nothing fits otherwise than before
        lends = cluster.lending_limit or before.lending_limit  # its siblings may then grow otherwise, too
        state.judge_anew(cluster.parent_id or PRIMARY if lends else cluster.cluster_id)


@change
class ClusterMoved(Change):
    """A cluster was opened at the begin of its booking, stopped, resumed or marked for removal.

    ``stopped``: who stopped it, and why.
    """

    at: int
    cluster_id: str
    move: str
    state: str
    stopped: Mapping[str, Any] | None = None

    def public_event(self) -> PublicEvent:
        return _cluster_event(_MOVED[self.move], self.cluster_id, self.stopped or {})

    def apply(self, state: SchedulerState) -> None:
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.put_cluster(replace(cluster, state=self.state))
            state.judge_anew(self.cluster_id)


@change
class QueueChanged(Change):
    """A cluster has a new queue policy."""

    cluster_id: str
    queue: QueuePolicy
    revision: int = 0
    """The new revision of the primary; that of any other cluster comes with a ``ClusterChanged``."""

    @property
    def given(self) -> dict[str, Any]:
        """The settings that differ from the default."""
        return {
            setting.name: value
            for setting in fields(self.queue)
            if (value := getattr(self.queue, setting.name)) != getattr(DEFAULT, setting.name)
        }

    def public_event(self) -> PublicEvent:
        return _cluster_event("cluster.queue_changed", self.cluster_id, self.given)

    def apply(self, state: SchedulerState) -> None:
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.put_cluster(replace(cluster, queue=self.queue))  # what fits is the same as before


@change
class AccessChanged(Change):
    """A cluster has other submitters or admins, or hides names or not. ``given``: what it says now, as JSON."""

    cluster_id: str
    given: Mapping[str, Any]
    revision: int = 0
    """As of a ``QueueChanged``."""

    def public_event(self) -> PublicEvent:
        return _cluster_event("cluster.access_changed", self.cluster_id, self.given)

    apply = unread


@change
class ClusterDetached(Change):
    """A sub-cluster outlives its job, or the job of a cluster is over but detached work in it is not."""

    cluster_id: str

    def public_event(self) -> PublicEvent:
        return _cluster_event("", self.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.put_cluster(replace(cluster, detached=True))


@change
class ClusterRemoved(Change):
    """A cluster was removed with its virtual nodes and leases; its loans went over to its parent."""

    cluster_id: str
    returned: tuple[int, ...] = ()
    """The leases that it had borrowed: they end with it."""
    lent: tuple[int, ...] = ()
    """The leases of which it was the lender."""
    lender_id: str | None = None
    """The new lender of the leases in ``lent``."""
    silent: bool = False
    """Whether the event of a job reports it already."""

    @classmethod
    def of(
        cls, cluster_id: str, parent_id: str | None, leases: Iterable[Lease], *, silent: bool = False
    ) -> ClusterRemoved:
        """The removal of an empty cluster. ``leases``: all that it may have borrowed or lent."""
        if not (known := list(leases)):
            return cls(cluster_id, silent=silent)
        returned = tuple(lease.lease_id for lease in known if lease.borrower_id == cluster_id)
        lent = tuple(lease.lease_id for lease in known if lease.lender_id == cluster_id)
        return cls(cluster_id, returned, lent, parent_id if lent else None, silent)

    def public_event(self) -> PublicEvent:
        return _cluster_event("" if self.silent else "cluster.removed", self.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        if self.returned or self.lent:
            self._end_leases(state)
        state.tasks.forget_cluster(self.cluster_id)
        if (cluster := state.ledger.clusters.get(self.cluster_id)) is not None:
            state.ledger.remove_cluster(self.cluster_id)
            if cluster.kind != JOB and (gone := list(state.ledger.limits.of_cluster(self.cluster_id))):
                state.ledger.limits = state.ledger.limits.without(limit.key for limit in gone)
            if cluster.kind != JOB and cluster.lending_limit:
                state.judge_anew(cluster.parent_id or PRIMARY)

    def _end_leases(self, state: SchedulerState) -> None:
        for lease in [state.leases[lease_id] for lease_id in self.returned if lease_id in state.leases]:
            state.ledger.put_lease(replace(lease, amounts={}))
        for lease in [state.leases[lease_id] for lease_id in self.lent if lease_id in state.leases]:
            if self.lender_id is not None:
                state.ledger.put_lease(replace(lease, lender_id=self.lender_id))


@change
class VNodesChanged(Change):
    """Virtual nodes were removed, and others added or changed, all at once."""

    removed: tuple[str, ...] = ()
    placed: tuple[VNode, ...] = ()
    for_start: bool = False
    """Whether the change serves a start in the same transaction: then no node counts as joined."""
    node_id: str | None = None
    """The node whose new totals are the cause; None: another cause."""

    def public_event(self) -> PublicEvent:
        """The public event for new totals of a node; otherwise the event of a cluster or lease reports it."""
        return PublicEvent("" if self.node_id is None else "vnodes.resized", "vnodes", self.node_id or "")

    def apply(self, state: SchedulerState) -> None:
        state.ledger.rearrange(self.removed, self.placed, for_start=self.for_start)


@change
class NodeReplaced(Change):
    """A dead node of a cluster was replaced by another node, or (None) dropped."""

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
    """The nodes of a cluster after a replacement, for the runtime. ``job_id``: the job of a job cluster."""

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
    """A cluster has borrowed resources; a lease that it has already becomes larger."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        return _lease_event("lease.granted", self.lease, {"amounts": in_units(self.lease.amounts)})

    def apply(self, state: SchedulerState) -> None:
        state.ledger.put_lease(self.lease)


@change
class LeaseCalled(Change):
    """The lender reclaims a lease, which now expires at ``lease.expires_at``."""

    lease: Lease
    rest: Lease | None = None
    """What its borrower keeps, if only a part is called: the called part is a new lease."""

    def public_event(self) -> PublicEvent:
        ends_ns = self.lease.expires_at
        ends_at = None if ends_ns is None else timestamp(ends_ns)
        data = {"amounts": in_units(self.lease.amounts), "ends_at": ends_at}
        return _lease_event("lease.called_in", self.lease, data)

    def apply(self, state: SchedulerState) -> None:
        for lease in (self.lease, self.rest):
            if lease is not None:
                state.ledger.put_lease(lease)


@change
class LeaseSpared(Change):
    """The lender needs a lease that it wanted back no more: the borrower keeps it."""

    lease: Lease
    account: Lease | None = None
    """The larger lease of which it is a part again."""

    def public_event(self) -> PublicEvent:
        return _lease_event("lease.spared", self.lease, {"amounts": in_units(self.lease.amounts)})

    def apply(self, state: SchedulerState) -> None:
        if self.account is None:
            state.ledger.put_lease(self.lease)
        else:
            state.ledger.put_lease(replace(self.lease, amounts={}))
            state.ledger.put_lease(self.account)


@change
class LeaseReturned(Change):
    """A lease was returned in part or as a whole; ``lease`` has the rest, and is over without any."""

    lease: Lease

    def public_event(self) -> PublicEvent:
        return _lease_event("lease.returned", self.lease, {"left": in_units(self.lease.amounts)})

    def apply(self, state: SchedulerState) -> None:
        state.ledger.put_lease(self.lease)


def _lease_event(kind: str, lease: Lease, data: Mapping[str, Any]) -> PublicEvent:
    data = {"lender": lease.lender_id, **data}
    return PublicEvent(kind, "lease", str(lease.lease_id), lease.borrower_id, lease.job_id, data)
