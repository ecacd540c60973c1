"""SQL that reads the events: the history that users see, and the feed that a scheduler follows."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.store.filters import MOMENT, NUMBER, TEXT, FilterColumn
from vctl.store.store import Row, Store


def last(store: Store) -> int:
    """Number of the newest event."""
    found: int = store.value("SELECT coalesce(max(seq), 0) FROM events")
    return found


def newest_at(store: Store) -> int | None:
    """The latest time that the newest 1000 events have, by the clock of their writers."""
    found: int | None = store.value(
        "SELECT max(at) FROM (SELECT at FROM events ORDER BY seq DESC LIMIT 1000)"
    )
    return found


def journal(store: Store, seq: int) -> list[Row]:
    """The entries of the journal after a number, those without an event included, oldest first."""
    return store.rows("SELECT * FROM events WHERE seq > ? ORDER BY seq", seq)


FILTERED = {
    "seq": FilterColumn(NUMBER, "seq"),
    "at": FilterColumn(MOMENT, "at"),
    **{key: FilterColumn(TEXT, key) for key in ("kind", "object", "object_id", "cluster_id")},
    "job_id": FilterColumn(NUMBER, "job_id"),
}
"""What the filters of a list of events compare in SQL."""


def matching(
    store: Store, where: str, values: Iterable[object], limit: int, *, first: bool = False
) -> list[Row]:
    """The newest events that match, or the first ones, oldest first."""
    order = "" if first else "DESC"
    return store.rows(
        f"SELECT * FROM (SELECT * FROM events WHERE ({where}) AND kind <> '' ORDER BY seq {order}"
        f" LIMIT {int(limit)}) ORDER BY seq",
        *values,
    )


def count(store: Store, where: str, values: Iterable[object]) -> int:
    """How many events match."""
    found: int = store.value(f"SELECT count(*) FROM events WHERE ({where}) AND kind <> ''", *values)
    return found


def count_after(store: Store, seq: int) -> int:
    """How many events come after a number.

    This follows from the numbers, which have no gaps: a prune deletes only the oldest events.
    """
    first, newest = store.value("SELECT min(seq) FROM events"), last(store)
    hidden: int = store.value("SELECT count(*) FROM events WHERE seq > ? AND kind = ''", seq)
    return 0 if first is None else max(0, newest - max(seq, first - 1)) - hidden


def counts(store: Store) -> dict[str, int]:
    """How many events there are of each kind."""
    return store.mapping("SELECT kind, count(*) FROM events WHERE kind <> '' GROUP BY 1 ORDER BY 1")


def span_before(store: Store, before_ns: int) -> tuple[int, int]:
    """The numbers of the first event, and of the last one before any event of ``before_ns`` or later.

    The newest event is never among them.
    """
    lowest = store.value("SELECT coalesce(min(seq), 1) FROM events")
    young = store.value("SELECT seq FROM events WHERE at >= ? ORDER BY seq LIMIT 1", before_ns)
    return lowest, (last(store) if young is None else young) - 1


def delete_until(store: Store, seq: int) -> None:
    """Delete the events up to a number. A follower sees by the numbers that the oldest events are missing."""
    with store.transaction():
        store.db.execute("DELETE FROM events WHERE seq <= ?", (seq,))
