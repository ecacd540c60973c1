"""Leases: the part of a growth above the minimum of a cluster, and how it is given back when it is idle."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, JOB, LOGICAL, VNode
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, EMPTY, SCALE, Allocation, Amounts, FreeCapacity, difference
from vctl.core.values import replace, value
from vctl.scheduler.elasticity import Grow, enlarged, flexible_parts, held, is_used


def above_minimum(ledger: Ledger, step: Grow, later: Amounts = EMPTY.amounts) -> dict[str, int]:
    """The part of an applied step of growth that lies above the cluster's minimum: that part is a lease.

    ``later``: the amounts that the cluster gained since that step.
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


@value(frozen=True, slots=True)
class Settled:
    """Leases that are cut, with what is left (empty: none), and virtual nodes with amounts of new leases."""

    cut: tuple[tuple[Lease, Mapping[str, int]], ...]
    fresh: tuple[tuple[VNode, Mapping[str, int]], ...]


def settle(ledger: Ledger, cluster_id: str, leases: Sequence[Lease], own: Amounts) -> Settled:
    """Match the leases of a cluster with what it has above its minimum, after either has changed.

    Older leases are kept before newer ones. ``leases``: those of the cluster. ``own``: the part of the
    flexible virtual nodes that its entrypoint holds; it came with the gang and is no lease.
    What was lent to a job for its gang stays as long as the virtual node does that has it.
    """
    cluster = ledger.clusters[cluster_id]
    cut: list[tuple[Lease, Mapping[str, int]]] = []
    if cluster.kind == JOB:
        to_gang = [lease for lease in leases if lease.lender_id != cluster.parent_id]
        cut = [(lease, {}) for lease in to_gang if lease.vnode_id not in ledger.vnodes]
        leases = [lease for lease in leases if lease.lender_id == cluster.parent_id]
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

    for lease in sorted(leases, key=lambda lease: (lease.since, lease.lease_id)):
        left = some_of(lease.amounts, lease.vnode_id)
        if left != dict(lease.amounts):
            cut.append((lease, left))
    fresh = [(part, some_of(there[part.vnode_id], part.vnode_id)) for part in reversed(parts)]
    return Settled(tuple(cut), tuple((part, lent) for part, lent in fresh if lent))


@value(frozen=True, slots=True)
class Return:
    """The return of a lease, whole (``left`` is empty) or in part. ``after`` None: the virtual node goes."""

    lease: Lease
    before: VNode
    after: VNode | None
    left: Mapping[str, int]

    @property
    def removed(self) -> tuple[str, ...]:
        """The id of the virtual node that is removed."""
        return (self.before.vnode_id,) if self.after is None else ()

    @property
    def placed(self) -> tuple[VNode, ...]:
        """The virtual node that stays with less."""
        return () if self.after is None else (self.after,)


def free_part(
    ledger: Ledger, lease: Lease, leases: Collection[Lease], capacity: FreeCapacity | None = None
) -> Allocation:
    """The idle part of a lease that the minimum of the borrower does not need. ``leases``: all leases.

    ``capacity``: the free capacity to assume for the virtual node, in place of the present one.
    """
    vnode, cluster = ledger.vnodes.get(lease.vnode_id), ledger.clusters.get(lease.borrower_id)
    if vnode is None or cluster is None:
        return EMPTY
    beside = (one for one in leases if one.vnode_id == lease.vnode_id and one.lease_id != lease.lease_id)
    return free_of(ledger, vnode, lease.amounts, cluster.spec.flexible_min, beside, capacity)


