"""Slices of dead nodes: a new place for each in the parent, as its spec asks; what is above a minimum is just lost.

Only what nobody uses any more is moved. Slices of a job's gang end with their job and are not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from vctl.core import labels as lb
from vctl.core.clusters import FIXED, FLEXIBLE, JOB, ClusterSpec, Group, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, merged
from vctl.scheduler.joining import place_more
from vctl.scheduler.membership import is_undivided
from vctl.scheduler.placement import Piece, Placed, place
from vctl.scheduler.replacement import Move, Replaced, below, inherit, short, wanted_by


def slice_moves(ledger: Ledger, dead: Iterable[str]) -> Iterator[Move]:
    """Give the slices of dead nodes new places, innermost first; what finds none stays listed."""
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
    """A place on a node where no other member of the group is."""
    cluster = ledger.clusters[vnode.cluster_id]
    asked = wanted_by(ledger, vnode)[1]
    taken = {member.node_id for member in _group(ledger, vnode, number)}
    found = []
    for slots in ledger.index(cluster.parent_id or "").classes.values():
        if slots.capacity.fits(asked.resources):
            free = (
                (ledger.vnodes[v].node_id, v)
                for v in slots.ids
                if ledger.vnodes[v].node_id not in taken
                and lb.matches(asked.selector, ledger.vnodes[v].labels)
            )
            if (first := next(free, None)) is not None:
                found.append(first)
    return ledger.vnodes[min(found)[1]] if found else None


def _put(ledger: Ledger, vnode: VNode, slot: VNode, allocation: Allocation) -> Move:
    labels = inherit(ledger.vnodes[vnode.parent_id or ""], vnode, slot)
    after = replace(
        vnode, node_id=slot.node_id, parent_id=slot.vnode_id, allocation=allocation, labels=labels
    )
    return Move((vnode.vnode_id,), (after,), (Replaced(vnode, after),))


def _flexible(ledger: Ledger, vnode: VNode) -> Iterator[Move]:
    """A flexible part: what the minimum lacks without it is placed anew, all else is lost."""
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
            after = _joined(ledger, vnode, piece)
            yield Move((), (after,), (Replaced(vnode, after),))


def _joined(ledger: Ledger, lost: VNode, piece: Piece) -> VNode:
    """A flexible piece where it was placed, into the flexible virtual node that may be there already."""
    for vnode_id in ledger.members[lost.cluster_id]:
        there = ledger.vnodes[vnode_id]
        if there.kind == FLEXIBLE and there.parent_id == piece.parent_vnode_id:
            return replace(there, allocation=merged(there.allocation, piece.allocation))
    rank = max((ledger.vnodes[v].rank for v in ledger.members[lost.cluster_id]), default=-1) + 1
    vnode_id = f"{lost.cluster_id}/{rank}"
    slot = ledger.vnodes[piece.parent_vnode_id]
    labels = {**slot.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: lost.cluster_id}
    return VNode(
        vnode_id, lost.cluster_id, slot.node_id, slot.vnode_id, FLEXIBLE, piece.allocation, labels, rank=rank
    )
