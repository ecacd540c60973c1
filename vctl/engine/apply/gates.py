"""What waiting jobs are after a change of what keeps them out of their queue, and jobs after an edit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vctl.core.spans import Spans, numbers_of
from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


def _change(state: SchedulerState, spans: Spans, **values: Any) -> None:
    for job_id in numbers_of(spans):
        if (job := state.pending(job_id)) is not None:
            state.put_pending(replace(job, **values))


@applies(ch.JobsHeld)
def _jobs_held(state: SchedulerState, change: ch.JobsHeld) -> None:
    _change(state, change.spans, held=change.held, closed=change.closed)


@applies(ch.MembersAdmitted)
def _members_admitted(state: SchedulerState, change: ch.MembersAdmitted) -> None:
    _change(state, change.spans, closed=False)


@applies(ch.BeginTimesPassed)
def _begin_times_passed(state: SchedulerState, change: ch.BeginTimesPassed) -> None:
    _change(state, change.spans, begin_at_ns=None)


@applies(ch.DependencyMet)
def _dependency_met(state: SchedulerState, change: ch.DependencyMet) -> None:
    _change(state, ((change.job_id, change.job_id),), waits_for=change.left)


@applies(ch.JobsEdited)
def _jobs_edited(state: SchedulerState, change: ch.JobsEdited) -> None:
    limits = "time_limit_s" in change.values
    limit_s = change.values.get("time_limit_s")
    limit_ns = None if limit_s is None else int(limit_s * 1e9)
    values = {"time_limit_ns": limit_ns} if limits else {}
    if "priority" in change.values:
        values["priority"] = change.values["priority"]
    _change(state, change.spans, **values)
    for job_id in numbers_of(change.spans) if limits else ():
        if (job := state.running.jobs.get(job_id)) is not None:
            ends_at_ns = None if limit_ns is None else job.started_at_ns + limit_ns
            job = replace(job, ends_at_ns=ends_at_ns)
            state.running.put(job)
            state.requests[job_id] = replace(state.requests[job_id], time_limit_ns=limit_ns)
            for run_id in state.members_of(job_id):
                state.timers.plan(state, state.runs[run_id], job)