def idle_parts(ledger: Ledger, lease: Lease, leases: Collection[Lease]) -> Iterator[tuple[VNode, Allocation]]:
    """What a lease could return now: the idle part of its own virtual node, then of the others of the borrower.

    A loan is a matter of amounts: a cluster whose borrowed part is in use and whose minimum lies idle
    elsewhere returns the latter, and what it uses becomes its minimum. The idle part of another virtual node
    counts only as far as the leases there do not account for it. ``leases``: all leases, at least those of the
    borrower.
    """
    vnode, cluster = ledger.vnodes.get(lease.vnode_id), ledger.clusters.get(lease.borrower_id)
    if cluster is None:
        return
    given: Amounts = EMPTY.amounts
    if vnode is not None and (own := free_part(ledger, lease, leases)).amounts:
        given = own.amounts
        yield vnode, own
    left = {name: amount - given.get(name, 0) for name, amount in lease.amounts.items()}
    if not any(left.values()):
        return
    claimed: dict[str, dict[str, int]] = {}
    for one in leases:
        if one.borrower_id == lease.borrower_id:
            claimed[one.vnode_id] = rs.add(claimed.get(one.vnode_id, {}), one.amounts)
    for part in reversed(flexible_parts(ledger, lease.borrower_id)):
        if part.vnode_id == lease.vnode_id:
            continue
        free, mine = ledger.capacities[part.vnode_id].free, claimed.get(part.vnode_id, {})
        most = {name: min(amount, free.get(name, 0) - mine.get(name, 0)) for name, amount in left.items()}
        most = {name: amount for name, amount in most.items() if amount > 0}
        if not most:
            continue
        beside = [one for one in leases if one.vnode_id == part.vnode_id]
        idle = free_of(ledger, part, most, rs.add(cluster.spec.flexible_min, given), beside)
        if idle.amounts:
            yield part, idle
            given = rs.add(given, idle.amounts)
            left = {name: amount - idle.amounts.get(name, 0) for name, amount in left.items()}


