"""What jobs are after a change of theirs."""

from __future__ import annotations

from dataclasses import replace

from vctl.core.spans import numbers_of
from vctl.engine import changes as ch
from vctl.engine.apply import clusters
from vctl.engine.apply.runs import add_run
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.JobStarted)
def _job_started(state: SchedulerState, change: ch.JobStarted) -> None:
    job, ledger = change.job, state.ledger
    ahead = state.ahead.drop(job.run_id) if change.was_ahead else None
    if change.cluster is not None:
        if state.trial is None or not state.trial.settle(job.job_id, change.cluster, change.vnodes):
            ledger.put_cluster(change.cluster)
            ledger.assign_all(change.vnodes)
    for run in change.runs:
        add_run(state, run)
    request = state.pending(job.job_id) if ahead is None else ahead.start.job
    if request is not None:
        state.requests[job.job_id] = request
        state.dequeue(job.job_id)
    state.array_limits.run(job.array_id, job.job_id)
    state.running.put(job)
    if not job.per_node:
        state.changed.started[job.run_id] = None


@applies(ch.JobEnding)
def _job_ending(state: SchedulerState, change: ch.JobEnding) -> None:
    if (job := state.running.jobs.get(change.job_id)) is not None:
        own = min(state.members_of(change.job_id), default="")
        state.running.put(replace(job, outcome=change.outcome, run_id=own))
        state.running.leave(change.job_id)
        state.note_stop(state.members_of(change.job_id))


@applies(ch.JobEnded)
def _job_ended(state: SchedulerState, change: ch.JobEnded) -> None:
    state.dequeue(change.job_id)
    state.running.drop(change.job_id)
    state.requests.pop(change.job_id, None)
    state.array_limits.leave(change.array_id, change.job_id)
    state.note_end(change.submission_id, change.array_id)
    if change.removed is not None:
        clusters.remove(state, change.removed)


@applies(ch.JobRequeued)
def _job_requeued(state: SchedulerState, change: ch.JobRequeued) -> None:
    state.running.drop(change.job.job_id)
    state.requests.pop(change.job.job_id, None)
    state.put_pending(change.job)


@applies(ch.StopAsked)
def _stop_asked(state: SchedulerState, change: ch.StopAsked) -> None:
    if (job := state.running.jobs.get(change.job_id)) is not None:
        state.running.put(
            replace(
                job, stop_requested_at=change.at, stop_reason=change.reason, stop_grace_s=change.grace_s,
                message=change.message,
            )
        )  # fmt: skip
        state.running.leave(change.job_id)
        state.note_stop(state.runs_of_job.get(change.job_id, ()))


@applies(ch.JobsStopped)
def _jobs_stopped(state: SchedulerState, change: ch.JobsStopped) -> None:
    for job_id in numbers_of(change.spans):
        state.dequeue(job_id)
        state.array_limits.leave(change.array_id, job_id)
    state.changed.ended.update((change.array_id, *change.awaited))
