"""SQL about shapes of jobs: which shapes are known to be feasible below a parent, at the present capacity."""

from __future__ import annotations

from vctl.store.store import Store


def capacity(store: Store) -> int:
    """A number that changes with every change of a node, or of a cluster that was created by name."""
    return int(store.value("SELECT capacity FROM head"))


def is_feasible(store: Store, parent_id: str, shape: str) -> bool:
    """Whether a shape was judged feasible below a parent, and the capacity has not changed since."""
    known = store.value(
        "SELECT 1 FROM feasible JOIN head ON version = capacity WHERE parent_cluster_id = ? AND shape = ?",
        parent_id,
        shape,
    )
    return known is not None
