"""Writes the changes of tasks and of their objects to the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.core import tasks as tk
from vctl.core.tasks import Task
from vctl.engine import changes as ch
from vctl.engine.lifecycle import TASK
from vctl.store import moves
from vctl.store.rows import dumps
from vctl.store.write import contents
from vctl.store.write.runs import RUN_COLUMNS, run_row
from vctl.store.write.table import insert, writes

_TASK = (
    "INSERT INTO tasks (task_number, task_id, job_id, cluster_id, owner_id, name, state, request, selector, strategy,"
    " origin_vnode_id, inputs, outputs, max_retries, detached, grace_s, created_at, command_id)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _task_row(task: Task, at: int) -> tuple[object, ...]:
    return (
        task.number, task.task_id, task.job_id, task.cluster_id, task.owner_id, task.name, task.state,
        dumps(task.request), dumps([[c.key, c.operator, list(c.values)] for c in task.selector]), task.strategy,
        task.origin_vnode_id, dumps(task.inputs), dumps(task.outputs), task.max_retries, task.detached, task.grace_s,
        at,
    )  # fmt: skip


@writes(ch.TaskSubmitted)
def _submitted(db: sqlite3.Connection, submitted: Sequence[ch.TaskSubmitted]) -> None:
    for one in submitted:
        task = one.task
        command_id = contents.command_of(db, one.launch or ch.Launch())
        db.execute(_TASK, (*_task_row(task, one.at), command_id))
        if task.outputs:
            db.executemany(
                "INSERT OR REPLACE INTO promises VALUES (?, ?, ?)",
                [(task.job_id, name, task.task_id) for name in task.outputs],
            )
        if task.inputs:
            db.executemany(
                "INSERT OR IGNORE INTO task_inputs VALUES (?, ?, ?)",
                [(task.job_id, name, task.task_id) for name in task.inputs],
            )


@writes(ch.TaskReady)
def _ready(db: sqlite3.Connection, ready: Sequence[ch.TaskReady]) -> None:
    for one in ready:
        moves.update(
            db, TASK, "ready", one.task_id,
            "state = ?, state_reason = NULL, message = NULL, vnode_id = NULL, node_id = NULL", (tk.PENDING_NODE,),
        )  # fmt: skip


@writes(ch.TaskAwaits)
def _await(db: sqlite3.Connection, awaiting: Sequence[ch.TaskAwaits]) -> None:
    for one in awaiting:
        moves.update(
            db, TASK, "await", one.task_id,
            "state = ?, state_reason = ?, message = ?, vnode_id = NULL, node_id = NULL",
            (tk.PENDING_ARGS, tk.AWAITING_INPUTS, one.message),
        )  # fmt: skip


@writes(ch.TaskBound)
def _bound(db: sqlite3.Connection, bound: Sequence[ch.TaskBound]) -> None:
    for one in bound:
        moves.update(db, TASK, "bind", one.task_id, "vnode_id = ?, node_id = ?", (one.vnode_id, one.node_id))


@writes(ch.TaskStarted)
def _started(db: sqlite3.Connection, started: Sequence[ch.TaskStarted]) -> None:
    insert(db, RUN_COLUMNS, [run_row(one.run, one.at) for one in started])
    for one in started:
        run = one.run
        moves.update(
            db, TASK, "start", one.task_id,
            "state = ?, state_reason = NULL, message = NULL, vnode_id = ?, node_id = ?, attempt = ?, started_at = ?",
            (tk.RUNNING, run.vnode_id, run.node_id, run.attempt, one.at),
        )  # fmt: skip
        if one.copies:
            db.executemany(
                "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (run.job_id, copy.name, run.node_id, run.cluster_id, copy.size, copy.maker, one.at)
                    for copy in one.copies
                ],
            )


@writes(ch.TaskRetried)
def _retried(db: sqlite3.Connection, retried: Sequence[ch.TaskRetried]) -> None:
    for one in retried:
        moves.update(
            db, TASK, "retry", one.task_id, "state = ?, vnode_id = NULL, node_id = NULL, message = ?",
            (tk.PENDING_NODE, one.message),
        )  # fmt: skip


@writes(ch.TaskStopAsked)
def _stops_asked(db: sqlite3.Connection, asked: Sequence[ch.TaskStopAsked]) -> None:
    for one in asked:
        moves.update(
            db, TASK, "ask_stop", one.task_id, "stop_requested_at = ?, grace_s = ?", (one.at, one.grace_s)
        )


@writes(ch.TaskEnded)
def _ended(db: sqlite3.Connection, ended: Sequence[ch.TaskEnded]) -> None:
    for one in ended:
        moves.update(
            db, TASK, one.move, one.task_id,
            "state = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ?",
            (one.state, one.reason, one.message, one.exit_code, one.at),
        )  # fmt: skip


@writes(ch.ObjectCreated)
def _objects_created(db: sqlite3.Connection, created: Sequence[ch.ObjectCreated]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (one.job_id, one.name, one.node_id, one.cluster_id, one.size, one.task_id, one.at)
            for one in created
        ],
    )
    if put := [(one.job_id, one.name) for one in created if one.task_id is None]:
        db.executemany("INSERT OR REPLACE INTO promises VALUES (?, ?, NULL)", put)


@writes(ch.ObjectLost)
def _objects_lost(db: sqlite3.Connection, lost: Sequence[ch.ObjectLost]) -> None:
    db.executemany(
        "DELETE FROM objects WHERE job_id = ?1 AND name = ?2 AND (?3 IS NULL OR node_id = ?3)",
        [(one.job_id, one.name, one.node_id) for one in lost],
    )


@writes(ch.ObjectsDropped)
def _objects_dropped(db: sqlite3.Connection, dropped: Sequence[ch.ObjectsDropped]) -> None:
    for table in ("objects", "promises", "task_inputs"):
        db.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(one.job_id,) for one in dropped])
