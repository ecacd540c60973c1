"""Fences around devices: where processes use a device that nobody booked for them, no new work gets it.

Two causes: processes of a run that is over and do not end, and processes from outside of vctl, where the setting
``foreign_gpu_processes`` is ``avoid``. A fence is in the row of the node, so that it outlives the scheduler that saw
its cause; it ends when the cause is no longer observed. What holds the device already keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vctl.core.nodes import Fence
from vctl.core.values import replace
from vctl.engine.changes import Change, DeviceFenced
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import DevicesObserved, Stimulus


def fenced(state: SchedulerState, stimuli: Iterable[Stimulus], now: int) -> Iterator[Change]:
    """Begin, change and end fences, as observed."""
    for stimulus in stimuli:
        if isinstance(stimulus, DevicesObserved):
            yield from _observed(state, stimulus, now)


def _observed(state: SchedulerState, seen: DevicesObserved, now: int) -> Iterator[Change]:
    node = state.ledger.nodes.get(seen.node_id)
    if node is None:
        return
    before, after = ({(one.name, one.number): one for one in some} for some in (node.fences, seen.fences))
    for name, number in sorted({*before, *after}):
        old, new = before.get((name, number)), after.get((name, number))
        if number not in node.total.instances.get(name, {}):
            new = None
        if old == new or (old is not None and new is not None and _is_same(old, new)):
            continue
        new = None if new is None else replace(new, since=now)
        others = [one for one in node.fences if (one.name, one.number) != (name, number)]
        fences = sorted([*others, *([] if new is None else [new])], key=lambda one: (one.name, one.number))
        node = replace(node, fences=tuple(fences))
        yield DeviceFenced(now, node, name, number, new)


def _is_same(before: Fence, after: Fence) -> bool:
    """Whether two observations are of one cause: some of the processes are there both times."""
    return before.why == after.why and not set(before.pids).isdisjoint(after.pids)
