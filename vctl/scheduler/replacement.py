"""Replacement of dead nodes: which gangs are broken, and where the virtual nodes on a dead node move.

Everything on a dead whole node moves together, at the highest level at which the cluster above has a spare:
an alive and undivided node of the same template. A slice gets a new place by its spec. Amounts above a
minimum are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FIXED, FLEXIBLE, JOB, LOGICAL, Cluster, ClusterSpec, FixedNode, Group, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, Node
from vctl.core.resources import Allocation, FreeCapacity
from vctl.core.slots import SlotClass, primary_labels
from vctl.core.values import replace, value
from vctl.scheduler.membership import is_undivided
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.reshape import joined, place_more


@value(frozen=True, slots=True)
class Replaced:
    """A virtual node that left a dead node, and its successor (None: it has none)."""

    before: VNode
    after: VNode | None


class Move(NamedTuple):
    """Virtual nodes to remove and to place, and the pairs that replace each other.

    A move is possible in the ledger when it is yielded; the caller must apply it before it takes the next
    move.
    """

    removed: tuple[str, ...]
    placed: tuple[VNode, ...] = ()
    parts: tuple[Replaced, ...] = ()


def whole_moves(ledger: Ledger, dead: Iterable[str]) -> Iterator[Move]:
    """The moves of the whole virtual nodes on dead nodes to spares. Virtual nodes without a spare stay.

    Nodes with the most clusters on them come first.
    """
    chains = {node_id: whole_chain(ledger, node_id) for node_id in dead}
    for node_id in sorted(chains, key=lambda node_id: (-len(chains[node_id]), node_id)):
        for vnode in chains[node_id]:
            if (move := _move(ledger, vnode)) is not None:
                yield move
                break


def replace_dead(ledger: Ledger) -> None:
    """Make all possible moves in a ledger, as a scheduler does before it starts jobs."""
    is_moving = True
    while is_moving:
        dead = [
            one.node_id for one in ledger.nodes.values() if one.state == DEAD and ledger.children[one.node_id]
        ]
        is_moving = False
        for move in chain(whole_moves(ledger, dead), slice_moves(ledger, dead)):
            ledger.rearrange(move.removed, move.placed)
            is_moving = True


def whole_chain(ledger: Ledger, node_id: str) -> list[VNode]:
    """The virtual nodes that span a whole physical node, outermost first."""
    chain: list[VNode] = []
    inside = ledger.children[node_id]
    while whole := [ledger.vnodes[child] for child in inside if ledger.vnodes[child].whole]:
        chain.append(whole[0])  # there is at most one, beside slices that hold nothing
        inside = ledger.children[whole[0].vnode_id]
    return chain


def below(ledger: Ledger, vnode_id: str) -> list[VNode]:
    """All virtual nodes that lie in one, at any depth, outermost first."""
    found: list[VNode] = []
    for child in ledger.children[vnode_id]:
        found += [ledger.vnodes[child], *below(ledger, child)]
    return found


def spare(ledger: Ledger, cluster_id: str, template: str) -> VNode | None:
    """The unused, alive whole node of a template with the lowest node id in a cluster; None: no such node."""
    return _first(
        ledger, cluster_id,
        lambda group: group.template_id == template and group.untouched,
        lambda vnode: not ledger.children[vnode.vnode_id] and vnode.vnode_id not in ledger.homes,
    )  # fmt: skip


def _first(
    ledger: Ledger, cluster_id: str, of: Callable[[SlotClass], bool], will_do: Callable[[VNode], bool]
) -> VNode | None:
    """The virtual node with the lowest node id that passes ``will_do`` and whose class passes ``of``."""
    found = []
    for group in filter(of, ledger.index(cluster_id).classes.values()):
        vnodes = (ledger.vnodes[vnode_id] for vnode_id in group.ids)
        if (first := next(filter(will_do, vnodes), None)) is not None:
            found.append(first)
    return min(found, key=lambda vnode: (vnode.node_id, vnode.vnode_id), default=None)


def _move(ledger: Ledger, vnode: VNode) -> Move | None:
    """The move of a whole virtual node with all virtual nodes in it to a spare.

    None: a process or a slice of a job is still there, the virtual node is empty and its cluster is being
    removed, there is no spare, or a slice does not fit on the spare.
    """
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
    """The same virtual nodes in another slot; None: a slice among them does not fit there."""
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
        labels = inherit(ledger, part, above)
        new[part.vnode_id] = replace(
            part, node_id=slot.node_id, parent_id=above.vnode_id, allocation=allocation, labels=labels
        )
    return [new[part.vnode_id] for part in parts]


def inherit(ledger: Ledger, vnode: VNode, new_parent: VNode) -> dict[str, str]:
    """The labels of a virtual node below a new parent: those of the parent, its own, and the system's."""
    old_parent = ledger.vnodes[vnode.parent_id or ""]
    own = {key: value for key, value in vnode.labels.items() if old_parent.labels.get(key) != value}
    system = {lb.VNODE_ID: vnode.vnode_id, lb.VCLUSTER_ID: vnode.cluster_id}
    return {**new_parent.labels, **own, **wanted_by(ledger, vnode)[1].labels, **system}


