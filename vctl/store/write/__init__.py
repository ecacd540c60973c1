"""The only SQL that changes tables for the changes that have moved. The change itself is the row of the journal.

Entries are written when the tables are looked at, and before the commit: until then equal ones gather.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import NamedTuple

from vctl.engine.changes import HOMES, Change, JobEnded, RunEnded
from vctl.engine.codec import encode
from vctl.store.rows import dumps
from vctl.store.write.table import Table, insert

_WRITERS: Table = {
    kind: function for home in HOMES for kind, function in import_module(f"{__name__}.{home}").WRITERS.items()
}
_APART = {RunEnded, JobEnded}
"""Changes that write no table in common."""
_EVENT = "events (seq, at, kind, object, object_id, cluster_id, job_id, data, change)"


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
    for kind, equal in _gathered(one.change for one in entries if isinstance(one, Emitted)):
        _WRITERS[kind](db, equal)
    first = last - len(entries) + 1
    insert(db, _EVENT, [(seq, *_event(entry)) for seq, entry in enumerate(entries, first)])


def _gathered(emitted: Iterable[Change]) -> list[tuple[type[Change], list[Change]]]:
    """Changes of one type that follow each other. Ends of runs and of jobs alternate, and write other tables."""
    found: list[tuple[type[Change], list[Change]]] = []
    for change in emitted:
        kind = type(change)
        if found and found[-1][0] is kind:
            found[-1][1].append(change)
        elif len(found) > 1 and found[-2][0] is kind and {kind, found[-1][0]} == _APART:
            found[-2][1].append(change)
        else:
            found.append((kind, [change]))
    return found


def _event(entry: Entry) -> Event:
    if isinstance(entry, Event):
        return entry
    kind, object_, object_id, cluster_id, job_id, data = entry.change.told()
    text = dumps(data) if data else "{}"
    return Event(entry.at, kind, object_, object_id, cluster_id, job_id, text, encode(entry.change))
