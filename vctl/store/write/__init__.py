"""Writes each change: its effect to the tables, and the change itself to the journal.

Entries are written when the transaction reads the tables, and before the commit. Until then they gather, so
that changes of one type are written together.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from itertools import groupby
from typing import Any

from vctl.engine.changes import HOMES, Change, JobEnded, JobStarted, RunEnded
from vctl.engine.codec import encode
from vctl.store.entries import Emitted, Entry, Event, place_of
from vctl.store.rows import dumps
from vctl.store.write import jobs
from vctl.store.write.table import WRITERS, Writer, insert

for home in HOMES:
    import_module(f"{__name__}.{home}")
_IN_TURNS = (JobStarted, RunEnded, JobEnded)
"""Types that alternate where jobs end and others start in their place. Written type by type, in this order,
they leave the same rows: a job starts before its run and itself end, and no job writes rows of another."""
_EVENT = "events (seq, at, kind, object, object_id, place, job_id, data)"
_CHANGE = "changes (seq, change)"


def write(db: sqlite3.Connection, entries: Sequence[Entry], last: int) -> None:
    """Write entries to the tables and the journal; ``last`` is the number of the last one."""
    for writer, equal in _gathered(one.change for one in entries if isinstance(one, Emitted)):
        writer(db, equal)
    first = last - len(entries) + 1
    insert(db, _EVENT, [_row(seq, entry) for seq, entry in enumerate(entries, first)])
    changes = [
        (seq, encode(one.change)) for seq, one in enumerate(entries, first) if isinstance(one, Emitted)
    ]
    insert(db, _CHANGE, changes)


def _gathered(emitted: Iterable[Change]) -> Iterator[tuple[Writer, Sequence[Any]]]:
    """Groups of changes of one type, with their writers. Changes of ``_IN_TURNS`` are sorted by type."""
    for in_turns, some in groupby(emitted, lambda change: type(change) in _IN_TURNS):
        if in_turns:
            whole, among = jobs.whole(list(some))
            if whole:
                yield jobs.write_whole, whole
            for kind in _IN_TURNS:
                if equal := [change for change in among if type(change) is kind]:
                    yield WRITERS[kind], equal
        else:
            for other, alike in groupby(some, type):
                yield WRITERS[other], list(alike)


def _row(seq: int, entry: Entry) -> tuple[object, ...]:
    """An entry as a row of the journal."""
    if isinstance(entry, Event):
        return (
            seq, entry.at, entry.kind, entry.object, entry.object_id, place_of(entry.cluster_id, entry.object_id),
            entry.job_id, entry.data,
        )  # fmt: skip
    told = entry.change.public_event()
    if not told.kind:  # nobody is shown it
        return seq, entry.at, "", "", "", None, told.job_id, "{}"
    text = dumps(told.data) if told.data else "{}"
    return (
        seq, entry.at, told.kind, told.object_kind, told.object_id, place_of(told.cluster_id, told.object_id),
        told.job_id, text,
    )  # fmt: skip
