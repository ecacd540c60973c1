"""The changes that follow when processes start and end: for their tasks and jobs, and for owned tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.clusters import JOB
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD
from vctl.core.queue_policy import REQUEUE
from vctl.core.tasks import Task
from vctl.core.values import replace
from vctl.core.wording import timestamp
from vctl.engine.changes import (
    Change,
    ClusterDetached,
    JobEnded,
    JobEnding,
    JobRequeued,
    RunEnded,
    RunSeen,
    StartedProcess,
    TaskEnded,
    TaskRetried,
)
from vctl.engine.rules import ahead, clusters, objects, preemption, stops
from vctl.engine.rules.outcomes import Outcome, is_tried_again, judged, outcome_of
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import ProcessOver, ProcessSeen, Stimulus

LONGEST_BACKOFF_S = 24 * 3600.0
LONGEST_REFUSAL_S = 15.0
"""The longest wait of a job that was not granted its resources until it asks for them again."""
PAUSE_NS = 10**9
"""The shortest wait (ns) of a job that is queued again because a lender reclaimed its resources."""


def processes(
    state: SchedulerState, stimuli: Sequence[Stimulus], now: int, lease: Callable[[], int]
) -> Iterator[Change]:
    """The changes for processes that were seen to run, and for ended ones, in the order of their ends.

    ``lease`` gives the number of one more lease.
    """
    over = [stimulus for stimulus in stimuli if isinstance(stimulus, ProcessOver)]
    seen = {stimulus.run_id: stimulus.process for stimulus in stimuli if isinstance(stimulus, ProcessSeen)}
    ended = {end.run.run_id for end in over}
    runs = {run_id: process for run_id, process in seen.items() if run_id not in ended}
    later = {run_id: process for run_id, process in runs.items() if run_id not in state.runs}
    yield from _seen(state, runs)
    over.sort(key=lambda end: (0 if end.exit is None else end.exit.ended_at, end.run.run_id))
    while ends := [end for end in over if end.run.run_id in state.runs]:
        for end in ends:
            if (run := state.runs.get(end.run.run_id)) is not None:
                observed = end.process or seen.get(run.run_id) if run.pid is None else None
                yield from _run_over(state, run, end, observed, now)
        for end in ends:  # runs assigned ahead start in their place; some of these may be over, too
            yield from ahead.follower(state, end.run.run_id, now, lease)
    yield from _seen(state, later)


def _seen(state: SchedulerState, seen: Mapping[str, StartedProcess]) -> Iterator[Change]:
    for run_id, process in seen.items():
        if run_id in state.runs:
            yield RunSeen(run_id, process)


def _run_over(
    state: SchedulerState, run: Run, end: ProcessOver, process: StartedProcess | None, now: int
) -> Iterator[Change]:
    outcome = outcome_of(run, end)
    if outcome.reason == jb.NODE_FAILED:
        outcome = outcome._replace(message=f"node {_dead_node(state.ledger, run)} died")
    yield RunEnded(now, run.run_id, outcome.exit_code, outcome.message, process)
    if run.task_id is not None:
        yield from _task_over(state, run, outcome, end, now)
    if (job := state.running.jobs.get(run.job_id)) is not None:
        yield from settle_job(state, job, None if run.task_id is not None else outcome, now)
    else:  # the job is over, and this run was detached work of it
        yield from _leave(state, run.job_id, _own_cluster(state.ledger, run))


def _dead_node(ledger: Ledger, run: Run) -> str:
    """The dead node that ended a run: its own, or one with another virtual node of its cluster."""
    parts = (ledger.vnodes[vnode_id].node_id for vnode_id in ledger.members.get(run.cluster_id, ()))
    nodes = (ledger.nodes.get(node_id) for node_id in (run.node_id, *parts))
    return next((node.node_id for node in nodes if node is not None and node.state == DEAD), run.node_id)


def _own_cluster(ledger: Ledger, run: Run) -> str | None:
    """The own cluster of a run's job: the cluster of the run, or one above it; None if the job has none."""
    above = ledger.upward(run.cluster_id)
    return next((up.cluster_id for up in above if up.kind == JOB and up.job == str(run.job_id)), None)


# ---- tasks ----


