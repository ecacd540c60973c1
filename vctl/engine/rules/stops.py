"""Stops runs: somebody asked for it, their time limit is reached, or their owner has ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.tasks import Task
from vctl.engine.changes import Change, RunStopping, RunWarned, TaskEnded, TaskStopAsked
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import JobWarned, Stimulus
from vctl.engine.timers import signal_of


def requested(state: SchedulerState) -> Iterator[Change]:
    """Stop the runs of jobs and tasks that were asked to stop, and of gangs whose outcome is decided."""
    for _, run_id in sorted((state.runs[run_id].job_id, run_id) for run_id in state.to_stop):
        if (reason := state.reason_to_stop(state.runs[run_id])) is not None:
            yield RunStopping(run_id, reason)


def limits(state: SchedulerState, uptime: int) -> Iterator[Change]:
    """Stop the runs that have reached their time limit, by ``uptime``, a clock that nobody can set."""
    for timer in state.timers.due(state, uptime):
        if timer.signal is None:
            yield from stop(state, [timer.run.run_id], jb.TIME_LIMIT)


def warned(state: SchedulerState, stimuli: Iterable[Stimulus], uptime: int) -> Iterator[Change]:
    """Record that jobs got their warning signals."""
    for stimulus in stimuli:
        if isinstance(stimulus, JobWarned) and (run := state.runs.get(stimulus.run_id)) is not None:
            job = state.running.jobs[run.job_id]
            yield RunWarned(
                run.run_id, stimulus.ends_ns, job.job_id, job.submission_id, job.cluster_id, signal_of(job)["name"],
                round((stimulus.ends_ns - uptime) / 1e9, 3),
            )  # fmt: skip


def stop(state: SchedulerState, run_ids: Iterable[str], reason: str) -> Iterator[Change]:
    """Stop runs, except those that are being stopped already."""
    for run_id in run_ids:
        if state.runs[run_id].stop_reason is None:
            yield RunStopping(run_id, reason)


def stop_task(state: SchedulerState, task: Task, reason: str, now: int) -> Iterator[Change]:
    """Stop the process of a running task, which is then not tried again."""
    requested_at = task.stop_requested_at or now
    yield TaskStopAsked(requested_at, task.task_id, task.job_id, task.cluster_id, task.grace_s, reason)
    yield from stop(state, state.runs_of_task(task.task_id, task.job_id), reason)


def end_waiting(task: Task, message: str, now: int) -> TaskEnded:
    """The end of a waiting task whose owner has ended."""
    return TaskEnded(now, task.task_id, task.job_id, task.cluster_id, "cancel", tk.OWNER_ENDED, message)
