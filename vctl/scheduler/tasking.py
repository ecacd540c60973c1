"""Which virtual node a task gets, and the queue of tasks that wait for one."""

from __future__ import annotations

from dataclasses import dataclass, field

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core import tasks as tk
from vctl.core.clusters import VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.core.tasks import PendingTask

THRESHOLD = 0.5
"""Below this utilisation virtual nodes count as equal and are packed in order (Ray's hybrid policy)."""


def choose(ledger: Ledger, task: PendingTask, turn: int = 0) -> VNode | None:
    """The virtual node of the task's cluster on which it starts now, or None. ``turn`` counts SPREAD starts."""
    fitting = [
        vnode
        for vnode in in_order(ledger, task.cluster_id)
        if ledger.nodes[vnode.node_id].schedulable
        and lb.matches(task.selector, vnode.labels)
        and ledger.rooms[vnode.vnode_id].fits(task.request)
    ]
    if not fitting:
        return None
    match task.strategy.partition(":"):
        case (tk.HYBRID, _, _):
            return hybrid(ledger, task, fitting)
        case (tk.SPREAD, _, _):
            return _spread(ledger, task, fitting, turn)
        case (tk.RANDOM, _, _):  # the number of the task is the seed: the same state gives the same plan
            return fitting[_mixed(task.number) % len(fitting)]
        case (_, _, wanted):
            pinned = [v for v in fitting if wanted.removesuffix(":soft") in (v.vnode_id, v.node_id)]
            if pinned or not wanted.endswith(":soft"):
                return pinned[0] if pinned else None
            return hybrid(ledger, task, fitting)


def _mixed(number: int) -> int:
    """A number's bits well mixed (the finaliser of SplitMix64, Steele et al. 2014): uniform and repeatable."""
    mask = (1 << 64) - 1
    z = (number * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def may_grow(task: PendingTask) -> bool:
    """Whether more room elsewhere would do: not for a task that names its node."""
    return not task.strategy.startswith(tk.NODE) or task.strategy.endswith(":soft")


def _spread(ledger: Ledger, task: PendingTask, fitting: list[VNode], turn: int) -> VNode:
    """Round robin over the virtual nodes that could ever take it; the next one that can now."""
    feasible = [v for v in in_order(ledger, task.cluster_id) if rs.within(task.request, v.holding.amounts)]
    start = turn % len(feasible)
    ids = {vnode.vnode_id for vnode in fitting}
    return next(vnode for vnode in feasible[start:] + feasible[:start] if vnode.vnode_id in ids)


def in_order(ledger: Ledger, cluster_id: str) -> list[VNode]:
    """The virtual nodes of a cluster by rank; the order in which they are packed."""
    return sorted(
        (ledger.vnodes[v] for v in ledger.members.get(cluster_id, ())), key=lambda v: (v.rank, v.vnode_id)
    )


def hybrid(ledger: Ledger, task: PendingTask, fitting: list[VNode]) -> VNode:
    """Those that stay below the threshold count as equal, the local one first; above it the least utilised wins."""

    def score(place: tuple[int, VNode]) -> tuple[float, bool, int]:
        number, vnode = place
        use = utilisation(ledger, vnode, task.request)
        return (0.0 if use < THRESHOLD else use, vnode.vnode_id != task.origin_vnode_id, number)

    return min(enumerate(fitting), key=score)[1]


def utilisation(ledger: Ledger, vnode: VNode, request: Amounts) -> float:
    """The fullest resource of a virtual node once the request is on it, between 0 and 1."""
    room = ledger.rooms[vnode.vnode_id]
    return max(
        (
            (total - room.free.get(name, 0) + request.get(name, 0)) / total
            for name, total in room.total.amounts.items()
            if total
        ),
        default=0.0,
    )


@dataclass(slots=True)
class TaskQueue:
    """Tasks of one cluster that wait for a place, oldest first; equal ones are judged once."""

    cluster_id: str
    tasks: dict[str, PendingTask] = field(default_factory=dict)
    blocked: dict[object, str] = field(default_factory=dict)
    """shape -> message of the last look."""
    turn: int = 0
    """How many SPREAD tasks have started."""
    told: set[str] = field(default_factory=set)
    """Tasks whose reason has been written."""

    def put(self, task: PendingTask) -> None:
        """Add a task at the end."""
        self.tasks[task.task_id] = task

    def drop(self, task_id: str) -> None:
        """A task no longer waits."""
        self.tasks.pop(task_id, None)
        self.told.discard(task_id)


def shape_of(task: PendingTask) -> object:
    """Equal shapes fit the same places."""
    return (rs.shape_of(task.request), task.selector, task.strategy)


def ancestors(ledger: Ledger, cluster_id: str) -> list[str]:
    """A cluster and everything above it, nearest first."""
    found: list[str] = []
    current: str | None = cluster_id
    while current is not None and current in ledger.clusters:
        found.append(current)
        current = ledger.clusters[current].parent_id
    return found
