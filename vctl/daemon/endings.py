"""Writing what was observed: processes that started, processes that ended, and what that means for tasks and jobs."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Collection, Mapping

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.clusters import JOB
from vctl.core.jobs import Run, RunningJob
from vctl.core.nodes import DEAD, DRAINING
from vctl.core.tasks import Task
from vctl.core.values import value
from vctl.daemon import objects, preempting, retrying
from vctl.daemon.following import FollowedState
from vctl.daemon.measuring import Left
from vctl.daemon.stopping import end_waiting, stop_task
from vctl.engine.changes import (
    ClusterDetached,
    ClusterRemoved,
    JobEnded,
    JobEnding,
    Process,
    RunEnded,
    RunSeen,
    TaskEnded,
    TaskRetried,
)
from vctl.engine.rules.gates import admit_members
from vctl.ops.nodes import settle_drained
from vctl.runtime.protocol import ExitRecord, StartRecord
from vctl.store import jobs
from vctl.store.store import Store


@value(frozen=True, slots=True)
class Ended:
    """A run that is over, with its record; ``record`` is None when it was lost."""

    run: Run
    record: ExitRecord | None
    lost_message: str = ""
    lost_reason: str = jb.PROCESS_LOST
    start: StartRecord | None = None
    left: Left = dataclasses.field(default_factory=dict)
    """What a task left under the names of its outputs."""


@value(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    status: str
    reason: str | None
    exit_code: int | None
    message: str | None


def observed(
    store: Store, state: FollowedState, seen: Mapping[str, StartRecord], ended: Collection[Ended]
) -> None:
    """Record processes that were seen to start and to end, jobs that are over, and what they return."""
    with store.transaction():
        state.follow(store)
        over = {end.run.run_id for end in ended}
        for run_id, start in seen.items():
            if run_id not in over and run_id in state.runs:
                state.emit(store, RunSeen(run_id, process_of(start)))
        touched: set[str] = set()
        for end in sorted(ended, key=_ended_at):
            _end(store, state, end, end.start or seen.get(end.run.run_id))
            touched.add(end.run.node_id)
        if state.array_limits.changed:
            for change in admit_members(state):
                state.emit(store, change)
            state.array_limits.changed.clear()
        for node_id in touched:
            node = state.ledger.nodes.get(node_id)
            if node is not None and node.state == DRAINING:
                settle_drained(store, node_id)


def _ended_at(end: Ended) -> tuple[int, str]:
    return (0 if end.record is None else end.record.ended_at, end.run.run_id)


def process_of(start: StartRecord) -> Process:
    """How to find a process again that was seen to start."""
    return Process(start.pid, start.pid_started, start.boot_id, start.started_at)


def _end(store: Store, state: FollowedState, end: Ended, start: StartRecord | None) -> None:
    run = state.runs.get(end.run.run_id, end.run)
    outcome = outcome_of(run, end)
    if outcome.reason == jb.NODE_FAILED:
        outcome = dataclasses.replace(outcome, message=f"node {_dead_node(state, run)} died")
    process = process_of(start) if start is not None and run.pid is None else None
    state.emit(store, RunEnded(store.clock(), run.run_id, outcome.exit_code, outcome.message, process))
    if run.task_id is not None:
        _end_task(store, state, run, outcome, end.left)
        settle_job(store, state, run.job_id, None)
    else:
        settle_job(store, state, run.job_id, outcome)


def _dead_node(state: FollowedState, run: Run) -> str:
    """The node that took a run with it: its own, or one on which its gang had a part."""
    ledger = state.ledger
    parts = (ledger.vnodes[vnode_id].node_id for vnode_id in ledger.members.get(run.cluster_id, ()))
    dead = [
        node_id for node_id in (run.node_id, *parts)
        if node_id in ledger.nodes and ledger.nodes[node_id].state == DEAD
    ]  # fmt: skip
    return dead[0] if dead else run.node_id


def _end_task(store: Store, state: FollowedState, run: Run, outcome: Outcome, left: Left) -> None:
    """A task's try is over: finished, tried again, or failed; what it owned ends with it."""
    task = state.tasks.unfinished.get(run.task_id or "")
    if task is None:
        return  # its row was set aside
    job = state.running.jobs.get(run.job_id)
    outcome = objects.keep(store, state, run, outcome, left)
    key = task.task_id, task.job_id, task.cluster_id
    stopping = task.stop_requested_at is not None or run.stop_reason not in (None, jb.NODE_FAILED)
    job_goes_on = job is not None and job.outcome is None
    if (
        outcome.status != jb.SUCCEEDED
        and not stopping
        and task.attempt <= task.max_retries
        and (job_goes_on or task.outlives)
    ):
        state.emit(store, TaskRetried(*key, outcome.message or ""))
        objects.settle(store, state, task.job_id, task.inputs)  # it needs them once more
        cancel_owned(store, state, task.task_id)  # the next try starts its own
        return
    move = "finish" if outcome.status == jb.SUCCEEDED else "fail"
    reason = tk.CANCELLED if outcome.reason == jb.STOPPED_BY_USER else outcome.reason
    state.emit(store, TaskEnded(store.clock(), *key, move, reason, outcome.message, outcome.exit_code))
    cancel_owned(store, state, task.task_id)
    objects.settle(store, state, task.job_id, task.outputs)


