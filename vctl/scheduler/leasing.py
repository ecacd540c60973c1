"""Leases: the part of a growth above the minimum of a cluster, and how it is given back when it is idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, JOB, LOGICAL, VNode
from vctl.core.leases import CALLED, Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import (
    CPU,
    EMPTY,
    SCALE,
    Allocation,
    Amounts,
    FreeCapacity,
    beyond,
    difference,
    least_of,
)
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
    """Leases that are cut, with what is left (empty: none), and what is above the minimum without a lease."""

    cut: tuple[tuple[Lease, Mapping[str, int]], ...]
    fresh: Mapping[str, int]


def settle(ledger: Ledger, cluster_id: str, own: Amounts) -> Settled:
    """Match the leases of a cluster with what it has above its minimum, after either has changed.

    Older leases are kept before newer ones. ``own``: the part of the flexible virtual nodes that its
    entrypoint holds; it came with the gang and is no lease. What was lent to a job for its gang stays as far as
    the job has so much.
    """
    cluster = ledger.clusters[cluster_id]
    has = rs.total(part.allocation.amounts for part in flexible_parts(ledger, cluster_id))
    over = beyond(has, rs.maximum(cluster.spec.flexible_min, own))
    gang = rs.total(vnode.allocation.amounts for vnode in ledger.slots(cluster_id))
    cut: list[tuple[Lease, Mapping[str, int]]] = []
    for lease in kept_first(ledger, ledger.borrowed(cluster_id)):
        is_gang = is_of_gang(ledger, lease)
        rest = least_of(lease.amounts, gang if is_gang else over)
        over, gang = over if is_gang else beyond(over, rest), beyond(gang, rest)
        if rest != dict(lease.amounts):
            cut.append((lease, rest))
    return Settled(tuple(cut), over)


def kept_first(ledger: Ledger, leases: Iterable[Lease]) -> list[Lease]:
    """Leases in the order in which they are kept where there is less: older ones first, loans to gangs last."""
    return sorted(leases, key=lambda lease: (is_of_gang(ledger, lease), lease.since, lease.lease_id))


def extended(ledger: Ledger, more: Lease) -> Lease | None:
    """The account that a new lease only makes larger.

    A lease with a share of a unit stays alone: it returns as that share.
    """
    for account in ledger.borrowed(more.borrower_id) if not _has_share(ledger, more) else ():
        if (
            account.lease_id != more.lease_id
            and account.is_same_account(more)
            and not _has_share(ledger, account)
        ):
            return replace(
                account, amounts=rs.add(account.amounts, more.amounts), since=max(account.since, more.since)
            )
    return None


def _has_share(ledger: Ledger, lease: Lease) -> bool:
    """Whether a lease has a share of a unit, as half a GPU."""
    names = [name for name, amount in lease.amounts.items() if amount % SCALE]
    slots = ledger.slots(lease.borrower_id) if names else ()
    return any(name in slot.allocation.instances for slot in slots for name in names)


def idle_parts(
    ledger: Ledger, lease: Lease, most: Amounts | None = None, keep: Callable[[VNode], bool] | None = None
) -> Iterator[tuple[VNode, Allocation]]:
    """What a lease could return now: idle parts of the borrower's flexible virtual nodes, up to its amounts.

    A loan is a matter of amounts: a cluster whose borrowed part is in use and whose minimum lies idle
    elsewhere returns the latter, and what it uses becomes its minimum. Unused virtual nodes come first, so that
    whole nodes come free. ``most``: at most this. ``keep``: the virtual nodes that stay as they are.
    """
    cluster = ledger.clusters.get(lease.borrower_id)
    if cluster is None:
        return
    some = [ledger.vnodes[one] for one in sorted(ledger.with_free(lease.borrower_id))]
    free = [one for one in some if one.kind == FLEXIBLE]
    if not free:
        return
    parts = flexible_parts(ledger, lease.borrower_id)
    beside = [one for one in ledger.borrowed(lease.borrower_id) if one.lease_id != lease.lease_id]
    least: Amounts = cluster.spec.flexible_min
    if is_of_gang(ledger, lease):  # of this only what the job has grown by is ever idle
        least = rs.total([least, *(one.amounts for one in beside if one.lender_id == cluster.parent_id)])
    over = beyond(rs.total(part.allocation.amounts for part in parts), least)
    left = lease.amounts if most is None else least_of(lease.amounts, most)
    rest = {part.vnode_id: part.allocation for part in parts}
    order = free[::-1]
    order.sort(key=lambda one: not ledger.capacities[one.vnode_id].is_untouched())
    for part in order:
        wanted = least_of(least_of(left, over), ledger.capacities[part.vnode_id].free)
        if not wanted or (keep is not None and keep(part)):
            continue
        idle = _spare(ledger, part, left, wanted, least, rest, beside)
        if idle.amounts:
            yield part, idle
            left, over = beyond(left, idle.amounts), beyond(over, idle.amounts)
            rest[part.vnode_id] = difference(part.allocation, idle)


def is_of_gang(ledger: Ledger, lease: Lease) -> bool:
    """Whether a lease is a loan of another cluster than its parent to a job, which may need it for its gang."""
    borrower = ledger.clusters.get(lease.borrower_id)
    return borrower is not None and borrower.kind == JOB and borrower.parent_id != lease.lender_id


def free_of(ledger: Ledger, vnode: VNode, most: Amounts, least: Amounts) -> Allocation:
    """The part of these amounts that a virtual node can give away now, so that its cluster keeps ``least``."""
    parts = flexible_parts(ledger, vnode.cluster_id)
    over = beyond(rs.total(part.allocation.amounts for part in parts), least)
    wanted = least_of(least_of(most, over), ledger.capacities[vnode.vnode_id].free)
    return _spare(ledger, vnode, most, wanted, least, {part.vnode_id: part.allocation for part in parts})


def _spare(
    ledger: Ledger, vnode: VNode, most: Amounts, wanted: Amounts, least: Amounts, parts: Mapping[str, Allocation],
    beside: Iterable[Lease] = (),
) -> Allocation:  # fmt: skip
    """What of the wanted amounts, which are free, a virtual node can give away: of a unit only certain shares.

    ``most``: the amounts of which these are a part; only their shares of a unit may be split off. ``parts``: what
    each flexible virtual node of its cluster has. ``beside``: the other leases of the cluster. A unit that one of
    them is to return whole is not split.
    """
    capacity, held = ledger.capacities[vnode.vnode_id], vnode.allocation
    amounts, instances = dict(wanted), dict[str, dict[int, int]]()
    for name in wanted.keys() & capacity.instances.keys():
        whole = sum(one.amounts.get(name, 0) // SCALE for one in beside) if most[name] % SCALE else 0
        shares = _Shares(name, vnode, capacity, parts, least.get(name, 0))
        instances[name] = shares.returned(wanted[name], most[name] % SCALE, whole)
        amounts[name] = sum(instances[name].values())
    amounts = {name: amount for name, amount in amounts.items() if amount}
    surplus = len(held.cores) - (held.amounts.get(CPU, 0) - amounts.get(CPU, 0)) // SCALE
    cores = sorted(capacity.cores, reverse=True)[: max(surplus, 0)]
    return Allocation(amounts, {n: some for n, some in instances.items() if some}, tuple(sorted(cores)))


class _Shares:
    """The instances of one resource in a cluster, and which shares of one virtual node can be given away."""

    def __init__(
        self, name: str, vnode: VNode, capacity: FreeCapacity, parts: Mapping[str, Allocation], least: int
    ) -> None:
        self.name, self.vnode, self.parts, self.least = name, vnode, parts, least
        self.free = capacity.instances[name]
        self.shares = dict(vnode.allocation.instances.get(name, {}))

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
        if not any(needs):
            return True
        before = sorted([*self._elsewhere, *self.shares.values()], reverse=True)
        changed = {**self.shares, index: self.shares[index] - part}
        after = sorted([*self._elsewhere, *changed.values()], reverse=True)
        return all(a >= min(need, b) for need, a, b in zip(needs, after, before, strict=False))

    @cached_property
    def _elsewhere(self) -> list[int]:
        """The shares in the other virtual nodes of the cluster."""
        others = (one for vnode_id, one in self.parts.items() if vnode_id != self.vnode.vnode_id)
        return [share for one in others for share in one.instances.get(self.name, {}).values()]


def return_of(ledger: Ledger, lease: Lease, part: Allocation, vnode: VNode) -> Grow:
    """The step by which a lease returns an idle part of a virtual node."""
    after = replace(vnode, allocation=difference(vnode.allocation, part))
    # an empty virtual node is removed unless it has children or processes, which may hold nothing
    is_gone = not any(after.allocation.amounts.values()) and not is_used(ledger, vnode.vnode_id)
    return Grow(vnode, after, returns=lease, is_removal=is_gone)


def restored(ledger: Ledger, lease: Lease, slot_id: str, gone: Allocation) -> Iterator[VNode]:
    """The virtual nodes of a lender and of the clusters around it after a return into a slot, outermost first.

    Each grows again, up to its minimum; it gets a virtual node where it has none. The caller puts each into the
    ledger before it asks for the next. None: the parent was the lender, or nothing is lacking.
    """
    borrower = ledger.clusters.get(lease.borrower_id)
    if borrower is None or lease.lender_id == borrower.parent_id:
        return
    around = []
    for cluster in ledger.upward(lease.lender_id):
        around.append(cluster)
        if cluster.parent_id == borrower.parent_id:
            break
    else:
        return
    for lender in reversed(around):
        has = rs.total(part.allocation.amounts for part in flexible_parts(ledger, lender.cluster_id))
        gone = _at_most(gone, beyond(lender.spec.flexible_min, has))
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
    """Leases in the order in which they are returned and reclaimed: called ones, then the newest ones.

    Of equals the deepest borrower comes first.
    """

    def key(lease: Lease) -> tuple[bool, int, int, int]:
        return (lease.state != CALLED, -lease.since, -lease.borrower_id.count("##"), -lease.lease_id)

    return sorted(leases, key=key)


def borrowed_in(
    ledger: Ledger, cluster_id: str, besides: str, now: int = 0, expires_at: int | None = None
) -> Iterator[Lease]:
    """What others in a cluster than one child have borrowed from the cluster, the newest first.

    Then what gangs of its jobs use: they have borrowed it from nobody, but a lender may take the place of the cluster
    there too. These leases have no id yet.
    """
    for lease in newest_first(loan for loan in ledger.leases.values() if loan.lender_id == cluster_id):
        borrower = ledger.clusters.get(lease.borrower_id)
        if borrower is not None and borrower.parent_id == cluster_id and lease.borrower_id != besides:
            yield lease
    for child_id in sorted(ledger.subclusters.get(cluster_id, ())):
        if ledger.clusters[child_id].kind == JOB:
            has = rs.total(vnode.allocation.amounts for vnode in ledger.slots(child_id))
            if own := beyond(has, rs.total(lease.amounts for lease in ledger.borrowed(child_id))):
                yield Lease(0, child_id, cluster_id, own, now, expires_at)
