"""SQL about virtual clusters and their virtual nodes."""

from __future__ import annotations

from _sqlite3 import Row
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vctl.core.clusters import PRIMARY
from vctl.core.nodes import LOST
from vctl.core.resources import total
from vctl.store import jobs, nodes, rows, settings
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.core.clusters import Cluster
    from vctl.core.leases import Lease
    from vctl.core.ledger import Ledger

_PRESENT = f"n.state NOT IN ({', '.join(map(repr, LOST))})"


class InTables:
    """What is in the clusters of the tables, for ``vctl/engine/rules/clusters.py``."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def cluster(self, cluster_id: str) -> Cluster | None:
        """One cluster other than the primary."""
        row = get(self.store, cluster_id)
        return None if row is None else rows.cluster(row)

    def removing(self) -> list[str]:
        """The clusters in the state REMOVING."""
        return self.store.column("SELECT cluster_id FROM clusters WHERE state = 'REMOVING'")

    def children(self, cluster_id: str) -> list[str]:
        """The clusters directly below a cluster."""
        return self.store.column("SELECT cluster_id FROM clusters WHERE parent_id = ?", cluster_id)

    def is_running(self, job_id: int) -> bool:
        """Whether a job runs."""
        return jobs.is_running(self.store, job_id)

    def is_used(self, cluster: Cluster) -> bool:
        """Whether jobs wait or run in a cluster itself, or a process or an unfinished task is in it."""
        return bool(
            self.store.value(
                "SELECT EXISTS (SELECT 1 FROM jobs WHERE parent_cluster_id = ?1 AND status = 'PENDING')"
                " OR EXISTS (SELECT 1 FROM jobs WHERE parent_cluster_id = ?1 AND status = 'RUNNING')"
                " OR EXISTS (SELECT 1 FROM tasks WHERE cluster_id = ?1 AND ended_at IS NULL)"
                " OR EXISTS (SELECT 1 FROM runs WHERE cluster_id = ?1)",
                cluster.cluster_id,
            )
        )

    def leases_of(self, cluster_id: str) -> list[Lease]:
        """The leases of which a cluster is the borrower or the lender."""
        leases = self.store.rows("SELECT * FROM leases WHERE borrower_id = ?1 OR lender_id = ?1", cluster_id)
        return [rows.lease(row) for row in leases]


def get(store: Store, cluster_id: str) -> Row | None:
    """One cluster; the primary has no row."""
    return store.row("SELECT * FROM clusters WHERE cluster_id = ?", cluster_id)


def all_rows(store: Store) -> list[Row]:
    """Every cluster but the primary, by id."""
    return store.rows("SELECT * FROM clusters ORDER BY cluster_id")


def logical_rows(store: Store) -> list[Row]:
    """Logical clusters, by id."""
    return store.rows("SELECT * FROM clusters WHERE kind = 'logical' ORDER BY cluster_id")


def booked(store: Store) -> list[Row]:
    """The clusters that are booked and have not opened, by id."""
    return store.rows("SELECT * FROM clusters WHERE state = 'BOOKED' ORDER BY cluster_id")


def booked_on(store: Store, node_id: str) -> list[str]:
    """The clusters that are booked, have not opened, and get a part of a physical node."""
    return store.column(
        "SELECT DISTINCT b.cluster_id FROM clusters b, json_each(b.settings, '$.booking.parts') part"
        " WHERE b.state = 'BOOKED' AND json_extract(part.value, '$.node') = ? ORDER BY 1",
        node_id,
    )


def kept(store: Store) -> list[Row]:
    """Clusters of jobs that are over, which exist for something detached in them, by id."""
    return store.rows(
        "SELECT c.* FROM clusters c LEFT JOIN jobs j USING (job_id) WHERE c.kind = 'job'"
        " AND coalesce(j.status, '') NOT IN ('PENDING', 'RUNNING') ORDER BY c.cluster_id"
    )


def counts(store: Store) -> dict[str, int]:
    """How many clusters there are of each kind, the primary aside."""
    return store.mapping("SELECT kind, count(*) FROM clusters GROUP BY 1 ORDER BY 1")


def members(store: Store) -> list[Row]:
    """``cluster_id, node_id, hostname, template_id`` of every physical node on which a cluster has something."""
    return store.rows(
        "SELECT DISTINCT v.cluster_id, v.node_id, n.hostname, n.template_id FROM vnodes v JOIN nodes n USING (node_id)"
        " ORDER BY v.cluster_id, v.node_id"
    )


def node_states(store: Store, cluster_id: str) -> dict[str, str]:
    """State of every physical node on which a cluster has something."""
    return store.mapping(
        "SELECT DISTINCT v.node_id, n.state FROM vnodes v JOIN nodes n USING (node_id) WHERE v.cluster_id = ?",
        cluster_id,
    )


def unused_of_users(store: Store, before_ns: int) -> list[str]:
    """The clusters that were made for users before a moment, and in which no job and no cluster is, by id."""
    return store.column(
        "SELECT cluster_id FROM clusters c WHERE settings LIKE ? AND created_at < ? AND NOT EXISTS"
        " (SELECT 1 FROM jobs j WHERE j.parent_cluster_id = c.cluster_id) AND NOT EXISTS"
        " (SELECT 1 FROM clusters b WHERE b.parent_id = c.cluster_id) ORDER BY 1",
        f'%"{rows.OF_USER}"%',
        before_ns,
    )


def children(store: Store, cluster_id: str) -> list[Row]:
    """Direct children, by id."""
    return store.rows("SELECT * FROM clusters WHERE parent_id = ? ORDER BY cluster_id", cluster_id)


def on_node(store: Store, node_id: str) -> list[str]:
    """The clusters that have something on a node."""
    sql = "SELECT DISTINCT cluster_id FROM vnodes WHERE node_id = ? ORDER BY 1"
    return [str(cluster_id) for cluster_id in store.column(sql, node_id)]


def detached_among(store: Store, first_job_id: int, last_job_id: int) -> str | None:
    """The first sub-cluster of a span of jobs that outlives its job."""
    first = store.value(
        "SELECT min(cluster_id) FROM clusters WHERE kind = 'sub' AND detached AND job_id BETWEEN ? AND ?",
        first_job_id, last_job_id,
    )  # fmt: skip
    return None if first is None else str(first)


def vnode_rows(store: Store, cluster_id: str) -> list[Row]:
    """The virtual nodes of a cluster, by rank, each with the template of its physical node."""
    return store.rows(
        "SELECT v.*, n.template_id FROM vnodes v LEFT JOIN nodes n USING (node_id) WHERE v.cluster_id = ?"
        " ORDER BY v.rank, v.vnode_id",
        cluster_id,
    )


def all_vnode_rows(store: Store) -> list[Row]:
    """The virtual nodes of all clusters but the primary."""
    return store.rows("SELECT * FROM vnodes ORDER BY cluster_id, rank, vnode_id")


def on_nodes(store: Store, states: Sequence[str]) -> list[Row]:
    """The virtual nodes on nodes in one of these states, with the state and the kind of their cluster."""
    marks = ", ".join("?" * len(states))
    return store.rows(
        "SELECT v.vnode_id, v.cluster_id, v.node_id, v.parent_vnode_id, n.state AS node_state, c.kind AS cluster_kind"
        f" FROM nodes n JOIN vnodes v USING (node_id) JOIN clusters c USING (cluster_id) WHERE n.state IN ({marks})",
        *states,
    )


def get_vnode(store: Store, vnode_id: str) -> Row | None:
    """One virtual node (not a physical one)."""
    return store.row("SELECT * FROM vnodes WHERE vnode_id = ?", vnode_id)


def totals(store: Store, cluster_id: str | None = None) -> dict[str, dict[str, int]]:
    """Cluster -> its total on nodes that are not lost: of all clusters, or of one."""
    found = list[Row]()
    if cluster_id in (None, PRIMARY):
        found += store.rows(f"SELECT ?, amounts, count(*) FROM nodes n WHERE {_PRESENT} GROUP BY 2", PRIMARY)
    if cluster_id != PRIMARY:
        which, values = ("", ()) if cluster_id is None else (" AND v.cluster_id = ?", (cluster_id,))
        found += store.rows(
            "SELECT v.cluster_id, v.amounts, count(*) FROM vnodes v JOIN nodes n USING (node_id)"
            f" WHERE {_PRESENT}{which} GROUP BY 1, 2",
            *values,
        )
    return rows.sums(found)


def held_by_runs(store: Store) -> dict[str, dict[str, int]]:
    """Cluster -> what its own processes hold, on nodes that are not lost."""
    sql = (
        "SELECT r.cluster_id, r.amounts, count(*) FROM runs r JOIN nodes n USING (node_id)"
        f" WHERE {_PRESENT} GROUP BY 1, 2"
    )
    return rows.sums(store.rows(sql))


def flexible_amounts(store: Store, cluster_id: str) -> dict[str, int]:
    """The sum of the flexible virtual nodes of a cluster."""
    sql = "SELECT amounts FROM vnodes WHERE cluster_id = ? AND kind = 'flexible'"
    return total(map(rows.loads, store.column(sql, cluster_id)))


def node_ids_of(store: Store, cluster_id: str) -> list[str]:
    """Physical nodes on which a cluster has something."""
    return store.column("SELECT DISTINCT node_id FROM vnodes WHERE cluster_id = ? ORDER BY 1", cluster_id)


def subtree(store: Store, cluster_id: str) -> list[str]:
    """Ids of all clusters below one, parents first."""
    return store.column(
        "WITH RECURSIVE below (cluster_id, depth) AS ("
        " SELECT cluster_id, 1 FROM clusters WHERE parent_id = ?"
        " UNION ALL SELECT c.cluster_id, depth + 1 FROM clusters c JOIN below b ON c.parent_id = b.cluster_id)"
        " SELECT cluster_id FROM below ORDER BY depth, cluster_id",
        cluster_id,
    )


def parents_first(found: list[Row]) -> list[Row]:
    """Order cluster rows so that each comes after its parent; rows without a way to the root come last."""
    by_parent: dict[str, list[Row]] = {}
    for row in found:
        by_parent.setdefault(row["parent_id"], []).append(row)
    ordered: list[Row] = []
    frontier = [PRIMARY]
    while frontier:
        level = [row for parent in frontier for row in by_parent.pop(parent, ())]
        ordered.extend(level)
        frontier = [row["cluster_id"] for row in level]
    for rest in by_parent.values():
        ordered.extend(rest)
    return ordered


def load_ledger(store: Store) -> Ledger:
    """The whole tree from the tables. A row that breaks the rules raises; replay sets such rows aside first."""
    from vctl.core.ledger import Ledger
    from vctl.store import leases

    ledger = Ledger()
    with store.snapshot():
        for row in nodes.all_rows(store):
            ledger.put_node(rows.node(row))
        ledger.set_primary_queue(settings.queue_of(store, PRIMARY))
        vnodes: dict[str, list[Row]] = {}
        for row in all_vnode_rows(store):
            vnodes.setdefault(row["cluster_id"], []).append(row)
        for row in parents_first(all_rows(store)):
            ledger.put_cluster(rows.cluster(row))
            ledger.assign_all(map(rows.vnode, vnodes.get(row["cluster_id"], ())))
        for row in store.rows("SELECT * FROM runs"):
            run = rows.run(row)
            ledger.charge(run.run_id, run.vnode_id, run.allocation)
        for row in leases.all_rows(store):
            ledger.put_lease(rows.lease(row))
    return ledger


def node_is_used(store: Store, node_id: str) -> bool:
    """Whether any virtual node or live process lies on a physical node."""
    return bool(
        store.value("SELECT EXISTS (SELECT 1 FROM vnodes WHERE node_id = ?)", node_id)
        or store.value("SELECT EXISTS (SELECT 1 FROM runs WHERE node_id = ?)", node_id)
    )
