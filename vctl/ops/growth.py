"""The leases of growth: for what clusters get above their minimum, and after a minimum or virtual nodes changed."""

from __future__ import annotations

from collections.abc import Callable

from vctl.core.ledger import Ledger
from vctl.engine.changes import Change
from vctl.engine.rules.nodes import leases_settled
from vctl.store import leases
from vctl.store.store import Store

Emit = Callable[[Change], None]


def settle_leases(store: Store, ledger: Ledger, cluster_id: str, emit: Emit) -> None:
    """Emit what a new minimum or other virtual nodes of a cluster mean for its leases."""
    found, own = leases.of_borrower(store, cluster_id), leases.flexible_entry(store, cluster_id)
    for change in leases_settled(ledger, cluster_id, found, own, store.clock(), store.next_lease):
        emit(change)
