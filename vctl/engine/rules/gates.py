"""Which waiting jobs come into their queue now: begin times that are over, places among the members of arrays."""

from __future__ import annotations

from collections.abc import Iterator

from vctl.core.spans import spans_of
from vctl.engine.changes import BeginTimesPassed, Change, MembersAdmitted
from vctl.engine.state import SchedulerState


def begin_due(state: SchedulerState, now: int) -> Iterator[Change]:
    """Take the begin time off every queued job for which it is over."""
    due = sorted(
        job.job_id
        for queue in state.queues.values()
        for job in queue.delayed()
        if job.begin_at_ns is not None and job.begin_at_ns <= now
    )
    if due:
        yield BeginTimesPassed(spans_of(due))


def admit_members(state: SchedulerState) -> Iterator[Change]:
    """Give the places that are free to the first members that wait for one."""
    for array_id, members in state.array_limits.due().items():
        yield MembersAdmitted(array_id, spans_of(members))


def begins_after(state: SchedulerState, now: int) -> list[int]:
    """When queued jobs may start that cannot start now: begin times, and reservations that end."""
    queues = state.queues.values()
    begins = [job.begin_at_ns for queue in queues for job in queue.delayed() if job.begin_at_ns is not None]
    return begins + [at for queue in queues for at in queue.reserved_after(now)]
