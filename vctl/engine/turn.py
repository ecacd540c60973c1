"""The rules of the scheduler in a fixed order: each rule sees the changes of the rules before it.

Nothing here reads a clock, a table or a file. ``vctl/daemon/turn.py`` observes, gives the time, makes the
changes in a transaction, and carries the effects out after its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vctl.core.values import replace
from vctl.engine.changes import Change
from vctl.engine.rules import (
    bookings,
    devices,
    ends,
    gates,
    leases,
    machines,
    nodes,
    objects,
    preemption,
    revocation,
    stops,
)
from vctl.engine.rules.starts import Supply
from vctl.engine.settings import NO_PROVIDER, TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import Now, Stimulus, Sweep


def rules(
    state: SchedulerState, stimuli: Sequence[Stimulus], now: Now, supply: Supply, memo: TurnMemo
) -> Iterator[Change]:
    """All changes that follow. The caller applies each before it asks for the next: later rules see it."""
    memo.due.clear()
    sweep = any(isinstance(stimulus, Sweep) for stimulus in stimuli)
    if stimuli:
        yield from nodes.silent(state, stimuli, now.wall)
        yield from devices.fenced(state, stimuli, now.wall)
    if state.dead_nodes and state.changed.nodes:  # before the ends of processes, which then have this reason
        yield from nodes.failed(state)
    if stimuli:
        yield from ends.processes(state, stimuli, now.wall, supply.lease)
        yield from gates.awaited(state, stimuli, now.wall)
        yield from stops.warned(state, stimuli, now.uptime)
        yield from preemption.notified(state, stimuli)
        revocation.begin_graces(state, memo, stimuli, now)
    if state.ledger.timed:
        yield from bookings.closed(state, now.wall)
    if state.to_stop:
        yield from stops.requested(state)
    yield from stops.limits(state, now.uptime)
    yield from gates.unfold_members(state)
    yield from gates.begin_due(state, now.wall)
    yield from gates.admit_members(state)
    if state.nominations or state.preemptions:
        yield from preemption.review(state, now.wall)
        yield from preemption.due(state, now.wall)
    yield from nodes.upkeep(state, memo, now.wall, supply.lease, sweep=sweep)
    if state.ledger.booked is not None:
        yield from bookings.opened(state, now.wall)
        yield from bookings.relocated(state, memo, now.wall)
    if state.leases or memo.notified:
        yield from leases.expired(state, memo, now)
        yield from revocation.revoked(state, memo, now, supply.lease)
    yield from leases.regained(state)
    if state.machine_terms.kind != NO_PROVIDER:
        yield from machines.changes(state, memo, stimuli, now, supply.request)
    if state.changed.nodes:
        yield from objects.lost(state, now.wall)
    if sweep:
        yield from objects.abandoned(state, now.wall)


def follows(
    state: SchedulerState, stimuli: Sequence[Stimulus], now: Now, supply: Supply, memo: TurnMemo
) -> bool:
    """Whether any change follows. It is not made, so it takes no number of a lease."""
    return any(True for _ in rules(state, stimuli, now, replace(supply, lease=lambda: 0), memo))


def looked_at(state: SchedulerState) -> None:
    """Forget which nodes have changed: the rules have seen them."""
    state.changed.nodes.clear()
