"""Whether waiting work would start on a flat machine where everything that is borrowed and idle is home (spec 9).

Written from section 9 of the specification, and sums only: no growth, no returns, no loans. It knows what each cluster
may give of what it has idle, and what it has to keep; the rest of each node is one heap, in which work that waits is
placed as if there were no clusters. What it does not understand it counts as in use, so it never says too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.limited import may_keep_back
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, LOGICAL, PRIMARY, ClusterSpec, VNode
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import STRICT
from vctl.core.resources import SCALE, Allocation, Amounts
from vctl.core.tasks import HYBRID, SPREAD, PendingTask
from vctl.engine.state import SchedulerState
from vctl.scheduler.elasticity import allowance, flexible_parts, growing
from vctl.scheduler.gang_growth import one_piece
from vctl.scheduler.orders import order_key
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.queueing import Queue


def startable(state: SchedulerState, now_ns: int) -> list[str]:
    """Waiting jobs and tasks that nothing keeps back but what others have idle; none while something is reserved."""
    queues = state.queues.values()
    if state.nominations or state.preemptions or any(queue.kept or queue.shared for queue in queues):
        return []
    found = [job.submission_id for queue in queues for job in _candidates(state.ledger, queue, now_ns)
             if _fits(state.ledger, job.parent_id, job.spec, job.entry)
             and may_keep_back(state.ledger, state.running.jobs.values(), job) is None]  # fmt: skip
    # a limit may keep a job from growing for its tasks
    for tasks in state.tasks.queues.values() if not state.ledger.limits else ():
        heads = [next(iter(some.values())) for some in tasks.sub_queues.values() if some]
        found += [task.task_id for task in heads if not tasks.load and _could_start(state.ledger, task)]
    return found


def _candidates(ledger: Ledger, queue: Queue, now_ns: int) -> Iterator[PendingJob]:
    """The jobs of a queue that no other job, no limit and no begin keeps back, one of each shape."""
    parent = ledger.clusters.get(queue.parent_id)
    policy = queue.policy
    if parent is None or not parent.starts_jobs or policy.max_running_jobs or policy.max_running_per_user:
        return
    ready = [one for one in queue.jobs.values() if one.begin_at_ns is None or one.begin_at_ns <= now_ns]
    ready.sort(key=lambda job: order_key(job, policy))
    seen: set[str] = set()
    for job in ready[:1] if policy.discipline == STRICT else ready:
        verdict = queue.shapes[job.shape].verdict
        if job.shape not in seen and not (verdict is not None and verdict.exhausted):
            if queue.feasibility.why_never(ledger, job) is None:
                yield job
        seen.add(job.shape)


def _could_start(ledger: Ledger, task: PendingTask) -> bool:
    if task.strategy not in (HYBRID, SPREAD) or not any(task.request.values()):
        return False
    return _fits(ledger, task.cluster_id, one_piece(task.request, task.selector), {})


def _fits(ledger: Ledger, cluster_id: str, spec: ClusterSpec, entry: Amounts) -> bool:
    """Whether a gang fits into one heap for each node."""
    chain = growing(ledger, cluster_id)
    need = rs.total([*(node.resources for node in spec.fixed), spec.flexible_min, entry])
    for one in chain:
        left = allowance(ledger, ledger.clusters[one])
        if any(amount > left.get(name, amount) for name, amount in need.items()):
            return False
        if left and any(spec.replica_sets.values()):
            return False  # how much of each resource a whole node is depends on the node
    return isinstance(place(Heap(ledger, cluster_id, chain).flat(), PRIMARY, spec, entry), Placed)


@dataclass
class Heap:
    """What work of a cluster could have on each node. ``left``: what each cluster may still give, in all places."""

    ledger: Ledger
    cluster_id: str
    chain: Sequence[str]
    left: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = {one: self._may_give(one) for one in self.ledger.clusters if one not in self.chain}

    def _may_give(self, cluster_id: str) -> dict[str, int]:
        """What a cluster has borrowed, and what it may still lend of its minimum.

        What its children are guaranteed, or a job itself, it has not borrowed for others. A cluster that has borrowed
        lends nothing of its minimum: what it has in place of that backs the minimums in it.
        """
        ledger, cluster = self.ledger, self.ledger.clusters[cluster_id]
        has = rs.total(part.allocation.amounts for part in flexible_parts(ledger, cluster_id))
        found = rs.total(one.amounts for one in ledger.borrowed(cluster_id))
        inside = (ledger.clusters[one] for one in ledger.subclusters.get(cluster_id, ()))
        children = [child for child in inside if child.kind == LOGICAL]
        fixed = [
            slot.allocation.amounts
            for child in children
            for slot in ledger.slots(child.cluster_id)
            if slot.kind != FLEXIBLE
        ]
        own = (
            {} if cluster.kind == LOGICAL else cluster.spec.flexible_min
        )  # of a job's minimum, all is in use
        backed = rs.total([own, *(child.spec.flexible_min for child in children), *fixed])
        found = {name: max(0, min(a, has.get(name, 0) - backed.get(name, 0))) for name, a in found.items()}
        if cluster.kind == LOGICAL and cluster_id not in ledger.withheld:
            for name, limit in cluster.lending_limit.items():
                least = cluster.spec.flexible_min.get(name, 0)
                if (lent := least - has.get(name, 0)) >= 0:
                    found[name] = found.get(name, 0) + max(0, min(limit - lent, least - lent))
        return found

    def flat(self) -> Ledger:
        """A machine without clusters in which all is in use that the work could not have."""
        flat = Ledger()
        for node_id, node in self.ledger.nodes.items():
            if not node.schedulable or node.shrunk or self.ledger.capacities[node_id].is_overdrawn():
                continue
            if (gets := self._on(node_id)) is None:
                continue
            flat.put_node(node)
            if node.total.amounts != gets.amounts:
                flat.charge(node_id, node_id, rs.difference(node.total, gets))
        return flat

    def _on(self, node_id: str) -> Allocation | None:
        """What the topmost cluster could give there, in its one virtual node, with those in it that grow."""
        top_id = self.ledger.clusters[self.chain[-1]].parent_id if self.chain else self.cluster_id
        slots = [slot for slot in self.ledger.slots(top_id or PRIMARY) if slot.node_id == node_id]
        return self._of(slots[0]) if len(slots) == 1 else None

    def _of(self, slot: VNode) -> Allocation:
        """What is free in a virtual node, and what those in it may give. Of devices only whole free ones count."""
        found = _free(self.ledger, slot)
        for child_id in self.ledger.children[slot.vnode_id]:
            child = self.ledger.vnodes[child_id]
            if child.kind != FLEXIBLE:
                continue
            more = self._of(child)
            if child.cluster_id not in self.chain:
                more = _at_most(more, self._surely(child.cluster_id, more.amounts))
            found = rs.merged(found, more)
        return found

    def _surely(self, cluster_id: str, here: Amounts) -> dict[str, int]:
        """What a cluster gives on a node whichever of its nodes it gives from; it decides that without the work."""
        idle, left = self._idle(cluster_id), self.left[cluster_id]
        return {n: left.get(n, 0) - max(idle.get(n, 0) - amount, 0) for n, amount in here.items()}

    def _idle(self, cluster_id: str) -> dict[str, int]:
        """What nobody uses in a cluster and in those inside it; of a job's minimum, all is in use."""
        ledger = self.ledger
        parts = flexible_parts(ledger, cluster_id)
        idle = rs.total(ledger.capacities[part.vnode_id].free for part in parts)
        if ledger.clusters[cluster_id].kind != LOGICAL:
            idle = {name: min(a, self.left.get(cluster_id, {}).get(name, 0)) for name, a in idle.items()}
        return rs.total([idle, *(self._idle(one) for one in ledger.subclusters.get(cluster_id, ()))])


def _free(ledger: Ledger, vnode: VNode) -> Allocation:
    capacity = ledger.capacities[vnode.vnode_id]
    units = {n: {i: s for i, s in some.items() if s == SCALE} for n, some in capacity.instances.items()}
    amounts = {name: amount for name, amount in capacity.free.items() if amount > 0}
    amounts |= {name: sum(some.values()) for name, some in units.items()}
    return Allocation(amounts, units, tuple(sorted(capacity.cores)))


def _at_most(allocation: Allocation, left: Amounts) -> Allocation:
    amounts = {n: max(min(a, left.get(n, 0)), 0) for n, a in allocation.amounts.items()}
    units: dict[str, dict[int, int]] = {}
    for name, some in allocation.instances.items():
        many = amounts.get(name, 0) // SCALE
        units[name] = dict(sorted(some.items())[:many])
        amounts[name] = sum(units[name].values())
    cores = allocation.cores[: amounts.get(rs.CPU, 0) // SCALE]
    return Allocation({n: a for n, a in amounts.items() if a > 0}, units, cores)
