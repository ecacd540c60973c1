"""Writing what a round decided and what was observed: each gang whole or not at all, one transaction a batch."""

from __future__ import annotations

import dataclasses
import secrets
import signal
from collections.abc import Iterable, Sequence

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.clusters import JOB
from vctl.core.jobs import Run
from vctl.core.nodes import DRAINING
from vctl.daemon.mirror import Mirror
from vctl.ops.nodes import settle_drained
from vctl.runtime.protocol import ExitRecord, StartRecord
from vctl.scheduler import plan as pl
from vctl.scheduler.plan import Plan, Start
from vctl.store import clusters, jobs
from vctl.store.rows import dumps
from vctl.store.store import Store


def commit(store: Store, mirror: Mirror, plan: Plan) -> list[Run]:
    """Write every gang that still fits; a stale one is decided again. Returns the processes to launch."""
    started: list[Run] = []
    with store.transaction():
        mirror.follow(store)  # inside the write lock: from here on nobody changes anything
        for start in plan.starts:
            parent = mirror.parent_of.get(start.job.job_id)
            queue = mirror.queues.get(start.job.parent_id)
            if parent is None or queue is None or queue.jobs.get(start.job.job_id) != start.job:
                continue  # stopped or changed meanwhile
            if not pl.still_fits(mirror.ledger, start):
                queue.forget_verdicts()
                continue
            started.append(_start(store, mirror, start))
        for wait in plan.waits:
            jobs.set_wait(store, wait.parent_id, wait.shape, wait.reason, wait.message)
        for parent_id, shape in plan.cleared:
            queue = mirror.queues[parent_id]
            queue.emptied.discard(shape)
            if shape not in queue.shapes:
                jobs.clear_wait(store, parent_id, shape)
        mirror.caught_up(store)
    return started


def _start(store: Store, mirror: Mirror, start: Start) -> Run:
    job, cluster = start.job, start.cluster
    if cluster is not None:
        start = dataclasses.replace(
            start, cluster=dataclasses.replace(cluster, revision=store.next_revision())
        )
        assert start.cluster is not None
        clusters.insert(store, start.cluster, quiet=True)
        for vnode in start.vnodes:
            clusters.insert_vnode(store, vnode)
        held = rs.total(vnode.holding.amounts for vnode in start.vnodes)
        node_ids = sorted({vnode.node_id for vnode in start.vnodes})
    else:
        held, node_ids = dict(start.holding.amounts), [start.node_id]
    attempt = jobs.next_attempt(store, job.job_id)
    run = Run(
        f"{job.job_id}.{attempt}.0.{secrets.token_hex(3)}", job.job_id, attempt, 0, start.cluster_id, start.vnode_id,
        start.node_id, start.holding,
    )  # fmt: skip
    pl.apply(mirror.ledger, start, run.run_id)
    jobs.insert_run(store, run)
    jobs.mark_started(store, job.job_id, job.submission_id, start.cluster_id, attempt, node_ids, dumps(held))
    mirror.dequeue(job.job_id)
    mirror.add_run(run)
    return run


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, with its record; ``record`` is None when it was lost."""

    run: Run
    record: ExitRecord | None
    lost_message: str = ""


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
            jobs.mark_launched(
                store, run.run_id, pid=start.pid, pid_start=start.pid_started, boot_id=start.boot_id,
                started_at=start.started_at,
            )  # fmt: skip
            mirror.runs[run.run_id] = dataclasses.replace(
                run, state=jb.LAUNCHED, pid=start.pid, pid_start=start.pid_started, boot_id=start.boot_id,
                started_at=start.started_at,
            )  # fmt: skip
        touched: set[str] = set()
        for end in ended:
            _end(store, mirror, end)
            touched.add(end.run.node_id)
        for node_id in touched:
            node = mirror.ledger.nodes.get(node_id)
            if node is not None and node.state == DRAINING:
                settle_drained(store, node_id)
        if not any(mirror.ledger.nodes[n].state == DRAINING for n in touched if n in mirror.ledger.nodes):
            mirror.caught_up(store)


def _end(store: Store, mirror: Mirror, end: Ended) -> None:
    run = mirror.runs.get(end.run.run_id, end.run)
    outcome = outcome_of(run, end)
    jobs.end_run(store, run.run_id, exit_code=outcome.exit_code, message=outcome.message)
    mirror.drop_run(run)
    job = jobs.get(store, run.job_id)
    assert job is not None
    if mirror.runs_of_job.get(run.job_id):
        return  # other members of the gang still run; the last one to end tells
    cluster_id = job["cluster_id"]
    cluster = mirror.ledger.clusters.get(cluster_id)
    if cluster is not None and cluster.kind == JOB:
        for below in reversed(clusters.subtree(store, cluster_id)):
            clusters.delete(store, below)
            mirror.drop_cluster(below)
        clusters.delete(store, cluster_id, quiet=True)
        mirror.drop_cluster(cluster_id)
    mirror.stops.discard(run.job_id)
    jobs.mark_ended(
        store, run.job_id, job["submission_id"], status=outcome.status, reason=outcome.reason,
        message=outcome.message, exit_code=outcome.exit_code, cluster_id=cluster_id,
    )  # fmt: skip


def outcome_of(run: Run, end: Ended) -> Outcome:
    """What a run's end means for its job."""
    record = end.record
    if run.stop_reason == jb.NODE_FAILED and (record is None or record.stopped):
        return Outcome(jb.FAILED, jb.NODE_FAILED, None, f"node {run.node_id} died")
    if record is None:
        return Outcome(jb.FAILED, jb.PROCESS_LOST, None, end.lost_message)
    if record.launch_errno is not None:
        return Outcome(jb.FAILED, jb.LAUNCH_FAILED, record.exit_code, record.message)
    if run.stop_reason is not None and record.stopped:
        if run.stop_reason == jb.TIME_LIMIT:
            return Outcome(jb.FAILED, jb.TIME_LIMIT, jb.EXIT_TIME_LIMIT, "ran longer than its time limit")
        return Outcome(jb.STOPPED, run.stop_reason, jb.EXIT_STOPPED, "stopped by the user")
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