def relabelled(ledger: Ledger, node: Node) -> tuple[VNode, ...]:
    """The virtual nodes on a node as they are when the node has these labels, outermost first."""
    new = {node.node_id: replace(ledger.vnodes[node.node_id], labels=primary_labels(node))}
    for vnode in below(ledger, node.node_id):
        above = new[vnode.parent_id or ""]
        new[vnode.vnode_id] = replace(vnode, labels=inherit(ledger, vnode, above))
    return tuple(new.values())[1:]


def wanted_by(ledger: Ledger, vnode: VNode) -> tuple[int, FixedNode]:
    """The fixed node of the spec for which a virtual node was made: the number of its group, and the request.

    The number is -1 if the spec has no such fixed node.
    """
    cluster = ledger.clusters[vnode.cluster_id]
    asked = [(number, node) for number, group in enumerate(cluster.spec.groups) for node in group.nodes]
    members = (ledger.vnodes[v] for v in ledger.members[vnode.cluster_id])
    fixed = (member for member in members if member.kind == FIXED and not member.whole)
    in_order = sorted(fixed, key=lambda member: member.rank)
    position = in_order.index(vnode) if vnode in in_order else len(asked)
    if position < len(asked):
        number, node = asked[position]
        if rs.shape_of(node.resources) == rs.shape_of(vnode.allocation.amounts):
            return number, node
    return -1, FixedNode(vnode.allocation.amounts)


# ---- slices get a new place in the parent; only unused slices are moved ----


def slice_moves(ledger: Ledger, dead: Iterable[str]) -> Iterator[Move]:
    """The moves of the slices of dead nodes, innermost first. Slices without a new place stay."""
    for node_id in sorted(dead):
        for vnode in reversed(below(ledger, node_id)):
            if vnode.whole or vnode.vnode_id not in ledger.vnodes or vnode.node_id != node_id:
                continue
            if ledger.vnodes[vnode.vnode_id] == vnode and is_undivided(ledger, vnode):
                reseat = _flexible if vnode.kind == FLEXIBLE else _fixed
                yield from reseat(ledger, vnode)


