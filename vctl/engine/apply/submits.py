"""What waits after a submit, and what is known of jobs that are over when they are deleted."""

from __future__ import annotations

from vctl.core.spans import numbers_of
from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.JobSubmitted)
def _job_submitted(state: SchedulerState, change: ch.JobSubmitted) -> None:
    state.put_pending(change.job)


@applies(ch.ArraySubmitted)
def _array_submitted(state: SchedulerState, change: ch.ArraySubmitted) -> None:
    template = change.template
    if state.pending(template.job_id) is not None:
        return
    if change.at_once is not None:
        state.array_limits.limit(template.submission_id, change.at_once)
    state.put_all_pending(change.members())


@applies(ch.JobForgotten)
def _job_forgotten(state: SchedulerState, change: ch.JobForgotten) -> None:
    state.tasks.drop_objects(change.job_id)


@applies(ch.ArrayForgotten, ch.JobsPruned)
def _jobs_forgotten(state: SchedulerState, change: ch.ArrayForgotten | ch.JobsPruned) -> None:
    for job_id in numbers_of(change.spans):
        state.tasks.drop_objects(job_id)


@applies(ch.ArraysEmptied)
def _arrays_emptied(_: SchedulerState, __: ch.ArraysEmptied) -> None:
    """The state has arrays only while a member is not over."""
