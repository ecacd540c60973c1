"""Leases: which are due, which are called in, how they return level by level, and which a growth needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vctl.core import resources as rs
from vctl.core.clusters import VNode
from vctl.core.leases import CALLED, Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts, beyond, least_of
from vctl.core.values import replace
from vctl.engine.changes import Change, LeaseGranted, LeaseReturned, VNodesChanged
from vctl.engine.settings import TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import Now
from vctl.scheduler.elasticity import Grow, is_below
from vctl.scheduler.leasing import (
    above_minimum,
    borrowed_in,
    extended,
    idle_parts,
    newest_first,
    restored,
    return_of,
)
from vctl.scheduler.lending import regain
from vctl.scheduler.replacement import below


class Due(NamedTuple):
    """An idle part of a lease that returns after ``wait_s``: at most these amounts, of one virtual node or of all."""

    lease: Lease
    wait_s: float
    limit: Amounts
    vnode_id: str | None = None


Idle = dict[int, tuple[int, Amounts]]
"""Lease -> since when, and how much of it has been idle all the time since then."""


def expired(state: SchedulerState, memo: TurnMemo, now: Now) -> Iterator[Change]:
    """Return the idle parts of leases that nobody wanted for long enough, that have expired, or were called in.

    What somebody wants does not wait for that: the start that needs it returns it (``vctl/scheduler/recall.py``).
    """
    memo.vacated_vnodes &= state.ledger.vnodes.keys()
    parts, memo.idle_leases = waits(state, memo, now)
    memo.due += [now.uptime + int(part.wait_s * 1e9) for part in parts if part.wait_s > 0]
    due = [part for part in parts if part.wait_s <= 0]
    yield from give_back(state, due)
    for part in due:
        memo.idle_leases.pop(part.lease.lease_id, None)  # what else is idle was not so for as long


def waits(state: SchedulerState, memo: TurnMemo, now: Now) -> tuple[list[Due], Idle]:
    """The idle parts of leases, newest first, and how much of each has been idle since when."""
    terms, ledger, called = state.lease_terms, state.ledger, called_in(state)
    due: list[Due] = []
    idle: Idle = {}
    nominated = nominated_slots(state)
    for lease in newest_first(state.leases.values()):
        is_called = lease.lease_id in called
        keep = _keeps(() if is_called else nominated)
        amounts = rs.total(part.amounts for _, part in idle_parts(ledger, lease, keep=keep))
        if is_called and amounts:
            due.append(Due(lease, 0.0, amounts))
        if is_called or not amounts:
            continue
        cools_s = (lease.since - now.wall) / 1e9 + terms.cooldown_s
        vnode_ids = sorted(memo.vacated_vnodes & ledger.members[lease.borrower_id].keys())
        due += [Due(lease, cools_s, amounts, vnode_id) for vnode_id in vnode_ids]
        since, still = memo.idle_leases.get(lease.lease_id, (now.uptime, amounts))
        if not (still := least_of(still, amounts)):  # what was idle is in use, and something else is idle
            since, still = now.uptime, amounts
        idle[lease.lease_id] = since, still
        wait_s = max(terms.idle_s - (now.uptime - since) / 1e9, cools_s)
        if lease.expires_at is not None and (ends_s := (lease.expires_at - now.wall) / 1e9) < wait_s:
            wait_s, still = ends_s, amounts
        due.append(Due(lease, wait_s, still))
    return due, idle


def _keeps(nominated: Collection[str], only: str | None = None) -> Callable[[VNode], bool]:
    """Whether a virtual node gives nothing back now: some are nominated. ``only``: the one that gives something."""
    return lambda vnode: vnode.vnode_id in nominated or only not in (None, vnode.vnode_id)


def nominated_slots(state: SchedulerState) -> set[str]:
    """Virtual nodes of which a part is reserved for the winner of a preemption."""
    return {part[0] for nomination in state.nominations.values() for part in nomination.pieces}


def give_back(state: SchedulerState, due: Sequence[Due]) -> Iterator[Change]:
    """Return the idle parts of leases. A parent that borrowed what a child returns passes it on at once."""
    called = called_in(state)
    for part in due:
        yield from _returning(state, part.lease.lease_id, part.limit, called, part.vnode_id)


def _returning(
    state: SchedulerState, number: int, limit: Amounts, called: Collection[int], only: str | None = None
) -> Generator[Change, None, Amounts]:
    """Return idle parts of a lease, at most these amounts; the result is what was returned."""
    ledger, is_called = state.ledger, number in called
    if (lease := state.leases.get(number)) is None:
        return {}
    nominated = () if is_called else nominated_slots(state)  # a lender that wants it back comes first
    idle = list(idle_parts(ledger, lease, limit, _keeps(nominated, only)))
    if not idle:
        return {}
    amounts = rs.total(part.amounts for _, part in idle)
    steps = [return_of(ledger, lease, part, vnode) for vnode, part in idle]
    removed = tuple(step.after.vnode_id for step in steps if step.is_removal)
    yield VNodesChanged(removed, tuple(step.after for step in steps if not step.is_removal))
    yield LeaseReturned(replace(lease, amounts=beyond(lease.amounts, amounts)))
    rest: Amounts = amounts
    for vnode, part in idle:
        for level, more in enumerate(restored(ledger, lease, vnode.parent_id or "", part)):
            if level == 0:  # what the lender has again does not go further up
                rest = beyond(rest, Grow(ledger.vnodes.get(more.vnode_id), more).gained)
            yield VNodesChanged(placed=(more,), for_start=True)
    parent_id = ledger.clusters[lease.borrower_id].parent_id or ""
    for up in newest_first(ledger.borrowed(parent_id)):
        if rest and (up.lease_id in called or not is_called):
            rest = beyond(rest, (yield from _returning(state, up.lease_id, rest, called)))
    return amounts


def called_in(state: SchedulerState) -> set[int]:
    """The called leases, and all leases of clusters inside their borrowers, which have to return first."""
    called = {lease.borrower_id for lease in state.leases.values() if lease.state == CALLED}
    return {
        lease.lease_id
        for lease in (state.leases.values() if called else ())
        if lease.state == CALLED or any(is_below(state.ledger, lease.borrower_id, top) for top in called)
    }


def slots_inside(state: SchedulerState, vnode_id: str) -> set[str]:
    """A virtual node and all virtual nodes inside it."""
    return {vnode_id, *(vnode.vnode_id for vnode in below(state.ledger, vnode_id))}


def returned(leases: Mapping[int, Lease], steps: Iterable[Grow]) -> Iterator[LeaseReturned]:
    """What is left of the leases of which the growth for a start returns parts."""
    remaining: dict[int, Lease] = {}
    for step in steps:
        if step.returns is not None:
            lease_id = step.returns.lease_id
            lease = step.lease_after({lease_id: remaining.get(lease_id, leases[lease_id])})
            assert lease is not None
            remaining[lease.lease_id] = lease
    for lease in remaining.values():
        yield LeaseReturned(lease)


Loans = dict[str, list[tuple[str, dict[str, int]]]]
"""Virtual node in which loans came free -> (lender, what nobody has borrowed of it yet)."""


def loans_of(steps: Iterable[Grow]) -> Loans:
    """The loans that steps of growth let out of the clusters around their lenders."""
    loans: Loans = {}
    for step in steps:
        if step.lends is not None and not step.lends_inside:
            lent = {name: -amount for name, amount in step.gained.items()}
            loans.setdefault(step.after.parent_id or "", []).append((step.lends, lent))
    return loans


def granted(
    ledger: Ledger, steps: Sequence[Grow], loans: Loans, now: int, number: Callable[[], int], *,
    lease_s: float | None = None, job_id: int | None = None,
) -> Iterator[LeaseGranted | LeaseReturned]:  # fmt: skip
    """The leases for the growth of one change, whose steps are in the ledger already; top level first.

    ``loans``: those that the steps let out; of these a growth borrows first. What it borrows is taken out. A cluster
    that borrows what it lacks of its minimum has lent that to others: the new lender takes its place there.
    """
    gained: dict[str, Amounts] = {}
    todo: list[tuple[Grow, Amounts]] = []
    for step in reversed(steps):
        cluster_id = step.after.cluster_id
        later = gained.get(cluster_id, {})
        todo.append((step, above_minimum(ledger, step, later)))
        gained[cluster_id] = rs.add(later, step.gained)
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    accounts: dict[tuple[str, str, str], Amounts] = {}
    takes: list[tuple[Iterator[Lease], str, dict[str, int]]] = []
    for step, over in reversed(todo):
        vnode, rest = step.after, dict(over)
        inside = beyond(step.gained, over)
        supplies = loans.get(vnode.parent_id or "", ())
        parent_id = ledger.clusters[vnode.cluster_id].parent_id or ""
        for lender_id, lent in (*borrowed(supplies, rest), (parent_id, rest)):
            has_share = any(lent.get(name, 0) % rs.SCALE for name in vnode.allocation.instances)
            key = (vnode.cluster_id, lender_id, vnode.vnode_id if has_share else "")
            accounts[key] = rs.add(accounts.get(key, {}), lent)
        for lender_id, lent in borrowed(supplies, inside) if inside and supplies else ():
            takes.append((_lent_by(ledger, vnode.cluster_id, lender_id), lender_id, lent))
    for (borrower_id, lender_id, _), total in accounts.items():
        if any(total.values()):
            more = Lease(0, borrower_id, lender_id, total, now, expires_at, job_id)
            yield put_on_account(ledger, more, number)
    for step in steps:
        if step.lends is not None and step.lends_inside:
            above = ledger.clusters[step.after.cluster_id].parent_id or ""
            inside_it = borrowed_in(ledger, above, step.after.cluster_id, now, expires_at)
            takes.append((inside_it, step.lends, {name: -amount for name, amount in step.gained.items()}))
    for candidates, lender_id, lent in takes:
        yield from _transferred(ledger, candidates, lender_id, lent, number)


def put_on_account(ledger: Ledger, more: Lease, number: Callable[[], int]) -> LeaseGranted:
    """Make the account larger by a lease, or open one."""
    return LeaseGranted(extended(ledger, more) or replace(more, lease_id=number()))


def _lent_by(ledger: Ledger, before: str, lender_id: str) -> Iterator[Lease]:
    """What a cluster has lent to others beside it, and another lender may lend in its place, the newest first."""
    around = {up.parent_id for up in ledger.upward(lender_id)}
    for lease in newest_first(loan for loan in ledger.leases.values() if loan.lender_id == before):
        borrower = ledger.clusters.get(lease.borrower_id)
        if borrower is not None and borrower.parent_id != before and borrower.parent_id in around:
            yield lease


def _transferred(
    ledger: Ledger, loans: Iterable[Lease], lender_id: str, amounts: Amounts, number: Callable[[], int]
) -> Iterator[LeaseGranted | LeaseReturned]:
    """Let a lender take the place of another one in loans of these amounts, in their order."""
    rest: Amounts = amounts
    for lease in list(loans):
        if part := least_of(lease.amounts, rest):
            rest = beyond(rest, part)
            if lease.lease_id:
                yield LeaseReturned(replace(lease, amounts=beyond(lease.amounts, part)))
            more = replace(lease, lease_id=0, lender_id=lender_id, amounts=part)
            yield put_on_account(ledger, more, number)


def granted_to_gang(
    vnodes: Iterable[VNode], loans: Loans, now: int, number: Callable[[], int], *, lease_s: float | None = None,
    job_id: int | None = None,
) -> Iterator[LeaseGranted]:  # fmt: skip
    """The leases of a job whose virtual nodes lie in what clusters beside it have lent."""
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    totals: dict[tuple[str, str], Amounts] = {}
    for vnode in vnodes:
        amounts = {name: amount for name, amount in vnode.allocation.amounts.items() if amount}
        for lender_id, some in borrowed(loans.get(vnode.parent_id or "", ()), amounts):
            key = (vnode.cluster_id, lender_id)
            totals[key] = rs.add(totals.get(key, {}), some)
    for (borrower_id, lender_id), lent in totals.items():
        yield LeaseGranted(Lease(number(), borrower_id, lender_id, lent, now, expires_at, job_id))


def borrowed(
    loans: Iterable[tuple[str, dict[str, int]]], requested: dict[str, int]
) -> list[tuple[str, dict[str, int]]]:
    """(Lender, amounts) out of loans for what is wanted. Both are reduced by that."""
    parts = []
    for lender_id, available in loans:
        lent = {
            name: min(amount, free) for name, amount in requested.items() if (free := available.get(name, 0))
        }
        for name, amount in lent.items():
            available[name] -= amount
            requested[name] -= amount
            if not requested[name]:
                del requested[name]
        if lent:
            parts.append((lender_id, lent))
    return parts


def regained(state: SchedulerState) -> Iterator[Change]:
    """Lenders take back what a job had borrowed that is over."""
    if state.ledger.lenders:
        for vnode in regain(state.ledger):
            yield VNodesChanged(placed=(vnode,), for_start=True)
