"""Writes each change: its effect to the tables, and the change itself to the journal.

Entries are written when the transaction reads the tables, and before the commit. Until then they gather, so
that changes of one type are written together.
"""

import _sqlite3 as sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from vctl.engine.changes import HOMES, Change, JobEnded, JobStarted, RunEnded
from vctl.engine.changes.change import PublicEvent
from vctl.engine.codec import encode
from vctl.store.entries import Emitted, Entry, Event, code_of, content_of, place_of
from vctl.store.write.table import WRITERS, Writer, insert

_IN_TURNS = (JobStarted, RunEnded, JobEnded)
"""Types that alternate where jobs end and others start in their place. Written type by type, in this order,
they leave the same rows: a job starts before its run and itself end, and no job writes rows of another."""
_EVENT = "events (seq, at, code, object_id, place, job_id, content)"
_CHANGE = "changes (seq, at, change)"


def load_all() -> None:
    """Import the writers of all changes: a process that stays must not read the files of a later version."""
    for home in HOMES:
        __import__(f"{__name__}.{home}")


def writer_of(kind: type[Change]) -> Writer:
    """The function that writes changes of a type. Its module is imported at first use: a command makes few types."""
    if kind not in WRITERS:
        __import__(f"{__name__}.{kind.__module__.rpartition('.')[2]}")
    return WRITERS[kind]


def write(db: sqlite3.Connection, entries: Sequence[Entry], last: int) -> None:
    """Write entries to the tables and the journal; ``last`` is the number of the last one."""
    for writer, equal in _gathered(change.change for change in entries if isinstance(change, Emitted)):
        writer(db, equal)
    events, changes = list[tuple[object, ...]](), list[tuple[object, ...]]()
    for seq, entry in enumerate(entries, last - len(entries) + 1):
        if isinstance(entry, Event):
            event, change = PublicEvent(entry.kind, entry.object, entry.object_id, data=entry.data), None
        else:
            event, change = entry.change.public_event(), encode(entry.change)
        changes.append((seq, entry.at, change))
        if event.kind:
            events.append(_row(seq, entry.at, event))
    insert(db, _CHANGE, changes)
    insert(db, _EVENT, events)


def _gathered(emitted: Iterable[Change]) -> Iterator[tuple[Writer, Sequence[Any]]]:
    """Groups of changes of one type, with their writers. Changes of ``_IN_TURNS`` are sorted by type."""
    for in_turns, some in groupby(emitted, lambda change: type(change) in _IN_TURNS):
        if in_turns:
            from vctl.store.write import jobs

            whole, among = jobs.whole(list(some))
            if whole:
                yield jobs.write_whole, whole
            for kind in _IN_TURNS:
                if equal := [change for change in among if type(change) is kind]:
                    yield writer_of(kind), equal
        else:
            for other, alike in groupby(some, type):
                yield writer_of(other), list(alike)


def _row(seq: int, at: int, event: PublicEvent) -> tuple[object, ...]:
    """An event as a row of the history."""
    return (
        seq, at, code_of(event.kind, event.object_kind), event.object_id, place_of(event.cluster_id, event.object_id),
        event.job_id, content_of(event.kind, event.data),
    )  # fmt: skip
