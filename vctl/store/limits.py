"""SQL about the limits of users and clusters, and what running jobs have of that which they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vctl.core.clusters import PRIMARY
from vctl.core.limits import DAY_US, MONTH, WEEK, Limit, LimitTable, by_day, days_of
from vctl.core.resources import GPU, Amounts
from vctl.store import rows as values
from vctl.store.store import Row, Store


def rows(store: Store) -> list[Row]:
    """All limits."""
    return store.rows("SELECT * FROM limits ORDER BY subject DESC, name, resource, period")


def limit(row: Row) -> Limit:
    """A limit from its row."""
    return Limit(
        row["subject"], row["name"], row["resource"], row["amount"], row["period"], row["author"], row["at"]
    )


def load(store: Store) -> LimitTable:
    """The limits in force."""
    return LimitTable(map(limit, rows(store)))


def exist(store: Store) -> bool:
    """Whether anybody has a limit."""
    return bool(store.value("SELECT EXISTS (SELECT 1 FROM limits)"))


def knows_user(store: Store, user: str) -> bool:
    """Whether a user has submitted a job that is still known."""
    return bool(store.value("SELECT EXISTS (SELECT 1 FROM jobs WHERE user = ?)", user))


def running(store: Store) -> Iterator[tuple[str, str, int, Amounts]]:
    """Cluster, user, the number of running jobs of that user there, and what they hold."""
    found = store.db.execute(
        """SELECT j.parent_cluster_id, j.user, coalesce(v.amounts, r.amounts), count(*)
        FROM jobs j INDEXED BY jobs_running
        LEFT JOIN vnodes v ON NOT j.shares_parent AND v.cluster_id = j.cluster_id
        LEFT JOIN runs r ON j.shares_parent AND r.job_id = j.job_id AND r.task_id IS NULL
        WHERE j.status = 'RUNNING' GROUP BY 1, 2, 3"""
    ).fetchall()
    held = dict(values.sums(found))
    counted = store.db.execute(
        "SELECT parent_cluster_id, user, count(*) FROM jobs INDEXED BY jobs_running WHERE status = 'RUNNING'"
        " GROUP BY 1, 2"
    ).fetchall()
    for parent_id, user, count in counted:
        yield parent_id, user, count, held.get((parent_id, user), {})


def chain(store: Store, cluster_id: str) -> Sequence[str]:
    """A cluster and those above it, nearest first."""
    above = store.column(
        "WITH RECURSIVE up (id, depth) AS (SELECT ?, 0 UNION ALL SELECT c.parent_id, depth + 1 FROM clusters c"
        " JOIN up ON c.cluster_id = up.id) SELECT id FROM up ORDER BY depth",
        cluster_id,
    )
    return above if above[-1] == PRIMARY else [*above, PRIMARY]


def spent(store: Store, given: LimitTable | None = None) -> dict[tuple[str, str], dict[int, int]]:
    """Cluster, user -> the GPU time of jobs that are over, by day of this month and this week.

    ``given``: nothing is read where these limits are of no period.
    """
    found: dict[tuple[str, str], dict[int, int]] = {}
    if given is not None and not given.periods:
        return found
    from vctl.store import accounts

    now = store.clock()
    since = min(days_of(period, now).start for period in (WEEK, MONTH))

    def note(cluster_id: str, user: str, day: int, amount: int) -> None:
        if day >= since and amount:
            days = found.setdefault((cluster_id, user), {})
            days[day] = days.get(day, 0) + amount

    begin = since * DAY_US * 1000
    for cluster_id, user, resources, began, ended in accounts.ended_since(store, begin):
        for day, amount in by_day(values.loads(resources or "{}").get(GPU, 0), began, ended):
            note(cluster_id, user, day, amount)
    for day, user, cluster_id, resources, held_us in accounts.past(store, since):
        note(cluster_id, user, day, values.loads(resources).get(GPU, 0) * held_us)
    return found
