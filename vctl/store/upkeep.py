"""SQL for upkeep: heartbeat leases, clusters in use, virtual nodes over whole nodes, and unfinished work."""

from __future__ import annotations

from vctl.core.clusters import VNode
from vctl.store import rows
from vctl.store.store import Store


def heartbeats(store: Store) -> list[tuple[str, float, int]]:
    """Living nodes with a heartbeat lease: id, timeout in seconds, and when the lease ends (ns)."""
    leases = store.rows(
        "SELECT node_id, heartbeat_timeout_s AS timeout_s,"
        " last_heartbeat + cast(heartbeat_timeout_s * 1e9 AS INTEGER) AS lost_at FROM nodes"
        " WHERE heartbeat_timeout_s IS NOT NULL AND last_heartbeat IS NOT NULL"
        " AND state NOT IN ('DEAD', 'RELEASING') ORDER BY node_id"
    )
    return [(row[0], row[1], row[2]) for row in leases]


def inhabited(store: Store) -> set[str]:
    """Clusters in which a task is not over."""
    return set(store.column("SELECT DISTINCT cluster_id FROM tasks WHERE ended_at IS NULL"))


def whole_of(store: Store, node_id: str) -> list[VNode]:
    """The virtual nodes that hold a whole node, and the flexible ones that contain them; outermost first."""
    vnodes = store.rows(
        """
        WITH RECURSIVE around(vnode_id) AS (
            SELECT vnode_id FROM vnodes WHERE node_id = ? AND whole
            UNION
            SELECT v.parent_vnode_id FROM vnodes v JOIN around USING (vnode_id)
        )
        SELECT * FROM vnodes JOIN around USING (vnode_id)
        """,
        node_id,
    )
    inside = {row["parent_vnode_id"]: row for row in vnodes}
    chain: list[VNode] = []
    while (row := inside.get(chain[-1].vnode_id if chain else node_id)) is not None:
        chain.append(rows.vnode(row))
    return chain


def is_unfinished(store: Store) -> bool:
    """Whether a scheduler is needed: work runs or waits, held jobs aside, a cluster is going, a notice is due."""
    return bool(
        store.value(
            "SELECT EXISTS (SELECT 1 FROM jobs WHERE status = 'RUNNING')"
            " OR EXISTS (SELECT 1 FROM jobs WHERE status = 'PENDING' AND NOT held)"
            " OR EXISTS (SELECT 1 FROM runs)"
            " OR EXISTS (SELECT 1 FROM tasks WHERE ended_at IS NULL)"
            " OR EXISTS (SELECT 1 FROM clusters WHERE state = 'REMOVING')"
            " OR EXISTS (SELECT 1 FROM notifications WHERE NOT is_over)"
        )
    )
