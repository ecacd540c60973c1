"""Writes the changes of jobs to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence
from itertools import groupby

from vctl.core import jobs as jb
from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves
from vctl.store.rows import dumps
from vctl.store.write import accounts, clusters
from vctl.store.write.clusters import CLUSTER_COLUMNS, VNODE_COLUMNS, cluster_row, vnode_row
from vctl.store.write.runs import RUN_COLUMNS, run_row
from vctl.store.write.table import insert, writes

Whole = tuple[ch.JobStarted, ch.RunEnded, ch.JobEnded]
"""A job that starts and ends in one transaction: no row of its cluster or its run is ever written."""
_STARTED = "attempt = ?, started_at = ?, node_ids = ?, resources = ?, master_port = ?"
_OVER = "status = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ?, waits_for = 0"


def whole(among: Sequence[ch.Change]) -> tuple[list[Whole], Sequence[ch.Change]]:
    """Split starts and ends into the jobs of one run that start and end among them, and all other changes."""
    over = {
        change.job_id: change for change in among if isinstance(change, ch.JobEnded) and change.move == "end"
    }
    runs = {change.run_id: change for change in among if isinstance(change, ch.RunEnded)}
    whole_jobs = []
    for change in among:
        if isinstance(change, ch.JobStarted) and len(change.runs) == 1:
            run, end = runs.get(change.job.run_id), over.get(change.job.job_id)
            if run is not None and end is not None and _leaves_nothing(change, end):
                whole_jobs.append((change, run, end))
    if not whole_jobs:
        return [], among
    parts = {id(part) for three in whole_jobs for part in three}
    return whole_jobs, [change for change in among if id(change) not in parts]


def _leaves_nothing(start: ch.JobStarted, end: ch.JobEnded) -> bool:
    """Whether the end of a job removes the cluster that came with its start, and nothing else."""
    removed, cluster = end.removed, start.cluster
    if removed is None or cluster is None:
        return removed is None and cluster is None
    return removed.cluster_id == cluster.cluster_id and not (removed.returned or removed.lent)


def write_whole(db: sqlite3.Connection, whole_jobs: Sequence[Whole]) -> None:
    """Write jobs that start and end in one transaction: their rows as they are at the end."""
    _no_longer_ahead(db, [change for change, _, _ in whole_jobs])
    moves.update_all(
        db, JOB, "start", f"{_STARTED}, {_OVER}",
        [(*_started(change), *_over(end), change.job.job_id) for change, _, end in whole_jobs],
    )  # fmt: skip


@writes(ch.JobStarted)
def _jobs_started(db: sqlite3.Connection, started: Sequence[ch.JobStarted]) -> None:
    own = [change for change in started if change.cluster is not None]
    insert(
        db,
        CLUSTER_COLUMNS,
        [cluster_row(change.cluster, change.at) for change in own if change.cluster is not None],
    )
    insert(db, VNODE_COLUMNS, [vnode_row(vnode) for change in own for vnode in change.vnodes])
    insert(db, RUN_COLUMNS, [run_row(run, change.at) for change in started for run in change.runs])
    _no_longer_ahead(db, started)
    moves.update_all(
        db, JOB, "start", f"status = ?, state_reason = NULL, message = NULL, {_STARTED}",
        [(jb.RUNNING, *_started(change), change.job.job_id) for change in started],
    )  # fmt: skip


def _started(change: ch.JobStarted) -> tuple[object, ...]:
    job = change.job
    return job.attempt, change.at, dumps(change.nodes), dumps(job.held), job.master_port


def _over(change: ch.JobEnded) -> tuple[object, ...]:
    return change.status, change.reason, change.message, change.exit_code, change.at


def _no_longer_ahead(db: sqlite3.Connection, started: Sequence[ch.JobStarted]) -> None:
    if ahead := [(change.job.job_id,) for change in started if change.was_ahead]:
        db.executemany("DELETE FROM runs_ahead WHERE job_id = ?", ahead)


@writes(ch.JobEnding)
def _jobs_ending(db: sqlite3.Connection, ending: Sequence[ch.JobEnding]) -> None:
    for change in ending:
        moves.update(db, JOB, "entry_over", change.job_id, "outcome = ?", (dumps(change.outcome),))


@writes(ch.JobEnded)
def _jobs_ended(db: sqlite3.Connection, ended: Sequence[ch.JobEnded]) -> None:
    for move, alike in groupby(ended, lambda change: change.move):
        moves.update_all(db, JOB, move, _OVER, [(*_over(change), change.job_id) for change in alike])
    if waited := [(change.job_id,) for change in ended if change.move != "end"]:
        db.executemany("DELETE FROM dependencies WHERE job_id = ?", waited)
    if removed := [change.removed for change in ended if change.removed is not None]:
        clusters.remove(db, removed)


@writes(ch.JobRequeued)
def _jobs_requeued(db: sqlite3.Connection, requeued: Sequence[ch.JobRequeued]) -> None:
    for change in requeued:
        accounts.keep_attempt(db, change.job.job_id, change.at)
        moves.update(
            db, JOB, "requeue", change.job.job_id,
            "status = ?, state_reason = ?, message = ?, begin_at = ?, preemptions = ?, closed = ?,"
            " outcome = NULL, started_at = NULL, stop_requested_at = NULL, stop_reason = NULL, stop_grace_s = NULL,"
            " master_port = NULL",
            (
                jb.PENDING, change.reason, change.message, change.job.begin_at_ns, change.job.preemptions,
                change.job.closed,
            ),
        )  # fmt: skip


@writes(ch.StopAsked)
def _stops_asked(db: sqlite3.Connection, requested: Sequence[ch.StopAsked]) -> None:
    for change in requested:
        moves.update(
            db, JOB, "ask_stop", change.job_id,
            "stop_requested_at = ?, stop_reason = ?, stop_grace_s = ?, message = ?",
            (change.at, change.reason, change.grace_s, change.message),
        )  # fmt: skip


@writes(ch.NoticeSent)
def _notices_sent(db: sqlite3.Connection, sent: Sequence[ch.NoticeSent]) -> None:
    db.executemany("UPDATE notifications SET is_over = 1 WHERE number = ?", [(one.number,) for one in sent])


@writes(ch.JobsStopped)
def _spans_stopped(db: sqlite3.Connection, stopped: Sequence[ch.JobsStopped]) -> None:
    for change in stopped:
        moves.update_spans(
            db, JOB, "stop", change.spans, "status = ?, state_reason = ?, message = ?, ended_at = ?, waits_for = 0",
            (jb.STOPPED, change.reason, change.message, change.at),
        )  # fmt: skip
        db.executemany("DELETE FROM dependencies WHERE job_id BETWEEN ? AND ?", change.spans)
