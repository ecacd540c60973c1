"""Telling running tasks to end, in the transaction of what ends them: the next scheduler carries on after a crash."""

from __future__ import annotations

from collections.abc import Callable

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.core.tasks import Task
from vctl.daemon.following import FollowedState
from vctl.engine.changes import RunStopping, TaskEnded, TaskStopAsked
from vctl.store.store import Store

Stop = Callable[[Run, str, float], None]
"""Ends a process: the run, the reason, the grace in seconds."""


def stop_task(store: Store, state: FollowedState, task: Task, reason: str) -> None:
    """The process of a running task is to be ended, and it is not tried again; inside a transaction."""
    asked_at = task.stop_requested_at or store.clock()
    state.emit(
        store, TaskStopAsked(asked_at, task.task_id, task.job_id, task.cluster_id, task.grace_s, reason)
    )
    for run_id in sorted(state.runs_of_job.get(task.job_id, ())):
        run = state.runs[run_id]
        if run.task_id == task.task_id:
            state.emit(store, RunStopping(run_id, run.stop_reason or reason))


def end_waiting(store: Store, state: FollowedState, task: Task, message: str) -> None:
    """A task that waits never starts, because its owner has ended; inside a transaction."""
    state.emit(store, TaskEnded(
        store.clock(), task.task_id, task.job_id, task.cluster_id, "cancel", tk.OWNER_ENDED, message
    ))  # fmt: skip


def carry_out(state: FollowedState, stop: Stop) -> None:
    """Tell the processes to end that somebody asked to end, and members of gangs that lost another one."""
    for job_id in sorted(state.stops):
        job = state.running.jobs.get(job_id)
        for run_id in sorted(state.runs_of_job.get(job_id, ())):
            run = state.runs[run_id]
            if job is not None and state.is_attached(run):
                stop(run, job.stop_reason or jb.STOPPED_BY_USER, job.grace_now_s)
    state.stops.clear()
    for run_id, (reason, grace_s) in sorted(state.run_stops.items()):
        if (known := state.runs.get(run_id)) is not None:
            stop(known, reason, grace_s)
    state.run_stops.clear()
