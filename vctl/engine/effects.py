"""The effects that are due, as a function of the state: processes to launch and to stop, jobs to notify.

An effect is due while the state says so. After it was carried out, the change that follows (a process was
seen, is over or was warned; a job was notified) ends it. If a scheduler dies in between, the next one repeats
the effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vctl.core import jobs as jb
from vctl.core.jobs import Preemption, Run
from vctl.core.nodes import DEAD
from vctl.core.values import value
from vctl.engine.state import SchedulerState

TASK_GRACE_S = 3.0
"""The grace of a task when a lender reclaims the resources that it runs on."""


@value(frozen=True, slots=True)
class LaunchRun:
    """Launch the process of a run. If this is repeated, the process still runs once."""

    run_id: str


@value(frozen=True, slots=True)
class Stop:
    """End a process and its descendants; kill them after ``grace_s``, or at ``ends_ns`` (since the epoch)."""

    run_id: str
    grace_s: float
    ends_ns: int | None = None


@value(frozen=True, slots=True)
class Warn:
    """Send a job the signal that warns of its end at ``ends_ns`` (ns since the boot)."""

    run_id: str
    signal: Any
    ends_ns: int


@value(frozen=True, slots=True)
class Notify:
    """Tell a job that it is preempted: write the notice and send its signal."""

    preemption: Preemption


Effect = LaunchRun | Stop | Warn | Notify
Done = dict[str, tuple[Effect, ...]]
"""Run -> the effects that were carried out for it."""


def news(state: SchedulerState, done: Done) -> list[Effect]:
    """The due effects for changed runs that are not in ``done``; from now on they count as carried out."""
    changed, state.changed.runs = state.changed.runs, {}
    due_now: list[Effect] = []
    for run_id in changed:
        if (run := state.runs.get(run_id)) is not None:
            before, due = done.get(run_id, ()), of_run(state, run)
            due_now += [effect for effect in due if effect not in before]
            done[run_id] = due or before
    return due_now


def of_run(state: SchedulerState, run: Run) -> tuple[Effect, ...]:
    """The effects that are due for a run. A stop comes before a launch, so that the supervisor finds it."""
    launch = (LaunchRun(run.run_id),) if run.state == jb.ASSIGNED else ()
    return launch if run.stop_reason is None else (_stop(state, run), *launch)


def _stop(state: SchedulerState, run: Run) -> Stop:
    """The stop of a run, with the grace that its process gets before it is killed."""
    node = state.ledger.nodes.get(run.node_id)
    if run.stop_reason == jb.NODE_FAILED or (node is not None and node.state == DEAD):
        return Stop(run.run_id, 0.0)
    job = state.running.jobs.get(run.job_id)
    task = state.tasks.unfinished.get(run.task_id or "")
    if job is not None and job.stop_requested_at is not None and state.is_attached(run):
        return Stop(run.run_id, job.grace_now_s)
    if task is not None and task.stop_requested_at is not None:
        return Stop(run.run_id, task.grace_s)
    if run.stop_reason == jb.PREEMPTED:
        preemption = state.preemptions.get(run.job_id)
        if preemption is None:  # a lender reclaims the resources that it runs on
            return Stop(run.run_id, state.lease_terms.reclaim_grace_s if task is None else TASK_GRACE_S)
        if not preemption.warns:
            return Stop(run.run_id, 0.0, preemption.ends_ns)
    return Stop(run.run_id, 0.0 if job is None else job.grace_s)


def warnings(state: SchedulerState, uptime: int) -> Iterator[Warn]:
    """The warnings for jobs whose time is nearly over and that were not warned of this end.

    ``uptime`` in ns since the machine started.
    """
    for timer in state.timers.due(state, uptime):
        if timer.signal is not None:
            yield Warn(timer.run.run_id, timer.signal, timer.ends_ns)


def notices(state: SchedulerState) -> Iterator[Notify]:
    """The notices for jobs that are preempted and were not told."""
    for _, preemption in sorted(state.preemptions.items()):
        job = state.running.jobs.get(preemption.victim_id)
        if job is not None and job.stop_requested_at is None and not (preemption.told or preemption.ending):
            yield Notify(preemption)
