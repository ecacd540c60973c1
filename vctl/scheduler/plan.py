"""What a round proposes: gangs to start and shapes that wait, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from vctl.core.clusters import JOB, Cluster, VNode
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.core.values import value
from vctl.scheduler.elasticity import Grow, apply_growth, revert_growth
from vctl.scheduler.placement import Placed
from vctl.scheduler.placement_result import vnodes_of
from vctl.scheduler.plan_tasks import TaskStart, TaskWait, growing

if TYPE_CHECKING:
    from vctl.scheduler.preemption import Preempt


@value(frozen=True, slots=True)
class Start:
    """One job with everything it needs, or nothing: its cluster, virtual nodes and the entrypoint's place.

    ``cluster`` is None when the job shares an indivisible parent; its process is then charged on the parent's
    virtual node. ``run_id`` is the trial name of the process; the commit gives it its real one.
    """

    job: PendingJob
    cluster: Cluster | None
    vnodes: tuple[VNode, ...]
    vnode_id: str
    node_id: str
    allocation: Allocation
    growth: tuple[Grow, ...] = ()
    """How the parent and those above it grow first, top level first."""

    @property
    def cluster_id(self) -> str:
        """The cluster in which the job runs."""
        return self.job.parent_id if self.cluster is None else self.cluster.cluster_id

    @property
    def run_id(self) -> str:
        """A name for the trial charge; the commit replaces it."""
        return f"trial:{self.job.job_id}"


@value(frozen=True, slots=True)
class Wait:
    """Why the jobs of one shape below one parent do not start."""

    parent_id: str
    shape: str
    reason: str
    message: str


class Trial:
    """Starts of a plan that are taken in the ledger, until each is committed or anything else changes."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.starts: dict[int, Start] = {}

    def settle(self, job_id: int, cluster: Cluster, vnodes: Sequence[VNode]) -> bool:
        """A job starts for good: whether its cluster is there already; its processes are to be charged."""
        start = self.starts.pop(job_id, None)
        if start is None or start.vnodes != vnodes or start.growth:
            self.take_back()
            return False
        self.ledger.discharge(start.run_id)
        self.ledger.put_cluster(cluster)
        self.ledger.note_growth(vnode.vnode_id for vnode in vnodes)
        for vnode in vnodes:
            self.ledger.note_joined(vnode.cluster_id, vnode.node_id)
        return True

    def take_back(self) -> None:
        """Leave the ledger as it was; what comes back was never gone."""
        grown, joined, self.ledger.grown, self.ledger.joined = self.ledger.grown, self.ledger.joined, {}, {}
        while self.starts:
            revert(self.ledger, self.starts.popitem()[1])
        self.ledger.grown, self.ledger.joined = grown, joined


@value(frozen=True, slots=True)
class Plan:
    """Proposals of one round; a commit re-checks each start with the ledger's own predicate."""

    starts: tuple[Start, ...] = ()
    waits: tuple[Wait, ...] = ()
    cleared: tuple[tuple[str, str], ...] = ()
    """(parent id, shape) pairs of which no job waits any more."""
    task_starts: tuple[TaskStart, ...] = ()
    task_waits: tuple[TaskWait, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    lapsed: tuple[tuple[str, int], ...] = ()
    """(parent id, job) of nominations that did not help; they end."""
    unsearched: bool = False
    """Whether more may be found at once: the round ended at its bound of searches."""
    tasks_deferred: bool = False
    """Whether tasks were put off that may start in the next round."""
    trial: Trial | None = field(default=None, compare=False)
    """The starts, where they are still taken in the ledger."""

    @property
    def proposed(self) -> int:
        """How many jobs and tasks are to start."""
        return len(self.starts) + len(self.task_starts)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (
            self.starts or self.waits or self.cleared or self.task_starts or self.task_waits
            or self.preempts or self.lapsed
        )  # fmt: skip


def start_of(ledger: Ledger, job: PendingJob, placed: Placed, growth: Sequence[Grow] = ()) -> Start:
    """Turn a placement into the job's start; ``growth`` is applied to the ledger already."""
    piece = placed.pieces[placed.entry_rank]
    if job.shares_parent:
        return Start(job, None, (), piece.parent_vnode_id, piece.node_id, piece.allocation, tuple(growth))
    cluster_id = f"{job.parent_id}##{job.submission_id}"
    cluster = Cluster(cluster_id, job.parent_id, JOB, job.spec, divisible=True, job=str(job.job_id))
    return Start(
        job, cluster, vnodes_of(ledger, cluster_id, placed.pieces), f"{cluster_id}/{piece.rank}", piece.node_id,
        placed.entry, tuple(growth),
    )  # fmt: skip


def still_fits(ledger: Ledger, start: Start) -> bool:
    """Whether the whole gang, with the growth it needs, can still be taken; leaves the ledger as it was."""
    parent = ledger.clusters.get(start.job.parent_id)
    if parent is None or not parent.starts_jobs:
        return False
    with growing(ledger, start.growth) as grown:
        return grown and has_place(ledger, start)


def has_place(ledger: Ledger, start: Start, *, anyway: bool = False) -> bool:
    """Whether all is free that a start takes; ``anyway``: also on a node that is being drained."""
    if start.cluster is None:
        capacity, node = ledger.capacities.get(start.vnode_id), ledger.nodes.get(start.node_id)
        return (
            capacity is not None
            and node is not None
            and (anyway or node.schedulable)
            and capacity.fits_exactly(start.allocation)
        )
    taken: list[VNode] = []
    try:
        for vnode in start.vnodes:
            if not ledger.can_assign(vnode) or not (anyway or ledger.nodes[vnode.node_id].schedulable):
                return False
            ledger.capacities[vnode.parent_id or ""].take_exactly(vnode.allocation)
            taken.append(vnode)
        return True
    finally:
        for vnode in taken:
            ledger.capacities[vnode.parent_id or ""].give_back(vnode.allocation)


def apply(ledger: Ledger, start: Start, run_id: str | None = None) -> None:
    """Take the gang in a ledger, its parent's growth first."""
    for step in start.growth:
        apply_growth(ledger, step)
    take(ledger, start, run_id or start.run_id)


def take(ledger: Ledger, start: Start, run_id: str) -> None:
    """Take the gang where its parent has grown already."""
    if start.cluster is not None:
        ledger.put_cluster(start.cluster)
        ledger.assign_all(start.vnodes)
    ledger.charge(run_id, start.vnode_id, start.allocation)


def revert(ledger: Ledger, start: Start) -> None:
    """Undo ``apply``."""
    ledger.discharge(start.run_id)
    if start.cluster is not None:
        ledger.remove_cluster(start.cluster.cluster_id)
    for step in reversed(start.growth):
        revert_growth(ledger, step)
