"""Reshaping: gives a cluster with a resource spec the virtual nodes of its new spec, in a ledger."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core import resources as rs
from vctl.core.clusters import FIXED, FLEXIBLE, PRIMARY, ClusterSpec, FixedNode, Group, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD
from vctl.core.resources import Amounts, beyond
from vctl.core.values import replace, value
from vctl.scheduler.elasticity import Grow, enlarged, flexible_in, next_rank
from vctl.scheduler.gang_growth import find_growth, growth_for
from vctl.scheduler.leasing import free_of
from vctl.scheduler.membership import is_undivided, whole_by_template
from vctl.scheduler.placement import Piece, Placed, Unplaced, place
from vctl.scheduler.placement_result import vnodes_of
from vctl.scheduler.work import finished


@value(frozen=True, slots=True)
class InUse:
    """A virtual node that the new spec no longer has and that is in use."""

    vnode: VNode


def reshape(
    ledger: Ledger, cluster_id: str, old: ClusterSpec, new: ClusterSpec, growth: list[Grow], lent: Amounts
) -> Unplaced | InUse | None:
    """Give a cluster its new fixed nodes and flexible minimum. None: done; else the ledger must be discarded.

    Groups that stay keep their virtual nodes, groups and whole nodes that go must be idle, flexible parts
    change in place. Idle amounts above the new minimum are given back. A parent without free capacity grows
    if it can; its steps are added to ``growth``. What the cluster has ``lent`` to siblings counts as its own.
    """
    removed, added = _match(ledger, cluster_id, old, new)
    surplus, lacking = _whole_nodes(ledger, cluster_id, new.replica_sets)
    removed += surplus
    for vnode in removed:
        if not is_undivided(ledger, vnode):
            return InUse(vnode)
    for vnode in removed:
        ledger.release(vnode.vnode_id)
    flexible = [v for v in ledger.ranked(cluster_id) if v.kind == FLEXIBLE]
    has = rs.total(vnode.allocation.amounts for vnode in flexible)
    for vnode in reversed(flexible):
        part = free_of(ledger, vnode, vnode.allocation.amounts, new.flexible_min)
        after = replace(vnode, allocation=rs.difference(vnode.allocation, part))
        if not any(after.allocation.amounts.values()) and is_undivided(ledger, vnode):
            ledger.release(vnode.vnode_id)
        elif part.amounts:
            ledger.resize(after)
    has = rs.add(has, lent)
    missing = beyond(new.flexible_min, has)
    extra = ClusterSpec(missing, None, added, lacking, flexible=bool(missing))
    if not extra.has_gang:
        return None
    parent_id = ledger.clusters[cluster_id].parent_id
    assert parent_id is not None
    placed = place_more(ledger, cluster_id, extra)
    if not isinstance(placed, Placed):
        grown = finished(find_growth(ledger, parent_id, _asked(ledger, cluster_id, extra), {}))
        if isinstance(grown, Unplaced):
            return placed
        steps, found = growth_for(*grown, {})
        growth += steps
        placed = _answered(found, extra)
    for piece in placed.pieces:
        ledger.rearrange((), (joined(ledger, cluster_id, piece),))
    return None


def _match(
    ledger: Ledger, cluster_id: str, old: ClusterSpec, new: ClusterSpec
) -> tuple[list[VNode], tuple[Group, ...]]:
    """The virtual nodes of groups that the new spec no longer has, and its new groups."""
    fixed = [vnode for vnode in ledger.ranked(cluster_id) if vnode.kind == FIXED and not vnode.whole]
    added = list(new.groups)
    removed: list[VNode] = []
    for group in old.groups:
        members, fixed = fixed[: len(group.nodes)], fixed[len(group.nodes) :]
        if group in added:
            added.remove(group)
        else:
            removed += members
    return removed, tuple(added)


def _whole_nodes(
    ledger: Ledger, cluster_id: str, counts: Mapping[str, int]
) -> tuple[list[VNode], dict[str, int]]:
    """The whole nodes beyond the wanted counts, idle ones if there are enough; and the lacking counts."""
    own = whole_by_template(ledger, cluster_id)
    surplus: list[VNode] = []
    for template, has in sorted(own.items()):
        has.sort(
            key=lambda v: (not is_undivided(ledger, v), ledger.nodes[v.node_id].state != DEAD, v.node_id)
        )
        surplus += has[: max(len(has) - counts.get(template, 0), 0)]
    more = {template: count - len(own.get(template, ())) for template, count in counts.items()}
    return surplus, {template: count for template, count in more.items() if count > 0}


def joined(ledger: Ledger, cluster_id: str, piece: Piece) -> VNode:
    """The virtual node for a placed piece. A flexible piece joins the flexible virtual node in its slot."""
    if piece.kind == FLEXIBLE and flexible_in(ledger, cluster_id, piece.parent_vnode_id) is not None:
        return enlarged(ledger, cluster_id, piece.parent_vnode_id, piece.allocation)
    return vnodes_of(ledger, cluster_id, [replace(piece, rank=next_rank(ledger, cluster_id))])[0]


def place_more(ledger: Ledger, cluster_id: str, spec: ClusterSpec) -> Placed | Unplaced:
    """A place for more pieces of a cluster in the free capacity of its parent."""
    parent_id = ledger.clusters[cluster_id].parent_id or ""
    placed = place(ledger, parent_id, _asked(ledger, cluster_id, spec), {})
    return _answered(placed, spec) if isinstance(placed, Placed) else placed


def _asked(ledger: Ledger, cluster_id: str, spec: ClusterSpec) -> ClusterSpec:
    """The same gang as it can be asked for: a share of a unit resource beside whole instances is a piece of its own."""
    odd = {name for name, amount in spec.flexible_min.items() if not rs.is_unit_request(amount)}
    if not odd:
        return spec
    above = [up.parent_id or PRIMARY for up in ledger.upward(cluster_id)]
    groups = [group for one in above for group in ledger.index(one).classes.values()]
    units = {name for name in odd if any(name in group.capacity.instances for group in groups)}
    whole, shares = rs.in_requests(spec.flexible_min, units)
    if not shares:
        return spec
    pieces = tuple(FixedNode({name: amount}) for name, amount in sorted(shares.items()))
    return replace(spec, flexible_min=whole, groups=(*spec.groups, Group(pieces)))


def _answered(placed: Placed, spec: ClusterSpec) -> Placed:
    """The place of what ``_asked`` made of a spec as one of the spec: those shares are flexible pieces."""
    number = len(spec.groups)
    if all(piece.group < number for piece in placed.pieces):
        return placed
    pieces = [
        replace(piece, kind=FLEXIBLE, group=-1) if piece.group == number else piece for piece in placed.pieces
    ]
    return replace(placed, pieces=tuple(pieces))
