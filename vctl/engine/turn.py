"""A turn of the scheduler: what follows from what was observed, in a fixed order, and what is done outside then.

Nothing here reads a clock, a table or a file. The scheduler (``vctl/daemon/scheduler.py``) observes, gives the time,
makes the changes in a transaction, and carries the effects out after its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vctl.engine.changes import Change
from vctl.engine.rules import ends, gates, nodes, preemption, stops
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import Stimulus


class Now(NamedTuple):
    """One moment in nanoseconds: since the epoch, and since the machine started."""

    wall: int
    uptime: int


def rules(state: SchedulerState, stimuli: Sequence[Stimulus], now: Now) -> Iterator[Change]:
    """All changes that follow. Each is applied before the next one is asked for, so later rules see it."""
    if stimuli:
        yield from ends.processes(state, stimuli, now.wall)
        yield from stops.warned(state, stimuli, now.uptime)
        yield from preemption.told(state, stimuli)
    if state.stops:
        yield from stops.asked(state)
    yield from stops.limits(state, now.uptime)
    yield from gates.begin_due(state, now.wall)
    yield from gates.admit_members(state)
    if state.nominations or state.preemptions:
        yield from preemption.review(state, now.wall)
        yield from preemption.due(state, now.wall)
    yield from nodes.drained(state, now.wall)


def follows(state: SchedulerState, now: Now) -> bool:
    """Whether any change follows although nothing was observed."""
    return any(True for _ in rules(state, (), now))


def looked_at(state: SchedulerState) -> None:
    """The rules have seen what was to be looked at."""
    state.stops.clear()
    state.array_limits.changed.clear()
