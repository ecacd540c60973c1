"""SQL about leases."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.core import resources as rs
from vctl.core.clusters import Cluster
from vctl.core.leases import CALLED, Lease
from vctl.store import rows
from vctl.store.store import Row, Store


def all_rows(store: Store) -> list[Row]:
    """All leases, oldest first."""
    return store.rows("SELECT * FROM leases ORDER BY lease_id")


def exist(store: Store) -> bool:
    """Whether any cluster has borrowed anything."""
    return bool(store.value("SELECT EXISTS (SELECT 1 FROM leases)"))


def called(store: Store) -> list[Lease]:
    """The leases that their lenders have called back, oldest first."""
    found = store.rows("SELECT * FROM leases WHERE state = ? ORDER BY lease_id", CALLED)
    return [rows.lease(row) for row in found]


def of_borrower(store: Store, cluster_id: str) -> list[Lease]:
    """The leases of a borrower, oldest first."""
    found = store.rows("SELECT * FROM leases WHERE borrower_id = ? ORDER BY lease_id", cluster_id)
    return [rows.lease(row) for row in found]


def jobs_beside(store: Store, parent_id: str | None, lease_ids: Iterable[int]) -> list[str]:
    """The clusters of jobs in a parent that have some of these leases, by id."""
    return store.column(
        "SELECT DISTINCT borrower_id FROM leases JOIN clusters ON cluster_id = borrower_id"
        " WHERE lease_id IN (SELECT value FROM json_each(?)) AND kind = 'job' AND parent_id = ? ORDER BY 1",
        rows.dumps(list(lease_ids)), parent_id,
    )  # fmt: skip


def lent(store: Store, cluster: Cluster) -> dict[str, int]:
    """The amounts that others have from a cluster, or out of it from a cluster below it."""
    amounts = store.column(
        "WITH RECURSIVE inside(id) AS (SELECT ?1 UNION ALL SELECT c.cluster_id FROM clusters c JOIN inside ON"
        " c.parent_id = inside.id WHERE c.kind = 'logical') SELECT l.amounts FROM leases l JOIN clusters b ON"
        " b.cluster_id = l.borrower_id WHERE l.lender_id IN inside AND b.parent_id NOT IN inside",
        cluster.cluster_id,
    )
    return rs.total(map(rows.loads, amounts))


def flexible_entry(store: Store, cluster_id: str) -> dict[str, int]:
    """The part of the flexible resources of a job cluster that its entrypoint holds."""
    row = store.row(
        "SELECT r.amounts FROM runs r JOIN vnodes v USING (vnode_id) JOIN clusters c ON c.cluster_id = v.cluster_id"
        " WHERE v.cluster_id = ? AND c.kind = 'job' AND v.kind = 'flexible' AND r.task_id IS NULL",
        cluster_id,
    )
    amounts: dict[str, int] = {} if row is None else rows.loads(row["amounts"])
    return amounts
