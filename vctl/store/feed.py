"""SQL that reads the events: the history that people ask for, and the feed that a scheduler follows."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.store.store import Row, Store


def last(store: Store) -> int:
    """Number of the newest event."""
    found: int = store.value("SELECT coalesce(max(seq), 0) FROM events")
    return found


def newest_at(store: Store) -> int | None:
    """When the newest event happened, by the clock of then."""
    found: int | None = store.value("SELECT max(at) FROM events")
    return found


def after(store: Store, seq: int, limit: int = -1) -> list[Row]:
    """Events after a number, oldest first."""
    return store.rows("SELECT * FROM events WHERE seq > ? ORDER BY seq LIMIT ?", seq, limit)


def matching(store: Store, where: str, values: Iterable[object], limit: int) -> list[Row]:
    """The newest events that match, oldest first."""
    return store.rows(
        f"SELECT * FROM (SELECT * FROM events WHERE {where} ORDER BY seq DESC LIMIT {int(limit)}) ORDER BY seq",
        *values,
    )


def delete_before(store: Store, before_ns: int) -> int:
    """Forget old history, never what a scheduler has not read yet (the newest rows)."""
    return store.db.execute(
        "DELETE FROM events WHERE at < ? AND seq < (SELECT max(seq) FROM events)", (before_ns,)
    ).rowcount
