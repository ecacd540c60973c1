"""SQL about the queues: the jobs that wait in them, and their positions by priority."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from operator import itemgetter

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.store import rows
from vctl.store.store import Row, Store

_PENDING = f"SELECT {', '.join(rows.PENDING)} FROM jobs WHERE status = 'PENDING'"
_IN_QUEUE = "held = 0 AND waits_for = 0 AND closed = 0"
_QUEUED = f"{_PENDING} AND {_IN_QUEUE}"

MOST_ASKED = 1_000
"""The number of queued jobs at which a command looks to see which nodes are scarce."""
FIRST_QUEUED = f"SELECT * FROM jobs WHERE status = 'PENDING' AND {_IN_QUEUE} LIMIT {MOST_ASKED}"


def pending_rows(store: Store) -> list[Row]:
    """All jobs that wait."""
    return store.rows(_PENDING)


def pending_kinds(store: Store) -> list[Row]:
    """The distinct kinds of waiting jobs: in these rows placeholders replace valid numbers, ids and times."""
    good = {
        "job_id": "0",
        "submission_id": "iif(typeof(submission_id) <> 'text' OR submission_id GLOB '*[^ -~]*', submission_id, 'any')",
        "submitted_at": "iif(typeof(submitted_at) <> 'integer', submitted_at, 0)",
    }
    columns = ", ".join(f"{good.get(name, name)} AS {name}" for name in rows.PENDING)
    return store.rows(f"SELECT DISTINCT {columns} FROM jobs WHERE status = 'PENDING'")


def pending(store: Store) -> Iterator[PendingJob]:
    """All jobs that wait, as values: half the cost per job of rows."""
    return _values(store, _PENDING)


def queued(store: Store) -> Iterator[PendingJob]:
    """The queue: the jobs that wait only for their turn, their resources or their begin time."""
    return _values(store, _QUEUED)


def short(store: Store) -> Iterator[PendingJob]:
    """One queued job of each shape that was told last that there is too little for it."""
    told = (
        "SELECT 1 FROM waits w WHERE w.parent_cluster_id = jobs.parent_cluster_id"
        " AND w.shape IN (jobs.shape, jobs.shape || ';user=' || jobs.user) AND w.reason = ?"
    )
    sql = f"{_QUEUED} AND coalesce(begin_at, 0) <= ? AND EXISTS ({told}) GROUP BY parent_cluster_id, shape"
    return _values(store, sql, store.clock(), jb.INSUFFICIENT)


def asked(store: Store) -> Iterator[PendingJob]:
    """One queued job of each shape, among the first ``MOST_ASKED``."""
    sql = f"SELECT {', '.join(rows.PENDING)} FROM ({FIRST_QUEUED}) GROUP BY parent_cluster_id, shape"
    return _values(store, sql)


def _values(store: Store, sql: str, *values: object) -> Iterator[PendingJob]:
    cursor = store.db.cursor()
    cursor.row_factory = None
    return map(rows.pending_of, cursor.execute(sql, values))


def position(store: Store, parent_id: str, priority: int, job_id: int) -> int:
    """The position of a job in its queue; 1 is next.

    The cost does not grow with the queue: ``job_counts`` has the number of waiting jobs in each block of 1024
    job numbers, so only the jobs of one block are counted one by one.
    """
    ahead: int = store.value(
        "SELECT (SELECT coalesce(sum(count), 0) FROM job_counts"
        "  WHERE parent_cluster_id = ?1 AND status = 'PENDING' AND priority > ?2)"
        " + (SELECT coalesce(sum(count), 0) FROM job_counts"
        "  WHERE parent_cluster_id = ?1 AND status = 'PENDING' AND priority = ?2 AND block < ?3 >> 10)"
        " + (SELECT count(*) FROM jobs WHERE status = 'PENDING' AND parent_cluster_id = ?1 AND priority = ?2"
        "  AND job_id >= (?3 >> 10) << 10 AND job_id < ?3)",
        parent_id, priority, job_id,
    )  # fmt: skip
    return ahead + 1


def positions(store: Store, parent_id: str) -> dict[int, int]:
    """The position of every job that waits in the queue of a cluster, in one pass along an index."""
    numbers = store.db.execute(
        "SELECT job_id FROM jobs WHERE status = 'PENDING' AND parent_cluster_id = ? ORDER BY priority DESC, job_id",
        (parent_id,),
    ).fetchall()
    return dict(zip(map(itemgetter(0), numbers), count(1)))


def waiting_rows(store: Store, parent_id: str) -> list[Row]:
    """The jobs that wait in a queue, with the columns that determine their order."""
    return store.rows(
        "SELECT job_id, priority, submitted_at, user, resources, time_limit_s FROM jobs"
        " WHERE status = 'PENDING' AND parent_cluster_id = ?",
        parent_id,
    )


def held_by_users(store: Store, parent_id: str) -> list[Row]:
    """(user, resources) of the jobs that run in a cluster."""
    return store.rows(
        "SELECT user, resources FROM jobs WHERE status = 'RUNNING' AND parent_cluster_id = ?", parent_id
    )
