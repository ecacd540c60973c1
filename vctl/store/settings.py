"""The settings of a cluster beside its spec, in one JSON column: limits, queue, and why it is stopped."""

from __future__ import annotations

from typing import Any

from vctl.core.clusters import PRIMARY
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.store.rows import (
    BORROW,
    LENDING,
    PRIMARY_QUEUE,
    PRIMARY_REVISION,
    PRIVATE,
    QUEUE,
    STOPPED,
    loads,
    queue_policy,
)
from vctl.store.store import Store

__all__ = ["BORROW", "LENDING", "PRIVATE", "STOPPED", "of", "primary_revision", "queue_of", "queues"]


def of(text: str) -> dict[str, Any]:
    """The settings in the text of the column."""
    settings: dict[str, Any] = loads(text) if text != "{}" else {}
    return settings


def queue_of(store: Store, cluster_id: str) -> QueuePolicy:
    """The queue policy of a cluster."""
    if cluster_id == PRIMARY:
        return queue_policy(store.recall(PRIMARY_QUEUE) or {})
    text = store.value("SELECT settings FROM clusters WHERE cluster_id = ?", cluster_id)
    return queue_policy(of(str(text or "{}")).get(QUEUE, {}))


def primary_revision(store: Store) -> int:
    """The revision of the primary: of its last update, 0 before the first one."""
    return int(store.recall(PRIMARY_REVISION) or 0)


def queues(store: Store) -> dict[str, QueuePolicy]:
    """Cluster -> its queue policy, for all clusters whose policy is not the default."""
    policies = {
        str(row[0]): queue_policy(of(row[1]).get(QUEUE, {}))
        for row in store.rows("SELECT cluster_id, settings FROM clusters WHERE settings <> '{}'")
    }
    policies[PRIMARY] = queue_of(store, PRIMARY)
    return {cluster_id: policy for cluster_id, policy in policies.items() if policy != DEFAULT}
