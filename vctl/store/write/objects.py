"""How changes of objects change the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.store.write.table import writes


@writes(ch.ObjectCreated)
def _created(db: sqlite3.Connection, created: Sequence[ch.ObjectCreated]) -> None:
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
def _lost(db: sqlite3.Connection, lost: Sequence[ch.ObjectLost]) -> None:
    db.executemany(
        "DELETE FROM objects WHERE job_id = ?1 AND name = ?2 AND (?3 IS NULL OR node_id = ?3)",
        [(one.job_id, one.name, one.node_id) for one in lost],
    )


@writes(ch.ObjectsDropped)
def _dropped(db: sqlite3.Connection, dropped: Sequence[ch.ObjectsDropped]) -> None:
    for table in ("objects", "promises", "task_inputs"):
        db.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(one.job_id,) for one in dropped])
