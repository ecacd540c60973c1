"""Leases: what of a growth lies above the minimum, and how it is given back when nobody uses it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, LOGICAL, VNode
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, EMPTY, SCALE, Allocation, Amounts, FreeCapacity, difference, merged
from vctl.scheduler.elasticity import Grow, flexible_in, flexible_parts, held


def above_minimum(ledger: Ledger, step: Grow, later: Amounts = EMPTY.amounts) -> dict[str, int]:
    """How much of a growth that has been applied lies above the cluster's minimum: that part is a lease.

    ``later`` is what the cluster gained since.
    """
    cluster = ledger.clusters[step.after.cluster_id]
    has = rs.subtract(
        rs.total(vnode.allocation.amounts for vnode in flexible_parts(ledger, cluster.cluster_id)), later
    )
    lent: dict[str, int] = {}
    for name, amount in step.gained.items():
        over = min(amount, has.get(name, 0) - cluster.spec.flexible_min.get(name, 0))
        if over > 0:
            lent[name] = over
    return lent


@dataclass(frozen=True, slots=True)
class Settled:
    """Leases of which less is left (nothing: they are over), and what on virtual nodes is a lease from now on."""

    cut: tuple[tuple[Lease, Mapping[str, int]], ...]
    fresh: tuple[tuple[VNode, Mapping[str, int]], ...]


def settle(ledger: Ledger, cluster_id: str, leases: Sequence[Lease], own: Amounts) -> Settled:
    """After a cluster's minimum or virtual nodes were changed: leased is again what lies above the minimum.

    Older leases stay first. ``leases`` are those of the cluster; ``own`` is what its entrypoint holds of the
    flexible part, which came with the gang and is no lease.
    """
    parts = flexible_parts(ledger, cluster_id)
    least = rs.maximum(ledger.clusters[cluster_id].spec.flexible_min, own)
    over = {n: a - least.get(n, 0) for n, a in rs.total(part.allocation.amounts for part in parts).items()}
    there = {part.vnode_id: dict(part.allocation.amounts) for part in parts}

    def some_of(wanted: Mapping[str, int], vnode_id: str) -> dict[str, int]:
        place = there.get(vnode_id, {})
        taken = {n: min(a, over.get(n, 0), place.get(n, 0)) for n, a in wanted.items()}
        taken = {n: a for n, a in taken.items() if a > 0}
        for name, amount in taken.items():
            over[name] -= amount
            place[name] -= amount
        return taken

    cut: list[tuple[Lease, Mapping[str, int]]] = []
    for lease in sorted(leases, key=lambda lease: (lease.since, lease.lease_id)):
        left = some_of(lease.amounts, lease.vnode_id)
        if left != dict(lease.amounts):
            cut.append((lease, left))
    fresh = [(part, some_of(there[part.vnode_id], part.vnode_id)) for part in reversed(parts)]
    return Settled(tuple(cut), tuple((part, lent) for part, lent in fresh if lent))


@dataclass(frozen=True, slots=True)
class Return:
    """A lease given back, whole (``left`` empty) or in part; ``after`` None means the virtual node goes."""

    lease: Lease
    before: VNode
    after: VNode | None
    left: Mapping[str, int]

    @property
    def removed(self) -> tuple[str, ...]:
        """The virtual node that goes."""
        return (self.before.vnode_id,) if self.after is None else ()

    @property
    def placed(self) -> tuple[VNode, ...]:
        """The virtual node that stays, with less."""
        return () if self.after is None else (self.after,)


def free_part(
    ledger: Ledger, lease: Lease, leases: Collection[Lease], capacity: FreeCapacity | None = None
) -> Allocation:
    """What of a lease nobody uses now and the minimum does not need; ``leases`` are all there are.

    ``capacity``: what would be free of its virtual node, in place of what is.
    """
    vnode, cluster = ledger.vnodes.get(lease.vnode_id), ledger.clusters.get(lease.borrower_id)
    if vnode is None or cluster is None:
        return EMPTY
    beside = (one for one in leases if one.vnode_id == lease.vnode_id and one.lease_id != lease.lease_id)
    return free_of(ledger, vnode, lease.amounts, cluster.spec.flexible_min, beside, capacity)


def free_of(
    ledger: Ledger, vnode: VNode, most: Amounts, least: Amounts, leases: Iterable[Lease] = (),
    capacity: FreeCapacity | None = None,
) -> Allocation:  # fmt: skip
    """How much of these amounts a virtual node can give away now; its cluster keeps ``least``.

    ``leases`` are the others on this virtual node: a unit that one of them is to return whole is not split.
    """
    capacity, held = capacity or ledger.capacities[vnode.vnode_id], vnode.allocation
    parts = flexible_parts(ledger, vnode.cluster_id)
    has = rs.total(part.allocation.amounts for part in parts)
    others = [part.allocation for part in parts if part.vnode_id != vnode.vnode_id]
    has_part = any(most.get(name, 0) % SCALE for name in capacity.instances)
    claims = [one.amounts for one in leases] if has_part else []
    amounts, instances = dict[str, int](), dict[str, dict[int, int]]()
    for name, amount in most.items():
        free = min(amount, capacity.free.get(name, 0), has.get(name, 0) - least.get(name, 0))
        if free > 0 and name in capacity.instances:
            shares = _Shares(name, capacity, held, others, least.get(name, 0))
            whole = sum(claim.get(name, 0) // SCALE for claim in claims)
            instances[name] = shares.returned(free, amount % SCALE, whole)
            free = sum(instances[name].values())
        if free > 0:
            amounts[name] = free
    surplus = len(held.cores) - (held.amounts.get(CPU, 0) - amounts.get(CPU, 0)) // SCALE
    cores = sorted(capacity.cores, reverse=True)[: max(surplus, 0)]
    return Allocation(amounts, {n: some for n, some in instances.items() if some}, tuple(sorted(cores)))


class _Shares:
    """What a cluster has of the instances of one resource, and what of one virtual node's can go."""

    def __init__(
        self, name: str, capacity: FreeCapacity, held: Allocation, others: Sequence[Allocation], least: int
    ) -> None:
        self.free = capacity.instances[name]
        self.shares = dict(held.instances.get(name, {}))
        self.elsewhere = [share for one in others for share in one.instances.get(name, {}).values()]
        self.least = least

    def returned(self, most: int, part: int, whole: int) -> dict[int, int]:
        """What of which instance goes: shares that nobody uses, highest first, then at most ``part`` of what is left.

        Instances that are shared already come first; ``whole``: so many are to stay that others return in one piece.
        """
        found: dict[int, int] = {}
        for index, share in sorted(self.shares.items(), reverse=True):
            if self.free.get(index, 0) == share <= most and self._can_spare(index, share):
                found[index], most = share, most - share
                del self.shares[index]
        left = min(most, part)
        free = {index: self.free.get(index, 0) for index in self.shares}
        for index in sorted(free, key=lambda one: (free[one] == SCALE, free[one] < left, free[one], -one)):
            part = min(left, free[index])
            if part > 0 and self._can_spare(index, part, whole if free[index] == SCALE else 0):
                found[index], left = part, left - part
                self.shares[index] -= part
        return found

    def _can_spare(self, index: int, part: int, whole: int = 0) -> bool:
        """Whether the largest shares then still are what the minimum needs in one piece, and so many whole ones."""
        needs = [SCALE] * (self.least // SCALE + whole) + [self.least % SCALE]
        before = sorted([*self.elsewhere, *self.shares.values()], reverse=True)
        changed = {**self.shares, index: self.shares[index] - part}
        after = sorted([*self.elsewhere, *changed.values()], reverse=True)
        return all(a >= min(need, b) for need, a, b in zip(needs, after, before, strict=False))


def give_back(ledger: Ledger, lease: Lease, part: Allocation) -> Return:
    """Shrink the borrower's virtual node by a free part of a lease; applied to the ledger."""
    done = return_of(ledger, lease, part)
    ledger.rearrange(done.removed, done.placed)
    return done


def return_of(ledger: Ledger, lease: Lease, part: Allocation) -> Return:
    """What giving back a free part of a lease means for the borrower's virtual node."""
    vnode = ledger.vnodes[lease.vnode_id]
    after, gone = replace(vnode, allocation=difference(vnode.allocation, part)), part.amounts
    left = {n: a - gone.get(n, 0) for n, a in lease.amounts.items() if a > gone.get(n, 0)}
    # an empty virtual node goes, unless a process without a request of its own lives on it
    is_gone = not after.allocation.amounts and not _is_used(ledger, vnode.vnode_id)
    return Return(lease, vnode, None if is_gone else after, left)


def restore(ledger: Ledger, lease: Lease, done: Return) -> None:
    """Give the lender what it gets back; applied to the ledger."""
    if (more := restored(ledger, lease, done)) is not None:
        ledger.rearrange((), (more,), for_start=True)


def restored(ledger: Ledger, lease: Lease, done: Return) -> VNode | None:
    """The lender's virtual node after a return: what a sibling lent goes straight back to it, up to its minimum.

    None when the parent was the lender, or the lender lacks nothing or has no flexible virtual node there any more.
    """
    borrower = ledger.clusters.get(lease.borrower_id)
    lender = ledger.clusters.get(lease.lender_id)
    if borrower is None or lender is None or lender.cluster_id == borrower.parent_id:
        return None
    theirs = flexible_in(ledger, lender.cluster_id, done.before.parent_id or "")
    if theirs is None:
        return None
    after = EMPTY if done.after is None else done.after.allocation
    has = rs.total(part.allocation.amounts for part in flexible_parts(ledger, lender.cluster_id))
    least = lender.spec.flexible_min
    lacks = {name: max(amount - has.get(name, 0), 0) for name, amount in least.items()}
    gone = _at_most(difference(done.before.allocation, after), lacks)
    slot = ledger.capacities[theirs.parent_id or ""]
    back = slot.copy().take_most(gone)  # the very instances that were lent
    if not back.amounts:
        return None
    return replace(theirs, allocation=merged(theirs.allocation, back))


def _at_most(allocation: Allocation, most: Mapping[str, int]) -> Allocation:
    """So much of an allocation, the lowest instances first."""
    amounts: dict[str, int] = {}
    instances: dict[str, dict[int, int]] = {}
    for name, amount in allocation.amounts.items():
        left = amounts[name] = min(amount, most.get(name, 0))
        if name in allocation.instances:
            mine = instances.setdefault(name, {})
            for index, share in sorted(allocation.instances[name].items()):
                mine[index] = min(share, left)
                left -= mine[index]
    return Allocation(amounts, instances, allocation.cores)


def empty_parts(ledger: Ledger) -> Iterator[str]:
    """Flexible virtual nodes of logical clusters that have nothing and serve nobody: work without a request left them.

    That of a cluster that lent all it had there stays: what returns goes into it.
    """
    for vnode_id, vnode in ledger.vnodes.items():
        if vnode.kind != FLEXIBLE or any(vnode.allocation.amounts.values()):
            continue
        if _is_used(ledger, vnode_id):
            continue
        cluster = ledger.clusters[vnode.cluster_id]
        if cluster.kind == LOGICAL and rs.within(cluster.spec.flexible_min, held(ledger, cluster.cluster_id)):
            yield vnode_id


def _is_used(ledger: Ledger, vnode_id: str) -> bool:
    return bool(ledger.children[vnode_id]) or ledger.homes.get(vnode_id, 0) > 0


def newest_first(leases: Iterable[Lease]) -> list[Lease]:
    """The order in which leases are given back and called back: deepest borrower first among equals."""
    return sorted(leases, key=lambda lease: (-lease.since, -lease.borrower_id.count("##"), -lease.lease_id))
