"""What a cluster carries beside its spec: limits of borrowing and lending, and why it is stopped. One JSON column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from vctl.core.clusters import PRIMARY
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.engine.lifecycle import CLUSTER
from vctl.store import moves
from vctl.store.rows import dumps, loads, queue_policy
from vctl.store.store import Store

BORROW, LENDING, STOPPED, QUEUE = "borrow_limit", "lending_limit", "stopped", "queue"
PRIMARY_QUEUE = "primary_queue"
"""Where the settings of the primary's queue are kept, which has no row of its own."""


def of(text: str) -> dict[str, Any]:
    """The value of the column."""
    settings: dict[str, Any] = loads(text) if text != "{}" else {}
    return settings


def put(store: Store, cluster_id: str, changes: Mapping[str, object]) -> None:
    """Write some settings and keep the others; None or an empty value removes one. The event is the cluster's."""
    settings = of(str(store.value("SELECT settings FROM clusters WHERE cluster_id = ?", cluster_id)))
    settings = {name: value for name, value in (settings | dict(changes)).items() if value}
    store.db.execute("UPDATE clusters SET settings = ? WHERE cluster_id = ?", (dumps(settings), cluster_id))


def queue_of(store: Store, cluster_id: str) -> QueuePolicy:
    """How the queue of a cluster is served."""
    if cluster_id == PRIMARY:
        return queue_policy(store.recall(PRIMARY_QUEUE) or {})
    text = store.value("SELECT settings FROM clusters WHERE cluster_id = ?", cluster_id)
    return queue_policy(of(str(text or "{}")).get(QUEUE, {}))


def queues(store: Store) -> dict[str, QueuePolicy]:
    """The clusters whose queue is not served as by default."""
    found = {
        str(row[0]): queue_policy(of(row[1]).get(QUEUE, {}))
        for row in store.rows("SELECT cluster_id, settings FROM clusters WHERE settings <> '{}'")
    }
    found[PRIMARY] = queue_of(store, PRIMARY)
    return {cluster_id: policy for cluster_id, policy in found.items() if policy != DEFAULT}


def set_queue(store: Store, cluster_id: str, policy: QueuePolicy) -> None:
    """Serve the queue of a cluster like this from now on; what is default is not written."""
    given = {name: value for name, value in asdict(policy).items() if value != getattr(DEFAULT, name)}
    if cluster_id == PRIMARY:
        store.remember(PRIMARY_QUEUE, given)
    else:
        put(store, cluster_id, {QUEUE: given})
    store.event("cluster.queue_changed", "cluster", cluster_id, cluster_id=cluster_id, data=given)


def set_admission(store: Store, cluster_id: str, *, state: str, stopped: Mapping[str, object] | None) -> None:
    """ACTIVE or STOPPED, with who stopped it and why."""
    put(store, cluster_id, {STOPPED: stopped})
    move = "stop" if stopped else "resume"
    moves.update(store.db, CLUSTER, move, cluster_id, "state = ?, updated_at = ?", (state, store.clock()))
    kind = "cluster.stopped" if stopped else "cluster.resumed"
    store.event(kind, "cluster", cluster_id, cluster_id=cluster_id, data=stopped)
