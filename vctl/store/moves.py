"""The moves of lifecycles in SQL: an UPDATE or DELETE finds a row only in a phase that allows the move."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence
from functools import cache

from vctl.core.compact import dumps
from vctl.core.spans import Spans
from vctl.engine import lifecycle as lc
from vctl.engine.lifecycle import IllegalTransition, Lifecycle

STORY = 8
"""The number of last events that the error about an illegal move shows."""
_FEW = 4
"""Up to this number, objects are moved one by one."""
TABLES = {
    "job": ("jobs", "job_id"),
    "run": ("runs", "run_id"),
    "task": ("tasks", "task_id"),
    "node": ("nodes", "node_id"),
    "cluster": ("clusters", "cluster_id"),
    "lease": ("leases", "lease_id"),
    "preemption": ("preemptions", "victim_id"),
}
"""Lifecycle -> its table and the key of that table."""
_PHASES = {
    "job": f"CASE WHEN status = 'RUNNING' AND outcome IS NOT NULL THEN '{lc.ENDING}' WHEN status = 'PENDING' AND"
    f" job_id IN (SELECT job_id FROM runs_ahead) THEN '{lc.AHEAD}' ELSE status END",
    "run": "state",
    "task": "state",
    "node": "state",
    "cluster": "state",
    "lease": "state",
    "preemption": f"CASE WHEN ending THEN '{lc.ENDING}' WHEN told THEN '{lc.TOLD}' ELSE '{lc.BEGUN}' END",
}


def update(
    db: sqlite3.Connection, lifecycle: Lifecycle, move: str, key: object, columns: str, values: Sequence[object]
) -> None:  # fmt: skip
    """Move an object; ``columns`` reads ``a = ?, b = NULL``. Raises IllegalTransition if it cannot move."""
    update_all(db, lifecycle, move, columns, [(*values, key)])


def update_all(
    db: sqlite3.Connection, lifecycle: Lifecycle, move: str, columns: str, values: Sequence[Sequence[object]]
) -> None:  # fmt: skip
    """Move several objects in the same way; the last value of each is its key.

    They are moved together. If one object cannot move, they are moved one by one, to find that object.
    """
    sql = _update(lifecycle.name, move, columns)
    if len(values) > _FEW:
        db.execute("SAVEPOINT move")
        moved = db.executemany(sql, values).rowcount
        if moved != len(values):
            db.execute("ROLLBACK TO move")
        db.execute("RELEASE move")
        if moved == len(values):
            return
    for row in values:
        if db.execute(sql, row).rowcount != 1:
            raise refused(db, lifecycle, move, row[-1])


def delete_all(db: sqlite3.Connection, lifecycle: Lifecycle, move: str, keys: Sequence[object]) -> None:
    """Move several objects out of the tables."""
    table, key = TABLES[lifecycle.name]
    among = f"{key} IN (SELECT value FROM json_each(?)) AND {condition(lifecycle, move)}"
    deleted = db.execute(f"DELETE FROM {table} WHERE {among} RETURNING {key}", (dumps(keys),)).fetchall()
    if len(deleted) != len(keys):
        refused_keys = set(keys) - {row[0] for row in deleted}
        raise refused(db, lifecycle, move, next(number for number in keys if number in refused_keys))


def update_spans(
    db: sqlite3.Connection, lifecycle: Lifecycle, move: str, spans: Spans, columns: str, values: Sequence[object]
) -> None:  # fmt: skip
    """Move all objects whose numbers are in spans."""
    table, key = TABLES[lifecycle.name]
    sql = f"UPDATE {table} SET {columns} WHERE {key} BETWEEN ? AND ? AND {condition(lifecycle, move)}"
    for first, last in spans:
        if db.execute(sql, (*values, first, last)).rowcount != last - first + 1:
            raise refused(db, lifecycle, move, first)


def delete_spans(db: sqlite3.Connection, lifecycle: Lifecycle, move: str, spans: Spans) -> None:
    """Move all objects whose numbers are in spans out of the tables."""
    table, key = TABLES[lifecycle.name]
    sql = f"DELETE FROM {table} WHERE {key} BETWEEN ? AND ? AND {condition(lifecycle, move)}"
    for first, last in spans:
        if db.execute(sql, (first, last)).rowcount != last - first + 1:
            raise refused(db, lifecycle, move, first)


def delete(db: sqlite3.Connection, lifecycle: Lifecycle, move: str, key: object) -> None:
    """Move an object out of the tables."""
    delete_all(db, lifecycle, move, [key])


def condition(lifecycle: Lifecycle, move: str) -> str:
    """SQL: the row is in a phase in which a move is possible."""
    phases = lifecycle.sources(move)
    marks = ", ".join(f"'{phase}'" for phase in phases)
    return f"{_PHASES[lifecycle.name]} IN ({marks})"


@cache
def _update(name: str, move: str, columns: str) -> str:
    table, key = TABLES[name]
    lifecycle = next(lifecycle for lifecycle in lc.LIFECYCLES if lifecycle.name == name)
    return f"UPDATE {table} SET {columns} WHERE {key} = ? AND {condition(lifecycle, move)}"


def refused(db: sqlite3.Connection, lifecycle: Lifecycle, move: str, key: object) -> IllegalTransition:
    """Why an object cannot move: its phase now, and its last events."""
    table, column = TABLES[lifecycle.name]
    phase = db.execute(f"SELECT {_PHASES[lifecycle.name]} FROM {table} WHERE {column} = ?", (key,)).fetchone()
    where = "job_id = ?" if lifecycle.name in ("job", "preemption") else "object_id = ?"
    events = db.execute(
        f"SELECT seq, kind FROM events WHERE {where} ORDER BY seq DESC LIMIT ?", (key, STORY)
    ).fetchall()
    story = [f"{row[0]} {row[1]}" for row in reversed(events)]
    return IllegalTransition(lifecycle, move, key, lc.GONE if phase is None else phase[0], story)
