"""The only SQL that changes tables for the changes that have moved: one row of the journal each, in their order."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

_INSERT_EVENT = (
    "INSERT INTO events (seq, at, kind, object, object_id, cluster_id, job_id, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
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


Entry = Event


def write(db: sqlite3.Connection, entries: Sequence[Entry], last: int) -> None:
    """Put entries into the tables; the last one has this number."""
    first = last - len(entries) + 1
    db.executemany(_INSERT_EVENT, [(seq, *entry) for seq, entry in enumerate(entries, first)])
