"""The leases of growth: for what clusters get above their minimum, and after a minimum or virtual nodes changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vctl.core import resources as rs
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.engine.changes import Change, LeaseGranted
from vctl.engine.rules.nodes import leases_settled
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.leasing import above_minimum
from vctl.store import leases
from vctl.store.store import Store

Emit = Callable[[Change], None]


def granted_for(
    store: Store,
    ledger: Ledger,
    steps: Sequence[Grow],
    *,
    lease_s: float | None = None,
    job_id: int | None = None,
) -> Iterator[LeaseGranted]:
    """The leases for the growth of one change; the ledger has all its steps. Asked from the top level down."""
    gained: dict[str, Amounts] = {}
    todo: list[tuple[Grow, Amounts]] = []
    for step in reversed(steps):
        cluster_id = step.after.cluster_id
        later = gained.get(cluster_id, {})
        todo.append((step, above_minimum(ledger, step, later)))
        gained[cluster_id] = rs.add(later, step.gained)
    now = store.clock()
    expires_at = None if lease_s is None else now + int(lease_s * 1e9)
    for step, over in reversed(todo):
        vnode, parent_id = step.after, ledger.clusters[step.after.cluster_id].parent_id
        loan = {n: min(a, step.lent.get(n, 0)) for n, a in over.items() if step.lent.get(n, 0)}
        rest = {n: a - loan.get(n, 0) for n, a in over.items() if a > loan.get(n, 0)}
        for lender_id, lent in ((step.lender_id, loan), (parent_id, rest)):
            if lender_id is not None and lent:
                yield LeaseGranted(Lease(
                    store.next_lease(), vnode.cluster_id, lender_id, vnode.vnode_id, vnode.node_id, lent, now,
                    expires_at, job_id,
                ))  # fmt: skip


def settle_leases(store: Store, ledger: Ledger, cluster_id: str, emit: Emit) -> None:
    """Emit what a new minimum or other virtual nodes of a cluster mean for its leases."""
    found, own = leases.of_borrower(store, cluster_id), leases.flexible_entry(store, cluster_id)
    for change in leases_settled(ledger, cluster_id, found, own, store.clock(), store.next_lease):
        emit(change)
