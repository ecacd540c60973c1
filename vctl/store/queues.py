"""SQL about the queues: the jobs that wait in them, and their positions by priority."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from operator import itemgetter

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.store import folded, rows
from vctl.store.contents import JOBS
from vctl.store.gates import in_queue, opens
from vctl.store.store import Row, Store

_PENDING = f"SELECT {', '.join(rows.PENDING)} FROM {JOBS} WHERE status = 'PENDING'"
_QUEUED = f"{_PENDING} AND {in_queue()}"

MOST_ASKED = 1_000
"""The number of queued jobs at which a command looks to see which nodes are scarce."""
FIRST_QUEUED = f"{_QUEUED} LIMIT {MOST_ASKED}"
_SHUT = (
    f"FROM jobs INDEXED BY jobs_gated WHERE status = 'PENDING' AND {opens()} > 0 AND parent_cluster_id = ?1"
    f" AND {opens()} > ?4"
)
"""The jobs of a queue that may not start yet, from an index of few rows."""


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
    return store.rows(f"SELECT DISTINCT {columns} FROM {JOBS} WHERE status = 'PENDING'")


def pending(store: Store) -> Iterator[PendingJob]:
    """All jobs that wait, as values: half the cost per job of rows."""
    return _values(store, _PENDING)


def queued(store: Store, cluster_ids: Iterable[str] | None = None) -> Iterator[PendingJob]:
    """The queues of these clusters (None: of all): who waits only for a turn, for resources or for a begin time."""
    if cluster_ids is None:
        return _values(store, _QUEUED)
    chosen = f"{_QUEUED} AND parent_cluster_id IN (SELECT value FROM json_each(?))"
    return _values(store, chosen, rows.dumps(sorted(cluster_ids)))


def first(store: Store, parent_id: str, limit: int) -> Iterator[PendingJob]:
    """The first jobs that wait in a queue by priority and arrival, or at a gate before it."""
    chosen = f"{_PENDING} AND parent_cluster_id = ? ORDER BY priority DESC, job_id LIMIT ?"
    return _values(store, chosen, parent_id, limit)


def begun(store: Store) -> Iterator[PendingJob]:
    """The running jobs, as they would wait again."""
    return _values(store, f"SELECT {', '.join(rows.PENDING)} FROM {JOBS} WHERE status = 'RUNNING'")


def short(store: Store) -> Iterator[PendingJob]:
    """One queued job of each shape that was told last that there is too little for it."""
    judged = (
        "SELECT 1 FROM waits w WHERE w.parent_cluster_id = j.parent_cluster_id"
        " AND w.shape IN (q.shape, q.shape || ';user=' || j.user) AND w.reason = ?"
    )
    sql = f"{_QUEUED} AND coalesce(begin_at, 0) <= ? AND EXISTS ({judged}) GROUP BY parent_cluster_id, shape"
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
    """The position of a job in a queue by priority and arrival: 1 plus the jobs ahead that may start now."""
    return before(store, parent_id, priority, job_id)[1] + 1


def before(store: Store, parent_id: str, priority: int, job_id: int) -> tuple[int, int]:
    """How many jobs wait before a place in a queue by priority and arrival, and how many of them may start now.

    The cost does not grow with the queue: ``job_counts`` has the number of waiting jobs by the time from which they
    may start, in each block of 1024 job numbers, so only the jobs of one block are counted one by one, along indexes.
    """
    row = folded.row_of(store, job_id)
    if row is not None and row != job_id and (one := _folded(store, parent_id, row, priority)) is not None:
        earlier, ready = before(store, parent_id, priority, row)
        return earlier + job_id - row, ready + (job_id - row) * one["is_ready"]
    inside = "priority = ?2 AND job_id >= (?3 >> 10) << 10 AND job_id < ?3"
    more = (
        "FROM jobs INDEXED BY jobs_folded WHERE members > 1 AND status = 'PENDING' AND parent_cluster_id = ?1"
        f" AND {inside}"
    )
    earlier, ready, here, shut, more_here, more_shut = store.rows(
        "SELECT coalesce(sum(count), 0), coalesce(sum(count) FILTER (WHERE opens <= ?4), 0),"
        " (SELECT count(*) FROM jobs INDEXED BY jobs_queue WHERE status = 'PENDING' AND parent_cluster_id = ?1"
        f"  AND {inside}), (SELECT count(*) {_SHUT} AND {inside}),"
        f" (SELECT coalesce(sum(members - 1), 0) {more}),"
        f" (SELECT coalesce(sum(members - 1), 0) {more} AND {opens()} > ?4)"
        " FROM job_counts WHERE parent_cluster_id = ?1 AND status = 'PENDING' AND priority >= ?2"
        " AND (priority > ?2 OR block < ?3 >> 10)",
        parent_id, priority, job_id, store.clock(),
    )[0]  # fmt: skip
    here, shut = here + more_here, shut + more_shut
    return earlier + here, ready + here - shut


def _folded(store: Store, parent_id: str, job_id: int, priority: int | None = None) -> Row | None:
    """The row of this number, if it waits in this queue and stands for several members."""
    return store.row(
        f"SELECT job_id, members, {opens()} <= ? AS is_ready FROM jobs WHERE job_id = ? AND members > 1"
        " AND status = 'PENDING' AND parent_cluster_id = ? AND priority = coalesce(?, priority)",
        store.clock(), job_id, parent_id, priority,
    )  # fmt: skip


def positions(store: Store, parent_id: str) -> dict[int, int]:
    """The position of every job that waits in a queue by priority and arrival, in one pass along an index."""
    numbers, shut = _numbers(store, parent_id), _shut(store, parent_id)
    if not shut:
        return dict(zip(numbers, count(1), strict=False))
    return placed((job_id, job_id not in shut) for job_id in numbers)


def ids_before(store: Store, parent_id: str, priority: int, job_id: int) -> list[int]:
    """The jobs ahead of a job in a queue by priority and arrival that may start now, in order."""
    shut = _shut(store, parent_id)
    before = "AND (priority > ?2 OR (priority = ?2 AND job_id < ?3))"
    found = _numbers(store, parent_id, before, priority, job_id)
    row = folded.row_of(store, job_id)
    if row is not None and row != job_id and (one := _folded(store, parent_id, row, priority)) is not None:
        del found[
            job_id - row - one["members"] :
        ]  # it is the last row, and stands for this job and those behind it
    return [one for one in found if one not in shut] if shut else found


def _numbers(store: Store, parent_id: str, where: str = "", *values: int) -> list[int]:
    cursor = store.db.execute(
        "SELECT job_id FROM jobs INDEXED BY jobs_queue WHERE status = 'PENDING' AND parent_cluster_id = ?1"
        f" {where} ORDER BY priority DESC, job_id",
        (parent_id, *values),
    )
    return _unfolded(store, parent_id, list(map(itemgetter(0), cursor.fetchall())))


def _shut(store: Store, parent_id: str) -> set[int]:
    numbers = store.column(f"SELECT job_id {_SHUT}", parent_id, None, None, store.clock())
    return set(_unfolded(store, parent_id, numbers))


def _unfolded(store: Store, parent_id: str, numbers: list[int]) -> list[int]:
    """The numbers of waiting jobs, with those of the members for which some of them stand."""
    rows_ = (
        folded.among(store, "status = 'PENDING' AND parent_cluster_id = ?", (parent_id,)) if numbers else []
    )
    if not rows_:
        return numbers
    members = {row["job_id"]: row["members"] for row in rows_}
    return [member for one in numbers for member in range(one, one + members.get(one, 1))]


def placed(order: Iterable[tuple[int, bool]]) -> dict[int, int]:
    """The positions of jobs, given in the order of their queue, each with whether it may start now.

    Only jobs that may start now are ahead of others. A job that may not has the position that it would get now.
    """
    positions_of, place = dict[int, int](), 1
    for job_id, is_ready in order:
        positions_of[job_id] = place
        place += is_ready
    return positions_of


def with_jobs(store: Store) -> list[str]:
    """The clusters in which jobs wait."""
    return store.column(
        "SELECT DISTINCT parent_cluster_id FROM job_counts WHERE status = 'PENDING' AND count > 0 ORDER BY 1"
    )


def matching(
    store: Store, parent_id: str, where: str, values: Iterable[object], limit: int | None
) -> list[Row]:
    """The first rows ``j`` of a queue by priority and arrival that match a condition: number and priority."""
    return store.rows(
        "SELECT j.job_id, j.priority FROM jobs j INDEXED BY jobs_queue WHERE j.status = 'PENDING'"
        f" AND j.parent_cluster_id = ? AND {where} ORDER BY j.priority DESC, j.job_id LIMIT ?",
        parent_id, *values, -1 if limit is None else limit,
    )  # fmt: skip


def waiting_rows(store: Store, parent_id: str) -> list[Row]:
    """The jobs that wait in a queue, with the columns that determine their order."""
    return store.rows(
        f"SELECT job_id, priority, submitted_at, user, spec, entry, time_limit_s, array_id, members,"
        f" {opens()} <= ? AS is_ready"
        f" FROM {JOBS} WHERE status = 'PENDING' AND parent_cluster_id = ?",
        store.clock(), parent_id,
    )  # fmt: skip
