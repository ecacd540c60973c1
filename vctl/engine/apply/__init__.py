"""The only code that changes the state for the changes that have moved: one function for each, called by its type.

Applied again, a change does nothing: a follower may know of it from the tables already.
"""

from vctl.engine.apply import (
    clusters,
    gates,
    jobs,
    leases,
    machines,
    nodes,
    objects,
    preemptions,
    repair,
    runs,
    submits,
    tasks,
)
from vctl.engine.apply.table import Table
from vctl.engine.changes import Change
from vctl.engine.state import SchedulerState

_TABLES = (
    jobs.APPLY, submits.APPLY, gates.APPLY, runs.APPLY, clusters.APPLY, leases.APPLY, nodes.APPLY, tasks.APPLY,
    objects.APPLY, preemptions.APPLY, machines.APPLY, repair.APPLY,
)  # fmt: skip
_APPLY: Table = {kind: function for table in _TABLES for kind, function in table.items()}


def apply(state: SchedulerState, change: Change) -> None:
    """Let the state be what it is after a change."""
    _APPLY[type(change)](state, change)
