"""Changes of clusters and their virtual nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from vctl.core.clusters import ACTIVE, REMOVING, STOPPED, Cluster, VNode
from vctl.core.leases import Lease
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.engine.changes.change import PublicEvent, change

_MOVED = {ACTIVE: "cluster.resumed", STOPPED: "cluster.stopped", REMOVING: "cluster.removing"}


@change
class ClusterAdded:
    """There is another cluster; its virtual nodes follow."""

    at: int
    cluster: Cluster
    owner: str | None = None

    def public_event(self) -> PublicEvent:
        return _of("cluster.created", self.cluster.cluster_id)


@change
class ClusterChanged:
    """A cluster has another spec, other limits or another revision."""

    at: int
    cluster: Cluster

    def public_event(self) -> PublicEvent:
        return _of("cluster.updated", self.cluster.cluster_id, {"revision": str(self.cluster.revision)})


@change
class ClusterMoved:
    """A cluster admits jobs or does not, or is to go when it is empty. ``stopped``: who stopped it and why."""

    at: int
    cluster_id: str
    move: str
    state: str
    stopped: Mapping[str, Any] | None = None

    def public_event(self) -> PublicEvent:
        return _of(_MOVED[self.state], self.cluster_id, self.stopped or {})


@change
class QueueChanged:
    """The queue of a cluster is served like this."""

    cluster_id: str
    queue: QueuePolicy

    @property
    def given(self) -> dict[str, Any]:
        """What differs from the default."""
        return {name: value for name, value in asdict(self.queue).items() if value != getattr(DEFAULT, name)}

    def public_event(self) -> PublicEvent:
        return _of("cluster.queue_changed", self.cluster_id, self.given)


@change
class ClusterDetached:
    """The job of a cluster is over, and something detached still lives in it."""

    cluster_id: str

    def public_event(self) -> PublicEvent:
        """For schedulers alone."""
        return _of("", self.cluster_id)


@change
class ClusterRemoved:
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
        return _of("" if self.silent else "cluster.removed", self.cluster_id)


@change
class VNodesChanged:
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


@change
class NodeReplaced:
    """In a cluster a dead node gave way to another one, or (None) to nothing."""

    cluster_id: str
    dead: str
    node_id: str | None

    def public_event(self) -> PublicEvent:
        return _of("cluster.node_replaced", self.cluster_id, {"dead": self.dead, "node": self.node_id})


@change
class NodesPublished:
    """The nodes of a cluster after a replacement, for the runtime that works there; ``job_id``: whose cluster it is."""

    cluster_id: str
    nodes: tuple[str, ...]
    job_id: int | None = None

    def public_event(self) -> PublicEvent:
        return _of("cluster.nodes_published", self.cluster_id, {"nodes": list(self.nodes)})


def _of(kind: str, cluster_id: str, data: Mapping[str, Any] | None = None) -> PublicEvent:
    return PublicEvent(kind, "cluster", cluster_id, cluster_id, None, data or {})
