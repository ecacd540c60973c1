"""Whole nodes of logical clusters: which cluster has which, and taking named ones out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.nodes import DEAD
from vctl.engine.changes import ClusterChanged, VNodesChanged
from vctl.errors import BadSpec, Conflict
from vctl.ops import forms, rights
from vctl.ops.cluster_changes import of_whole_nodes
from vctl.ops.cluster_views import cluster_row, get_cluster, logical_row, resolve
from vctl.store import clusters as table
from vctl.store import rows
from vctl.store.partial import load_for_exchange
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import ClusterForm


def instances(store: Store, *, job_clusters: bool = False) -> list[forms.Form]:
    """Every logical cluster (and those of jobs when asked) with its nodes; two queries, however many there are."""
    with store.snapshot():
        clusters = table.all_rows(store) if job_clusters else table.logical_rows(store)
        nodes_of: dict[str, dict[str, Any]] = {row["cluster_id"]: {} for row in clusters}
        for cluster_id, node_id, hostname, template_id in table.members(store):
            if (found := nodes_of.get(cluster_id)) is not None:
                found[node_id] = {"hostname": hostname, "template_id": template_id}
    return [_form(row, nodes_of[row["cluster_id"]]) for row in clusters]


def _form(row: Row, nodes: dict[str, Any]) -> forms.Form:
    return {
        "cluster_id": row["cluster_id"],
        "kind": row["kind"],
        "divisible": bool(row["divisible"]),
        "revision": row["revision"],
        "state": row["state"],
        "node_instances": nodes,
    }


def remove_nodes(store: Store, cluster_id: str, node_ids: Sequence[str]) -> ClusterForm:
    """Give named nodes of a logical cluster back to its parent: all of them or none, when one is busy or not its.

    The nodes of a cluster change without its revision: it counts what users asked for.
    """
    from vctl.spec.ids import check_new_cluster_id

    if resolve(cluster_id) == PRIMARY and cluster_id:
        raise BadSpec(
            f"Invalid request, {PRIMARY} should not be updated via this API.",
            fix="`vctl node remove` takes a node out of the primary cluster",
        )
    check_new_cluster_id(cluster_id)
    wanted = list(dict.fromkeys(node_ids))
    with store.transaction():
        row = logical_row(store, cluster_id)
        rights.check_cluster(store, cluster_id)
        cluster = rows.cluster(row)
        if not of_whole_nodes(cluster.spec):
            raise Conflict(
                f"The virtual cluster {cluster_id} was made from a resource spec and has no whole nodes to remove.",
                fix=f"`vctl vc update {cluster_id} --spec …` makes it smaller",
                details={"nodesWithFailure": wanted},
            )
        if not wanted:
            return get_cluster(store, cluster_id)
        leaving = _idle_members(store, cluster_id, wanted)
        if offenders := [node_id for node_id in wanted if node_id not in leaving]:
            raise Conflict(
                "Failed to remove some of the nodes because they are not idle nor found in the virtual cluster."
                " These nodes with failure are shown below.",
                fix="leave them out, or wait until nothing uses them",
                details={"nodesWithFailure": offenders},
            )
        counts = dict(cluster.spec.replica_sets)
        for template_id in leaving.values():
            counts[template_id] = max(counts.get(template_id, 0) - 1, 0)
        gone = [v["vnode_id"] for v in table.vnode_rows(store, cluster_id) if v["node_id"] in leaving]
        store.emit(VNodesChanged(tuple(gone)))
        spec = ClusterSpec(flexible=False, replica_sets=counts)
        store.emit(ClusterChanged(store.clock(), replace(cluster, spec=spec)))
    return get_cluster(store, cluster_id)


def _idle_members(store: Store, cluster_id: str, wanted: Sequence[str]) -> dict[str, str]:
    """Of the nodes named, those that the cluster has whole and that nobody uses: node id -> template."""
    from vctl.scheduler.membership import is_undivided

    ledger = load_for_exchange(store, rows.cluster(cluster_row(store, cluster_id)), {})
    found: dict[str, str] = {}
    for vnode in ledger.slots(cluster_id):
        if vnode.node_id in wanted and vnode.whole:
            node = ledger.nodes[vnode.node_id]
            if node.state == DEAD or is_undivided(ledger, vnode):
                found[vnode.node_id] = node.template_id
    return found
