"""The verdict of each node of a cluster on a waiting job or task: infeasible, feasible but not available, available."""

from __future__ import annotations

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import ClusterSpec, Group
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING, Node
from vctl.core.resources import Amounts, FreeCapacity
from vctl.core.slots import template_of
from vctl.core.tasks import PendingTask
from vctl.core.values import replace, value
from vctl.scheduler.explain.shortage import Part, parts_of
from vctl.scheduler.tasking import is_named, pinned_to, settled

SPLIT = "in total, may be split over nodes"
INFEASIBLE, FEASIBLE, AVAILABLE = RANK = "infeasible", "feasible but not available", "available"


@value(frozen=True, slots=True)
class NodeVerdict:
    """The verdict of one node on the part of a gang that is hardest to place.

    ``need`` is the request of that part, ``have`` the free amounts of the parent's best slot on the node.
    ``note`` names another obstacle: labels, or a node that takes no work.
    """

    node_id: str
    verdict: str
    need: Amounts
    have: Amounts
    note: str = ""


def explain(ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts) -> list[NodeVerdict]:
    """The verdict of each alive or draining node of the parent, by id.

    The verdicts are about the part of the request for which there is too little; else about the part that
    fits on the fewest nodes. What is booked for later is free now.
    """
    with ledger.bookings_in_force(()):
        tables = [(part, _verdicts(ledger, parent_id, part)) for part in _parts(spec, entry)]

    def hardness(judged: tuple[Part, list[NodeVerdict]]) -> tuple[bool, list[int]]:
        part, table = judged
        return _is_met(part, table), [sum(v.verdict == word for v in table) for word in reversed(RANK)]

    part, table = min(tables, key=hardness, default=(None, []))
    if part is not None and part.how == "split" and not _is_met(part, table):
        return [
            replace(verdict, verdict=FEASIBLE) if verdict.verdict == AVAILABLE else verdict
            for verdict in table
        ]
    return table


def explain_task(ledger: Ledger, task: PendingTask) -> list[tuple[str, NodeVerdict]]:
    """For each virtual node of a task's cluster on an alive or draining node: its id, and its verdict."""
    task = settled(ledger, task)
    named = pinned_to(task)
    verdicts = []
    for vnode in ledger.ranked(task.cluster_id):
        if ledger.nodes[vnode.node_id].state in (ALIVE, DRAINING):
            verdict = _verdict(ledger, vnode.vnode_id, Part("one", task.request, 1, task.selector))
            if named is not None and not is_named(named, vnode):
                verdict = replace(verdict, verdict=INFEASIBLE, note=f"the strategy names {named}")
            verdicts.append((vnode.vnode_id, verdict))
    return verdicts


def _is_met(part: Part, table: list[NodeVerdict]) -> bool:
    """Whether all nodes together have enough for a part."""
    there = [verdict for verdict in table if verdict.verdict == AVAILABLE]
    if part.how != "split":
        return len(there) >= part.count
    return all(
        sum(verdict.have.get(n, 0) for verdict in there) >= amount for n, amount in part.request.items()
    )


def _parts(spec: ClusterSpec, entry: Amounts) -> list[Part]:
    """The parts of a gang that lie in one slot each (bundles, whole nodes, entrypoint), and the minimum."""
    together = replace(spec, groups=(Group(tuple(spec.fixed)),) if spec.fixed else ())
    return parts_of(together, entry) or [Part("one", {})] * spec.flexible


def _verdicts(ledger: Ledger, parent_id: str, part: Part) -> list[NodeVerdict]:
    best: dict[str, NodeVerdict] = {}
    for vnode in ledger.slots(parent_id):
        if ledger.nodes[vnode.node_id].state in (ALIVE, DRAINING):
            verdict = _verdict(ledger, vnode.vnode_id, part)
            if (other := best.get(vnode.node_id)) is not None:
                worse, better = sorted((verdict, other), key=lambda each: RANK.index(each.verdict))
                together = rs.add(worse.have, better.have) if part.how == "split" else better.have
                verdict = replace(better, have=together)
            best[vnode.node_id] = verdict
    return [best[node_id] for node_id in sorted(best)]


def _verdict(ledger: Ledger, vnode_id: str, part: Part) -> NodeVerdict:
    vnode, capacity = ledger.vnodes[vnode_id], ledger.capacities[vnode_id]
    node = ledger.nodes[vnode.node_id]
    need = vnode.allocation.amounts if part.template else part.request
    have = {name: capacity.free.get(name, 0) for name in need}
    if part.template and template_of(vnode, node) != part.template:
        return NodeVerdict(node.node_id, INFEASIBLE, {}, {}, f"not a whole node of template {part.template}")
    if not lb.matches(part.selector, vnode.labels):
        wrong = ", ".join(f"{c.key}: {c}" for c in part.selector if not c.matches(vnode.labels))
        return NodeVerdict(node.node_id, INFEASIBLE, need, have, f"labels do not match {wrong}")
    if part.how == "split":
        return _verdict_on_share(node, vnode.allocation.amounts, need, have)
    if not FreeCapacity(vnode.allocation).fits(need):
        return NodeVerdict(node.node_id, INFEASIBLE, need, have)
    if not node.schedulable:
        return NodeVerdict(node.node_id, FEASIBLE, need, have, f"the node is {node.state}")
    free = capacity.is_untouched() if part.template else capacity.fits(need)
    return NodeVerdict(node.node_id, AVAILABLE if free else FEASIBLE, need, have)


def _verdict_on_share(node: Node, total: Amounts, need: Amounts, have: Amounts) -> NodeVerdict:
    """The verdict on a minimum, which may be split over nodes: a node that has some of it is available."""
    if not any(total.get(name, 0) for name in need):
        return NodeVerdict(node.node_id, INFEASIBLE, need, have, "it has none of these resources")
    if not node.schedulable:
        return NodeVerdict(node.node_id, FEASIBLE, need, have, f"the node is {node.state}")
    word = AVAILABLE if any(amount > 0 for amount in have.values()) else FEASIBLE
    return NodeVerdict(node.node_id, word, need, have, SPLIT)
