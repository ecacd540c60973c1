"""SQL that reads the past usage of the members of fair clusters, which a new scheduler takes over."""

from __future__ import annotations

from math import isfinite

from vctl.scheduler.fairness import Usage
from vctl.store.store import Row, Store


def rows(store: Store) -> list[Row]:
    """All rows of past usage."""
    return store.rows("SELECT * FROM usage ORDER BY cluster_id, child_id, user, resource")


def check(row: Row) -> Row:
    """The row itself, if it is valid; raises ValueError otherwise."""
    if not isinstance(row["amount"], float) or not isfinite(row["amount"]) or not isinstance(row["at"], int):
        raise ValueError(f"{row['amount']!r} at {row['at']!r} is no use of {row['resource']}")
    return row


def load(store: Store) -> Usage:
    """The usage that was saved last; empty if there is none."""
    usage = Usage()
    for row in rows(store):
        member = (row["cluster_id"], row["child_id"], row["user"])
        usage.past.setdefault(member, {})[row["resource"]] = row["amount"]
        usage.at_ns = row["at"]
    return usage
