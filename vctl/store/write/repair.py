"""Writes repairs to the tables. The content of a row that is set aside moves to the table ``set_aside``."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.store.contents import COLUMNS
from vctl.store.entries import NEWEST
from vctl.store.rows import dumps
from vctl.store.write import contents
from vctl.store.write.clusters import only_published
from vctl.store.write.table import writes

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
    "lags": ("cluster_id", "child_id", "user"),
    "reservations": ("job_id",),
    "provider_requests": ("request_id",),
    "events": ("seq",),
}
_WITH_COMMAND = ("jobs", "tasks")
"""Tables whose rows are set aside together with what they name in other tables."""
_COMMANDS = "commands LEFT JOIN environments USING (environment_id) LEFT JOIN requests USING (request_id)"

_NEW_BASE = f"UPDATE head SET base = {NEWEST}"
"""Moves the base of the journal: no change made the row, so the tables do not follow from earlier entries."""

writes(ch.ClusterRepaired)(only_published)


@writes(ch.RowSetAside)
def _rows_set_aside(db: sqlite3.Connection, aside: Sequence[ch.RowSetAside]) -> None:
    db.execute(_NEW_BASE)
    for change in aside:
        key = [bytes.fromhex(*part) if isinstance(part, list | tuple) else part for part in change.key]
        where = " AND ".join(
            f"CAST({name} AS BLOB) IS ?" if isinstance(part, bytes) else f"{name} IS ?"
            for name, part in zip(KEYS[change.table], key, strict=True)
        )
        content = _row(db, change.table, where, key)
        if change.table in _WITH_COMMAND:
            command = f"command_id = (SELECT command_id FROM {change.table} WHERE {where})"
            content["launch"] = _row(db, _COMMANDS, command, key, COLUMNS)
        event = change.public_event()
        db.execute(
            "INSERT INTO set_aside (source, row_key, content, problem, at) VALUES (?, ?, ?, ?, ?)",
            (change.table, event.object_id, dumps(content), change.problem, change.at),
        )
        named = "command_id" if change.table in _WITH_COMMAND else "NULL"
        deleted = db.execute(f"DELETE FROM {change.table} WHERE {where} RETURNING {named}", key).fetchall()
        contents.drop_unused(db, [row[0] for row in deleted if row[0] is not None])


def _row(
    db: sqlite3.Connection, table: str, where: str, key: Sequence[object], columns: Sequence[str] = ()
) -> dict[str, object]:
    columns = columns or [column[0] for column in db.execute(f"SELECT * FROM {table} LIMIT 0").description]
    raw = ", ".join(f"iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in columns)
    values = db.execute(f"SELECT {raw} FROM {table} WHERE {where}", key).fetchone()
    return {name: _shown(value) for name, value in zip(columns, values or (), strict=False)}


def _shown(value: object) -> object:
    """Text as text, other bytes in hexadecimal."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


@writes(ch.RunStripped)
def _runs_stripped(db: sqlite3.Connection, stripped: Sequence[ch.RunStripped]) -> None:
    db.executemany(
        "UPDATE runs SET amounts = '{}', instances = '{}', cores = '[]' WHERE run_id = ?",
        [(change.run_id,) for change in stripped],
    )
