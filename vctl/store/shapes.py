"""SQL about shapes of jobs below a parent: why those of one wait, and which are known to be possible."""

from __future__ import annotations

from vctl.store.store import Store


def set_wait(store: Store, parent_id: str, shape: str, reason: str, message: str) -> None:
    """Record why jobs of a shape wait below a parent."""
    store.db.execute(
        "INSERT INTO waits VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET reason = excluded.reason,"
        " message = excluded.message",
        (parent_id, shape, reason, message, store.clock()),
    )


def clear_wait(store: Store, parent_id: str, shape: str) -> None:
    """Jobs of this shape no longer wait."""
    store.db.execute("DELETE FROM waits WHERE parent_cluster_id = ? AND shape = ?", (parent_id, shape))


def capacity(store: Store) -> int:
    """A number that changes whenever a node or a cluster made by name does."""
    found: int = store.value("SELECT capacity FROM head")
    return found


def is_feasible(store: Store, parent_id: str, shape: str) -> bool:
    """Whether a shape was found to be possible below a parent, and nothing has changed since."""
    known = store.value(
        "SELECT version FROM feasible WHERE parent_cluster_id = ? AND shape = ?", parent_id, shape
    )
    return known is not None and known == capacity(store)


def set_feasible(store: Store, parent_id: str, shape: str, version: int) -> None:
    """Keep that judgement, made at a ``capacity``, for the next job of the shape."""
    store.db.execute("INSERT OR REPLACE INTO feasible VALUES (?, ?, ?)", (parent_id, shape, version))
