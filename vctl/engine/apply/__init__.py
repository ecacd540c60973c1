"""The only code that changes the state for the changes that have moved: one function for each, called by its type.

Applied again, a change does nothing: a follower may know of it from the tables already.
"""

from importlib import import_module

from vctl.engine.apply.table import CASES
from vctl.engine.changes import HOMES, Change, JobStarted
from vctl.engine.state import SchedulerState

for home in HOMES:
    import_module(f"{__name__}.{home}")


def apply(state: SchedulerState, change: Change) -> None:
    """Let the state be what it is after a change. What was only tried is taken back first."""
    if state.trial is not None and type(change) is not JobStarted:
        state.end_trial()
    CASES[type(change)](state, change)
