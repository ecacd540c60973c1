"""Whole nodes of a logical cluster: the nodes that it takes from its parent, and those that it gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vctl.core.clusters import FIXED, ClusterSpec, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DEAD
from vctl.core.values import value
from vctl.scheduler.elasticity import next_rank
from vctl.scheduler.placement_result import Piece, vnodes_of
from vctl.scheduler.scarcity import scarcity_in


@value(frozen=True, slots=True)
class Exchange:
    """Virtual nodes of the parent to take whole, and own virtual nodes to give back."""

    join: tuple[VNode, ...] = ()
    leave: tuple[VNode, ...] = ()


@value(frozen=True, slots=True)
class NodeShortage:
    """Too few nodes to remove (``adding`` False) or to add.

    ``recommend``: per affected template the number of nodes that could be removed or added, zeros included.
    """

    adding: bool
    recommend: Mapping[str, int]


def exchange(
    ledger: Ledger, parent_id: str, cluster_id: str | None, counts: Mapping[str, int]
) -> Exchange | NodeShortage:
    """The exchange that gives a cluster the wanted counts: for all templates, or a ``NodeShortage``.

    A missing template counts as 0. Of the idle members, dead ones leave first, then by node id. Alive,
    undivided nodes of the parent join, those that others need last. A shortage of removable nodes is reported
    before one of nodes to add.
    """
    own = whole_by_template(ledger, cluster_id) if cluster_id is not None else {}
    leave: list[VNode] = []
    removable: dict[str, int] = {}
    too_few = False
    for template in sorted({*own, *counts}):
        surplus = len(own.get(template, ())) - counts.get(template, 0)
        if surplus <= 0:
            continue
        free = [vnode for vnode in own[template] if is_undivided(ledger, vnode)]
        free.sort(key=lambda vnode: (ledger.nodes[vnode.node_id].state != DEAD, vnode.node_id))
        removable[template] = min(surplus, len(free))
        too_few = too_few or len(free) < surplus
        leave += free[:surplus]
    if too_few:
        return NodeShortage(adding=False, recommend=removable)
    join: list[VNode] = []
    addable: dict[str, int] = {}
    for template in sorted(counts):
        missing = counts[template] - len(own.get(template, ()))
        if missing <= 0:
            continue
        candidates = undivided(ledger, parent_id, template)
        addable[template] = min(missing, len(candidates))
        too_few = too_few or len(candidates) < missing
        join += candidates[:missing]
    if too_few:
        return NodeShortage(adding=True, recommend=addable)
    return Exchange(tuple(join), tuple(leave))


def undivided(ledger: Ledger, cluster_id: str, template: str) -> list[VNode]:
    """The whole nodes of a template in a cluster that are alive and unused: those that others need last, by id."""
    scarcity = scarcity_in(ledger, cluster_id)
    vnodes = [
        vnode
        for vnode in ledger.slots(cluster_id)
        if vnode.whole
        and ledger.nodes[vnode.node_id].template_id == template
        and ledger.nodes[vnode.node_id].state == ALIVE
        and is_undivided(ledger, vnode)
    ]
    return sorted(vnodes, key=lambda vnode: scarcity(vnode.vnode_id))


def is_undivided(ledger: Ledger, vnode: VNode) -> bool:
    """Whether no child and no process uses a virtual node."""
    vnode_id = vnode.vnode_id
    is_unused = not ledger.children[vnode_id] and ledger.capacities[vnode_id].is_unheld()
    return is_unused and vnode_id not in ledger.homes


def join(ledger: Ledger, cluster_id: str, nodes: Iterable[VNode]) -> tuple[VNode, ...]:
    """Give a cluster whole nodes of its parent; returns its virtual nodes on them."""
    pieces = [
        Piece(FIXED, rank, -1, parent.vnode_id, parent.node_id, parent.allocation, {}, whole=True)
        for rank, parent in enumerate(nodes, next_rank(ledger, cluster_id))
    ]
    joined = vnodes_of(ledger, cluster_id, pieces)
    ledger.assign_all(joined)
    return joined


def of_whole_nodes(spec: ClusterSpec) -> bool:
    """Whether a cluster consists of whole nodes (or of nothing yet), not of slices of nodes."""
    return not spec.flexible and not spec.groups


def whole_by_template(ledger: Ledger, cluster_id: str) -> dict[str, list[VNode]]:
    """The whole nodes of a cluster."""
    vnodes_of: dict[str, list[VNode]] = {}
    for vnode in ledger.slots(cluster_id):
        if vnode.whole:
            vnodes_of.setdefault(ledger.nodes[vnode.node_id].template_id, []).append(vnode)
    return vnodes_of