def cancel_owned(store: Store, state: FollowedState, owner_id: str) -> None:
    """End what an owner started and did not detach: waiting tasks at once, running ones by a stop."""
    ended: list[Task] = []
    for task in state.tasks.of_owner(owner_id):
        if task.state == tk.RUNNING:
            stop_task(store, state, task, tk.OWNER_ENDED)
        else:
            end_waiting(store, state, task, f"{owner_id}, which started it, has ended")
            cancel_owned(store, state, task.task_id)
            ended.append(task)
    for task in ended:
        objects.settle(store, state, task.job_id, task.outputs)


def settle_job(store: Store, state: FollowedState, job_id: int, outcome: Outcome | None) -> None:
    """End a job whose entrypoint is over (``outcome`` says how, or its row does) and of which nothing attached lives.

    The cluster goes in the same transaction, unless something detached still lives in it; then it goes with that.
    """
    job = state.running.jobs.get(job_id)
    if job is None:
        row = jobs.get(store, job_id)  # it is over, and was waited for by what it had detached
        if row is not None:
            _leave(store, state, job_id, row["cluster_id"])
        return
    if job.outcome is not None:
        outcome = Outcome(*job.outcome)  # what ended it first
    if outcome is None:
        return  # the entrypoint goes on
    if state.members_of(job_id):
        if outcome.status == jb.SUCCEEDED:
            return  # the other members of the gang go on
        state.stop_members(job)
    if state.tasks.of_job(job_id):
        cancel_owned(store, state, job.submission_id)
    if any(state.is_attached(state.runs[run_id]) for run_id in state.runs_of_job.get(job_id, ())):
        _wait_for_rest(store, state, job, outcome)
        return  # told to end; the last one of them ends the job
    state.stops.discard(job_id)
    if outcome.reason == jb.STOPPED_BY_USER and job.message is not None:
        outcome = dataclasses.replace(outcome, message=job.message)  # the words of who stopped it
    outcome = preempting.judged(state, job, outcome)
    if not _goes_on(store, state, job, outcome):
        _job_over(store, state, job, outcome)


def _job_over(store: Store, state: FollowedState, job: RunningJob, outcome: Outcome) -> None:
    job_id = job.job_id
    waits = bool(state.tasks.waiting_of.get(job_id))
    is_empty = not (state.runs_of_job.get(job_id) or waits)
    removed = _removal(store, state, job.cluster_id) if is_empty else None
    state.emit(store, JobEnded(
        store.clock(), job_id, job.submission_id, job.array_id, job.cluster_id, "end", outcome.status, outcome.reason,
        outcome.message, outcome.exit_code, removed,
    ))  # fmt: skip
    if waits:
        objects.give_up(store, state, job_id)
    preempting.ended(store, state, job, outcome)
    if is_empty:
        objects.drop(store, state, job_id)
    else:
        _leave(store, state, job_id, job.cluster_id)


