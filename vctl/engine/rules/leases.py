"""Leases: which are due, which are called in, how they return level by level, and which a growth needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from vctl.core import resources as rs
from vctl.core.leases import CALLED, Lease
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import FAIR
from vctl.core.resources import Amounts
from vctl.core.values import replace
from vctl.engine.changes import Change, LeaseGranted, LeaseReturned, VNodesChanged
from vctl.engine.settings import LeaseTerms, Memo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import Now
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.fairness import Shares, must_yield
from vctl.scheduler.leasing import above_minimum, free_part, newest_first, restored, return_of
from vctl.scheduler.replacement import below


def expired(state: SchedulerState, memo: Memo, now: Now) -> Iterator[Change]:
    """Return the free parts of leases that were idle for long enough, have expired, or were called in."""
    memo.wanted_leases &= state.leases.keys()
    idle_s = {lease_id: (now.uptime - since) / 1e9 for lease_id, since in memo.idle_leases.items()}
    found = waits(state, idle_s, memo.wanted_leases, state.lease_terms, now.wall)
    memo.idle_leases = {one.lease_id: memo.idle_leases.get(one.lease_id, now.uptime) for one, _ in found}
    memo.due += [now.uptime + int(wait_s * 1e9) for _, wait_s in found if wait_s > 0]
    yield from give_back(state, [lease for lease, wait_s in found if wait_s <= 0])


def returnable(state: SchedulerState) -> list[Lease]:
    """All leases without nominated resources if a part of one is idle, else none.

    A lease that is not idle may become so once one below it is returned.
    """
    nominated = nominated_slots(state)
    leases = [lease for lease in state.leases.values() if lease.vnode_id not in nominated]
    return leases if any(_idle(state, lease) for lease in leases) else []


def _idle(state: SchedulerState, lease: Lease) -> Amounts:
    return free_part(state.ledger, lease, state.leases.values()).amounts


def waits(
    state: SchedulerState, idle_s: Mapping[int, float], wanted: Collection[int], terms: LeaseTerms, now: int
) -> list[tuple[Lease, float]]:
    """The leases of which a part is idle, newest first, and the seconds until each is due.

    ``idle_s``: how long a lease has been idle. ``wanted``: leases that others can use, due once cool.
    """
    ledger, called, nominated = state.ledger, called_in(state), nominated_slots(state)
    shares: Shares | None = None
    found = []
    for lease in newest_first(state.leases.values()):
        number, above = lease.lease_id, ledger.clusters[lease.borrower_id].parent_id
        if (lease.vnode_id in nominated and number not in called) or not _idle(state, lease):
            continue
        until_cool = (lease.since - now) / 1e9 + terms.cooldown_s
        wait_s = until_cool if number in wanted else max(terms.idle_s - idle_s.get(number, 0.0), until_cool)
        if lease.expires_at is not None:
            wait_s = min(wait_s, (lease.expires_at - now) / 1e9)
        if number in called:
            wait_s = 0.0
        elif above is not None and ledger.clusters[above].queue.order == FAIR:
            # what comes free goes to the next in order, not to the last borrower
            shares = shares or Shares(ledger, state.running, state.usage)
            if must_yield(ledger, shares, state.queues, lease.borrower_id):
                wait_s = 0.0
        found.append((lease, wait_s))
    return found


def nominated_slots(state: SchedulerState) -> set[str]:
    """Virtual nodes of which a part is reserved for the winner of a preemption."""
    return {part[0] for nomination in state.nominations.values() for part in nomination.pieces}


def give_back(state: SchedulerState, due: Sequence[Lease]) -> Iterator[Change]:
    """Return the free parts of leases. A parent that borrowed what a child returns passes it on at once."""
    ledger, waiting = state.ledger, list(due)
    while waiting:
        lease = waiting.pop(0)
        if state.leases.get(lease.lease_id) != lease:
            continue  # removed or changed meanwhile
        part = free_part(ledger, lease, state.leases.values())
        if not part.amounts:
            continue
        above = ledger.vnodes[lease.vnode_id].parent_id
        done = return_of(ledger, lease, part)
        yield VNodesChanged(done.removed, done.placed)
        yield LeaseReturned(replace(lease, amounts=done.left))
        if (more := restored(ledger, lease, done)) is not None:
            yield VNodesChanged(placed=(more,), for_start=True)
        waiting += newest_first([up for up in state.leases.values() if up.vnode_id == above])


def called_in(state: SchedulerState) -> set[int]:
    """The called leases and all leases of virtual nodes inside theirs, which have to return first."""
    leases = state.leases.values()
    inside = {slot for one in leases if one.state == CALLED for slot in slots_inside(state, one.vnode_id)}
    return {one.lease_id for one in leases if one.vnode_id in inside} if inside else set()


def slots_inside(state: SchedulerState, vnode_id: str) -> set[str]:
    """A virtual node and all virtual nodes inside it."""
    there = below(state.ledger, vnode_id) if vnode_id in state.ledger.vnodes else ()
    return {vnode_id, *(vnode.vnode_id for vnode in there)}


def granted(
    ledger: Ledger, steps: Sequence[Grow], now: int, number: Callable[[], int], *, lease_s: float | None = None,
    job_id: int | None = None,
) -> Iterator[LeaseGranted]:  # fmt: skip
    """The leases for the growth of one change, whose steps are in the ledger already; top level first."""
    gained: dict[str, Amounts] = {}
    todo: list[tuple[Grow, Amounts]] = []
    for step in reversed(steps):
        cluster_id = step.after.cluster_id
        later = gained.get(cluster_id, {})
        todo.append((step, above_minimum(ledger, step, later)))
        gained[cluster_id] = rs.add(later, step.gained)
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    for step, over in reversed(todo):
        vnode, parent_id = step.after, ledger.clusters[step.after.cluster_id].parent_id
        loan = {n: min(a, step.lent.get(n, 0)) for n, a in over.items() if step.lent.get(n, 0)}
        rest = {n: a - loan.get(n, 0) for n, a in over.items() if a > loan.get(n, 0)}
        for lender_id, lent in ((step.lender_id, loan), (parent_id, rest)):
            if lender_id is not None and lent:
                yield LeaseGranted(Lease(
                    number(), vnode.cluster_id, lender_id, vnode.vnode_id, vnode.node_id, lent, now,
                    expires_at, job_id,
                ))  # fmt: skip
