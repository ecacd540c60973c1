"""The settings of a cluster beside its spec, in one JSON column: limits, queue, rights, and why it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vctl.core.clusters import PRIMARY
from vctl.core.queue_policy import DEFAULT, QueuePolicy
from vctl.store import observed
from vctl.store.rows import (
    ACCESS,
    BORROW,
    LENDING,
    OF_USER,
    PRIMARY_ACCESS,
    PRIMARY_QUEUE,
    PRIMARY_REVISION,
    PRIVATE,
    QUEUE,
    STOPPED,
    USER_TEMPLATE,
    loads,
    queue_policy,
)
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.core.access import Access

SHARED = "shared"
"""The key in ``meta`` of the mark of a shared state."""

__all__ = [
    "ACCESS", "BORROW", "LENDING", "OF_USER", "PRIVATE", "STOPPED", "USER_TEMPLATE", "access_of", "access_upward",
    "accesses", "is_shared", "note_shared", "of", "primary_revision", "queue_of", "queues",
]  # fmt: skip


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


def is_shared(store: Store) -> bool:
    """Whether this is the state of a service that users share."""
    return bool(store.recall(SHARED))


def note_shared(store: Store) -> None:
    """Note that it is, once: its HTTP servers must know who asks."""
    if not is_shared(store):
        with store.transaction():
            observed.remember(store, SHARED, value=True)


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


def access_of(store: Store, cluster_id: str) -> Access:
    """What a cluster says itself about its submitters, its admins and its names."""
    from vctl.core.access import Access  # a personal state needs none

    if cluster_id == PRIMARY:
        return Access.of(store.recall(PRIMARY_ACCESS) or {})
    text = store.value("SELECT settings FROM clusters WHERE cluster_id = ?", cluster_id)
    return Access.of(of(str(text or "{}")).get(ACCESS, {}))


def accesses(store: Store) -> dict[str, Access]:
    """Cluster -> what it says itself, for all that say anything."""
    from vctl.core.access import Access

    said = store.rows("SELECT cluster_id, settings FROM clusters WHERE settings <> '{}'")
    found = {str(name): Access.of(given) for name, text in said if (given := of(text).get(ACCESS))}
    if (given := store.recall(PRIMARY_ACCESS)) is not None:
        found[PRIMARY] = Access.of(given)
    return found


def access_upward(store: Store, cluster_id: str) -> list[tuple[str, Access]]:
    """A cluster and those above it up to the primary, nearest first, each with what it says itself."""
    from vctl.core.access import Access

    chain = store.rows(
        "WITH RECURSIVE up(cluster_id, parent_id, settings, steps) AS ("
        " SELECT cluster_id, parent_id, settings, 0 FROM clusters WHERE cluster_id = ?"
        " UNION ALL SELECT c.cluster_id, c.parent_id, c.settings, steps + 1 FROM clusters c"
        " JOIN up ON c.cluster_id = up.parent_id)"
        " SELECT cluster_id, settings FROM up ORDER BY steps",
        cluster_id,
    )
    found = [(str(name), Access.of(of(text).get(ACCESS, {}))) for name, text in chain]
    return [*found, (PRIMARY, access_of(store, PRIMARY))]
