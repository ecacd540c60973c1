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
from vctl.daemon import objects, preempting, retrying, windows
from vctl.daemon.measuring import Left
from vctl.daemon.mirror import Mirror
from vctl.daemon.stopping import stop_task
from vctl.engine.changes import ClusterRemoved, JobEnded, JobEnding, Process, RunEnded, RunSeen
from vctl.ops.nodes import settle_drained
from vctl.runtime.protocol import ExitRecord, StartRecord
from vctl.store import clusters, jobs, tasks
from vctl.store import objects as object_table
from vctl.store.store import Row, Store


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, with its record; ``record`` is None when it was lost."""

    run: Run
    record: ExitRecord | None
    lost_message: str = ""
    lost_reason: str = jb.PROCESS_LOST
    start: StartRecord | None = None
    left: Left = dataclasses.field(default_factory=dict)
    """What a task left under the names of its outputs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    status: str
    reason: str | None
    exit_code: int | None
    message: str | None


def observed(store: Store, mirror: Mirror, seen: Mapping[str, StartRecord], ended: Collection[Ended]) -> None:
    """Record processes that were seen to start and to end, jobs that are over, and what they return."""
    with store.transaction():
        mirror.follow(store)
        over = {end.run.run_id for end in ended}
        for run_id, start in seen.items():
            if run_id not in over and run_id in mirror.runs:
                mirror.emit(store, RunSeen(run_id, process_of(start)))
        touched: set[str] = set()
        for end in sorted(ended, key=_ended_at):
            _end(store, mirror, end, end.start or seen.get(end.run.run_id))
            touched.add(end.run.node_id)
        if mirror.windows.changed:
            windows.slide(store, mirror)
        for node_id in touched:
            node = mirror.ledger.nodes.get(node_id)
            if node is not None and node.state == DRAINING:
                settle_drained(store, node_id)
        if not any(mirror.ledger.nodes[n].state == DRAINING for n in touched if n in mirror.ledger.nodes):
            mirror.caught_up(store)


def _ended_at(end: Ended) -> tuple[int, str]:
    return (0 if end.record is None else end.record.ended_at, end.run.run_id)


def process_of(start: StartRecord) -> Process:
    """How to find a process again that was seen to start."""
    return Process(start.pid, start.pid_started, start.boot_id, start.started_at)


def _end(store: Store, mirror: Mirror, end: Ended, start: StartRecord | None) -> None:
    run = mirror.runs.get(end.run.run_id, end.run)
    outcome = outcome_of(run, end)
    if outcome.reason == jb.NODE_FAILED:
        outcome = dataclasses.replace(outcome, message=f"node {_dead_node(mirror, run)} died")
    process = process_of(start) if start is not None and run.pid is None else None
    mirror.emit(store, RunEnded(store.clock(), run.run_id, outcome.exit_code, outcome.message, process))
    if run.task_id is not None:
        _end_task(store, mirror, run, outcome, end.left)
        settle_job(store, mirror, run.job_id, None)
    else:
        settle_job(store, mirror, run.job_id, outcome)


def _dead_node(mirror: Mirror, run: Run) -> str:
    """The node that took a run with it: its own, or one on which its gang had a part."""
    ledger = mirror.ledger
    parts = (ledger.vnodes[vnode_id].node_id for vnode_id in ledger.members.get(run.cluster_id, ()))
    dead = [
        node_id for node_id in (run.node_id, *parts)
        if node_id in ledger.nodes and ledger.nodes[node_id].state == DEAD
    ]  # fmt: skip
    return dead[0] if dead else run.node_id


def _end_task(store: Store, mirror: Mirror, run: Run, outcome: Outcome, left: Left) -> None:
    """A task's try is over: finished, tried again, or failed; what it owned ends with it."""
    assert run.task_id is not None
    row = tasks.get(store, run.task_id)
    assert row is not None
    job = jobs.get(store, run.job_id)
    outcome = objects.keep(store, mirror, run, outcome, left)
    stopping = row["stop_requested_at"] is not None or run.stop_reason not in (None, jb.NODE_FAILED)
    job_goes_on = job is not None and job["status"] == jb.RUNNING and job["outcome"] is None
    if (
        outcome.status != jb.SUCCEEDED
        and not stopping
        and row["attempt"] <= row["max_retries"]
        and (job_goes_on or tasks.is_detached(store, run.task_id))
    ):
        tasks.mark_retry(store, run.task_id, outcome.message or "")
        objects.wait_again(store, mirror, run.task_id)
        cancel_owned(store, mirror, run.task_id)  # the next try starts its own
        return
    move = "finish" if outcome.status == jb.SUCCEEDED else "fail"
    reason = tk.CANCELLED if outcome.reason == jb.STOPPED_BY_USER else outcome.reason
    tasks.mark_ended(
        store, run.task_id, move=move, reason=reason, message=outcome.message, exit_code=outcome.exit_code
    )
    cancel_owned(store, mirror, run.task_id)
    objects.task_over(store, mirror, row)


def cancel_owned(store: Store, mirror: Mirror, owner_id: str) -> None:
    """End what an owner started and did not detach: waiting tasks at once, running ones by a stop."""
    ended: list[Row] = []
    for row in tasks.owned_by(store, owner_id):
        if row["state"] == tk.RUNNING:
            stop_task(store, mirror, row, tk.OWNER_ENDED)
        else:
            mirror.drop_task(row["task_id"])
            tasks.mark_ended(
                store, row["task_id"], move="cancel", reason=tk.OWNER_ENDED,
                message=f"{owner_id}, which started it, has ended", exit_code=None,
            )  # fmt: skip
            cancel_owned(store, mirror, row["task_id"])
            ended.append(row)
    for row in ended:
        objects.task_over(store, mirror, row)


