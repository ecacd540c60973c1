"""How changes of leases change the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.engine.lifecycle import LEASE
from vctl.store import moves
from vctl.store.rows import dumps
from vctl.store.write.table import writes

_COLUMNS = (
    "INSERT INTO leases (lease_id, borrower_id, lender_id, vnode_id, node_id, amounts, since, expires_at, job_id,"
    " state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@writes(ch.LeaseGranted)
def _granted(db: sqlite3.Connection, granted: Sequence[ch.LeaseGranted]) -> None:
    leases = (one.lease for one in granted)
    db.executemany(
        _COLUMNS,
        [
            (
                one.lease_id, one.borrower_id, one.lender_id, one.vnode_id, one.node_id, dumps(dict(one.amounts)),
                one.since, one.expires_at, one.job_id, one.state,
            )
            for one in leases
        ],
    )  # fmt: skip


@writes(ch.LeaseCalled)
def _called(db: sqlite3.Connection, called: Sequence[ch.LeaseCalled]) -> None:
    for one in called:
        values = (one.lease.state, one.lease.expires_at)
        moves.update(db, LEASE, "call", one.lease.lease_id, "state = ?, expires_at = ?", values)


@writes(ch.LeaseReturned)
def _returned(db: sqlite3.Connection, returned: Sequence[ch.LeaseReturned]) -> None:
    for one in returned:
        lease = one.lease
        if lease.amounts:
            moves.update(db, LEASE, "cut", lease.lease_id, "amounts = ?", (dumps(dict(lease.amounts)),))
        else:
            moves.delete(db, LEASE, "return", lease.lease_id)
