"""How changes of jobs change the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.core import jobs as jb
from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves
from vctl.store.rows import dumps
from vctl.store.write import clusters
from vctl.store.write.clusters import CLUSTER_COLUMNS, VNODE_COLUMNS, cluster_row, vnode_row
from vctl.store.write.runs import RUN_COLUMNS, run_row
from vctl.store.write.table import Table


def _jobs_started(db: sqlite3.Connection, started: Sequence[ch.JobStarted]) -> None:
    db.executemany(
        CLUSTER_COLUMNS, [cluster_row(one.cluster, one.at) for one in started if one.cluster is not None]
    )
    db.executemany(VNODE_COLUMNS, [vnode_row(vnode) for one in started for vnode in one.vnodes])
    db.executemany(RUN_COLUMNS, [run_row(run, one.at) for one in started for run in one.runs])
    for one in started:
        job = one.job
        moves.update(
            db, JOB, "start", job.job_id,
            "status = ?, state_reason = NULL, message = NULL, cluster_id = ?, attempt = ?, started_at = ?,"
            " node_ids = ?, resources = ?, master_port = ?",
            (
                jb.RUNNING, job.cluster_id, job.attempt, one.at, dumps(one.nodes), dumps(one.held), job.master_port,
            ),
        )  # fmt: skip


def _jobs_ending(db: sqlite3.Connection, ending: Sequence[ch.JobEnding]) -> None:
    for one in ending:
        moves.update(db, JOB, "entry_over", one.job_id, "outcome = ?", (dumps(one.outcome),))


def _jobs_ended(db: sqlite3.Connection, ended: Sequence[ch.JobEnded]) -> None:
    for one in ended:
        moves.update(
            db, JOB, one.move, one.job_id,
            "status = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ?, waits_for = 0",
            (one.status, one.reason, one.message, one.exit_code, one.at),
        )  # fmt: skip
    db.executemany(
        "DELETE FROM dependencies WHERE job_id = ?", [(one.job_id,) for one in ended if one.move != "end"]
    )
    clusters.remove(db, [one.removed for one in ended if one.removed is not None])


def _jobs_requeued(db: sqlite3.Connection, requeued: Sequence[ch.JobRequeued]) -> None:
    for one in requeued:
        moves.update(
            db, JOB, "requeue", one.job.job_id,
            "status = ?, state_reason = ?, message = ?, begin_at = ?, preemptions = ?, outcome = NULL,"
            " started_at = NULL, node_ids = NULL, stop_requested_at = NULL, stop_reason = NULL, stop_grace_s = NULL,"
            " master_port = NULL",
            (jb.PENDING, one.reason, one.message, one.job.begin_at_ns, one.preemptions),
        )  # fmt: skip


def _stops_asked(db: sqlite3.Connection, asked: Sequence[ch.StopAsked]) -> None:
    for one in asked:
        moves.update(
            db, JOB, "ask_stop", one.job_id,
            "stop_requested_at = ?, stop_reason = ?, stop_grace_s = ?, message = ?",
            (one.at, one.reason, one.grace_s, one.message),
        )  # fmt: skip


def _spans_stopped(db: sqlite3.Connection, stopped: Sequence[ch.JobsStopped]) -> None:
    for one in stopped:
        moves.update_spans(
            db, JOB, "stop", one.spans, "status = ?, state_reason = ?, message = ?, ended_at = ?, waits_for = 0",
            (jb.STOPPED, one.reason, one.message, one.at),
        )  # fmt: skip
        db.executemany("DELETE FROM dependencies WHERE job_id BETWEEN ? AND ?", one.spans)


WRITERS: Table = {
    ch.JobStarted: _jobs_started,
    ch.JobEnding: _jobs_ending,
    ch.JobEnded: _jobs_ended,
    ch.JobRequeued: _jobs_requeued,
    ch.StopAsked: _stops_asked,
    ch.JobsStopped: _spans_stopped,
}
