"""SQL that reads the notices that are due: of starts and ends that somebody asked to be told (``--notify``)."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.store.rows import dumps
from vctl.store.store import Row, Store


def is_due(store: Store) -> bool:
    """Whether a notice is to be sent."""
    return bool(store.value("SELECT EXISTS (SELECT 1 FROM notifications WHERE NOT is_over)"))


def next_due(store: Store, without: Iterable[str]) -> Row | None:
    """The oldest notice that is to be sent, of a job or array that is not among some; its start before its end."""
    return store.row(
        "SELECT * FROM notifications WHERE NOT is_over AND subject NOT IN (SELECT value FROM json_each(?))"
        " ORDER BY number LIMIT 1",
        dumps(sorted(without)),
    )
