"""Applies changes: the only way to change the state. Their types say how (``vctl/engine/changes``)."""

from __future__ import annotations

from vctl.engine.changes import Change, JobStarted
from vctl.engine.state import SchedulerState


def apply(state: SchedulerState, change: Change) -> None:
    """Apply a change. All but ``JobStarted`` first take back the starts that were only tried.

    A change that is applied again does nothing: a state loaded from the tables may contain it already.
    """
    if state.trial is not None and type(change) is not JobStarted:
        state.end_trial()
    change.apply(state)
