"""A plan: the starts, waits and preemptions that one round proposes, and how a start is tried on a ledger.

A start of a job or a task names its virtual nodes and the growth of clusters that it needs. ``still_fits`` is
the check before a commit. ``apply`` takes the resources of a start in a ledger, ``revert`` gives them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from vctl.core.clusters import JOB, Cluster, VNode
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, total
from vctl.core.tasks import PendingTask
from vctl.core.values import field, value
from vctl.scheduler.elasticity import Grow, apply_growth, growth_fits, revert_growth
from vctl.scheduler.placement import Placed
from vctl.scheduler.placement_result import vnodes_of

if TYPE_CHECKING:
    from vctl.scheduler.preemption import Preempt


@value(frozen=True, slots=True)
class Start:
    """The start of one job: its cluster, its virtual nodes, and the place of its entrypoint.

    ``cluster`` is None when the job shares an indivisible parent; its process is then charged on the parent's
    virtual node.
    """

    job: PendingJob
    cluster: Cluster | None
    vnodes: tuple[VNode, ...]
    vnode_id: str
    node_id: str
    allocation: Allocation
    growth: tuple[Grow, ...] = ()
    """The growth of the parent and the clusters above it before the start, top level first."""

    @property
    def cluster_id(self) -> str:
        """The cluster in which the job runs."""
        return self.job.parent_id if self.cluster is None else self.cluster.cluster_id

    @property
    def run_id(self) -> str:
        """The name of the charge while the start is only tried; the commit gives the process its own name."""
        return f"trial:{self.job.job_id}"

    @property
    def held(self) -> dict[str, int]:
        """What the job holds: its virtual nodes, or its part of an indivisible parent."""
        return total(part.allocation.amounts for part in self.vnodes or (self,))


@value(frozen=True, slots=True)
class TaskStart:
    """The start of one task: its place, and the growth of its cluster and those above it, top level first."""

    task: PendingTask
    growth: tuple[Grow, ...]
    vnode_id: str
    node_id: str
    allocation: Allocation
    cluster: ClassVar[None] = None
    vnodes: ClassVar[tuple[VNode, ...]] = ()

    @property
    def run_id(self) -> str:
        """The name of the charge while the start is only tried; the commit gives the process its own name."""
        return f"trial:{self.task.task_id}"


@value(frozen=True, slots=True)
class Wait:
    """Why the jobs of one wait key in a queue do not start. ``shape``: the wait key (``Queue.wait_key``)."""

    parent_id: str
    shape: str
    reason: str
    message: str


@value(frozen=True, slots=True)
class TaskWait:
    """Why a task does not start.

    ``vnode_id``: the virtual node that a RANDOM task drew and waits for; its request is load there.
    """

    task_id: str
    message: str
    vnode_id: str | None = None
    infeasible: bool = False
    """Whether no virtual node could ever hold it."""


class Trial:
    """The starts of a plan whose resources are still taken in the ledger.

    The commit of each start settles it. Any other change of the state first takes back the rest.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.starts: dict[int, Start] = {}

    def settle(self, job_id: int, cluster: Cluster, vnodes: Sequence[VNode]) -> bool:
        """Keep the start of a job. True: its cluster is in the ledger, its process must still be charged.

        False: the start is not among them, or differs; then all starts are reverted.
        """
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
        """Revert all starts. Their capacity does not count as newly free (``Ledger.grown``)."""
        with unnoted(self.ledger):
            while self.starts:
                revert(self.ledger, self.starts.popitem()[1])


