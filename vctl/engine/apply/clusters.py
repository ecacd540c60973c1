"""What clusters and their virtual nodes are after a change of theirs."""

from __future__ import annotations

from dataclasses import replace

from vctl.core.clusters import JOB, PRIMARY
from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.ClusterAdded)
def _cluster_added(state: SchedulerState, change: ch.ClusterAdded) -> None:
    state.ledger.put_cluster(change.cluster)


@applies(ch.ClusterChanged)
def _cluster_changed(state: SchedulerState, change: ch.ClusterChanged) -> None:
    cluster = change.cluster
    before = state.ledger.clusters.get(cluster.cluster_id, cluster)
    state.ledger.put_cluster(cluster)
    lends = cluster.lending_limit or before.lending_limit  # then its siblings may grow otherwise too
    state.judge_anew(cluster.parent_id or PRIMARY if lends else cluster.cluster_id)


@applies(ch.ClusterMoved)
def _cluster_moved(state: SchedulerState, change: ch.ClusterMoved) -> None:
    if (cluster := state.ledger.clusters.get(change.cluster_id)) is not None:
        state.ledger.put_cluster(replace(cluster, state=change.state))
        state.judge_anew(change.cluster_id)


@applies(ch.QueueChanged)
def _queue_changed(state: SchedulerState, change: ch.QueueChanged) -> None:
    if (cluster := state.ledger.clusters.get(change.cluster_id)) is not None:
        state.ledger.put_cluster(replace(cluster, queue=change.queue))
        state.judge_anew(cluster.parent_id or PRIMARY)  # it has another weight among its siblings


@applies(ch.ClusterRemoved)
def remove(state: SchedulerState, change: ch.ClusterRemoved) -> None:
    """A cluster is gone, with its leases."""
    for lease_id in change.returned:
        state.leases.pop(lease_id, None)
    for lease_id in change.lent:
        if (lease := state.leases.get(lease_id)) is not None and change.lender_id is not None:
            state.leases[lease_id] = replace(lease, lender_id=change.lender_id)
    state.tasks.last_spread.pop(change.cluster_id, None)
    if (cluster := state.ledger.clusters.get(change.cluster_id)) is not None:
        state.ledger.remove_cluster(change.cluster_id)
        if cluster.kind != JOB and cluster.lending_limit:
            state.judge_anew(cluster.parent_id or PRIMARY)


@applies(ch.VNodesChanged)
def _vnodes_changed(state: SchedulerState, change: ch.VNodesChanged) -> None:
    state.ledger.rearrange(change.removed, change.placed, for_start=change.for_start)


@applies(ch.ClusterDetached, ch.NodeReplaced, ch.NodesPublished, ch.ClusterRepaired)
def _nothing(state: SchedulerState, change: object) -> None:
    """What a scheduler reads of this is in other changes: processes and tasks, virtual nodes."""
