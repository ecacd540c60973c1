"""Virtual clusters, their virtual nodes, and what a cluster asks for."""

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
ACTIVE, STOPPED, REMOVING = "ACTIVE", "STOPPED", "REMOVING"
# kinds of a virtual node
PHYSICAL, FIXED, FLEXIBLE = "physical", "fixed", "flexible"


@value(frozen=True, slots=True)
class FixedNode:
    """One fixed-size virtual node that a cluster wants."""

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
    """What a cluster needs (the gang) and how far it may grow.

    ``flexible`` says whether the cluster has a flexible part at all; ``flexible_max`` is None for infinite,
    a name missing in it is infinite too. A template that counts 0 is not in ``replica_sets``.
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
        """The resources that the gang and its entrypoint ask for."""
        parts = [*(node.resources for node in self.fixed), self.flexible_min, entry]
        return frozenset(name for part in parts for name, amount in part.items() if amount)


@value(frozen=True, slots=True)
class VNode:
    """A slice of exactly one physical node that belongs to one cluster.

    ``parent_id`` is the virtual node of the parent cluster in which it lies (None for a physical node, which
    is the virtual node of the primary cluster with the same id). ``whole`` marks a whole node by template.
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
class Cluster:
    """One row of the tree.

    ``state``: ACTIVE; STOPPED (queued jobs wait until it is resumed); REMOVING (new jobs are refused, queued and
    running ones come to their end, and it is deleted when it is empty).
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
    """How much it may have above its minimum; a name missing is not limited, None limits nothing."""
    lending_limit: Mapping[str, int] = field(default_factory=dict)
    """How much of its minimum it may lend while it does not use it; nothing by default."""
    queue: QueuePolicy = DEFAULT
    """How the jobs sent to it are served, and its weight among its siblings."""
    detached: bool = False
    """A sub-cluster: it outlives its job. A job cluster: its job is over, and something detached still lives in it."""

    @property
    def starts_jobs(self) -> bool:
        """Whether its queued jobs may start. One that is being removed empties its queue by running it."""
        return self.state != "STOPPED"
