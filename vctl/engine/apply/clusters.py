"""What clusters are after a change of theirs."""

from __future__ import annotations

from dataclasses import replace

from vctl.engine import changes as ch
from vctl.engine.apply.table import Table
from vctl.engine.state import SchedulerState


def remove(state: SchedulerState, change: ch.ClusterRemoved) -> None:
    """A cluster is gone, with its leases."""
    for lease_id in change.returned:
        state.leases.pop(lease_id, None)
    for lease_id in change.lent:
        if (lease := state.leases.get(lease_id)) is not None and change.lender_id is not None:
            state.leases[lease_id] = replace(lease, lender_id=change.lender_id)
    state.tasks.last_spread.pop(change.cluster_id, None)
    if change.cluster_id in state.ledger.clusters:
        state.ledger.remove_cluster(change.cluster_id)


APPLY: Table = {
    ch.ClusterRemoved: remove,
}
