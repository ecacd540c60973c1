"""How changes of clusters change the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.core.clusters import Cluster, VNode
from vctl.engine import changes as ch
from vctl.engine.lifecycle import CLUSTER
from vctl.store import moves, rows
from vctl.store.rows import dumps
from vctl.store.write.table import Table

CLUSTER_COLUMNS = (
    "INSERT INTO clusters (cluster_id, parent_id, kind, divisible, revision, spec, state, job_id, created_at,"
    " updated_at, owner) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


VNODE_COLUMNS = (
    "INSERT INTO vnodes (vnode_id, cluster_id, node_id, parent_vnode_id, kind, whole, rank, amounts, instances,"
    " cores, labels) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def cluster_row(cluster: Cluster, at: int, owner: str | None = None) -> tuple[object, ...]:
    """A cluster as a row."""
    return (
        cluster.cluster_id, cluster.parent_id, cluster.kind, cluster.divisible, cluster.revision,
        rows.spec_text(cluster.spec), cluster.state, cluster.job, at, at, owner,
    )  # fmt: skip


def vnode_row(vnode: VNode) -> tuple[object, ...]:
    """A virtual node as a row."""
    amounts, instances, cores = rows.allocation_columns(vnode.allocation)
    return (
        vnode.vnode_id, vnode.cluster_id, vnode.node_id, vnode.parent_id, vnode.kind, vnode.whole, vnode.rank,
        amounts, instances, cores, dumps(dict(vnode.labels)),
    )  # fmt: skip


def remove(db: sqlite3.Connection, removed: Sequence[ch.ClusterRemoved]) -> None:
    """Delete clusters with their virtual nodes and leases."""
    for one in removed:
        db.executemany("DELETE FROM leases WHERE lease_id = ?", [(lease_id,) for lease_id in one.returned])
        db.executemany(
            "UPDATE leases SET lender_id = ? WHERE lease_id = ?",
            [(one.lender_id, lease_id) for lease_id in one.lent],
        )
    db.executemany("DELETE FROM vnodes WHERE cluster_id = ?", [(one.cluster_id,) for one in removed])
    for one in removed:
        moves.delete(db, CLUSTER, "forget", one.cluster_id)


WRITERS: Table = {
    ch.ClusterRemoved: remove,
}
