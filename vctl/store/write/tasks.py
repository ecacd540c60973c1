"""Writes the changes of tasks and of their objects to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
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
    for change in submitted:
        task = change.task
        command_id = contents.command_of(db, change.launch or ch.Launch())
        db.execute(_TASK, (*_task_row(task, change.at), command_id))
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
    for change in ready:
        moves.update(
            db, TASK, "ready", change.task_id,
            "state = ?, state_reason = NULL, message = NULL, vnode_id = NULL, node_id = NULL", (tk.PENDING_NODE,),
        )  # fmt: skip


@writes(ch.TaskAwaits)
def _await(db: sqlite3.Connection, awaiting: Sequence[ch.TaskAwaits]) -> None:
    for change in awaiting:
        moves.update(
            db, TASK, "await", change.task_id,
            "state = ?, state_reason = ?, message = ?, vnode_id = NULL, node_id = NULL",
            (tk.PENDING_ARGS, tk.AWAITING_INPUTS, change.message),
        )  # fmt: skip


@writes(ch.TaskBound)
def _bound(db: sqlite3.Connection, bound: Sequence[ch.TaskBound]) -> None:
    for change in bound:
        moves.update(
            db, TASK, "bind", change.task_id, "vnode_id = ?, node_id = ?", (change.vnode_id, change.node_id)
        )


@writes(ch.TaskStarted)
def _started(db: sqlite3.Connection, started: Sequence[ch.TaskStarted]) -> None:
    insert(db, RUN_COLUMNS, [run_row(change.run, change.at) for change in started])
    for change in started:
        run = change.run
        moves.update(
            db, TASK, "start", change.task_id,
            "state = ?, state_reason = NULL, message = NULL, vnode_id = ?, node_id = ?, attempt = ?, started_at = ?",
            (tk.RUNNING, run.vnode_id, run.node_id, run.attempt, change.at),
        )  # fmt: skip
        if change.copies:
            db.executemany(
                "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (run.job_id, copy.name, run.node_id, run.cluster_id, copy.size, copy.maker, change.at)
                    for copy in change.copies
                ],
            )


@writes(ch.TaskRetried)
def _retried(db: sqlite3.Connection, retried: Sequence[ch.TaskRetried]) -> None:
    for change in retried:
        moves.update(
            db, TASK, "retry", change.task_id, "state = ?, vnode_id = NULL, node_id = NULL, message = ?",
            (tk.PENDING_NODE, change.message),
        )  # fmt: skip


@writes(ch.TaskStopAsked)
def _stops_asked(db: sqlite3.Connection, requested: Sequence[ch.TaskStopAsked]) -> None:
    for change in requested:
        moves.update(
            db,
            TASK,
            "ask_stop",
            change.task_id,
            "stop_requested_at = ?, grace_s = ?",
            (change.at, change.grace_s),
        )


@writes(ch.TaskEnded)
def _ended(db: sqlite3.Connection, ended: Sequence[ch.TaskEnded]) -> None:
    for change in ended:
        moves.update(
            db, TASK, change.move, change.task_id,
            "state = ?, state_reason = ?, message = ?, exit_code = ?, ended_at = ?",
            (change.state, change.reason, change.message, change.exit_code, change.at),
        )  # fmt: skip


@writes(ch.ObjectCreated)
def _objects_created(db: sqlite3.Connection, created: Sequence[ch.ObjectCreated]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                change.job_id,
                change.name,
                change.node_id,
                change.cluster_id,
                change.size,
                change.task_id,
                change.at,
            )
            for change in created
        ],
    )
    if put := [(change.job_id, change.name) for change in created if change.task_id is None]:
        db.executemany("INSERT OR REPLACE INTO promises VALUES (?, ?, NULL)", put)


@writes(ch.ObjectLost)
def _objects_lost(db: sqlite3.Connection, lost: Sequence[ch.ObjectLost]) -> None:
    db.executemany(
        "DELETE FROM objects WHERE job_id = ?1 AND name = ?2 AND (?3 IS NULL OR node_id = ?3)",
        [(change.job_id, change.name, change.node_id) for change in lost],
    )


@writes(ch.ObjectsDropped)
def _objects_dropped(db: sqlite3.Connection, dropped: Sequence[ch.ObjectsDropped]) -> None:
    for table in ("objects", "promises", "task_inputs"):
        db.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(change.job_id,) for change in dropped])