@value(frozen=True, slots=True)
class Plan:
    """The proposals of one round. A commit checks each start again with the ledger's own predicate."""

    starts: tuple[Start, ...] = ()
    waits: tuple[Wait, ...] = ()
    cleared: tuple[tuple[str, str], ...] = ()
    """(parent id, wait key) pairs that have no waiting job any more."""
    task_starts: tuple[TaskStart, ...] = ()
    task_waits: tuple[TaskWait, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    lapsed: tuple[tuple[str, int], ...] = ()
    """(parent id, job id) of nominations that end because the job still did not fit."""
    unsearched: bool = False
    """Whether a next round should follow at once: the round or its search for victims ended at its budget, or a
    reservation that has kept other jobs from starting is gone."""
    stalled: bool = False
    """Whether the round ended at its budget before it started or judged anything: the next one needs a larger one."""
    tasks_deferred: bool = False
    """Whether tasks were put off that may start in the next round."""
    trial: Trial | None = field(default=None, compare=False)
    """The starts, if they are still taken in the ledger."""

    @property
    def proposed(self) -> int:
        """The number of jobs and tasks to start."""
        return len(self.starts) + len(self.task_starts)

    @property
    def has_loans(self) -> bool:
        """Whether clusters borrow for a start: then more may be idle than before, by amounts (``recall``)."""
        if not (self.starts or self.task_starts):
            return False
        return any(start.growth for start in self.starts) or any(task.growth for task in self.task_starts)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (
            self.starts or self.waits or self.cleared or self.task_starts or self.task_waits
            or self.preempts or self.lapsed
        )  # fmt: skip


@contextmanager
def unnoted(ledger: Ledger) -> Iterator[None]:
    """Inside, nothing counts as newly free (``Ledger.grown``, ``Ledger.joined``)."""
    grown, joined, ledger.grown, ledger.joined = ledger.grown, ledger.joined, {}, {}
    try:
        yield
    finally:
        ledger.grown, ledger.joined = grown, joined


def nodes_of(start: Start | TaskStart) -> set[str]:
    """The physical nodes that a start uses."""
    return {start.node_id, *(vnode.node_id for vnode in start.vnodes)}


def start_of(ledger: Ledger, job: PendingJob, placed: Placed, growth: Sequence[Grow] = ()) -> Start:
    """The start of a job at a placement. ``growth`` is applied to the ledger already."""
    piece = placed.pieces[placed.entry_rank]
    if job.shares_parent:
        return Start(job, None, (), piece.parent_vnode_id, piece.node_id, piece.allocation, tuple(growth))
    cluster_id = f"{job.parent_id}##{job.submission_id}"
    cluster = Cluster(cluster_id, job.parent_id, JOB, job.spec, divisible=True, job=str(job.job_id))
    return Start(
        job, cluster, vnodes_of(ledger, cluster_id, placed.pieces), f"{cluster_id}/{piece.rank}", piece.node_id,
        placed.entry, tuple(growth),
    )  # fmt: skip


def still_fits(ledger: Ledger, start: Start | TaskStart) -> bool:
    """Whether a start, with the growth it needs, can still be taken. Leaves the ledger as it was."""
    if isinstance(start, Start):
        parent = ledger.clusters.get(start.job.parent_id)
        if parent is None or not parent.starts_jobs:
            return False
    with _grown(ledger, start.growth) as has_grown:
        return has_grown and has_room(ledger, start)


@contextmanager
def _grown(ledger: Ledger, growth: Iterable[Grow]) -> Iterator[bool]:
    """Apply growth to the ledger inside the block; yields whether all of it could be applied."""
    done: list[Grow] = []
    try:
        for step in growth:
            if not growth_fits(ledger, step):
                break
            apply_growth(ledger, step)
            done.append(step)
        else:
            yield True
            return
        yield False
    finally:
        for step in reversed(done):
            revert_growth(ledger, step)


def has_room(ledger: Ledger, start: Start | TaskStart, *, anyway: bool = False) -> bool:
    """Whether everything that a start takes is free. ``anyway``: nodes that are being drained count, too."""
    if start.cluster is None:
        capacity, node = ledger.capacities.get(start.vnode_id), ledger.nodes.get(start.node_id)
        is_open = node is not None and (anyway or node.schedulable)
        return is_open and capacity is not None and capacity.fits_exactly(start.allocation)
    charged: list[VNode] = []
    try:
        for vnode in start.vnodes:
            if not ledger.can_assign(vnode) or not (anyway or ledger.nodes[vnode.node_id].schedulable):
                return False
            ledger.capacities[vnode.parent_id or ""].take_exactly(vnode.allocation)
            charged.append(vnode)
        return True
    finally:
        for vnode in charged:
            ledger.capacities[vnode.parent_id or ""].give_back(vnode.allocation)


def apply(ledger: Ledger, start: Start | TaskStart) -> None:
    """Apply the growth of a start to a ledger, and take its resources there."""
    for step in start.growth:
        apply_growth(ledger, step)
    take(ledger, start)


def take(ledger: Ledger, start: Start | TaskStart) -> None:
    """Take the resources of a start whose growth is applied already."""
    if start.cluster is not None:
        ledger.put_cluster(start.cluster)
        ledger.assign_all(start.vnodes)
    ledger.charge(start.run_id, start.vnode_id, start.allocation)


def revert(ledger: Ledger, start: Start | TaskStart) -> None:
    """Undo ``apply`` of a start."""
    ledger.discharge(start.run_id)
    if start.cluster is not None:
        ledger.remove_cluster(start.cluster.cluster_id)
    for step in reversed(start.growth):
        revert_growth(ledger, step)
