"""From what a cluster made by a resource spec has to what its new spec wants. Works on the ledger it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vctl.core import resources as rs
from vctl.core.clusters import FIXED, FLEXIBLE, ClusterSpec, Group, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, SCALE, Allocation, Amounts, merged
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.joining import grow_more, place_more
from vctl.scheduler.membership import is_undivided
from vctl.scheduler.placement import Placed, Unplaced
from vctl.scheduler.placement_result import vnodes_of


@dataclass(frozen=True, slots=True)
class InUse:
    """A virtual node that the new spec no longer has and that cannot be taken away."""

    vnode: VNode


def reshape(
    ledger: Ledger, cluster_id: str, old: ClusterSpec, new: ClusterSpec, growth: list[Grow]
) -> Unplaced | InUse | None:
    """Give a cluster its new fixed nodes and flexible minimum; None when done, else the ledger is to be discarded.

    Groups that stay keep their virtual nodes, groups that go must be idle, flexible parts change in place.
    What a lower minimum frees is given back as far as nobody uses it. A parent without room grows if it can;
    how is added to ``growth``.
    """
    gone, wanted = _match(ledger, cluster_id, old, new)
    for vnode in gone:
        if not is_undivided(ledger, vnode):
            return InUse(vnode)
    for vnode in gone:
        ledger.release(vnode.vnode_id)
    flexible = [v for v in _members(ledger, cluster_id) if v.kind == FLEXIBLE]
    has = rs.total(vnode.allocation.amounts for vnode in flexible)
    surplus = {n: a - new.flexible_min.get(n, 0) for n, a in has.items() if a > new.flexible_min.get(n, 0)}
    for vnode in reversed(flexible):
        _shrink(ledger, vnode, surplus)
    missing = {n: a - has.get(n, 0) for n, a in new.flexible_min.items() if a > has.get(n, 0)}
    extra = ClusterSpec(flexible_min=missing, groups=wanted, flexible=bool(missing))
    if extra.has_gang:
        placed = place_more(ledger, cluster_id, extra)
        if not isinstance(placed, Placed):
            grown = grow_more(ledger, cluster_id, extra)
            if not isinstance(grown, tuple):
                return placed
            steps, placed = grown
            growth += steps
        _assign(ledger, cluster_id, placed)
    return None


def _members(ledger: Ledger, cluster_id: str) -> list[VNode]:
    return sorted((ledger.vnodes[v] for v in ledger.members[cluster_id]), key=lambda vnode: vnode.rank)


def _match(
    ledger: Ledger, cluster_id: str, old: ClusterSpec, new: ClusterSpec
) -> tuple[list[VNode], tuple[Group, ...]]:
    """The virtual nodes of groups that are no longer wanted, and the groups that are new."""
    fixed = [vnode for vnode in _members(ledger, cluster_id) if vnode.kind == FIXED]
    wanted = list(new.groups)
    gone: list[VNode] = []
    for group in old.groups:
        members, fixed = fixed[: len(group.nodes)], fixed[len(group.nodes) :]
        if group in wanted:
            wanted.remove(group)
        else:
            gone += members
    return gone, tuple(wanted)


def _shrink(ledger: Ledger, vnode: VNode, surplus: dict[str, int]) -> None:
    """Give back what is free of a surplus, and count it off; never below use."""
    capacity = ledger.capacities[vnode.vnode_id]
    amounts = dict(vnode.allocation.amounts)
    instances = {name: dict(shares) for name, shares in vnode.allocation.instances.items()}
    for name, amount in surplus.items():
        back = min(amount, capacity.free.get(name, 0), amounts.get(name, 0))
        if name in instances:
            back = _drop_instances(instances[name], capacity.instances[name], back)
        amounts[name] = amounts.get(name, 0) - back
        surplus[name] = amount - back
    if not any(amounts.values()) and is_undivided(ledger, vnode):
        ledger.release(vnode.vnode_id)
    elif amounts != dict(vnode.allocation.amounts):
        left = Allocation(
            {n: a for n, a in amounts.items() if a},
            {n: shares for n, shares in instances.items() if shares},
            _cores(vnode, capacity.cores, amounts),
        )
        ledger.resize(replace(vnode, allocation=left))


def _drop_instances(shares: dict[int, int], free: Mapping[int, int], most: int) -> int:
    dropped = 0
    for index in sorted(shares, reverse=True):
        if shares[index] == free.get(index, 0) and dropped + shares[index] <= most:
            dropped += shares.pop(index)
    return dropped


def _cores(vnode: VNode, free: set[int], amounts: Amounts) -> tuple[int, ...]:
    """Core ids after a shrink: as many as whole CPUs are left, free ones go first."""
    cores = sorted(vnode.allocation.cores)
    for core in sorted(free, reverse=True):
        if len(cores) <= amounts.get(CPU, 0) // SCALE:
            break
        cores.remove(core)
    return tuple(cores)


def _assign(ledger: Ledger, cluster_id: str, placed: Placed) -> None:
    """Assign new pieces; a flexible one joins the flexible virtual node that is on its physical node already."""
    present = _members(ledger, cluster_id)
    flexible = {vnode.parent_id: vnode for vnode in present if vnode.kind == FLEXIBLE}
    rank = max((vnode.rank for vnode in present), default=-1) + 1
    for piece, vnode in zip(placed.pieces, vnodes_of(ledger, cluster_id, placed.pieces), strict=True):
        there = flexible.get(piece.parent_vnode_id) if piece.kind == FLEXIBLE else None
        if there is not None:
            ledger.resize(replace(there, allocation=merged(there.allocation, piece.allocation)))
            continue
        vnode_id = f"{cluster_id}/{rank}"
        labels = {**vnode.labels, "ray.io/vnode_id": vnode_id}
        ledger.assign(replace(vnode, vnode_id=vnode_id, rank=rank, labels=labels))
        rank += 1