def settle_job(store: Store, mirror: Mirror, job_id: int, outcome: Outcome | None) -> None:
    """End a job whose entrypoint is over (``outcome`` says how, or its row does) and of which nothing attached lives.

    The cluster goes in the same transaction, unless something detached still lives in it; then it goes with that.
    """
    job = mirror.running.jobs.get(job_id)
    if job is None:
        row = jobs.get(store, job_id)  # it is over, and was waited for by what it had detached
        if row is not None:
            _leave(store, mirror, job_id, row["cluster_id"])
        return
    if job.outcome is not None:
        outcome = Outcome(*job.outcome)  # what ended it first
    if outcome is None:
        return  # the entrypoint goes on
    if mirror.members_of(job_id):
        if outcome.status == jb.SUCCEEDED:
            return  # the other members of the gang go on
        mirror.stop_members(job)
    if mirror.runs_of_job.get(job_id) or mirror.waiting_tasks_of.get(job_id):
        cancel_owned(store, mirror, job.submission_id)
    if any(is_attached(store, mirror.runs[run_id]) for run_id in mirror.runs_of_job.get(job_id, ())):
        _wait_for_rest(store, mirror, job, outcome)
        return  # told to end; the last one of them ends the job
    mirror.stops.discard(job_id)
    if outcome.reason == jb.STOPPED_BY_USER and job.message is not None:
        outcome = dataclasses.replace(outcome, message=job.message)  # the words of who stopped it
    outcome = preempting.judged(mirror, job, outcome)
    if not _goes_on(store, mirror, job, outcome):
        _job_over(store, mirror, job, outcome)


def _job_over(store: Store, mirror: Mirror, job: RunningJob, outcome: Outcome) -> None:
    job_id = job.job_id
    waits = bool(mirror.waiting_tasks_of.get(job_id))
    is_empty = not (mirror.runs_of_job.get(job_id) or waits)
    removed = _removal(store, mirror, job.cluster_id) if is_empty else None
    mirror.emit(store, JobEnded(
        store.clock(), job_id, job.submission_id, job.array_id, job.cluster_id, "end", outcome.status, outcome.reason,
        outcome.message, outcome.exit_code, removed,
    ))  # fmt: skip
    if waits:
        objects.job_over(store, mirror, job_id)
    preempting.ended(store, mirror, job, outcome)
    if is_empty:
        _drop_objects(store, mirror, job_id)
    else:
        _leave(store, mirror, job_id, job.cluster_id)


def _leave(store: Store, mirror: Mirror, job_id: int, cluster_id: str) -> None:
    """The cluster of a job that is over goes, unless something detached still lives in it."""
    if mirror.runs_of_job.get(job_id) or mirror.waiting_tasks_of.get(job_id):
        clusters.set_detached(store, cluster_id)
        return
    _destroy(store, mirror, cluster_id)
    _drop_objects(store, mirror, job_id)


def _drop_objects(store: Store, mirror: Mirror, job_id: int) -> None:
    """The objects of a job go with it; one that never had a task has none."""
    if job_id in mirror.may_have_objects:
        mirror.may_have_objects.discard(job_id)
        object_table.drop(store, job_id)


def _wait_for_rest(store: Store, mirror: Mirror, job: RunningJob, outcome: Outcome) -> None:
    mirror.emit(
        store, JobEnding(job.job_id, (outcome.status, outcome.reason, outcome.exit_code, outcome.message))
    )


def _goes_on(store: Store, mirror: Mirror, job: RunningJob, outcome: Outcome) -> bool:
    """Whether the job waits again, or detached work has to end first because what it ran on is needed."""
    again = preempting.requeue if preempting.is_requeued(mirror, job, outcome) else None
    if retrying.is_wanted(job, outcome):
        again = retrying.requeue
    if again is None and outcome.reason != jb.PREEMPTED:
        return False
    retrying.end_detached(store, mirror, job.job_id)
    if mirror.runs_of_job.get(job.job_id):
        _wait_for_rest(store, mirror, job, outcome)
        return True
    if again is None:
        return False
    _destroy(store, mirror, job.cluster_id)
    _drop_objects(store, mirror, job.job_id)
    again(store, mirror, job, outcome)
    mirror.preemptions.over(store, mirror, job.job_id)
    return True


def is_attached(store: Store, run: Run) -> bool:
    """Whether a process ends with its job: everything but a detached task and what such a one started."""
    return run.task_id is None or not tasks.is_detached(store, run.task_id)


def _destroy(store: Store, mirror: Mirror, cluster_id: str) -> None:
    if (removed := _removal(store, mirror, cluster_id)) is not None:
        mirror.emit(store, removed)


def _removal(store: Store, mirror: Mirror, cluster_id: str) -> ClusterRemoved | None:
    """What removes the cluster of a job, when all below it are gone; None where the job shared an indivisible one."""
    cluster = mirror.ledger.clusters.get(cluster_id)
    if cluster is None or cluster.kind != JOB:
        return None
    for below in reversed(mirror.ledger.below(cluster_id)):
        mirror.emit(store, mirror.removal_of(below))
    return mirror.removal_of(cluster_id, silent=True)


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
