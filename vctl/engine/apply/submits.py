"""Which jobs wait after a submit. Jobs that are over are not in the state, so nothing follows from their end here."""

from __future__ import annotations

from vctl.engine import changes as ch
from vctl.engine.apply.table import Table
from vctl.engine.state import SchedulerState


def _job_submitted(state: SchedulerState, change: ch.JobSubmitted) -> None:
    state.put_pending(change.job)


def _array_submitted(state: SchedulerState, change: ch.ArraySubmitted) -> None:
    template = change.template
    if state.pending(template.job_id) is not None:
        return
    if change.at_once is not None:
        state.array_limits.limit(template.submission_id, change.at_once)
    state.put_all_pending(change.members())


def _forgotten(_: SchedulerState, __: ch.Change) -> None:
    return


APPLY: Table = {
    ch.JobSubmitted: _job_submitted,
    ch.ArraySubmitted: _array_submitted,
    ch.JobForgotten: _forgotten,
    ch.ArrayForgotten: _forgotten,
    ch.JobsPruned: _forgotten,
    ch.ArraysEmptied: _forgotten,
}
