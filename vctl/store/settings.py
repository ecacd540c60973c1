"""What a cluster carries beside its spec: limits of borrowing and lending, and why it is stopped. One JSON column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vctl.store.rows import dumps, loads
from vctl.store.store import Store

BORROW, LENDING, STOPPED = "borrow_limit", "lending_limit", "stopped"


def of(text: str) -> dict[str, Any]:
    """The value of the column."""
    settings: dict[str, Any] = loads(text) if text != "{}" else {}
    return settings


def put(store: Store, cluster_id: str, changes: Mapping[str, object]) -> None:
    """Write some settings and keep the others; None or an empty value removes one. The event is the cluster's."""
    settings = of(str(store.value("SELECT settings FROM clusters WHERE cluster_id = ?", cluster_id)))
    settings = {name: value for name, value in (settings | dict(changes)).items() if value}
    store.db.execute("UPDATE clusters SET settings = ? WHERE cluster_id = ?", (dumps(settings), cluster_id))


def set_admission(store: Store, cluster_id: str, *, state: str, stopped: Mapping[str, object] | None) -> None:
    """ACTIVE or STOPPED, with who stopped it and why."""
    put(store, cluster_id, {STOPPED: stopped})
    store.db.execute(
        "UPDATE clusters SET state = ?, updated_at = ? WHERE cluster_id = ?",
        (state, store.clock(), cluster_id),
    )
    kind = "cluster.stopped" if stopped else "cluster.resumed"
    store.event(kind, "cluster", cluster_id, cluster_id=cluster_id, data=stopped)
