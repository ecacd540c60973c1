"""Values of virtual clusters, their virtual nodes and their specs."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.labels import Labels, Selector
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.core.resources import Allocation, Amounts
from vctl.core.values import field, value

PRIMARY = "kPrimaryClusterID"
PRIMARY_ALIAS = "primary"
ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z"
POLICIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

# kinds of a cluster
PRIMARY_KIND, LOGICAL, JOB, SUB = "primary", "logical", "job", "sub"
BOOKED, ACTIVE, STOPPED, REMOVING = "BOOKED", "ACTIVE", "STOPPED", "REMOVING"
# kinds of a virtual node
PHYSICAL, FIXED, FLEXIBLE = "physical", "fixed", "flexible"
MARGIN_NS = 5_000_000_000
"""How long before the begin of a booking the jobs on its place must be over."""


@value(frozen=True, slots=True)
class FixedNode:
    """The request for one fixed-size virtual node."""

    resources: Amounts
    labels: Labels = field(default_factory=dict)
    selector: Selector = ()


@value(frozen=True, slots=True)
class Group:
    """Fixed nodes that are placed together under one policy, all or nothing."""

    nodes: tuple[FixedNode, ...]
    policy: str = "PACK"


@value(frozen=True, slots=True)
class ClusterSpec:
    """The resources that a cluster needs before it may start (its gang), and the limit of its growth.

    ``flexible`` says whether the cluster has a flexible part at all. ``flexible_max``: None is no limit, and
    neither is a missing name. ``replica_sets``: template -> number of whole nodes; a number of 0 is dropped.
    """

    flexible_min: Amounts = field(default_factory=dict)
    flexible_max: Mapping[str, int] | None = None
    groups: tuple[Group, ...] = ()
    replica_sets: Mapping[str, int] = field(default_factory=dict)
    flexible: bool = True

    def __post_init__(self) -> None:
        if not all(self.replica_sets.values()):
            counted = {template: count for template, count in self.replica_sets.items() if count}
            object.__setattr__(self, "replica_sets", counted)

    @property
    def has_gang(self) -> bool:
        """Whether anything must be reserved before the cluster may start."""
        return bool(self.groups or self.replica_sets or any(self.flexible_min.values()))

    @property
    def fixed(self) -> list[FixedNode]:
        """The fixed nodes of all groups."""
        return [node for group in self.groups for node in group.nodes]

    def names(self, entry: Amounts) -> frozenset[str]:
        """The names of the resources that the gang (without ``replica_sets``) and the entrypoint request."""
        parts = [*(node.resources for node in self.fixed), self.flexible_min, entry]
        return frozenset(name for part in parts for name, amount in part.items() if amount)


@value(frozen=True, slots=True)
class VNode:
    """A slice of exactly one physical node that belongs to one cluster.

    ``parent_id`` is the virtual node of the parent cluster in which it lies (None for a physical node, which
    is the virtual node of the primary cluster with the same id). ``whole`` marks a whole node.
    ``rank`` follows the order of the spec; flexible parts come last.
    """

    vnode_id: str
    cluster_id: str
    node_id: str
    parent_id: str | None
    kind: str
    allocation: Allocation
    labels: Labels = field(default_factory=dict)
    whole: bool = False
    rank: int = 0


@value(frozen=True, slots=True)
class BookedPart:
    """A part of a virtual node that a booking keeps, of named devices but of any cores."""

    parent_vnode_id: str
    node_id: str
    allocation: Allocation
    whole: bool = False


@value(frozen=True, slots=True)
class Booking:
    """The time for which a cluster was booked, and its place: one part for each virtual node that it gets, by rank."""

    begin_ns: int
    end_ns: int
    parts: tuple[BookedPart, ...]

    @property
    def closed_from_ns(self) -> int:
        """When a job on its place must be over: a process that reaches its limit gets a grace before it is killed."""
        return self.begin_ns - MARGIN_NS


@value(frozen=True, slots=True)
class Cluster:
    """One cluster of the tree.

    ``state``: BOOKED (it has no virtual nodes before its booking begins); ACTIVE; STOPPED (queued jobs wait until it
    is resumed); REMOVING (it refuses new jobs, finishes its queued and running jobs, and is deleted when it is empty).
    """

    cluster_id: str
    parent_id: str | None
    kind: str
    spec: ClusterSpec
    divisible: bool = True
    revision: int = 0
    state: str = "ACTIVE"
    job: str | None = None
    borrow_limit: Mapping[str, int] | None = None
    """The most that it may hold above its minimum; None, or a missing name, is no limit."""
    lending_limit: Mapping[str, int] = field(default_factory=dict)
    """The most that it may lend of its unused minimum; nothing by default."""
    queue: QueuePolicy = DEFAULT
    """The policy of its queue, with its weight among its siblings."""
    detached: bool = False
    """A sub-cluster: it outlives its job. A job cluster: its job is over, but detached work in it is not."""

    private: tuple[str, ...] = ()
    """What its jobs, and those of all clusters in it, have for themselves at least."""
    booking: Booking | None = None
    """When it opens and when it closes; None: it stays."""
    user_template: ClusterSpec | None = None
    """The spec of the clusters that are made in it for users; None: it takes jobs itself."""
    of_user: str = ""
    """The user for whom it was made from the template of its parent."""

    @property
    def is_limited(self) -> bool:
        """Whether anything limits its growth."""
        return self.spec.flexible_max is not None or self.borrow_limit is not None

    def left_to_grow(self, has: Amounts) -> dict[str, int]:
        """How much more it may have, beside so much in flexible virtual nodes; a missing name is not limited."""
        limits = [] if self.spec.flexible_max is None else [self.spec.flexible_max]
        if self.borrow_limit is not None:
            limits.append({n: self.spec.flexible_min.get(n, 0) + a for n, a in self.borrow_limit.items()})
        rest: dict[str, int] = {}
        for limit in limits:
            for name, maximum in limit.items():
                rest[name] = max(min(rest.get(name, maximum), maximum - has.get(name, 0)), 0)
        return rest

    @property
    def starts_jobs(self) -> bool:
        """Whether its queued jobs may start: also in the state REMOVING, so that its queue becomes empty."""
        return self.state not in (STOPPED, BOOKED)
