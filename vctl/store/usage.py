"""The past use of the members of fair clusters, so that a new scheduler remembers it."""

from __future__ import annotations

from math import isfinite

from vctl.scheduler.fairness import Usage
from vctl.store.store import Row, Store


def rows(store: Store) -> list[Row]:
    """Every row of the memory."""
    return store.rows("SELECT * FROM usage ORDER BY cluster_id, child_id, user, resource")


def check(row: Row) -> Row:
    """A row that can be counted with; raises ValueError for any other."""
    if not isinstance(row["amount"], float) or not isfinite(row["amount"]) or not isinstance(row["at"], int):
        raise ValueError(f"{row['amount']!r} at {row['at']!r} is no use of {row['resource']}")
    return row


def load(store: Store) -> Usage:
    """The memory that was written last, empty when there is none."""
    usage = Usage()
    for row in rows(store):
        member = (row["cluster_id"], row["child_id"], row["user"])
        usage.past.setdefault(member, {})[row["resource"]] = row["amount"]
        usage.at_ns = row["at"]
    return usage
