"""SQL that reads the events: the history that users see, and the feed that a scheduler follows."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.store.filters import MOMENT, NUMBER, TEXT, FilterColumn
from vctl.store.store import Row, Store

UNREAD_NS = 60 * 10**9
"""How old an entry of the journal is when every scheduler has read it."""
MOST_FORGOTTEN = 4_096


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
    """The entries of the journal after a number, those without an event included, oldest first.

    ``change`` is NULL where rows were changed by hand, and where it is kept no more: up to ``base``.
    """
    sql = "SELECT e.*, c.change FROM events e LEFT JOIN changes c USING (seq) WHERE e.seq > ? ORDER BY e.seq"
    return store.rows(sql, seq)


def base(store: Store) -> int:
    """The entry after which the journal has all that makes the tables what they are."""
    found: int = store.value("SELECT base FROM head")
    return found


def forget_changes(store: Store) -> None:
    """Delete changes that every scheduler has read: those of entries of a minute ago, a limited number at a time.

    A scheduler that has not read one of them reads the tables anew, as it does where entries are missing.
    """
    lowest: int | None = store.value("SELECT min(seq) FROM changes")
    if lowest is None:
        return
    before, last_of_all = store.clock() - UNREAD_NS, lowest + MOST_FORGOTTEN
    at: int | None = store.value("SELECT at FROM events WHERE seq = ?", last_of_all)
    if at is None or at >= before:
        young = "SELECT seq FROM changes CROSS JOIN events USING (seq) WHERE at >= ? ORDER BY seq LIMIT 1"
        first_young = store.value(young, before)
        last_of_all = (last(store) if first_young is None else first_young) - 1
    if last_of_all < lowest:
        return
    with store.transaction():
        store.db.execute("DELETE FROM changes WHERE seq <= ?", (last_of_all,))
        store.db.execute("UPDATE head SET base = max(base, ?)", (last_of_all,))


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
        for table in ("events", "changes"):
            store.db.execute(f"DELETE FROM {table} WHERE seq <= ?", (seq,))
