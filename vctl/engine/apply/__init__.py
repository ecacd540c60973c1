"""The only code that changes the state for the changes that have moved: one function for each, called by its type.

Applied again, a change does nothing: a follower may know of it from the tables already.
"""

from vctl.engine.apply import clusters, gates, jobs, nodes, runs
from vctl.engine.apply.table import Table
from vctl.engine.changes import Change
from vctl.engine.state import SchedulerState

_APPLY: Table = {**jobs.APPLY, **gates.APPLY, **runs.APPLY, **clusters.APPLY, **nodes.APPLY}


def apply(state: SchedulerState, change: Change) -> None:
    """Let the state be what it is after a change."""
    _APPLY[type(change)](state, change)
