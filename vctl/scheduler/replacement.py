"""What becomes of dead nodes: which gangs are broken, and what takes the place of whole nodes that lay there.

Whatever lies on a dead whole node moves together, at the highest level where the cluster above has a spare of the same
template: one that is alive and undivided. Slices are the business of ``reseating``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FIXED, FLEXIBLE, JOB, LOGICAL, Cluster, FixedNode, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD
from vctl.core.resources import FreeCapacity


@dataclass(frozen=True, slots=True)
class Replaced:
    """A virtual node that left a dead node: what has its place now, or None when it is just gone."""

    before: VNode
    after: VNode | None


class Move(NamedTuple):
    """Virtual nodes that go and others that come, and of these what they mean. Each is possible when it is found:

    whoever asks for the next move has let the ledger have this one.
    """

    removed: tuple[str, ...]
    placed: tuple[VNode, ...] = ()
    parts: tuple[Replaced, ...] = ()


def whole_moves(ledger: Ledger, dead: Iterable[str]) -> Iterator[Move]:
    """Move what lies whole on dead nodes to spares; what finds none stays listed.

    Nodes with the most below them come first: there work goes on that waits for its node.
    """
    chains = {node_id: whole_chain(ledger, node_id) for node_id in dead}
    for node_id in sorted(chains, key=lambda node_id: (-len(chains[node_id]), node_id)):
        for vnode in chains[node_id]:
            if (move := _move(ledger, vnode)) is not None:
                yield move
                break


def whole_chain(ledger: Ledger, node_id: str) -> list[VNode]:
    """The virtual nodes that have a node whole, outermost first."""
    chain: list[VNode] = []
    inside = ledger.children[node_id]
    while whole := [ledger.vnodes[child] for child in inside if ledger.vnodes[child].whole]:
        chain.append(whole[0])  # there is one at most; beside it may lie slices that hold nothing
        inside = ledger.children[whole[0].vnode_id]
    return chain


def below(ledger: Ledger, vnode_id: str) -> list[VNode]:
    """All virtual nodes that lie in one, at any depth, outermost first."""
    found: list[VNode] = []
    for child in ledger.children[vnode_id]:
        found += [ledger.vnodes[child], *below(ledger, child)]
    return found


def spare(ledger: Ledger, cluster_id: str, template: str) -> VNode | None:
    """The first alive whole node of a cluster that nobody holds any of."""
    firsts = []
    for group in ledger.index(cluster_id).classes.values():
        if group.template_id == template and group.untouched:
            free = (v for v in group.ids if not ledger.children[v] and v not in ledger.homes)
            if (first := next(free, None)) is not None:
                firsts.append((ledger.vnodes[first].node_id, first))
    return ledger.vnodes[min(firsts)[1]] if firsts else None


def _move(ledger: Ledger, vnode: VNode) -> Move | None:
    """Move a whole virtual node with all that lies in it, when nothing runs there any more and a spare is found."""
    parts = [vnode, *below(ledger, vnode.vnode_id)]
    cluster = ledger.clusters[vnode.cluster_id]
    assert cluster.parent_id is not None
    if len(parts) == 1 and cluster.state == "REMOVING":
        return None
    if any(part.vnode_id in ledger.homes or _ends_with_its_job(ledger, part) for part in parts):
        return None
    slot = spare(ledger, cluster.parent_id, ledger.nodes[vnode.node_id].template_id)
    moved = None if slot is None else _moved(ledger, parts, slot)
    if moved is None:
        return None
    replaced = tuple(Replaced(old, new) for old, new in zip(parts, moved, strict=True))
    return Move(tuple(part.vnode_id for part in reversed(parts)), tuple(moved), replaced)


def _ends_with_its_job(ledger: Ledger, vnode: VNode) -> bool:
    return not vnode.whole and ledger.clusters[vnode.cluster_id].kind == JOB


def _moved(ledger: Ledger, parts: list[VNode], slot: VNode) -> list[VNode] | None:
    """The same virtual nodes in another place; None when a slice among them does not fit there."""
    top = parts[0].parent_id or ""
    new: dict[str, VNode] = {top: slot}
    capacities = {top: FreeCapacity(slot.allocation)}
    for part in parts:
        above_id = part.parent_id or ""
        above = new[above_id]
        allocation = above.allocation if part.whole else part.allocation
        selector = () if part.whole else wanted_by(ledger, part)[1].selector
        if not capacities[above_id].fits_exactly(allocation) or not lb.matches(selector, above.labels):
            return None
        capacities[above_id].take_exactly(allocation)
        capacities[part.vnode_id] = FreeCapacity(allocation)
        labels = inherit(ledger.vnodes[above_id], part, above)
        new[part.vnode_id] = replace(
            part, node_id=slot.node_id, parent_id=above.vnode_id, allocation=allocation, labels=labels
        )
    return [new[part.vnode_id] for part in parts]


def inherit(old_parent: VNode, vnode: VNode, new_parent: VNode) -> dict[str, str]:
    """Labels of a virtual node below another parent: that one's, its own, and those of the system."""
    own = {key: value for key, value in vnode.labels.items() if old_parent.labels.get(key) != value}
    system = {lb.VNODE_ID: vnode.vnode_id, lb.VCLUSTER_ID: vnode.cluster_id}
    return {**new_parent.labels, **own, **system}


def wanted_by(ledger: Ledger, vnode: VNode) -> tuple[int, FixedNode]:
    """Which fixed node of the spec a virtual node is: number of its group (-1: none of them), and what was asked."""
    cluster = ledger.clusters[vnode.cluster_id]
    asked = [(number, node) for number, group in enumerate(cluster.spec.groups) for node in group.nodes]
    fixed = (ledger.vnodes[v] for v in ledger.members[vnode.cluster_id] if ledger.vnodes[v].kind == FIXED)
    in_order = sorted(fixed, key=lambda member: member.rank)
    position = in_order.index(vnode) if vnode in in_order else len(asked)
    if position < len(asked):
        number, node = asked[position]
        if rs.shape_of(node.resources) == rs.shape_of(vnode.allocation.amounts):
            return number, node
    return -1, FixedNode(vnode.allocation.amounts)


# ---- gangs ----


def broken_gangs(ledger: Ledger, node_id: str) -> list[Cluster]:
    """Job clusters whose gang lost a part with a dead node: a slice. Whole nodes are replaced instead."""
    broken: dict[str, Cluster] = {}
    for vnode in below(ledger, node_id):
        cluster = ledger.clusters[vnode.cluster_id]
        if cluster.kind == JOB and not vnode.whole and (vnode.kind == FIXED or short(ledger, cluster)):
            broken[cluster.cluster_id] = cluster
    return [broken[cluster_id] for cluster_id in sorted(broken)]


def short(ledger: Ledger, cluster: Cluster) -> Mapping[str, int]:
    """What the flexible parts on living nodes lack of a cluster's minimum."""
    if not any(cluster.spec.flexible_min.values()):
        return {}
    parts = (ledger.vnodes[v] for v in ledger.members[cluster.cluster_id])
    has = rs.total(
        part.allocation.amounts
        for part in parts
        if part.kind == FLEXIBLE and ledger.nodes[part.node_id].state != DEAD
    )
    return {n: a - has.get(n, 0) for n, a in cluster.spec.flexible_min.items() if a > has.get(n, 0)}


def is_published(cluster: Cluster) -> bool:
    """Whether a runtime must learn of the cluster's new nodes: where work runs, not where clusters are made."""
    return cluster.kind != LOGICAL or not cluster.divisible
