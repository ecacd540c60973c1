"""Writing what was observed: processes that started, processes that ended, and what that means for tasks and jobs."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable, Sequence

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.clusters import JOB
from vctl.core.jobs import Run
from vctl.core.nodes import DEAD, DRAINING
from vctl.daemon import objects, preempting, retrying
from vctl.daemon.measuring import Left
from vctl.daemon.mirror import Mirror
from vctl.daemon.stopping import stop_task
from vctl.ops.nodes import settle_drained
from vctl.runtime.protocol import ExitRecord, StartRecord
from vctl.store import clusters, jobs, rows, runs, tasks
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


def observed(
    store: Store, mirror: Mirror, seen: Sequence[tuple[Run, StartRecord]], ended: Iterable[Ended]
) -> None:
    """Record processes that were seen to start and to end, jobs that are over, and what they return."""
    with store.transaction():
        mirror.follow(store)
        for run, start in seen:
            runs.mark_launched(
                store, run.run_id, pid=start.pid, pid_start=start.pid_started, boot_id=start.boot_id,
                started_at=start.started_at,
            )  # fmt: skip
        touched: set[str] = set()
        for end in sorted(ended, key=_ended_at):
            _end(store, mirror, end)
            touched.add(end.run.node_id)
        mirror.windows.slide(store, mirror)
        for node_id in touched:
            node = mirror.ledger.nodes.get(node_id)
            if node is not None and node.state == DRAINING:
                settle_drained(store, node_id)
        if not any(mirror.ledger.nodes[n].state == DRAINING for n in touched if n in mirror.ledger.nodes):
            mirror.caught_up(store)


def _ended_at(end: Ended) -> tuple[int, str]:
    return (0 if end.record is None else end.record.ended_at, end.run.run_id)


def _end(store: Store, mirror: Mirror, end: Ended) -> None:
    run = mirror.runs.get(end.run.run_id, end.run)
    outcome = outcome_of(run, end)
    if outcome.reason == jb.NODE_FAILED:
        outcome = dataclasses.replace(outcome, message=f"node {_dead_node(mirror, run)} died")
    runs.end(store, run.run_id, exit_code=outcome.exit_code, message=outcome.message)
    mirror.drop_run(run)
    mirror.run_stops.pop(run.run_id, None)
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
    job = jobs.get(store, job_id)
    if job is None:
        return
    if job["status"] == jb.RUNNING:
        if job["outcome"] is not None:
            outcome = Outcome(*rows.loads(job["outcome"]))  # what ended it first
        if outcome is None:
            return  # the entrypoint goes on
        if mirror.members_of(job_id):
            if outcome.status == jb.SUCCEEDED:
                return  # the other members of the gang go on
            mirror.stop_members(job)
        if mirror.runs_of_job.get(job_id) or mirror.waiting_tasks_of.get(job_id):
            cancel_owned(store, mirror, job["submission_id"])
        if any(is_attached(store, mirror.runs[run_id]) for run_id in mirror.runs_of_job.get(job_id, ())):
            jobs.set_outcome(store, job_id, rows.dumps(dataclasses.astuple(outcome)))
            return  # told to end; the last one of them ends the job
        mirror.stops.discard(job_id)
        if outcome.reason == jb.STOPPED_BY_USER and job["message"] is not None:
            outcome = dataclasses.replace(outcome, message=job["message"])  # the words of who stopped it
        outcome = preempting.judged(mirror, job, outcome)
        if _goes_on(store, mirror, job, outcome):
            return
        mirror.note_end(job)
        mirror.windows.leave(job)
        jobs.mark_ended(
            store, job_id, job["submission_id"], move="end", status=outcome.status, reason=outcome.reason,
            message=outcome.message, exit_code=outcome.exit_code, cluster_id=job["cluster_id"],
        )  # fmt: skip
        objects.job_over(store, mirror, job_id)
        preempting.ended(store, mirror, job, outcome)
        mirror.running.drop(job_id)
    if not (mirror.runs_of_job.get(job_id) or mirror.waiting_tasks_of.get(job_id)):
        _destroy(store, mirror, job["cluster_id"])
        object_table.drop(store, job_id)
    else:
        clusters.set_detached(store, job["cluster_id"])


def _goes_on(store: Store, mirror: Mirror, job: Row, outcome: Outcome) -> bool:
    """Whether the job waits again, or detached work has to end first because what it ran on is needed."""
    again = preempting.requeue if preempting.is_requeued(mirror, job, outcome) else None
    if retrying.is_wanted(job, outcome):
        again = retrying.requeue
    if again is None and outcome.reason != jb.PREEMPTED:
        return False
    retrying.end_detached(store, mirror, job["job_id"])
    if mirror.runs_of_job.get(job["job_id"]):
        jobs.set_outcome(store, job["job_id"], rows.dumps(dataclasses.astuple(outcome)))
        return True
    if again is None:
        return False
    _destroy(store, mirror, job["cluster_id"])
    object_table.drop(store, job["job_id"])
    again(store, mirror, job, outcome)
    mirror.preemptions.over(store, mirror, job["job_id"])
    return True


def is_attached(store: Store, run: Run) -> bool:
    """Whether a process ends with its job: everything but a detached task and what such a one started."""
    return run.task_id is None or not tasks.is_detached(store, run.task_id)


def _destroy(store: Store, mirror: Mirror, cluster_id: str) -> None:
    cluster = mirror.ledger.clusters.get(cluster_id)
    if cluster is None or cluster.kind != JOB:
        return  # the job shared an indivisible cluster
    for below in reversed(clusters.subtree(store, cluster_id)):
        clusters.delete(store, below)
        mirror.drop_cluster(below)
    clusters.delete(store, cluster_id, quiet=True)
    mirror.drop_cluster(cluster_id)


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
