"""Which leases are called in, and how leases are given back, level by level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vctl.core.leases import CALLED, Lease
from vctl.engine.changes import Change, LeaseReturned, VNodesChanged
from vctl.engine.state import SchedulerState
from vctl.scheduler.leasing import free_part, newest_first, restored, return_of
from vctl.scheduler.replacement import below


def give_back(state: SchedulerState, due: Sequence[Lease]) -> Iterator[Change]:
    """Return what is free of leases; what a child returns its parent may have borrowed too: that goes up at once."""
    ledger, waiting = state.ledger, list(due)
    while waiting:
        lease = waiting.pop(0)
        if state.leases.get(lease.lease_id) != lease:
            continue  # destroyed or changed meanwhile
        part = free_part(ledger, lease)
        if not part:
            continue
        above = ledger.vnodes[lease.vnode_id].parent_id
        done = return_of(ledger, lease, part)
        yield VNodesChanged(done.removed, done.placed)
        yield LeaseReturned(replace(lease, amounts=done.left))
        if (more := restored(ledger, lease, done)) is not None:
            yield VNodesChanged(placed=(more,), for_start=True)
        waiting += newest_first([up for up in state.leases.values() if up.vnode_id == above])


def called_in(state: SchedulerState) -> set[int]:
    """Leases that their lender wants back, and what was borrowed further of them: that returns first."""
    leases = state.leases.values()
    inside = {slot for one in leases if one.state == CALLED for slot in slots_inside(state, one.vnode_id)}
    return {one.lease_id for one in leases if one.vnode_id in inside} if inside else set()


def slots_inside(state: SchedulerState, vnode_id: str) -> set[str]:
    """A virtual node and everything that lies in it."""
    there = below(state.ledger, vnode_id) if vnode_id in state.ledger.vnodes else ()
    return {vnode_id, *(vnode.vnode_id for vnode in there)}