def free_of(
    ledger: Ledger, vnode: VNode, most: Amounts, least: Amounts, leases: Iterable[Lease] = (),
    capacity: FreeCapacity | None = None,
) -> Allocation:  # fmt: skip
    """The part of these amounts that a virtual node can give away now, so that its cluster keeps ``least``.

    ``leases``: the other leases on this virtual node. A unit that one of them is to return whole is not
    split.
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
    """The instances of one resource in a cluster, and which shares of one virtual node can be given away."""

    def __init__(
        self, name: str, capacity: FreeCapacity, held: Allocation, others: Sequence[Allocation], least: int
    ) -> None:
        self.free = capacity.instances[name]
        self.shares = dict(held.instances.get(name, {}))
        self.elsewhere = [share for one in others for share in one.instances.get(name, {}).values()]
        self.least = least

    def returned(self, most: int, part: int, whole: int) -> dict[int, int]:
        """The shares to give away by instance, at most ``most``.

        First the idle shares, highest index first, then at most ``part`` of one or more others, shared ones
        first. ``whole``: the number of whole instances to leave for others.
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
        """Whether the rest serves the minimum and ``whole`` more whole instances as well as before."""
        needs = [SCALE] * (self.least // SCALE + whole) + [self.least % SCALE]
        before = sorted([*self.elsewhere, *self.shares.values()], reverse=True)
        changed = {**self.shares, index: self.shares[index] - part}
        after = sorted([*self.elsewhere, *changed.values()], reverse=True)
        return all(a >= min(need, b) for need, a, b in zip(needs, after, before, strict=False))


def give_back(ledger: Ledger, lease: Lease, part: Allocation, vnode: VNode | None = None) -> Return:
    """Shrink the borrower's virtual node in the ledger by an idle part of a lease."""
    done = return_of(ledger, lease, part, vnode)
    ledger.rearrange(done.removed, done.placed)
    return done


def return_of(ledger: Ledger, lease: Lease, part: Allocation, vnode: VNode | None = None) -> Return:
    """The return of an idle part of a lease: the borrower's virtual node before and after.

    ``vnode``: the virtual node that has the idle part; None: that of the lease.
    """
    before = ledger.vnodes[lease.vnode_id] if vnode is None else vnode
    after, gone = replace(before, allocation=difference(before.allocation, part)), part.amounts
    left = {n: a - gone.get(n, 0) for n, a in lease.amounts.items() if a > gone.get(n, 0)}
    # an empty virtual node is removed unless it has children or processes, which may hold nothing
    is_gone = not any(after.allocation.amounts.values()) and not is_used(ledger, before.vnode_id)
    return Return(lease, before, None if is_gone else after, left)


def restore(ledger: Ledger, lease: Lease, done: Return) -> None:
    """Give the lender back its part of a return, in the ledger."""
    for more in restored(ledger, lease, done.before, done.after):
        ledger.rearrange((), (more,), for_start=True)


def restored(ledger: Ledger, lease: Lease, before: VNode, after: VNode | None) -> Iterator[VNode]:
    """The virtual nodes of a lender and of the clusters around it after a return, outermost first.

    Each grows again, up to its minimum; it gets a virtual node where it has none. The caller puts each into the
    ledger before it asks for the next. None: the parent was the lender, or nothing is lacking.
    """
    borrower = ledger.clusters.get(lease.borrower_id)
    if borrower is None or lease.lender_id == borrower.parent_id:
        return
    around = []
    for one in ledger.upward(lease.lender_id):
        around.append(one)
        if one.parent_id == borrower.parent_id:
            break
    else:
        return
    gone = difference(before.allocation, EMPTY if after is None else after.allocation)
    slot_id = before.parent_id or ""
    for lender in reversed(around):
        has = rs.total(part.allocation.amounts for part in flexible_parts(ledger, lender.cluster_id))
        least = lender.spec.flexible_min
        lacks = {name: max(amount - has.get(name, 0), 0) for name, amount in least.items()}
        gone = _at_most(gone, lacks)
        back = ledger.capacities[slot_id].copy().take_most(gone)  # the same instances that were returned
        if not any(back.amounts.values()):
            return
        vnode = enlarged(ledger, lender.cluster_id, slot_id, back)
        yield vnode
        slot_id = vnode.vnode_id


def _at_most(allocation: Allocation, most: Mapping[str, int]) -> Allocation:
    """The part of an allocation up to these amounts, the lowest instances first."""
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
    """Flexible virtual nodes of logical clusters that are empty and unused, after work without a request.

    The virtual node of a cluster that lent all of it stays, because a return goes back into it.
    """
    for vnode_id, vnode in ledger.vnodes.items():
        if vnode.kind != FLEXIBLE or any(vnode.allocation.amounts.values()):
            continue
        if is_used(ledger, vnode_id):
            continue
        cluster = ledger.clusters[vnode.cluster_id]
        if cluster.kind == LOGICAL and rs.within(cluster.spec.flexible_min, held(ledger, cluster.cluster_id)):
            yield vnode_id


def newest_first(leases: Iterable[Lease]) -> list[Lease]:
    """Leases in the order in which they are returned and reclaimed; of equals the deepest borrower first."""
    return sorted(leases, key=lambda lease: (-lease.since, -lease.borrower_id.count("##"), -lease.lease_id))


def borrowed_in(
    ledger: Ledger, cluster_id: str, besides: str, now: int = 0, expires_at: int | None = None
) -> Iterator[Lease]:
    """What others in a cluster than one child have borrowed from the cluster, the newest first.

    Then what gangs of its jobs use: they have borrowed it from nobody, but a lender may take the place of the cluster
    there too. These leases have no id yet.
    """
    for lease in newest_first(one for one in ledger.leases.values() if one.lender_id == cluster_id):
        borrower = ledger.clusters.get(lease.borrower_id)
        if borrower is not None and borrower.parent_id == cluster_id and lease.borrower_id != besides:
            yield lease
    leased: dict[str, Amounts] = {}
    for lease in ledger.leases.values():
        leased[lease.vnode_id] = rs.add(leased.get(lease.vnode_id, {}), lease.amounts)
    for child_id in sorted(ledger.subclusters.get(cluster_id, ())):
        for vnode in ledger.slots(child_id) if ledger.clusters[child_id].kind == JOB else ():
            own = rs.subtract(vnode.allocation.amounts, leased.get(vnode.vnode_id, {}))
            own = {name: amount for name, amount in own.items() if amount > 0}
            if own:
                yield Lease(0, child_id, cluster_id, vnode.vnode_id, vnode.node_id, own, now, expires_at)
