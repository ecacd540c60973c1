"""SQL of the maintenance round: lost leases of nodes, virtual nodes that changed their place, clusters to go."""

from __future__ import annotations

from collections.abc import Iterable
from sqlite3 import Row

from vctl.core.clusters import VNode
from vctl.core.resources import Allocation
from vctl.store import clusters, rows
from vctl.store.store import Store


def heartbeats(store: Store) -> list[Row]:
    """Living nodes that opted into a heartbeat lease: ``node_id``, ``lost_at`` (ns) and ``timeout_s``."""
    return store.rows(
        "SELECT node_id, heartbeat_timeout_s AS timeout_s,"
        " last_heartbeat + cast(heartbeat_timeout_s * 1e9 AS INTEGER) AS lost_at FROM nodes"
        " WHERE heartbeat_timeout_s IS NOT NULL AND last_heartbeat IS NOT NULL"
        " AND state NOT IN ('DEAD', 'RELEASING') ORDER BY node_id"
    )


def write_vnode(store: Store, vnode_id: str, vnode: VNode | None) -> None:
    """Write a virtual node where and as it is now (None: it is gone); the event is its cluster's."""
    clusters.delete_vnode(store, vnode_id)
    if vnode is not None:
        clusters.insert_vnode(store, vnode)


def nodes_replaced(
    store: Store, cluster_id: str, changes: Iterable[tuple[str, str | None]], *, publish: Iterable[str] | None
) -> None:
    """Tell which nodes of a cluster gave way to which; ``publish`` are all it has now, for a runtime to follow."""
    for dead, fresh in changes:
        store.event(
            "cluster.node_replaced", "cluster", cluster_id, cluster_id=cluster_id,
            data={"dead": dead, "node": fresh},
        )  # fmt: skip
    if publish is not None:
        store.event(
            "cluster.nodes_published", "cluster", cluster_id, cluster_id=cluster_id,
            data={"nodes": sorted(set(publish))},
        )  # fmt: skip


def set_job_nodes(store: Store, job_id: int, node_ids: Iterable[str]) -> None:
    """The nodes on which a job holds something, after a replacement; the event is its cluster's."""
    store.db.execute(
        "UPDATE jobs SET node_ids = ? WHERE job_id = ?", (rows.dumps(sorted(set(node_ids))), job_id)
    )


def has_detached(store: Store, cluster_ids: Iterable[str]) -> bool:
    """Whether a detached sub-cluster or an unfinished task lives in any of these clusters."""
    marks = rows.dumps(list(cluster_ids))
    return bool(
        store.value(
            "SELECT EXISTS (SELECT 1 FROM tasks WHERE ended_at IS NULL"
            " AND cluster_id IN (SELECT value FROM json_each(?1)))"
            " OR EXISTS (SELECT 1 FROM clusters WHERE kind = 'sub' AND detached"
            " AND cluster_id IN (SELECT value FROM json_each(?1)))",
            marks,
        )
    )


def relink(store: Store, vnode_id: str, parent_vnode_id: str) -> None:
    """Put a virtual node into another one of its parent cluster; the event is the cluster's."""
    store.db.execute("UPDATE vnodes SET parent_vnode_id = ? WHERE vnode_id = ?", (parent_vnode_id, vnode_id))


def resize_whole(store: Store, node_id: str, allocation: Allocation) -> list[str]:
    """Give those who have a node whole its new totals, and the flexible virtual nodes that they lie in.

    Returns the clusters of these flexible ones: what they have gained is borrowed.
    """
    resized = store.db.execute(
        """
        WITH RECURSIVE around(vnode_id) AS (
            SELECT vnode_id FROM vnodes WHERE node_id = :node AND whole
            UNION
            SELECT v.parent_vnode_id FROM vnodes v JOIN around USING (vnode_id)
            WHERE v.parent_vnode_id IS NOT NULL
        )
        UPDATE vnodes SET amounts = :amounts, instances = :instances, cores = :cores
        WHERE vnode_id IN (SELECT vnode_id FROM around)
        """,
        dict(
            zip(
                ("amounts", "instances", "cores", "node"),
                (*rows.allocation_columns(allocation), node_id),
                strict=True,
            )
        ),
    )
    if not resized.rowcount:
        return []
    store.event("vnodes.resized", "vnodes", node_id)
    flexible = (
        "SELECT DISTINCT cluster_id FROM vnodes WHERE node_id = ? AND kind = 'flexible' AND amounts = ?"
    )
    return [row[0] for row in store.rows(flexible, node_id, rows.allocation_columns(allocation)[0])]


def is_unfinished(store: Store) -> bool:
    """Whether something runs, waits for anything but its release, or is to go: whether a scheduler is needed."""
    return bool(
        store.value(
            "SELECT EXISTS (SELECT 1 FROM jobs WHERE status = 'RUNNING')"
            " OR EXISTS (SELECT 1 FROM jobs WHERE status = 'PENDING' AND NOT held)"
            " OR EXISTS (SELECT 1 FROM runs WHERE state <> 'ENDED')"
            " OR EXISTS (SELECT 1 FROM tasks WHERE ended_at IS NULL)"
            " OR EXISTS (SELECT 1 FROM clusters WHERE state = 'REMOVING')"
        )
    )
