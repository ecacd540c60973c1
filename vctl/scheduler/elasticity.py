"""Growing clusters and giving back: flexible virtual nodes change in place, level by level, all in one plan.

A cluster whose work needs more than it has enlarges a flexible virtual node where its parent has room, makes a new
one where it has none, and else asks its parent to grow first, up to the root. What the root cannot give is demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY, Cluster, VNode
from vctl.core.labels import Selector
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, SCALE, Amounts, Holding
from vctl.core.tasks import Lease

MOST_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Grow:
    """One virtual node made (``before`` None) or enlarged in place."""

    before: VNode | None
    after: VNode

    @property
    def gained(self) -> dict[str, int]:
        """What the virtual node has more than before."""
        old = {} if self.before is None else self.before.holding.amounts
        return {n: a - old.get(n, 0) for n, a in self.after.holding.amounts.items() if a != old.get(n, 0)}


def apply_growth(ledger: Ledger, grow: Grow) -> None:
    """Take it in a ledger."""
    if grow.before is None:
        ledger.carve(grow.after)
    else:
        ledger.resize(grow.after)


def revert_growth(ledger: Ledger, grow: Grow) -> None:
    """Undo ``apply_growth``."""
    if grow.before is None:
        ledger.release(grow.after.vnode_id)
    else:
        ledger.resize(grow.before)


def growth_fits(ledger: Ledger, grow: Grow) -> bool:
    """Whether a planned growth can still be taken."""
    room = ledger.rooms.get(grow.after.parent_id or "")
    if room is None or not ledger.nodes[grow.after.node_id].schedulable:
        return False
    if grow.before is None:
        return grow.after.vnode_id not in ledger.vnodes and room.fits_exactly(grow.after.holding)
    if ledger.vnodes.get(grow.after.vnode_id) != grow.before:
        return False
    return room.fits_exactly(difference(grow.after.holding, grow.before.holding))


def difference(large: Holding, small: Holding) -> Holding:
    """What one holding has more than another that lies inside it."""
    instances: dict[str, dict[int, int]] = {}
    for name, shares in large.instances.items():
        had = small.instances.get(name, {})
        more = {index: share - had.get(index, 0) for index, share in shares.items() if share != had.get(index, 0)}
        if more:
            instances[name] = more
    amounts = {n: a for n, a in rs.subtract(large.amounts, small.amounts).items() if a}
    return Holding(amounts, instances, tuple(sorted(set(large.cores) - set(small.cores))))


def grow(ledger: Ledger, cluster_id: str, request: Amounts, selector: Selector = ()) -> list[Grow] | None:
    """Make room for a request in one virtual node of a cluster; applied to the ledger, top level first.

    None (and an untouched ledger) when limits or the lack of room anywhere above forbid it.
    """
    done: list[Grow] = []
    if _grow(ledger, cluster_id, dict(request), selector, done, only=None, depth=0) is not None:
        return done
    for step in reversed(done):
        revert_growth(ledger, step)
    return None


def _grow(
    ledger: Ledger,
    cluster_id: str,
    request: dict[str, int],
    selector: Selector,
    done: list[Grow],
    *,
    only: str | None,
    depth: int,
) -> str | None:
    """The virtual node that has room for the request afterwards. ``only`` restricts to one that exists."""
    cluster = ledger.clusters[cluster_id]
    if cluster_id == PRIMARY or not cluster.spec.flexible or cluster.state != "ACTIVE" or depth > MOST_DEPTH:
        return None
    assert cluster.parent_id is not None
    own = [
        vnode
        for vnode in _flexible(ledger, cluster_id)
        if (only is None or vnode.vnode_id == only)
        and lb.matches(selector, vnode.labels)
        and ledger.nodes[vnode.node_id].schedulable
    ]
    missing = {vnode.vnode_id: _missing(ledger, vnode, request) for vnode in own}
    own = [vnode for vnode in own if _allowed(ledger, cluster, missing[vnode.vnode_id])]
    for vnode in own:  # first choice: enlarge where the parent has room
        if ledger.rooms[vnode.parent_id or ""].fits(missing[vnode.vnode_id]):
            return _enlarge(ledger, vnode, missing[vnode.vnode_id], done)
    fresh = only is None and _allowed(ledger, cluster, request)
    if fresh and (slot := _slot_for(ledger, cluster, request, selector)):
        return _make(ledger, cluster_id, slot, request, done)
    for vnode in own:  # the parent grows on the spot, if it can
        assert vnode.parent_id is not None
        need = missing[vnode.vnode_id]
        if _grow(ledger, cluster.parent_id, need, (), done, only=vnode.parent_id, depth=depth + 1):
            return _enlarge(ledger, vnode, need, done)
    if fresh:
        above = _grow(ledger, cluster.parent_id, request, selector, done, only=None, depth=depth + 1)
        if above is not None:
            there = next((v for v in _flexible(ledger, cluster_id) if v.node_id == ledger.vnodes[above].node_id), None)
            if there is None:
                return _make(ledger, cluster_id, ledger.vnodes[above], request, done)
            need = _missing(ledger, there, request)
            if there.parent_id == above and _allowed(ledger, cluster, need) and ledger.rooms[above].fits(need):
                return _enlarge(ledger, there, need, done)
    return None


def _flexible(ledger: Ledger, cluster_id: str) -> list[VNode]:
    return [vnode for vnode in ledger.slots(cluster_id) if vnode.kind == FLEXIBLE]


def _missing(ledger: Ledger, vnode: VNode, request: Mapping[str, int]) -> dict[str, int]:
    """What a virtual node needs more so that the request fits into its free part."""
    room = ledger.rooms[vnode.vnode_id]
    need: dict[str, int] = {}
    for name, amount in request.items():
        if not amount:
            continue
        if name in room.instances or name in ledger.rooms[vnode.parent_id or ""].instances:
            if name not in room.instances or room.pick(name, amount) is None:
                whole = room.whole_units(name) * SCALE if amount >= SCALE and name in room.instances else 0
                need[name] = amount - whole
        elif amount > room.free.get(name, 0):
            need[name] = amount - room.free.get(name, 0)
    return need


def _allowed(ledger: Ledger, cluster: Cluster, more: Mapping[str, int]) -> bool:
    """Whether the cluster's maximum and its borrow limit leave it take that much more."""
    limits = [cluster.spec.flexible_max] if cluster.spec.flexible_max is not None else []
    if cluster.borrow_limit is not None:
        limits.append({n: cluster.spec.flexible_min.get(n, 0) + a for n, a in cluster.borrow_limit.items()})
    if not limits:
        return True
    has = rs.total(vnode.holding.amounts for vnode in _flexible(ledger, cluster.cluster_id))
    return all(
        has.get(name, 0) + amount <= limit[name] for limit in limits for name, amount in more.items() if name in limit
    )