def _task_over(
    state: SchedulerState, run: Run, outcome: Outcome, end: ProcessOver, now: int
) -> Iterator[Change]:
    """The end of a task's attempt: finished, tried again, or failed. The tasks that it owns end with it."""
    task = state.tasks.unfinished.get(run.task_id or "")
    if task is None:
        return  # its row was set aside
    job = state.running.jobs.get(run.job_id)
    if outcome.status == jb.SUCCEEDED:
        outcome = yield from objects.keep(state, run, outcome, end.outputs, now)
    key = task.task_id, task.job_id, task.cluster_id
    stopping = task.stop_requested_at is not None or run.stop_reason not in (None, jb.NODE_FAILED)
    job_goes_on = job is not None and job.outcome is None
    if (
        outcome.status != jb.SUCCEEDED
        and not stopping
        and task.attempt <= task.max_retries
        and (job_goes_on or task.outlives)
    ):
        yield TaskRetried(*key, outcome.message or "")
        yield from objects.settled(state, task.job_id, task.inputs, now)  # it needs them again
        yield from cancel_owned(state, task.task_id, now)  # the next attempt starts its own tasks
        return
    move = "finish" if outcome.status == jb.SUCCEEDED else "fail"
    reason = tk.CANCELLED if outcome.reason == jb.STOPPED_BY_USER else outcome.reason
    yield TaskEnded(now, *key, move, reason, outcome.message, outcome.exit_code)
    yield from cancel_owned(state, task.task_id, now)
    yield from objects.settled(state, task.job_id, task.outputs, now)


def cancel_owned(state: SchedulerState, owner_id: str, now: int) -> Iterator[Change]:
    """End the tasks that an owner started and did not detach: waiting ones at once, others by a stop."""
    ended: list[Task] = []
    for task in state.tasks.of_owner(owner_id):
        if task.state == tk.RUNNING:
            yield from stops.stop_task(state, task, tk.OWNER_ENDED, now)
        else:
            yield stops.end_waiting(task, f"{owner_id}, which started it, has ended", now)
            yield from cancel_owned(state, task.task_id, now)
            ended.append(task)
    for task in ended:
        yield from objects.settled(state, task.job_id, task.outputs, now)


# ---- jobs ----


def settle_job(state: SchedulerState, job: RunningJob, outcome: Outcome | None, now: int) -> Iterator[Change]:
    """End a job whose entrypoint is over, once no attached process of it is left.

    ``outcome`` says how a main process has just ended; an outcome that the job already has counts instead.
    The job's cluster is removed in the same transaction or, if detached work lives in it, when that ends.
    """
    job_id = job.job_id
    if job.outcome is not None:
        outcome = Outcome(*job.outcome)  # the first outcome counts
    if outcome is None:
        return  # the entrypoint goes on
    if outcome.status == jb.SUCCEEDED and state.members_of(job_id):
        return  # the other members of the gang go on
    if state.tasks.of_job(job_id):
        yield from cancel_owned(state, job.submission_id, now)
    if any(state.is_attached(state.runs[run_id]) for run_id in state.runs_of_job.get(job_id, ())):
        yield JobEnding(job_id, outcome)
        return  # they are told to end, and the last one ends the job
    outcome = judged(job, outcome, state.preemption_of(job))
    if not (yield from _goes_on(state, job, outcome, now)):
        yield from _job_over(state, job, outcome, now)


def _goes_on(
    state: SchedulerState, job: RunningJob, outcome: Outcome, now: int
) -> Generator[Change, None, bool]:
    """Queue a job again that is to be tried again, was preempted or did not get its resources, after its detached work.

    Returns whether the job is queued again or still waits for the end of that work; otherwise it is over.
    """
    is_preempted = outcome.reason == jb.PREEMPTED
    is_requeued = preemption.rule_of(state, job) == REQUEUE if is_preempted else is_tried_again(job, outcome)
    is_requeued |= outcome.reason == jb.INSUFFICIENT
    if not is_requeued and not is_preempted:
        return False
    yield from _end_detached(state, job.job_id, now)
    if state.runs_of_job.get(job.job_id):
        yield JobEnding(job.job_id, outcome)
        return True
    if not is_requeued:
        return False
    yield from _destroy(state, job.cluster_id)
    yield from objects.drop(state, job.job_id)
    requeued = _requeued(state, job, outcome, now)
    if is_preempted:
        yield preemption.loss(state, job, outcome, now)
    yield requeued
    yield from preemption.over(state, job.job_id)
    return True


def _end_detached(state: SchedulerState, job_id: int, now: int) -> Iterator[Change]:
    """End all tasks of a job, detached or not: its cluster goes with this attempt."""
    for task in state.tasks.of_job(job_id):
        if task.state == tk.RUNNING:
            yield from stops.stop_task(state, task, tk.OWNER_ENDED, now)
        else:
            yield stops.end_waiting(task, "the attempt that started it has ended", now)


