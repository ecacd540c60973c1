"""Writing how clusters grow: virtual nodes made or enlarged, and leases for what lies above a minimum."""

from __future__ import annotations

from collections.abc import Sequence

from vctl.core.ledger import Ledger
from vctl.core.tasks import Lease
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.leasing import above_minimum
from vctl.store import clusters, tasks
from vctl.store.store import Store


def write_growth(
    store: Store, ledger: Ledger, step: Grow, *, lease_s: float | None = None, job_id: int | None = None
) -> list[Lease]:
    """One step that has just been applied to the ledger; returns the leases that were granted for it."""
    if step.before is None:
        clusters.insert_vnode(store, step.after)
    else:
        clusters.update_vnode(store, step.after)
    lent = above_minimum(ledger, step)
    cluster = ledger.clusters[step.after.cluster_id]
    if not lent or cluster.parent_id is None:
        return []
    now = store.clock()
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    lender_id = step.lender_id or cluster.parent_id
    lease = Lease(
        0, cluster.cluster_id, lender_id, step.after.vnode_id, step.after.node_id, lent, now, expires_at, job_id
    )  # fmt: skip
    return [tasks.insert_lease(store, lease)]


def write_all(store: Store, ledger: Ledger, steps: Sequence[Grow]) -> None:
    """Several steps of one change; the ledger has them all. Asked from the top level down."""
    for step in steps:
        write_growth(store, ledger, step)
