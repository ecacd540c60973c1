"""The placement of tasks: the virtual node that a task gets by its strategy, and where it could ever run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core import tasks as tk
from vctl.core.clusters import FLEXIBLE, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, GPU, MEMORY, OBJECT_STORE_MEMORY, Amounts
from vctl.core.tasks import PendingTask
from vctl.core.values import field, replace, value

THRESHOLD = 0.5
"""Below this utilisation virtual nodes count as equal and are packed in order (Ray's hybrid policy)."""
COUNTED = (CPU, MEMORY, OBJECT_STORE_MEMORY)
"""The resources whose utilisation the hybrid policy reads."""
NO_LOAD: Amounts = {}


@value(frozen=True, slots=True)
class Circumstances:
    """The inputs of a choice beside the ledger. ``load``: vnode id -> the sum of requests that wait for it.

    ``closed``: physical nodes that take no more tasks in this round. ``last_spread``: rank and id of the
    virtual node of the last SPREAD task.
    """

    load: Mapping[str, Amounts] = field(default_factory=dict)
    closed: Set[str] = frozenset()
    last_spread: tuple[int, str] | None = None


CALM = Circumstances()


def choose(ledger: Ledger, task: PendingTask, now: Circumstances = CALM) -> VNode | None:
    """The virtual node of its cluster on which a task can start now, by its strategy; None: there is none."""
    task = settled(ledger, task)
    available = [
        vnode
        for vnode in ledger.ranked(task.cluster_id)
        if suits(ledger, task, vnode)
        and vnode.node_id not in now.closed
        and is_available(ledger, vnode, task.request, now.load.get(vnode.vnode_id, NO_LOAD))
    ]
    if not available:
        return None
    match task.strategy:
        case tk.HYBRID:
            return hybrid(ledger, task, available)
        case tk.SPREAD:
            return _spread(available, now.last_spread)
        case tk.RANDOM:
            return draw(task, available)
    name, otherwise = tk.named_by(task.strategy)
    named = [vnode for vnode in available if is_named(name, vnode)]
    if named or otherwise != tk.SPILL:
        return named[0] if named else None
    return hybrid(ledger, _anywhere(task), available)


def settled(ledger: Ledger, task: PendingTask) -> PendingTask:
    """The task with the strategy that counts now: see ``settled_by``."""
    return settled_by(task, lambda there: bool(feasible(ledger, there)) or could_grow_for(ledger, there))


def settled_by(task: PendingTask, could_hold: Callable[[PendingTask], bool]) -> PendingTask:
    """The task with the strategy that counts now.

    ``NODE:<id>:soft`` counts as ``NODE:<id>`` while that node takes work and could ever hold the task, else as
    HYBRID (Ray's soft affinity). ``could_hold`` answers that for a task with the strategy ``NODE:<id>``.
    """
    node_id, otherwise = tk.named_by(task.strategy)
    if otherwise != tk.SOFT:
        return task
    there = replace(task, strategy=f"{tk.NODE}:{node_id}")
    return there if could_hold(there) else _anywhere(task)


def _anywhere(task: PendingTask) -> PendingTask:
    """A task that names a node, as it is placed elsewhere: by HYBRID, without regard to its inputs."""
    return replace(task, strategy=tk.HYBRID, inputs_at={})


def suits(ledger: Ledger, task: PendingTask, vnode: VNode) -> bool:
    """Whether a virtual node may take a task: its physical node takes work and its labels match."""
    return ledger.nodes[vnode.node_id].schedulable and lb.matches(task.selector, vnode.labels)


def is_available(ledger: Ledger, vnode: VNode, request: Amounts, load: Amounts = NO_LOAD) -> bool:
    """Whether a request fits into the free amounts less the load of the virtual node."""
    capacity = ledger.capacities[vnode.vnode_id]
    if not capacity.fits(request):
        return False
    return not load or all(
        not amount or capacity.free.get(name, 0) - load.get(name, 0) >= amount
        for name, amount in request.items()
    )


def feasible(ledger: Ledger, task: PendingTask) -> list[VNode]:
    """The virtual nodes of a task's cluster on which the task fits if they are empty, by rank."""
    task = settled(ledger, task)
    named = pinned_to(task)
    return [
        vnode
        for vnode in ledger.ranked(task.cluster_id)
        if suits(ledger, task, vnode)
        and rs.within(task.request, vnode.allocation.amounts)
        and (named is None or is_named(named, vnode))
    ]


def bound_to(ledger: Ledger, task: PendingTask) -> VNode | None:
    """The virtual node that a task drew before, if the task can still run there."""
    vnode = ledger.vnodes.get(task.bound_vnode_id or "")
    if vnode is None or vnode.cluster_id != task.cluster_id or not suits(ledger, task, vnode):
        return None
    return vnode if rs.within(task.request, vnode.allocation.amounts) else None


def draw(task: PendingTask, candidates: list[VNode]) -> VNode:
    """A random choice; number and attempt of the task are the seed, so the same state gives the same plan."""
    return candidates[_mixed(task.number * 1009 + task.attempt) % len(candidates)]


def _mixed(number: int) -> int:
    """A pseudo-random number of 64 bits (one output of SplitMix64 with this seed, Steele et al. 2014)."""
    mask = (1 << 64) - 1
    z = (number * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def growing_for(task: PendingTask, named: VNode | None) -> PendingTask | None:
    """The task as its cluster grows for it: where it names a node, only on that node. None: growth cannot help.

    ``named``: the virtual node with the id that the strategy names; a fixed one does not grow.
    """
    node_id = pinned_to(task)
    if node_id is None:
        return task
    if named is not None and named.cluster_id == task.cluster_id:
        if named.kind != FLEXIBLE:
            return None
        node_id = named.node_id
    return replace(task, selector=(*task.selector, lb.Condition(lb.NODE_ID, "in", (node_id,))))


def pinned_to(task: PendingTask) -> str | None:
    """The only virtual or physical node on which a task (as ``settled``) may run, if it names one."""
    node_id, otherwise = tk.named_by(task.strategy)
    return None if otherwise else node_id


def could_grow_for(ledger: Ledger, task: PendingTask) -> bool:
    """Whether a task's cluster may grow enough for it: a cluster above has a large enough virtual node.

    Only ``flexible_max`` of the clusters that grow is checked, not the borrow limit.
    """
    cluster, task = ledger.clusters[task.cluster_id], settled(ledger, task)
    target = growing_for(task, ledger.vnodes.get(pinned_to(task) or ""))
    while target is not None and cluster.spec.flexible and cluster.parent_id is not None:
        maximum = cluster.spec.flexible_max or {}
        if any(amount > maximum.get(name, amount) for name, amount in task.request.items()):
            return False
        above = (ledger.vnodes[v] for v in ledger.members.get(cluster.parent_id, ()))
        if any(suits(ledger, target, v) and rs.within(task.request, v.allocation.amounts) for v in above):
            return True
        cluster = ledger.clusters[cluster.parent_id]
    return False


def is_named(name: str | None, vnode: VNode) -> bool:
    """Whether a strategy means this virtual node: by its own id, or by that of its physical node."""
    return name in (vnode.vnode_id, vnode.node_id)


def _spread(available: list[VNode], last: tuple[int, str] | None) -> VNode:
    """Round robin: the next available virtual node after the last one, else the first."""
    after = (vnode for vnode in available if last is not None and rank_of(vnode) > last)
    return next(after, available[0])


def rank_of(vnode: VNode) -> tuple[int, str]:
    """The place of a virtual node among those of its cluster."""
    return vnode.rank, vnode.vnode_id


def hybrid(ledger: Ledger, task: PendingTask, available: list[VNode]) -> VNode:
    """Ray's hybrid policy: the least utilised (equal below ``THRESHOLD``), then the origin, then by rank.

    A task that asks for no GPU goes to a virtual node without GPUs if one is available; then to one with most
    bytes of its inputs.
    """
    if not task.request.get(GPU, 0):
        available = [vnode for vnode in available if not vnode.allocation.amounts.get(GPU, 0)] or available
    if task.inputs_at:
        largest = max(task.inputs_at.get(vnode.node_id, 0) for vnode in available)
        available = [vnode for vnode in available if task.inputs_at.get(vnode.node_id, 0) == largest]

    def score(vnode: VNode) -> tuple[float, bool]:
        use = utilisation(ledger, vnode)
        return 0.0 if use < THRESHOLD else use, vnode.vnode_id != task.origin_vnode_id

    return min(available, key=score)


def utilisation(ledger: Ledger, vnode: VNode) -> float:
    """The utilisation of a virtual node: the largest used part of a resource in ``COUNTED``, from 0 to 1."""
    capacity = ledger.capacities[vnode.vnode_id]
    return max(
        (
            (total - capacity.free.get(name, 0)) / total
            for name in COUNTED
            if (total := capacity.total.amounts.get(name, 0))
        ),
        default=0.0,
    )
