"""What members of fair clusters used in the past, so that a new scheduler remembers it."""

from __future__ import annotations

from vctl.scheduler.fairness import Usage
from vctl.store.store import Store


def save(store: Store, usage: Usage) -> None:
    """Write the whole memory as of its last look, in a transaction; what is not in it any more goes."""
    store.db.execute("DELETE FROM usage")
    store.db.executemany(
        "INSERT INTO usage (cluster_id, child_id, user, resource, amount, at) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (*member, resource, amount, usage.at_ns)
            for member, used in usage.past.items()
            for resource, amount in used.items()
        ],
    )


def load(store: Store) -> Usage:
    """The memory that was written last, empty when there is none."""
    usage = Usage()
    for row in store.rows("SELECT * FROM usage ORDER BY cluster_id, child_id, user, resource"):
        member = (row["cluster_id"], row["child_id"], row["user"])
        usage.past.setdefault(member, {})[row["resource"]] = row["amount"]
        usage.at_ns = row["at"]
    return usage
