"""Leases: which are due, which are called in, how they return level by level, and which a growth needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from vctl.core import resources as rs
from vctl.core.clusters import VNode
from vctl.core.leases import CALLED, Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.core.values import replace
from vctl.engine.changes import Change, LeaseGranted, LeaseReturned, VNodesChanged
from vctl.engine.settings import LeaseTerms, Memo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import Now
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.leasing import above_minimum, borrowed_in, idle_parts, newest_first, restored, return_of
from vctl.scheduler.lending import regain
from vctl.scheduler.replacement import below


def expired(state: SchedulerState, memo: Memo, now: Now) -> Iterator[Change]:
    """Return the idle parts of leases that nobody wanted for long enough, that have expired, or were called in.

    What somebody wants does not wait for that: the start that needs it returns it (``vctl/scheduler/recall.py``).
    """
    memo.unneeded_leases &= state.leases.keys()
    idle_s = {lease_id: (now.uptime - since) / 1e9 for lease_id, since in memo.idle_leases.items()}
    idle_s |= dict.fromkeys(memo.unneeded_leases, state.lease_terms.idle_s)
    found = waits(state, idle_s, state.lease_terms, now.wall)
    memo.idle_leases = {one.lease_id: memo.idle_leases.get(one.lease_id, now.uptime) for one, _ in found}
    memo.due += [now.uptime + int(wait_s * 1e9) for _, wait_s in found if wait_s > 0]
    yield from give_back(state, [lease for lease, wait_s in found if wait_s <= 0])


def waits(
    state: SchedulerState, idle_s: Mapping[int, float], terms: LeaseTerms, now: int
) -> list[tuple[Lease, float]]:
    """The leases of which a part is idle, newest first, and the seconds until each is due.

    ``idle_s``: how long a lease has been idle.
    """
    called, nominated = called_in(state), nominated_slots(state)
    found = []
    for lease in newest_first(state.leases.values()):
        number = lease.lease_id
        if lease.vnode_id in nominated and number not in called:
            continue
        if next(idle_parts(state.ledger, lease, state.leases.values()), None) is None:
            continue
        wait_s = max(terms.idle_s - idle_s.get(number, 0.0), (lease.since - now) / 1e9 + terms.cooldown_s)
        if lease.expires_at is not None:
            wait_s = min(wait_s, (lease.expires_at - now) / 1e9)
        found.append((lease, 0.0 if number in called else wait_s))
    return found


def nominated_slots(state: SchedulerState) -> set[str]:
    """Virtual nodes of which a part is reserved for the winner of a preemption."""
    return {part[0] for nomination in state.nominations.values() for part in nomination.pieces}


def give_back(state: SchedulerState, due: Sequence[Lease]) -> Iterator[Change]:
    """Return the idle parts of leases. A parent that borrowed what a child returns passes it on at once."""
    ledger, waiting, nominated = state.ledger, list(due), nominated_slots(state)
    while waiting:
        lease = waiting.pop(0)
        if state.leases.get(lease.lease_id) != lease:
            continue  # removed or changed meanwhile
        for vnode, part in list(idle_parts(ledger, lease, state.leases.values())):
            if vnode.vnode_id in nominated and vnode.vnode_id != lease.vnode_id:
                continue
            done = return_of(ledger, lease, part, vnode)
            lease = replace(lease, amounts=done.left)
            yield VNodesChanged(done.removed, done.placed)
            yield LeaseReturned(lease)
            for more in restored(ledger, lease, done.before, done.after):
                yield VNodesChanged(placed=(more,), for_start=True)
            waiting += newest_first([up for up in state.leases.values() if up.vnode_id == vnode.parent_id])


def called_in(state: SchedulerState) -> set[int]:
    """The called leases and all leases of virtual nodes inside theirs, which have to return first."""
    leases = state.leases.values()
    inside = {slot for one in leases if one.state == CALLED for slot in slots_inside(state, one.vnode_id)}
    return {one.lease_id for one in leases if one.vnode_id in inside} if inside else set()


def slots_inside(state: SchedulerState, vnode_id: str) -> set[str]:
    """A virtual node and all virtual nodes inside it."""
    there = below(state.ledger, vnode_id) if vnode_id in state.ledger.vnodes else ()
    return {vnode_id, *(vnode.vnode_id for vnode in there)}


def returned(leases: Mapping[int, Lease], steps: Iterable[Grow]) -> Iterator[LeaseReturned]:
    """What is left of the leases of which the growth for a start returns parts."""
    left: dict[int, Lease] = {}
    for step in steps:
        if step.returns is not None:
            known = {step.returns.lease_id: left.get(step.returns.lease_id, leases[step.returns.lease_id])}
            lease = step.lease_after(known)
            assert lease is not None
            left[lease.lease_id] = lease
    for lease in left.values():
        yield LeaseReturned(lease)


Loans = dict[str, list[tuple[str, dict[str, int]]]]
"""Virtual node in which loans came free -> (lender, what nobody has borrowed of it yet)."""


def loans_of(steps: Iterable[Grow]) -> Loans:
    """The loans that steps of growth let out of the clusters around their lenders."""
    found: Loans = {}
    for step in steps:
        if step.lends is not None and not step.lends_inside:
            lent = {name: -amount for name, amount in step.gained.items()}
            found.setdefault(step.after.parent_id or "", []).append((step.lends, lent))
    return found


def granted(
    ledger: Ledger, steps: Sequence[Grow], now: int, number: Callable[[], int], *, lease_s: float | None = None,
    job_id: int | None = None, loans: Loans | None = None,
) -> Iterator[LeaseGranted | LeaseReturned]:  # fmt: skip
    """The leases for the growth of one change, whose steps are in the ledger already; top level first.

    ``loans``: of these a growth borrows first. What it borrows is taken out. A cluster that borrows what it lacks
    of its minimum has lent that to others: the new lender takes its place there.
    """
    gained: dict[str, Amounts] = {}
    todo: list[tuple[Grow, Amounts]] = []
    for step in reversed(steps):
        cluster_id = step.after.cluster_id
        later = gained.get(cluster_id, {})
        todo.append((step, above_minimum(ledger, step, later)))
        gained[cluster_id] = rs.add(later, step.gained)
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    for step, over in reversed(todo):
        vnode, left = step.after, dict(over)
        inside = {name: amount - over.get(name, 0) for name, amount in step.gained.items()}
        inside = {name: amount for name, amount in inside.items() if amount > 0}
        supplies = list((loans or {}).get(vnode.parent_id or "", ()))
        if step.lender_id is not None:
            supplies.append((step.lender_id, dict(step.lent)))
        found = _borrowed(supplies, left)
        parent_id = ledger.clusters[vnode.cluster_id].parent_id or ""
        for lender_id, lent in (*found, (parent_id, left)):
            if lent:
                lease = Lease(
                    0,
                    vnode.cluster_id,
                    lender_id,
                    vnode.vnode_id,
                    vnode.node_id,
                    lent,
                    now,
                    expires_at,
                    job_id,
                )
                shared = any(lent.get(name, 0) % rs.SCALE for name in vnode.allocation.instances)
                known = _extended(ledger, lease) if lender_id == parent_id and not shared else None
                yield LeaseGranted(known or replace(lease, lease_id=number()))
        for lender_id, lent in _borrowed(supplies, inside) if inside and supplies else ():
            yield from _taken_over(_lent_by(ledger, vnode.cluster_id, lender_id), lender_id, lent, number)
    for step in steps:
        if step.lends is not None and step.lends_inside:
            above = ledger.clusters[step.after.cluster_id].parent_id or ""
            found_there = borrowed_in(ledger, above, step.after.cluster_id, now, expires_at)
            lent = {name: -amount for name, amount in step.gained.items()}
            yield from _taken_over(found_there, step.lends, lent, number)


def _extended(ledger: Ledger, lease: Lease) -> Lease | None:
    """The lease that this one only makes larger: a parent that lends once more in the same place, for as long.

    Leases of siblings stay apart, because each is reclaimed by itself, and so do shares of one GPU.
    """
    units = ledger.vnodes[lease.vnode_id].allocation.instances
    for one in ledger.leases.values():
        if any(one.amounts.get(name, 0) % rs.SCALE for name in units):
            continue
        if replace(lease, lease_id=one.lease_id, amounts=one.amounts, since=one.since) == one:
            return replace(one, amounts=rs.add(one.amounts, lease.amounts), since=lease.since)
    return None


def _lent_by(ledger: Ledger, before: str, lender_id: str) -> Iterator[Lease]:
    """What a cluster has lent to others beside it, and another lender may lend in its place, the newest first."""
    around = {up.parent_id for up in ledger.upward(lender_id)}
    for lease in newest_first(one for one in ledger.leases.values() if one.lender_id == before):
        borrower = ledger.clusters.get(lease.borrower_id)
        if borrower is not None and borrower.parent_id != before and borrower.parent_id in around:
            yield lease


def _taken_over(
    loans: Iterable[Lease], lender_id: str, amounts: Amounts, number: Callable[[], int]
) -> Iterator[LeaseGranted | LeaseReturned]:
    """Let a lender take the place of another one in loans of these amounts, in their order."""
    left = dict(amounts)
    for lease in list(loans):
        part = {name: min(amount, left.get(name, 0)) for name, amount in lease.amounts.items()}
        part = {name: amount for name, amount in part.items() if amount > 0}
        if part:
            left = rs.subtract(left, part)
            if lease.lease_id:
                rest = {n: a - part.get(n, 0) for n, a in lease.amounts.items() if a > part.get(n, 0)}
                yield LeaseReturned(replace(lease, amounts=rest))
            yield LeaseGranted(replace(lease, lease_id=number(), lender_id=lender_id, amounts=part))


def granted_to_gang(
    vnodes: Iterable[VNode], loans: Loans, now: int, number: Callable[[], int], *, lease_s: float | None = None,
    job_id: int | None = None,
) -> Iterator[LeaseGranted]:  # fmt: skip
    """The leases of a job whose virtual nodes lie in what clusters beside it have lent."""
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    for vnode in vnodes:
        amounts = {name: amount for name, amount in vnode.allocation.amounts.items() if amount}
        for lender_id, lent in _borrowed(loans.get(vnode.parent_id or "", ()), amounts):
            yield LeaseGranted(Lease(
                number(), vnode.cluster_id, lender_id, vnode.vnode_id, vnode.node_id, lent, now,
                expires_at, job_id,
            ))  # fmt: skip


def _borrowed(
    loans: Iterable[tuple[str, dict[str, int]]], wanted: dict[str, int]
) -> list[tuple[str, dict[str, int]]]:
    """(Lender, amounts) out of loans for what is wanted. Both are reduced by that."""
    found = []
    for lender_id, left in loans:
        lent = {name: min(amount, left.get(name, 0)) for name, amount in wanted.items() if left.get(name, 0)}
        for name, amount in lent.items():
            left[name] -= amount
            wanted[name] -= amount
            if not wanted[name]:
                del wanted[name]
        if lent:
            found.append((lender_id, lent))
    return found


def regained(state: SchedulerState) -> Iterator[Change]:
    """Lenders take back what a job had borrowed that is over."""
    if state.ledger.lenders:
        for vnode in regain(state.ledger):
            yield VNodesChanged(placed=(vnode,), for_start=True)