def _slot_for(ledger: Ledger, cluster: Cluster, request: Amounts, selector: Selector) -> VNode | None:
    """A virtual node of the parent with room, on a node where the cluster has no flexible part yet."""
    taken = {vnode.node_id for vnode in _flexible(ledger, cluster.cluster_id)}
    best: tuple[str, str] | None = None
    for group in ledger.index(cluster.parent_id or "").classes.values():
        if not lb.matches(selector, group.labels) or not group.room.fits(request):
            continue
        for vnode_id in group.ids:
            node_id = ledger.vnodes[vnode_id].node_id
            if node_id not in taken:
                best = min(best or (node_id, vnode_id), (node_id, vnode_id))
                break
    return ledger.vnodes[best[1]] if best else None


def _enlarge(ledger: Ledger, vnode: VNode, more: Mapping[str, int], done: list[Grow]) -> str:
    from vctl.scheduler.reshape import merged

    trial = ledger.rooms[vnode.parent_id or ""].copy()
    after = replace(vnode, holding=merged(vnode.holding, trial.take(more)))
    step = Grow(vnode, after)
    apply_growth(ledger, step)
    done.append(step)
    return vnode.vnode_id


def _make(ledger: Ledger, cluster_id: str, slot: VNode, request: Mapping[str, int], done: list[Grow]) -> str:
    rank = max((ledger.vnodes[v].rank for v in ledger.members[cluster_id]), default=-1) + 1
    vnode_id = f"{cluster_id}/{rank}"
    holding = ledger.rooms[slot.vnode_id].copy().take({n: a for n, a in request.items() if a})
    labels = {**slot.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
    step = Grow(
        None, VNode(vnode_id, cluster_id, slot.node_id, slot.vnode_id, FLEXIBLE, holding, labels, rank=rank)
    )
    apply_growth(ledger, step)
    done.append(step)
    return vnode_id


# ---- leases ----


def above_minimum(ledger: Ledger, step: Grow) -> dict[str, int]:
    """How much of a growth that has been applied lies above the cluster's minimum: that part is a lease."""
    cluster = ledger.clusters[step.after.cluster_id]
    has = rs.total(vnode.holding.amounts for vnode in _flexible(ledger, cluster.cluster_id))
    lent: dict[str, int] = {}
    for name, amount in step.gained.items():
        over = min(amount, has.get(name, 0) - cluster.spec.flexible_min.get(name, 0))
        if over > 0:
            lent[name] = over
    return lent


@dataclass(frozen=True, slots=True)
class Return:
    """A lease given back, whole (``left`` empty) or in part; ``after`` None means the virtual node goes."""

    lease: Lease
    before: VNode
    after: VNode | None
    left: Mapping[str, int]


def free_part(ledger: Ledger, lease: Lease) -> dict[str, int]:
    """What of a lease nobody uses now and the minimum does not need."""
    vnode, cluster = ledger.vnodes.get(lease.vnode_id), ledger.clusters.get(lease.borrower_id)
    if vnode is None or cluster is None:
        return {}
    room = ledger.rooms[lease.vnode_id]
    has = rs.total(v.holding.amounts for v in _flexible(ledger, lease.borrower_id))
    part: dict[str, int] = {}
    for name, amount in lease.amounts.items():
        free = min(amount, room.free.get(name, 0), has.get(name, 0) - cluster.spec.flexible_min.get(name, 0))
        if name in room.instances:
            free = _free_instances(vnode, room.instances[name], name, free)
        if free > 0:
            part[name] = free
    return part


def _free_instances(vnode: VNode, free: Mapping[int, int], name: str, most: int) -> int:
    total = 0
    for index, share in sorted(vnode.holding.instances.get(name, {}).items(), reverse=True):
        if free.get(index, 0) == share and total + share <= most:
            total += share
    return total


def give_back(ledger: Ledger, lease: Lease, part: Mapping[str, int]) -> Return:
    """Shrink the borrower's virtual node by a free part of a lease; applied to the ledger."""
    vnode = ledger.vnodes[lease.vnode_id]
    room = ledger.rooms[lease.vnode_id]
    amounts = dict(vnode.holding.amounts)
    instances = {name: dict(shares) for name, shares in vnode.holding.instances.items()}
    for name, amount in part.items():
        amounts[name] -= amount
        if name in instances:
            left = amount
            for index in sorted(instances[name], reverse=True):
                if left and room.instances[name].get(index, 0) == instances[name][index] <= left:
                    left -= instances[name].pop(index)
    cores = sorted(vnode.holding.cores)
    for core in sorted(room.cores, reverse=True):
        if len(cores) <= amounts.get(CPU, 0) // SCALE:
            break
        cores.remove(core)
    amounts = {name: amount for name, amount in amounts.items() if amount}
    left_of_lease = {n: a - part.get(n, 0) for n, a in lease.amounts.items() if a > part.get(n, 0)}
    # an empty virtual node goes, unless a process without a request of its own lives on it
    if not amounts and not ledger.children[vnode.vnode_id] and not _is_home(ledger, vnode.vnode_id):
        ledger.release(vnode.vnode_id)
        return Return(lease, vnode, None, left_of_lease)
    instances = {name: shares for name, shares in instances.items() if shares}
    after = replace(vnode, holding=Holding(amounts, instances, tuple(cores)))
    ledger.resize(after)
    return Return(lease, vnode, after, left_of_lease)


def _is_home(ledger: Ledger, vnode_id: str) -> bool:
    return ledger.homes.get(vnode_id, 0) > 0


def newest_first(leases: Sequence[Lease]) -> Iterator[Lease]:
    """The order in which leases are given back and called back: deepest borrower first among equals."""
    return iter(sorted(leases, key=lambda lease: (-lease.since, -lease.borrower_id.count("##"), -lease.lease_id)))
