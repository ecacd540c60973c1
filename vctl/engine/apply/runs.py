"""What runs are after a change of theirs."""

from __future__ import annotations

from dataclasses import replace

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


def add_run(state: SchedulerState, run: Run) -> None:
    """Charge a process to its virtual node, and keep it."""
    state.ledger.charge(run.run_id, run.vnode_id, run.allocation)
    state.add_run(run)


@applies(ch.RunSeen)
def _run_seen(state: SchedulerState, change: ch.RunSeen) -> None:
    if (run := state.runs.get(change.run_id)) is not None:
        run = state.runs[change.run_id] = with_process(run, change.process)
        if (job := state.running.jobs.get(run.job_id)) is not None and job.ends_at_ns is not None:
            state.timers.plan(state, run, job)


def with_process(run: Run, process: ch.Process | None) -> Run:
    """A run of which the process was seen."""
    if process is None:
        return replace(run, state=jb.RUNNING)
    return replace(
        run, state=jb.RUNNING, pid=process.pid, pid_start=process.pid_start, boot_id=process.boot_id,
        started_at=process.started_at,
    )  # fmt: skip


@applies(ch.RunStopping)
def _run_stopping(state: SchedulerState, change: ch.RunStopping) -> None:
    run = state.runs.get(change.run_id)
    if run is None or run.stop_reason is not None:
        return
    state.runs[change.run_id] = replace(run, stop_reason=change.reason)
    state.to_stop.pop(change.run_id, None)
    state.changed.runs[change.run_id] = None
    if run.task_id is None:
        state.running.leave(run.job_id)


@applies(ch.RunWarned)
def _run_warned(state: SchedulerState, change: ch.RunWarned) -> None:
    if (run := state.runs.get(change.run_id)) is not None:
        state.runs[change.run_id] = replace(run, warned_for=change.ends_ns)


@applies(ch.RunEnded)
def _run_ended(state: SchedulerState, change: ch.RunEnded) -> None:
    run = state.runs.get(change.run_id)
    if run is None:
        return
    state.drop_run(run)
    job = state.running.jobs.get(run.job_id)
    if job is not None and job.run_id == run.run_id and (others := state.members_of(run.job_id)):
        state.running.put(replace(job, run_id=min(others)))