def _requeued(state: SchedulerState, job: RunningJob, outcome: Outcome, now: int) -> JobRequeued:
    """The change that queues a job again at its old place; its cluster was removed already."""
    data: dict[str, object] = {
        "attempt": job.attempt,
        "cause": outcome.reason,
        "exit_code": outcome.exit_code,
    }
    preemptions, begin_at, reason, message = job.preemptions, None, None, None
    if outcome.reason == jb.PREEMPTED:
        preemptions += 1
        # reclaimed resources stay with the borrower for a moment: the job must not take them again
        begin_at = now + PAUSE_NS if state.preemption_of(job) is None else None
        reason, message = jb.PREEMPTED, f"{outcome.message}; it runs again when its resources are free"
    elif outcome.reason == jb.INSUFFICIENT:
        begin_at = now + int(min(2.0 ** min(preemptions, 60), LONGEST_REFUSAL_S) * 1e9)
        preemptions += 1  # an attempt without a process is no failure of the job either
        reason, message = jb.INSUFFICIENT, f"{outcome.message}; it asks again at {timestamp(begin_at)}"
    else:
        rules, attempt = json.loads(job.rules), job.attempt - job.preemptions
        backoff_s = min(rules["backoff_s"] * 2.0 ** min(attempt - 1, 60), LONGEST_BACKOFF_S)
        data["backoff_s"] = backoff_s
        if backoff_s > 0:
            begin_at = now + int(backoff_s * 1e9)
            tries = f"attempt {attempt} of {rules['max_retries'] + 1}"
            reason, message = jb.BACKOFF, f"{tries}: {outcome.message}; next try at {timestamp(begin_at)}"
    waits: PendingJob = replace(
        state.requests[job.job_id], begin_at_ns=begin_at, attempt=job.attempt, preemptions=preemptions,
        closed=state.array_limits.is_beyond(job.array_id),
    )  # fmt: skip
    return JobRequeued(waits, reason, message, data, now)


def _job_over(state: SchedulerState, job: RunningJob, outcome: Outcome, now: int) -> Iterator[Change]:
    job_id = job.job_id
    waits = bool(state.tasks.waiting_of.get(job_id))
    there, has_own = clusters.InState(state, over=job_id), _has_own_cluster(state, job.cluster_id)
    going = clusters.orphaned(there, job.cluster_id) if has_own else []
    removed = None
    if going[-1:] == [job.cluster_id]:
        for below in going[:-1]:
            yield clusters.removal(there, below)
        removed = clusters.removal(there, job.cluster_id, silent=True)
    preempted = preemption.loss(state, job, outcome, now) if outcome.reason == jb.PREEMPTED else None
    yield JobEnded(
        now, job_id, job.submission_id, job.array_id, job.cluster_id, "end", outcome.status, outcome.reason,
        outcome.message, outcome.exit_code, removed,
    )  # fmt: skip
    if waits:
        yield from objects.give_up(state, job_id, now)
    if preempted is not None:
        yield preempted
    yield from preemption.over(state, job_id)
    yield from _leave(state, job_id, job.cluster_id)


def _leave(state: SchedulerState, job_id: int, cluster_id: str | None) -> Iterator[Change]:
    """Remove the clusters of a job that is over, except those that must stay; mark its own as detached if it does."""
    if cluster_id is not None and _has_own_cluster(state, cluster_id):
        there = clusters.InState(state)
        for going_id in clusters.orphaned(there, cluster_id):
            yield clusters.removal(there, going_id, silent=going_id == cluster_id)
        cluster = state.ledger.clusters.get(cluster_id)
        if cluster is not None and not cluster.detached:
            yield ClusterDetached(cluster_id)
    if not (state.runs_of_job.get(job_id) or state.tasks.waiting_of.get(job_id)):
        yield from objects.drop(state, job_id)


def _destroy(state: SchedulerState, cluster_id: str) -> Iterator[Change]:
    """Remove the cluster of a job, after all clusters below it; nothing if the job shared a cluster."""
    if _has_own_cluster(state, cluster_id):
        there = clusters.InState(state)
        for below in reversed(state.ledger.below(cluster_id)):
            yield clusters.removal(there, below)
        yield clusters.removal(there, cluster_id, silent=True)


def _has_own_cluster(state: SchedulerState, cluster_id: str) -> bool:
    cluster = state.ledger.clusters.get(cluster_id)
    return cluster is not None and cluster.kind == JOB
