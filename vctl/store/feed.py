"""SQL that reads the events: the history that users see, and the feed that a scheduler follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vctl.store.entries import NEWEST
from vctl.store.filters import MOMENT, NUMBER, TEXT, Condition, Filter, FilterColumn, conditions
from vctl.store.store import Row, Store

UNREAD_NS = 60 * 10**9
"""How old an entry of the journal is when every scheduler has read it."""
MOST_FORGOTTEN = 4_096


def last(store: Store) -> int:
    """Number of the newest entry."""
    return int(store.value(f"SELECT {NEWEST}"))


def newest_at(store: Store) -> int | None:
    """The latest time that the newest 1000 events have, by the clock of their writers."""
    newest: int | None = store.value(
        "SELECT max(at) FROM (SELECT at FROM events ORDER BY seq DESC LIMIT 1000)"
    )
    return newest


def journal(store: Store, seq: int) -> list[Row]:
    """The entries of the journal after a number that are still kept, with what people see of them, oldest first.

    ``change`` is NULL for a heartbeat's timeout, and where rows were changed by hand.
    """
    sql = (
        "SELECT c.seq, c.at, c.change, e.kind, e.object, e.object_id FROM changes c LEFT JOIN events e USING (seq)"
        " WHERE c.seq > ? ORDER BY c.seq"
    )
    return store.rows(sql, seq)


def base(store: Store) -> int:
    """The entry after which the journal has all that makes the tables what they are."""
    return int(store.value("SELECT base FROM head"))


def forget_changes(store: Store) -> None:
    """Delete changes that every scheduler has read: those of entries of a minute ago, a limited number at a time.

    A scheduler that has not read one of them reads the tables anew, as it does where entries are missing.
    """
    lowest: int | None = store.value("SELECT min(seq) FROM changes")
    if lowest is None:
        return
    before, last_of_all = store.clock() - UNREAD_NS, lowest + MOST_FORGOTTEN
    at: int | None = store.value("SELECT at FROM changes WHERE seq = ?", last_of_all)
    if at is None or at >= before:
        first_young = store.value("SELECT seq FROM changes WHERE at >= ? ORDER BY seq LIMIT 1", before)
        last_of_all = (last(store) if first_young is None else first_young) - 1
    if last_of_all < lowest:
        return
    with store.transaction():
        store.db.execute("DELETE FROM changes WHERE seq <= ?", (last_of_all,))
        store.db.execute("UPDATE head SET base = max(base, ?)", (last_of_all,))


_KINDS = ("kind", "object")
FILTERED = {
    "seq": FilterColumn(NUMBER, "seq"),
    "at": FilterColumn(MOMENT, "at"),
    **{key: FilterColumn(TEXT, key) for key in (*_KINDS, "object_id", "cluster_id")},
    "job_id": FilterColumn(NUMBER, "job_id"),
}
"""What the filters of a list of events compare in SQL."""


def condition(store: Store, filters: Sequence[Filter]) -> Condition:
    """The condition that all filters pass. The kinds that do are looked up among the few that there are."""
    kinds = [one for one in filters if one[0] in _KINDS]
    where, values = conditions(store, FILTERED, [one for one in filters if one not in kinds])
    if kinds:
        among, names = conditions(store, FILTERED, kinds)
        codes = store.column(f"SELECT code FROM event_counts WHERE {among}", *names)
        where += f" AND code IN ({', '.join('?' * len(codes))})"
        if all(isinstance(code, str) for code in codes):
            where += " AND code > ''"  # the index of rare kinds
        values = [*values, *codes]
    return where, values


def matching(
    store: Store, where: str, values: Iterable[object], limit: int, *, first: bool = False
) -> list[Row]:
    """The newest events that match, or the first ones, oldest first."""
    order = "" if first else "DESC"
    return store.rows(
        f"SELECT * FROM (SELECT * FROM events WHERE {where} ORDER BY seq {order} LIMIT {int(limit)}) ORDER BY seq",
        *values,
    )


def count(store: Store, where: str, values: Iterable[object]) -> int:
    """How many events match."""
    return int(store.value(f"SELECT count(*) FROM events WHERE {where}", *values))


def count_kinds(store: Store, filters: Sequence[Filter]) -> int | None:
    """How many events pass filters, without reading an event; None if a filter is not about their kind."""
    if any(key not in _KINDS for key, *_ in filters):
        return None
    where, values = conditions(store, FILTERED, filters)
    return int(store.value(f"SELECT coalesce(sum(count), 0) FROM event_counts WHERE {where}", *values))


def counts(store: Store) -> dict[str, int]:
    """How many events there are of each kind."""
    return store.mapping("SELECT kind, sum(count) FROM event_counts WHERE count GROUP BY 1 ORDER BY 1")


def span_before(store: Store, before_ns: int) -> tuple[int, int]:
    """The numbers of the first event, and of the last one before any event of ``before_ns`` or later.

    The newest event is never among them.
    """
    lowest = store.value("SELECT coalesce(min(seq), 1) FROM events")
    young = store.value("SELECT seq FROM events WHERE at >= ? ORDER BY seq LIMIT 1", before_ns)
    newest = store.value("SELECT coalesce(max(seq), 0) FROM events") if young is None else young
    return lowest, newest - 1


def delete_until(store: Store, seq: int) -> int:
    """Delete the events up to a number, and the changes, which a follower notices by their numbers. Returns how many
    events there were."""
    with store.transaction():
        store.db.execute("DELETE FROM changes WHERE seq <= ?", (seq,))
        return store.db.execute("DELETE FROM events WHERE seq <= ?", (seq,)).rowcount
