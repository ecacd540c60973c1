"""SQL about shapes of jobs below a parent: why those of one wait, and which are known to be possible."""

from __future__ import annotations

from vctl.store.store import Store


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
