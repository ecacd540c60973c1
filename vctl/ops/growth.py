"""Writing how clusters grow: virtual nodes made or enlarged, and leases for what lies above a minimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vctl.core import resources as rs
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.leasing import above_minimum, settle
from vctl.store import clusters, leases, rows
from vctl.store.store import Store

NOTHING: Amounts = {}


def write_growth(
    store: Store,
    ledger: Ledger,
    step: Grow,
    *,
    later: Amounts = NOTHING,
    lease_s: float | None = None,
    job_id: int | None = None,
) -> list[Lease]:
    """One step that has been applied to the ledger; returns the leases that were granted for it.

    ``later`` is what its cluster gained by steps that were applied after it.
    """
    if step.before is None:
        clusters.insert_vnode(store, step.after)
    else:
        clusters.update_vnode(store, step.after)
    over = above_minimum(ledger, step, later)
    cluster = ledger.clusters[step.after.cluster_id]
    if not over or cluster.parent_id is None:
        return []
    now = store.clock()
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    loan = {n: min(a, step.lent.get(n, 0)) for n, a in over.items() if step.lent.get(n, 0)}
    rest = {n: a - loan.get(n, 0) for n, a in over.items() if a > loan.get(n, 0)}
    return [
        leases.insert(
            store,
            Lease(
                0, cluster.cluster_id, lender_id, step.after.vnode_id, step.after.node_id, lent, now, expires_at, job_id
            ),
        )
        for lender_id, lent in ((step.lender_id, loan), (cluster.parent_id, rest))
        if lender_id is not None and lent
    ]  # fmt: skip


def write_all(store: Store, ledger: Ledger, steps: Sequence[Grow]) -> None:
    """Several steps of one change; the ledger has them all. Asked from the top level down."""
    gained: dict[str, Amounts] = {}
    todo: list[tuple[Grow, Amounts]] = []
    for step in reversed(steps):
        cluster_id = step.after.cluster_id
        later = gained.get(cluster_id, NOTHING)
        todo.append((step, later))
        gained[cluster_id] = rs.add(later, step.gained)
    for step, later in reversed(todo):
        write_growth(store, ledger, step, later=later)


def settle_leases(store: Store, ledger: Ledger, cluster_id: str) -> list[Lease]:
    """Write what a new minimum or other virtual nodes of a cluster mean for its leases; returns those it has now."""
    cluster = ledger.clusters[cluster_id]
    assert cluster.parent_id is not None
    found = [rows.lease(row) for row in leases.all_rows(store) if row["borrower_id"] == cluster_id]
    settled = settle(ledger, cluster_id, found, leases.flexible_entry(store, cluster_id))
    left = {lease.lease_id: lease for lease in found}
    for lease, amounts in settled.cut:
        leases.end(store, lease, amounts)
        left[lease.lease_id] = replace(lease, amounts=amounts)
    fresh = [
        leases.insert(
            store,
            Lease(
                0, cluster_id, cluster.parent_id, vnode.vnode_id, vnode.node_id, lent, store.clock(),
                job_id=None if cluster.job is None else int(cluster.job),
            ),
        )
        for vnode, lent in settled.fresh
    ]  # fmt: skip
    return [*(lease for lease in left.values() if lease.amounts), *fresh]
