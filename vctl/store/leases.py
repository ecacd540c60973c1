"""SQL about leases."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.leases import Lease
from vctl.store import rows
from vctl.store.store import Row, Store


def insert(store: Store, lease: Lease) -> Lease:
    """Record what a cluster borrowed; returns it with its number."""
    cursor = store.db.execute(
        "INSERT INTO leases (borrower_id, lender_id, vnode_id, node_id, amounts, since, expires_at, job_id)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            lease.borrower_id, lease.lender_id, lease.vnode_id, lease.node_id, rows.dumps(dict(lease.amounts)),
            lease.since, lease.expires_at, lease.job_id,
        ),
    )  # fmt: skip
    number = cursor.lastrowid
    assert number is not None
    store.event(
        "lease.granted", "lease", str(number), cluster_id=lease.borrower_id, job_id=lease.job_id,
        data={"lender": lease.lender_id, "vnode": lease.vnode_id, "amounts": dict(lease.amounts)},
    )  # fmt: skip
    return Lease(
        number, lease.borrower_id, lease.lender_id, lease.vnode_id, lease.node_id, lease.amounts, lease.since,
        lease.expires_at, lease.job_id,
    )  # fmt: skip


def call_in(store: Store, lease: Lease, ends_at: int) -> int:
    """A lender wants a lease back: it ends then, at the latest; returns when."""
    ends_at = min(ends_at, lease.expires_at or ends_at)
    store.db.execute("UPDATE leases SET expires_at = ? WHERE lease_id = ?", (ends_at, lease.lease_id))
    store.event(
        "lease.called_in", "lease", str(lease.lease_id), cluster_id=lease.borrower_id, job_id=lease.job_id,
        data={"lender": lease.lender_id, "ends_at": ends_at},
    )  # fmt: skip
    return ends_at


def end(store: Store, lease: Lease, left: Mapping[str, int]) -> None:
    """A lease is given back, whole or down to what is left of it."""
    if left:
        store.db.execute(
            "UPDATE leases SET amounts = ? WHERE lease_id = ?", (rows.dumps(dict(left)), lease.lease_id)
        )
    else:
        store.db.execute("DELETE FROM leases WHERE lease_id = ?", (lease.lease_id,))
    store.event(
        "lease.returned", "lease", str(lease.lease_id), cluster_id=lease.borrower_id, job_id=lease.job_id,
        data={"lender": lease.lender_id, "left": dict(left)},
    )  # fmt: skip


def all_rows(store: Store) -> list[Row]:
    """All leases, oldest first."""
    return store.rows("SELECT * FROM leases ORDER BY lease_id")


def flexible_entry(store: Store, cluster_id: str) -> dict[str, int]:
    """What the entrypoint of a job cluster holds of the cluster's flexible part."""
    row = store.row(
        "SELECT r.amounts FROM runs r JOIN vnodes v USING (vnode_id) JOIN clusters c ON c.cluster_id = v.cluster_id"
        " WHERE v.cluster_id = ? AND c.kind = 'job' AND v.kind = 'flexible' AND r.task_id IS NULL"
        " AND r.state <> 'ENDED'",
        cluster_id,
    )
    found: dict[str, int] = {} if row is None else rows.loads(row["amounts"])
    return found
