"""Whether a logical cluster admits jobs. Stopping keeps what runs and lets what is submitted wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vctl.core.clusters import ACTIVE, LOGICAL, PRIMARY, STOPPED, Cluster
from vctl.engine.changes import ClusterMoved
from vctl.errors import BadSpec, Conflict
from vctl.ops import rights
from vctl.ops.cluster_views import cluster_row, get_cluster, resolve
from vctl.store import rows
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import ClusterForm


LONGEST_MESSAGE = 1000


def stop(store: Store, cluster_id: str, *, message: str | None = None) -> ClusterForm:
    """Admit no more jobs to a cluster; again, to say another message."""
    from vctl.ops.nodes import author

    if message is not None and (len(message) > LONGEST_MESSAGE or not message.isprintable()):
        raise BadSpec(
            "--message: it is too long, or has control characters",
            fix=f"use at most {LONGEST_MESSAGE} printable characters",
        )
    with store.transaction():
        _admitting(store, cluster_id, "stopped")
        stopped = {"by": author(), "message": message} if message else {"by": author()}
        store.emit(ClusterMoved(store.clock(), cluster_id, "stop", STOPPED, stopped))
    return get_cluster(store, cluster_id)


def resume(store: Store, cluster_id: str) -> ClusterForm:
    """Admit jobs again: those that waited are decided at once."""
    with store.transaction():
        cluster = _admitting(store, cluster_id, "resumed")
        if cluster.state != ACTIVE:
            store.emit(ClusterMoved(store.clock(), cluster_id, "resume", ACTIVE))
    return get_cluster(store, cluster_id)


def _admitting(store: Store, cluster_id: str, action: str) -> Cluster:
    """A cluster that was made by name and is to stay."""
    if resolve(cluster_id) == PRIMARY:
        raise BadSpec(
            f"Invalid request, {PRIMARY} can not be {action}.",
            fix="stop the clusters in it one by one; `vctl node drain` keeps new work off a node",
        )
    row = cluster_row(store, cluster_id)
    if row["kind"] != LOGICAL:
        raise BadSpec(
            f"{cluster_id} is a {row['kind']} cluster and admits no jobs from outside",
            fix="`vctl job stop` ends its job",
        )
    rights.check_cluster(store, cluster_id)
    cluster = rows.cluster(row)
    if cluster.state not in (ACTIVE, STOPPED):
        raise Conflict(
            f"cluster {cluster_id} is being removed",
            fix="submit to another cluster; this one is deleted when it is empty",
        )
    return cluster
