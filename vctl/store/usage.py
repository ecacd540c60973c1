"""SQL about the past usage and the lag of the members of fair clusters, which a new scheduler takes over.

A scheduler saves them whenever somebody holds more or less, or begins or ceases to wait. So who reads them at any
time knows what the scheduler will know in its next round: until then its members hold what they hold now.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from vctl.core.clusters import PRIMARY, PRIMARY_KIND, Cluster, ClusterSpec
from vctl.core.resources import Amounts
from vctl.scheduler.fairness import HeldShares, Member, Usage
from vctl.store import clusters, settings
from vctl.store import rows as values
from vctl.store.store import Row, Store


def rows(store: Store) -> list[Row]:
    """All rows of past usage."""
    return store.rows("SELECT * FROM usage ORDER BY cluster_id, child_id, user, resource")


def lag_rows(store: Store) -> list[Row]:
    """All rows of lags."""
    return store.rows("SELECT * FROM lags ORDER BY cluster_id, child_id, user")


def check(row: Row) -> Row:
    """The row itself, if it is valid; raises ValueError otherwise."""
    if not isinstance(row["amount"], float) or not isfinite(row["amount"]) or not isinstance(row["at"], int):
        raise ValueError(f"{row['amount']!r} at {row['at']!r} is no use of {row['resource']}")
    return row


def check_lag(row: Row) -> Row:
    """The row itself, if it is valid; raises ValueError otherwise."""
    if not isinstance(row["lag"], float) or not isfinite(row["lag"]) or not isinstance(row["at"], int):
        raise ValueError(f"{row['lag']!r} at {row['at']!r} is no lag")
    return row


def load(store: Store) -> list[Usage]:
    """The usage that was saved last, in parts: one for each time at which clusters were saved."""
    return _parts(rows(store), lag_rows(store))


def _parts(past: Iterable[Row], lags: Iterable[Row]) -> list[Usage]:
    by_time: dict[int, Usage] = {}

    def saved(row: Row) -> tuple[Usage, Member]:
        usage = by_time.setdefault(row["at"], Usage())
        usage.at_ns = row["at"]
        return usage, (row["cluster_id"], row["child_id"], row["user"])

    for row in map(check, past):
        usage, member = saved(row)
        usage.past.setdefault(member, {})[row["resource"]] = row["amount"]
    for row in map(check_lag, lags):
        usage, member = saved(row)
        usage.lag[member] = row["lag"]
        if row["waits"]:
            usage.waiting.add(member)
    return list(by_time.values())


# ---- the shares of the users of one cluster, as a command reads them ----


def shares(store: Store, cluster_id: str) -> HeldShares:
    """The present shares of the users of a cluster, as a round of the scheduler would count them now."""
    tree = StoredTree(store, cluster_id)
    held = _held(store, cluster_id)
    parts = _parts(
        store.rows("SELECT * FROM usage WHERE cluster_id = ?", cluster_id),
        store.rows("SELECT * FROM lags WHERE cluster_id = ?", cluster_id),
    )
    return HeldShares(tree, held, Usage.joined(parts, tree, held, store.clock()))


def _held(store: Store, cluster_id: str) -> dict[Member, Amounts]:
    """What the users of a cluster hold there, and its child clusters that compete with them."""
    found = store.rows(
        """WITH RECURSIVE inside (cluster_id, child) AS (
            SELECT ?1, ''
            UNION ALL SELECT child_id, child_id FROM lags WHERE cluster_id = ?1 AND child_id <> '' AND waits
            UNION ALL SELECT c.cluster_id, i.child FROM clusters c JOIN inside i ON c.parent_id = i.cluster_id
                WHERE i.child <> '')
        SELECT ?1, i.child, iif(i.child = '', j.user, ''), coalesce(v.amounts, r.amounts), count(*)
        FROM jobs j INDEXED BY jobs_running JOIN inside i ON i.cluster_id = j.parent_cluster_id
        LEFT JOIN vnodes v ON NOT j.shares_parent AND v.cluster_id = j.cluster_id
        LEFT JOIN runs r ON j.shares_parent AND r.job_id = j.job_id AND r.task_id IS NULL
        WHERE j.status = 'RUNNING' GROUP BY 2, 3, 4""",
        cluster_id,
    )
    return dict(values.sums(found))


class StoredTree:
    """A cluster, the children that compete in it and the clusters above it; totals are added when asked for."""

    def __init__(self, store: Store, cluster_id: str) -> None:
        self.store = store
        primary = Cluster(PRIMARY, None, PRIMARY_KIND, ClusterSpec(), queue=settings.queue_of(store, PRIMARY))
        self.clusters = {PRIMARY: primary}
        self._totals: dict[str, Amounts] = {}
        for row in store.rows(
            """WITH RECURSIVE upward AS (SELECT * FROM clusters WHERE cluster_id = ?1
                UNION ALL SELECT c.* FROM clusters c JOIN upward u ON c.cluster_id = u.parent_id)
            SELECT * FROM upward UNION ALL SELECT * FROM clusters WHERE cluster_id IN (
                SELECT child_id FROM lags WHERE cluster_id = ?1)""",
            cluster_id,
        ):
            self.clusters[row["cluster_id"]] = values.cluster(row)

    def total(self, cluster_id: str) -> Amounts:
        """The total of a cluster on nodes that are not lost."""
        if cluster_id not in self._totals:
            self._totals[cluster_id] = clusters.totals(self.store, cluster_id).get(cluster_id, {})
        return self._totals[cluster_id]

    def upward(self, cluster_id: str) -> list[Cluster]:
        """A cluster and its ancestors, nearest first, without the primary."""
        found = []
        while (one := self.clusters[cluster_id]).parent_id is not None:
            found.append(one)
            cluster_id = one.parent_id
        return found