def _leave(store: Store, state: FollowedState, job_id: int, cluster_id: str) -> None:
    """The cluster of a job that is over goes, unless something detached still lives in it."""
    if state.runs_of_job.get(job_id) or state.tasks.waiting_of.get(job_id):
        state.emit(store, ClusterDetached(cluster_id))
        return
    _destroy(store, state, cluster_id)
    objects.drop(store, state, job_id)


def _wait_for_rest(store: Store, state: FollowedState, job: RunningJob, outcome: Outcome) -> None:
    state.emit(
        store, JobEnding(job.job_id, (outcome.status, outcome.reason, outcome.exit_code, outcome.message))
    )


def _goes_on(store: Store, state: FollowedState, job: RunningJob, outcome: Outcome) -> bool:
    """Whether the job waits again, or detached work has to end first because what it ran on is needed."""
    again = preempting.requeue if preempting.is_requeued(state, job, outcome) else None
    if retrying.is_wanted(job, outcome):
        again = retrying.requeue
    if again is None and outcome.reason != jb.PREEMPTED:
        return False
    retrying.end_detached(store, state, job.job_id)
    if state.runs_of_job.get(job.job_id):
        _wait_for_rest(store, state, job, outcome)
        return True
    if again is None:
        return False
    _destroy(store, state, job.cluster_id)
    objects.drop(store, state, job.job_id)
    again(store, state, job, outcome)
    preempting.over(store, state, job.job_id)
    return True


def _destroy(store: Store, state: FollowedState, cluster_id: str) -> None:
    if (removed := _removal(store, state, cluster_id)) is not None:
        state.emit(store, removed)


def _removal(store: Store, state: FollowedState, cluster_id: str) -> ClusterRemoved | None:
    """What removes the cluster of a job, when all below it are gone; None where the job shared an indivisible one."""
    cluster = state.ledger.clusters.get(cluster_id)
    if cluster is None or cluster.kind != JOB:
        return None
    for below in reversed(state.ledger.below(cluster_id)):
        state.emit(store, state.removal_of(below))
    return state.removal_of(cluster_id, silent=True)


_WORDS = {
    jb.STOPPED_BY_USER: "stopped by the user",
    jb.PREEMPTED: "the lender reclaimed the resources that it ran on",
    tk.CANCELLED: "cancelled",
    tk.OWNER_ENDED: "the job or task that started it has ended",
}


def outcome_of(run: Run, end: Ended) -> Outcome:
    """What a run's end means for its job."""
    record = end.record
    if run.stop_reason == jb.NODE_FAILED and (record is None or record.stopped):
        return Outcome(jb.FAILED, jb.NODE_FAILED, None, f"node {run.node_id} died")
    if record is None and run.stop_reason is None:
        return Outcome(jb.FAILED, end.lost_reason, None, end.lost_message)
    if record is not None and record.launch_errno is not None:
        return Outcome(jb.FAILED, jb.LAUNCH_FAILED, record.exit_code, record.message)
    if run.stop_reason is not None and (record is None or record.stopped):
        if run.stop_reason == jb.TIME_LIMIT:
            return Outcome(jb.FAILED, jb.TIME_LIMIT, jb.EXIT_TIME_LIMIT, "ran longer than its time limit")
        return Outcome(jb.STOPPED, run.stop_reason, jb.EXIT_STOPPED, _WORDS.get(run.stop_reason, "stopped"))
    assert record is not None
    if record.exit_code == 0:
        return Outcome(jb.SUCCEEDED, None, 0, None)
    if record.signal is not None:
        return Outcome(
            jb.FAILED,
            jb.NON_ZERO_EXIT,
            record.exit_code,
            f"ended by signal {record.signal} ({_name(record.signal)})",
        )
    return Outcome(jb.FAILED, jb.NON_ZERO_EXIT, record.exit_code, f"exited with code {record.exit_code}")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
