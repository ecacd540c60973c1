"""The only SQL that changes tables for the changes that have moved. The change itself is the row of the journal.

Entries are written when the tables are looked at, and before the commit: until then equal ones gather.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from vctl.core import jobs as jb
from vctl.core.clusters import Cluster, VNode
from vctl.core.jobs import Run
from vctl.engine import changes as ch
from vctl.engine.changes import Change
from vctl.engine.codec import encode
from vctl.engine.lifecycle import CLUSTER, JOB, NODE, RUN
from vctl.store import moves, rows
from vctl.store.rows import dumps

_EVENT = (
    "INSERT INTO events (seq, at, kind, object, object_id, cluster_id, job_id, data, change)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
CLUSTER_COLUMNS = (
    "INSERT INTO clusters (cluster_id, parent_id, kind, divisible, revision, spec, state, job_id, created_at,"
    " updated_at, owner) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
VNODE_COLUMNS = (
    "INSERT INTO vnodes (vnode_id, cluster_id, node_id, parent_vnode_id, kind, whole, rank, amounts, instances,"
    " cores, labels) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_RUN = (
    "INSERT INTO runs (run_id, job_id, task_id, attempt, rank, cluster_id, vnode_id, node_id, state, amounts,"
    " instances, cores, assigned_at, supervisor) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Event(NamedTuple):
    """A row of the journal that tells of a change which its writer made itself."""

    at: int
    kind: str
    object: str
    object_id: str
    cluster_id: str | None
    job_id: int | None
    data: str
    change: str | None = None


class Emitted(NamedTuple):
    """A change, and when it was emitted."""

    at: int
    change: Change


Entry = Event | Emitted


def write(db: sqlite3.Connection, entries: Sequence[Entry], last: int) -> None:
    """Put entries into the tables; the last one has this number."""
    emitted = [one.change for one in entries if isinstance(one, Emitted)]
    for kind, equal in groupby(emitted, type):
        _WRITERS[kind](db, list(equal))
    first = last - len(entries) + 1
    db.executemany(_EVENT, [(seq, *_event(entry)) for seq, entry in enumerate(entries, first)])


def _event(entry: Entry) -> Event:
    if isinstance(entry, Event):
        return entry
    kind, object_, object_id, cluster_id, job_id, data = entry.change.told()
    text = dumps(data) if data else "{}"
    return Event(entry.at, kind, object_, object_id, cluster_id, job_id, text, encode(entry.change))


def cluster_row(cluster: Cluster, at: int, owner: str | None = None) -> tuple[object, ...]:
    """A cluster as a row."""
    return (
        cluster.cluster_id, cluster.parent_id, cluster.kind, cluster.divisible, cluster.revision,
        rows.spec_text(cluster.spec), cluster.state, cluster.job, at, at, owner,
    )  # fmt: skip


def vnode_row(vnode: VNode) -> tuple[object, ...]:
    """A virtual node as a row."""
    amounts, instances, cores = rows.allocation_columns(vnode.allocation)
    return (
        vnode.vnode_id, vnode.cluster_id, vnode.node_id, vnode.parent_id, vnode.kind, vnode.whole, vnode.rank,
        amounts, instances, cores, dumps(dict(vnode.labels)),
    )  # fmt: skip


def _run_row(run: Run, at: int) -> tuple[object, ...]:
    amounts, instances, cores = rows.allocation_columns(run.allocation)
    return (
        run.run_id, run.job_id, run.task_id, run.attempt, run.rank, run.cluster_id, run.vnode_id, run.node_id,
        run.state, amounts, instances, cores, at, run.supervisor,
    )  # fmt: skip


def _jobs_started(db: sqlite3.Connection, started: Sequence[ch.JobStarted]) -> None:
    db.executemany(
        CLUSTER_COLUMNS, [cluster_row(one.cluster, one.at) for one in started if one.cluster is not None]
    )
    db.executemany(VNODE_COLUMNS, [vnode_row(vnode) for one in started for vnode in one.vnodes])
    db.executemany(_RUN, [_run_row(run, one.at) for one in started for run in one.runs])
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


def _runs_started(db: sqlite3.Connection, started: Sequence[ch.RunStarted]) -> None:
    db.executemany(_RUN, [_run_row(one.run, one.at) for one in started])


def _runs_assigned(db: sqlite3.Connection, assigned: Sequence[ch.RunAssigned]) -> None:
    columns = [(one.supervisor, one.run_id) for one in assigned]
    db.executemany("UPDATE runs SET supervisor = ? WHERE run_id = ? AND supervisor IS NULL", columns)


def _runs_seen(db: sqlite3.Connection, seen: Sequence[ch.RunSeen]) -> None:
    for one in seen:
        process = one.process
        moves.update(
            db, RUN, "seen", one.run_id, "state = ?, pid = ?, pid_start = ?, boot_id = ?, started_at = ?",
            (jb.RUNNING, process.pid, process.pid_start, process.boot_id, process.started_at),
        )  # fmt: skip


def _runs_stopping(db: sqlite3.Connection, stopping: Sequence[ch.RunStopping]) -> None:
    for one in stopping:
        db.execute(
            "UPDATE runs SET stop_reason = coalesce(stop_reason, ?) WHERE run_id = ?",
            (one.reason, one.run_id),
        )


def _runs_ended(db: sqlite3.Connection, ended: Sequence[ch.RunEnded]) -> None:
    for one in ended:
        columns, values = "state = ?, exit_code = ?, message = ?, ended_at = ?", [
            jb.ENDED, one.exit_code, one.message, one.at,
        ]  # fmt: skip
        if (process := one.process) is not None:
            columns += ", pid = ?, pid_start = ?, boot_id = ?, started_at = ?"
            values += [process.pid, process.pid_start, process.boot_id, process.started_at]
        moves.update(db, RUN, "end", one.run_id, columns, values)


def _jobs_ending(db: sqlite3.Connection, ending: Sequence[ch.JobEnding]) -> None:
    for one in ending:
        moves.update(db, JOB, "entry_over", one.job_id, "outcome = ?", (dumps(one.outcome),))


def _jobs_ended(db: sqlite3.Connection, ended: Sequence[ch.JobEnded]) -> None:
    for one in ended:
        moves.update(
            db, JOB, one.move, one.job_id,
            "status = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ?",
            (one.status, one.reason, one.message, one.exit_code, one.at),
        )  # fmt: skip
    _clusters_removed(db, [one.removed for one in ended if one.removed is not None])


def _clusters_removed(db: sqlite3.Connection, removed: Sequence[ch.ClusterRemoved]) -> None:
    for one in removed:
        db.executemany("DELETE FROM leases WHERE lease_id = ?", [(lease_id,) for lease_id in one.returned])
        db.executemany(
            "UPDATE leases SET lender_id = ? WHERE lease_id = ?",
            [(one.lender_id, lease_id) for lease_id in one.lent],
        )
    db.executemany("DELETE FROM vnodes WHERE cluster_id = ?", [(one.cluster_id,) for one in removed])
    for one in removed:
        moves.delete(db, CLUSTER, "forget", one.cluster_id)


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
        for first, last in one.spans:
            moves.update_span(
                db, JOB, "stop", first, last, "status = ?, state_reason = ?, message = ?, ended_at = ?",
                (jb.STOPPED, one.reason, one.message, one.at),
            )  # fmt: skip


def _nodes_added(db: sqlite3.Connection, added: Sequence[ch.NodeAdded]) -> None:
    for one in added:
        node, beats = one.node, one.heartbeat_timeout_s is not None
        amounts, instances, cores = rows.allocation_columns(node.total)
        db.execute(
            "INSERT INTO nodes (node_id, hostname, template_id, source, state, state_since, amounts, instances, cores,"
            " labels, boot_id, heartbeat_timeout_s, last_heartbeat, created_at, devices)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                node.node_id, node.hostname, node.template_id, node.source, node.state, one.at, amounts, instances,
                cores, dumps(dict(node.labels)), node.boot_id, one.heartbeat_timeout_s, one.at if beats else None,
                one.at, one.devices,
            ),
        )  # fmt: skip


def _nodes_moved(db: sqlite3.Connection, moved: Sequence[ch.NodeMoved]) -> None:
    for one in moved:
        moves.update(
            db, NODE, one.move, one.node_id, "state = ?, reason = ?, author = ?, state_since = ?",
            (one.state, one.reason, one.author, one.at),
        )  # fmt: skip


def _nodes_changed(db: sqlite3.Connection, changed: Sequence[ch.NodeChanged]) -> None:
    for one in changed:
        node = one.node
        amounts, instances, cores = rows.allocation_columns(node.total)
        db.execute(
            "UPDATE nodes SET amounts = ?, instances = ?, cores = ?, labels = ?, template_id = ?, shrunk = ?"
            " WHERE node_id = ?",
            (
                amounts, instances, cores, dumps(dict(node.labels)), node.template_id, node.shrunk, node.node_id,
            ),
        )  # fmt: skip


def _nodes_removed(db: sqlite3.Connection, removed: Sequence[ch.NodeRemoved]) -> None:
    for one in removed:
        moves.delete(db, NODE, "forget", one.node_id)


_WRITERS: dict[type[Change], Callable[[sqlite3.Connection, Any], None]] = {
    ch.JobStarted: _jobs_started,
    ch.RunStarted: _runs_started,
    ch.RunAssigned: _runs_assigned,
    ch.RunSeen: _runs_seen,
    ch.RunStopping: _runs_stopping,
    ch.RunEnded: _runs_ended,
    ch.JobEnding: _jobs_ending,
    ch.JobEnded: _jobs_ended,
    ch.ClusterRemoved: _clusters_removed,
    ch.JobRequeued: _jobs_requeued,
    ch.StopAsked: _stops_asked,
    ch.JobsStopped: _spans_stopped,
    ch.NodeAdded: _nodes_added,
    ch.NodeMoved: _nodes_moved,
    ch.NodeChanged: _nodes_changed,
    ch.NodeRemoved: _nodes_removed,
}
