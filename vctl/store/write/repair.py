"""How changes that mend the tables change them. The content of a row that is set aside goes from table to table."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.store.rows import dumps
from vctl.store.write.table import Table

KEYS = {
    "nodes": ("node_id",),
    "clusters": ("cluster_id",),
    "vnodes": ("vnode_id",),
    "runs": ("run_id",),
    "jobs": ("job_id",),
    "tasks": ("task_id",),
    "leases": ("lease_id",),
    "preemptions": ("victim_id",),
    "nominations": ("job_id",),
    "usage": ("cluster_id", "child_id", "user", "resource"),
    "provider_requests": ("request_id",),
}
_LAUNCHES = {"jobs": "job_launches", "tasks": "task_launches"}
"""Rows that go with a row, as they are deleted with it."""


def _rows_set_aside(db: sqlite3.Connection, aside: Sequence[ch.RowSetAside]) -> None:
    for one in aside:
        where = " AND ".join(f"{key} IS ?" for key in KEYS[one.table])
        key = [bytes.fromhex(*part) if isinstance(part, list) else part for part in one.key]
        content = _row(db, one.table, where, key)
        if one.table in _LAUNCHES:
            content["launch"] = _row(db, _LAUNCHES[one.table], where, key)
        told = one.told()
        db.execute(
            "INSERT INTO set_aside (source, row_key, content, problem, at) VALUES (?, ?, ?, ?, ?)",
            (one.table, told.object_id, dumps(content), one.problem, one.at),
        )
        db.execute(f"DELETE FROM {one.table} WHERE {where}", key)


def _row(db: sqlite3.Connection, table: str, where: str, key: Sequence[object]) -> dict[str, object]:
    cursor = db.execute(f"SELECT * FROM {table} WHERE {where}", key)
    values, columns = cursor.fetchone(), cursor.description
    return {
        column[0]: value.hex() if isinstance(value, bytes) else value
        for column, value in zip(columns, values or (), strict=False)
    }


def _runs_stripped(db: sqlite3.Connection, stripped: Sequence[ch.RunStripped]) -> None:
    db.executemany(
        "UPDATE runs SET amounts = '{}', instances = '{}', cores = '[]' WHERE run_id = ?",
        [(one.run_id,) for one in stripped],
    )


WRITERS: Table = {ch.RowSetAside: _rows_set_aside, ch.RunStripped: _runs_stripped}
