"""Writes the changes of jobs to the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import groupby

from vctl.core import jobs as jb
from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves
from vctl.store.rows import dumps
from vctl.store.write import clusters
from vctl.store.write.clusters import CLUSTER_COLUMNS, VNODE_COLUMNS, cluster_row, vnode_row
from vctl.store.write.runs import RUN_COLUMNS, run_row
from vctl.store.write.table import insert, writes

Whole = tuple[ch.JobStarted, ch.RunEnded, ch.JobEnded]
"""A job that starts and ends in one transaction: no row of its cluster or its run is ever written."""
_STARTED = "attempt = ?, started_at = ?, node_ids = ?, resources = ?, master_port = ?"
_OVER = "status = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ?, waits_for = 0"


def whole(among: Sequence[ch.Change]) -> tuple[list[Whole], Sequence[ch.Change]]:
    """Split starts and ends into the jobs of one run that start and end among them, and all other changes."""
    over = {one.job_id: one for one in among if isinstance(one, ch.JobEnded) and one.move == "end"}
    runs = {one.run_id: one for one in among if isinstance(one, ch.RunEnded)}
    found = []
    for one in among:
        if isinstance(one, ch.JobStarted) and len(one.runs) == 1:
            run, end = runs.get(one.job.run_id), over.get(one.job.job_id)
            if run is not None and end is not None and _leaves_nothing(one, end):
                found.append((one, run, end))
    if not found:
        return [], among
    parts = {id(part) for three in found for part in three}
    return found, [one for one in among if id(one) not in parts]


def _leaves_nothing(start: ch.JobStarted, end: ch.JobEnded) -> bool:
    """Whether the end of a job removes the cluster that came with its start, and nothing else."""
    gone, cluster = end.removed, start.cluster
    if gone is None or cluster is None:
        return gone is None and cluster is None
    return gone.cluster_id == cluster.cluster_id and not (gone.returned or gone.lent)


def write_whole(db: sqlite3.Connection, found: Sequence[Whole]) -> None:
    """Write jobs that start and end in one transaction: their rows as they are at the end."""
    _no_longer_ahead(db, [one for one, _, _ in found])
    moves.update_all(
        db, JOB, "start", f"{_STARTED}, {_OVER}",
        [(*_started(one), *_over(end), one.job.job_id) for one, _, end in found],
    )  # fmt: skip


@writes(ch.JobStarted)
def _jobs_started(db: sqlite3.Connection, started: Sequence[ch.JobStarted]) -> None:
    own = [one for one in started if one.cluster is not None]
    insert(db, CLUSTER_COLUMNS, [cluster_row(one.cluster, one.at) for one in own if one.cluster is not None])
    insert(db, VNODE_COLUMNS, [vnode_row(vnode) for one in own for vnode in one.vnodes])
    insert(db, RUN_COLUMNS, [run_row(run, one.at) for one in started for run in one.runs])
    _no_longer_ahead(db, started)
    moves.update_all(
        db, JOB, "start", f"status = ?, state_reason = NULL, message = NULL, {_STARTED}",
        [(jb.RUNNING, *_started(one), one.job.job_id) for one in started],
    )  # fmt: skip


def _started(one: ch.JobStarted) -> tuple[object, ...]:
    job = one.job
    return job.attempt, one.at, dumps(one.nodes), dumps(job.held), job.master_port


def _over(one: ch.JobEnded) -> tuple[object, ...]:
    return one.status, one.reason, one.message, one.exit_code, one.at


def _no_longer_ahead(db: sqlite3.Connection, started: Sequence[ch.JobStarted]) -> None:
    if ahead := [(one.job.job_id,) for one in started if one.was_ahead]:
        db.executemany("DELETE FROM runs_ahead WHERE job_id = ?", ahead)


@writes(ch.JobEnding)
def _jobs_ending(db: sqlite3.Connection, ending: Sequence[ch.JobEnding]) -> None:
    for one in ending:
        moves.update(db, JOB, "entry_over", one.job_id, "outcome = ?", (dumps(one.outcome),))


@writes(ch.JobEnded)
def _jobs_ended(db: sqlite3.Connection, ended: Sequence[ch.JobEnded]) -> None:
    for move, alike in groupby(ended, lambda one: one.move):
        moves.update_all(db, JOB, move, _OVER, [(*_over(one), one.job_id) for one in alike])
    if waited := [(one.job_id,) for one in ended if one.move != "end"]:
        db.executemany("DELETE FROM dependencies WHERE job_id = ?", waited)
    if removed := [one.removed for one in ended if one.removed is not None]:
        clusters.remove(db, removed)


@writes(ch.JobRequeued)
def _jobs_requeued(db: sqlite3.Connection, requeued: Sequence[ch.JobRequeued]) -> None:
    for one in requeued:
        moves.update(
            db, JOB, "requeue", one.job.job_id,
            "status = ?, state_reason = ?, message = ?, begin_at = ?, preemptions = ?, outcome = NULL,"
            " started_at = NULL, stop_requested_at = NULL, stop_reason = NULL, stop_grace_s = NULL,"
            " master_port = NULL",
            (jb.PENDING, one.reason, one.message, one.job.begin_at_ns, one.job.preemptions),
        )  # fmt: skip


@writes(ch.StopAsked)
def _stops_asked(db: sqlite3.Connection, asked: Sequence[ch.StopAsked]) -> None:
    for one in asked:
        moves.update(
            db, JOB, "ask_stop", one.job_id,
            "stop_requested_at = ?, stop_reason = ?, stop_grace_s = ?, message = ?",
            (one.at, one.reason, one.grace_s, one.message),
        )  # fmt: skip


@writes(ch.JobsStopped)
def _spans_stopped(db: sqlite3.Connection, stopped: Sequence[ch.JobsStopped]) -> None:
    for one in stopped:
        moves.update_spans(
            db, JOB, "stop", one.spans, "status = ?, state_reason = ?, message = ?, ended_at = ?, waits_for = 0",
            (jb.STOPPED, one.reason, one.message, one.at),
        )  # fmt: skip
        db.executemany("DELETE FROM dependencies WHERE job_id BETWEEN ? AND ?", one.spans)