def _fixed(ledger: Ledger, vnode: VNode) -> Iterator[Move]:
    cluster = ledger.clusters[vnode.cluster_id]
    if cluster.kind == JOB or cluster.state == "REMOVING":
        return
    assert cluster.parent_id is not None
    number, asked = wanted_by(ledger, vnode)
    policy = cluster.spec.groups[number].policy if number >= 0 else "PACK"
    if policy == "STRICT_SPREAD":
        slot = _apart(ledger, vnode, number)
        if slot is not None:
            yield _put(ledger, vnode, slot, ledger.capacities[slot.vnode_id].copy().take(asked.resources))
        return
    members = [vnode]
    if policy == "STRICT_PACK":
        members = list(_group(ledger, vnode, number))
        if not all(is_undivided(ledger, member) for member in members):
            return
    group = Group(tuple(wanted_by(ledger, member)[1] for member in members), policy)
    placed = place(ledger, cluster.parent_id, ClusterSpec(groups=(group,), flexible=False), {})
    if isinstance(placed, Placed):
        for member, piece in zip(members, placed.pieces, strict=True):
            yield _put(ledger, member, ledger.vnodes[piece.parent_vnode_id], piece.allocation)


def _group(ledger: Ledger, vnode: VNode, number: int) -> Iterator[VNode]:
    """The members of a group, in the order of the spec."""
    members = (ledger.vnodes[v] for v in ledger.members[vnode.cluster_id])
    for member in sorted(members, key=lambda member: member.rank):
        if member == vnode or (member.kind == FIXED and wanted_by(ledger, member)[0] == number):
            yield member


def _apart(ledger: Ledger, vnode: VNode, number: int) -> VNode | None:
    """A slot on a node without another member of the group."""
    cluster = ledger.clusters[vnode.cluster_id]
    asked = wanted_by(ledger, vnode)[1]
    taken = {member.node_id for member in _group(ledger, vnode, number)}
    return _first(
        ledger, cluster.parent_id or "",
        lambda group: group.capacity.fits(asked.resources),
        lambda slot: slot.node_id not in taken and lb.matches(asked.selector, slot.labels),
    )  # fmt: skip


def _put(ledger: Ledger, vnode: VNode, slot: VNode, allocation: Allocation) -> Move:
    labels = inherit(ledger, vnode, slot)
    after = replace(
        vnode, node_id=slot.node_id, parent_id=slot.vnode_id, allocation=allocation, labels=labels
    )
    return Move((vnode.vnode_id,), (after,), (Replaced(vnode, after),))


def _flexible(ledger: Ledger, vnode: VNode) -> Iterator[Move]:
    """Moves of a flexible part: the amounts that the minimum lacks get a new place, the rest is lost."""
    cluster = ledger.clusters[vnode.cluster_id]
    missing = {n: min(a, vnode.allocation.amounts.get(n, 0)) for n, a in short(ledger, cluster).items()}
    missing = {n: a for n, a in missing.items() if a}
    if not missing:
        yield Move((vnode.vnode_id,), (), (Replaced(vnode, None),))
        return
    if cluster.kind == JOB or cluster.state == "REMOVING":
        return
    placed = place_more(ledger, cluster.cluster_id, ClusterSpec(flexible_min=missing))
    if isinstance(placed, Placed):
        yield Move((vnode.vnode_id,))
        for piece in placed.pieces:
            after = joined(ledger, cluster.cluster_id, piece)
            yield Move((), (after,), (Replaced(vnode, after),))


# ---- gangs ----


def broken_gangs(ledger: Ledger, node_id: str) -> list[Cluster]:
    """Job clusters whose gang lost a slice with a dead node. Whole nodes are replaced instead."""
    broken: dict[str, Cluster] = {}
    for vnode in below(ledger, node_id):
        cluster = ledger.clusters[vnode.cluster_id]
        if cluster.kind == JOB and not vnode.whole and (vnode.kind == FIXED or short(ledger, cluster)):
            broken[cluster.cluster_id] = cluster
    return [broken[cluster_id] for cluster_id in sorted(broken)]


def short(ledger: Ledger, cluster: Cluster) -> Mapping[str, int]:
    """The amounts that the flexible parts on living nodes lack of a cluster's minimum."""
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
    """Whether a runtime must learn of new nodes of a cluster: not if it only holds other clusters."""
    return cluster.kind != LOGICAL or not cluster.divisible
