"""Telling running tasks to end, in the transaction of what ends them: the next scheduler carries on after a crash."""

from __future__ import annotations

from collections.abc import Callable

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.daemon.following import FollowedState
from vctl.engine.changes import RunStopping
from vctl.store import tasks
from vctl.store.store import Row, Store

Stop = Callable[[Run, str, float], None]
"""Ends a process: the run, the reason, the grace in seconds."""


def stop_task(store: Store, state: FollowedState, row: Row, reason: str) -> None:
    """The process of a running task is to be ended; inside a transaction."""
    tasks.request_cancel(store, row["task_id"], None)  # not tried again, should its node die first
    state.stop_task(row["task_id"], row["grace_s"], reason)
    for run in [run for run in state.runs.values() if run.task_id == row["task_id"]]:
        state.emit(store, RunStopping(run.run_id, run.stop_reason or reason))


def carry_out(store: Store, state: FollowedState, stop: Stop) -> None:
    """Tell the processes to end that somebody asked to end, and members of gangs that lost another one."""
    for job_id in sorted(state.stops):
        job = state.running.jobs.get(job_id)
        for run_id in sorted(state.runs_of_job.get(job_id, ())):
            run = state.runs[run_id]
            if job is not None and (run.task_id is None or not tasks.is_detached(store, run.task_id)):
                stop(run, job.stop_reason or jb.STOPPED_BY_USER, job.grace_now_s)
    state.stops.clear()
    for run_id, (reason, grace_s) in sorted(state.run_stops.items()):
        if (known := state.runs.get(run_id)) is not None:
            stop(known, reason, grace_s)
    state.run_stops.clear()
