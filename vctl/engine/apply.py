"""The only way to change the state: a change is applied. Its type says how (``vctl/engine/changes``)."""

from __future__ import annotations

from vctl.engine.changes import Change, JobStarted
from vctl.engine.state import SchedulerState


def apply(state: SchedulerState, change: Change) -> None:
    """Change the state. Starts that were only tried are taken back first.

    A change that is applied again does nothing: a follower may know it from the tables already.
    """
    if state.trial is not None and type(change) is not JobStarted:
        state.end_trial()
    change.apply(state)
