"""SQL for views of jobs: jobs with the scheduler's verdicts, the head of the queue, counts and sums."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from vctl.core import jobs as jb
from vctl.core.gates import opens_at
from vctl.core.listed import Alike, Values, joined
from vctl.core.resources import Amounts
from vctl.core.spans import spans_of
from vctl.store import database, filters, folded, queues, rows
from vctl.store.contents import JOB, JOBS
from vctl.store.filters import MOMENT, NUMBER, TEXT, Condition, Filter, FilterColumn
from vctl.store.store import Row, Store

VIEW = (
    f"SELECT {JOB}, coalesce(u.reason, w.reason) AS judged, coalesce(u.message, w.message) AS judged_words,"
    " coalesce(u.since, w.since) AS judged_at"
    f" FROM {JOBS} LEFT JOIN waits w ON j.status = 'PENDING' AND w.parent_cluster_id = j.parent_cluster_id"
    " AND w.shape = q.shape"
    " LEFT JOIN waits u ON j.status = 'PENDING' AND u.parent_cluster_id = j.parent_cluster_id"
    " AND u.shape = q.shape || ';user=' || j.user "
)
"""The scheduler's last verdict on a waiting job is kept by shape; by shape and user where users are limited."""


def get(store: Store, job_id: int) -> Row | None:
    """One job with the scheduler's last verdict; also a member of an array without a row of its own."""
    row = store.row(VIEW + "WHERE j.job_id = ?", job_id)
    if row is not None and row["members"] == 1:
        return row
    return store.row(VIEW.replace(JOBS, folded.MEMBER), job_id, folded.row_of(store, job_id))


def named(store: Store, submission_id: str) -> Row | None:
    """Like ``get``, by the submission id."""
    return store.row(VIEW + "WHERE j.submission_id = ?", submission_id)


def matching(
    store: Store, where: str = "1", values: Iterable[object] = (), limit: int | None = None
) -> list[Row]:
    """Jobs with the scheduler's last verdicts, newest first."""
    tail = "" if limit is None else f" LIMIT {int(limit)}"
    return store.rows(f"{VIEW} WHERE {where} ORDER BY j.job_id DESC{tail}", *values)


OWN = ("job_id", "submission_id", "array_index")
"""The columns in which nearly all jobs differ."""


KINDS = 100
"""If the other columns have at most this many distinct rows, a column with one common value is read once."""


def listed(
    store: Store,
    columns: Sequence[str],
    where: str,
    values: Iterable[object],
    members: Mapping[int, Sequence[int]] = {},
) -> dict[str, Values]:
    """Some columns of jobs, newest first.

    ``members``: for rows that stand for several members of an array, those that are asked for; else all are.
    """
    cursor, given = store.db.cursor(), tuple(values)
    cursor.row_factory = None
    order = "ORDER BY j.job_id DESC"
    own = f"SELECT {', '.join(OWN)}, members, step FROM jobs j WHERE {where} {order}"
    found = database.fetched(cursor, own, given)
    if not found:
        return dict.fromkeys(columns, ())
    these = f"FROM {JOBS} WHERE {where}"
    *its, many, _ = zip(*found, strict=True)
    read: dict[str, Values] = dict(zip(OWN, its, strict=True))
    times = [1] * len(found)
    if max(many) > 1:
        found = list(_members(found, members, times))
        read = dict(zip(OWN, zip(*found, strict=True), strict=True))
    rest = [name for name in columns if name not in OWN]
    kinds = database.fetched(cursor, f"SELECT DISTINCT {', '.join(rest)} {these} LIMIT {KINDS + 1}", given)
    if len(kinds) <= KINDS:
        common = zip(rest, map(joined, zip(*kinds, strict=True)), strict=True)
        read |= {name: Alike(value[0], len(found)) for name, value in common if isinstance(value, Alike)}
    if rest := [name for name in rest if name not in read]:
        others = zip(
            *database.fetched(cursor, f"SELECT {', '.join(rest)} {these} {order}", given), strict=True
        )
        spread = others if len(times) == len(found) else (_spread(column, times) for column in others)
        read |= zip(rest, map(joined, spread), strict=True)
    return read


def _members(
    found: Iterable[tuple[Any, ...]], members: Mapping[int, Sequence[int]], times: list[int]
) -> Iterator[tuple[int, str, int | None]]:
    """The own columns of jobs, newest first, those without rows too; notes how many jobs each row stands for here."""
    for at, (job_id, submission_id, index, count, step) in enumerate(found):
        if count == 1:
            yield job_id, submission_id, index
            continue
        array_id = submission_id.rpartition("_")[0]
        numbers = members.get(job_id, range(job_id, job_id + count))
        times[at] = len(numbers)
        for number in reversed(numbers):
            its_index = index + (number - job_id) * step
            yield number, f"{array_id}_{its_index}", its_index


def _spread(column: Values, times: Iterable[int]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(map(repeat, column, times)))


FILTERED = {
    "submission_id": FilterColumn(TEXT, "j.submission_id"),
    "job_id": FilterColumn(NUMBER, "j.job_id"),
    "name": FilterColumn(TEXT, "j.name"),
    "status": FilterColumn(TEXT, "j.status"),
    "state_reason": FilterColumn(TEXT, "j.state_reason"),
    "cluster_id": FilterColumn(
        TEXT, "iif(j.shares_parent, j.parent_cluster_id, j.parent_cluster_id || '##' || j.submission_id)"
    ),
    "parent_cluster_id": FilterColumn(TEXT, "j.parent_cluster_id"),
    "user": FilterColumn(TEXT, "j.user"),
    "priority": FilterColumn(NUMBER, "j.priority"),
    "exit_code": FilterColumn(NUMBER, "j.exit_code"),
    "array_id": FilterColumn(TEXT, "j.array_id"),
    "submitted_at": FilterColumn(MOMENT, "j.submitted_at"),
}
"""What the filters of a list of jobs compare. The reason of a waiting job is not in the tables, see ``Reasons``."""


OWN_ROW = "j.members = 1"
"""The SQL condition that a row stands for one job only."""
OWN_FILTERS = ("submission_id", "job_id", "cluster_id")
"""Those that differ among the members of an array for which one row stands."""


def passing(row: Row, wanted: list[Filter]) -> Sequence[int]:
    """The numbers of the members for which a row stands that pass filters of ``OWN_FILTERS``, ascending."""
    numbers, left = range(row["job_id"], row["job_id"] + row["members"]), list[Filter]()
    for key, mark, value in wanted:
        if key == "job_id" and mark in ("=", ">=") and value.isascii() and value.isdigit():
            least = max(numbers.start, int(value))
            numbers = range(least, min(numbers.stop, int(value) + 1) if mark == "=" else numbers.stop)
            continue
        left.append((key, mark, value))
        if (key, mark) == ("submission_id", "="):  # at most one
            index = jb.member_of(value)[1]
            number = row["job_id"] + ((-1 if index is None else index) - row["array_index"]) // row["step"]
            numbers = range(max(numbers.start, number), min(numbers.stop, number + 1))
    return [number for number in numbers if _passes(row, number, left)] if left else numbers


def _passes(row: Row, number: int, wanted: list[Filter]) -> bool:
    name = folded.name_of(row, number)
    its = {
        "job_id": number,
        "submission_id": name,
        "cluster_id": jb.cluster_of(row["parent_cluster_id"], name, bool(row["shares_parent"])),
    }
    return all(filters.passes(key, its[key], mark, value) for key, mark, value in wanted)


def condition(store: Store, chosen: Sequence[Filter]) -> Condition:
    """The SQL condition on ``jobs j`` that all filters pass; an id is looked up where ids are kept, not in each row."""
    where: list[str] = []
    values: list[object] = []
    for filter_ in chosen:
        sql, more = _of_ids(store, *filter_) or filters.conditions(store, FILTERED, [filter_])
        where.append(sql)
        values += more
    return " AND ".join(where) or "1", values


def _of_ids(store: Store, key: str, mark: str, target: str) -> Condition | None:
    if key not in ("submission_id", "cluster_id", "array_id") or mark == ">=" or not target.isascii():
        return None
    values: list[object]
    if key == "submission_id":
        same, values = "j.job_id IN (SELECT value FROM json_each(?))", [_spelled(store, target)]
    elif key == "cluster_id":
        parent, own, name = target.rpartition("##")
        if own:  # the parent of a job is a logical cluster, whose id has no mark
            same = "j.job_id IN (SELECT value FROM json_each(?)) AND j.parent_cluster_id COLLATE NOCASE = ?"
            same, values = f"({same} AND NOT j.shares_parent)", [_spelled(store, name), parent]
        else:
            same, values = "(j.shares_parent AND j.parent_cluster_id COLLATE NOCASE = ?)", [target]
    elif not target:
        same, values = "j.array_index IS NULL", []
    else:
        spans = store.rows(
            "SELECT first_job_id, last_job_id FROM arrays WHERE array_id COLLATE NOCASE = ?", target
        )
        within = " OR ".join(["j.job_id BETWEEN ? AND ?"] * len(spans)) or "j.job_id < 0"
        same, values = f"(j.array_index IS NOT NULL AND ({within}))", [end for span in spans for end in span]
    return (same if mark == "=" else f"NOT {same}"), values


def _spelled(store: Store, submission_id: str) -> str:
    """The numbers of the jobs whose ids are this one but for the case of letters, as JSON."""
    ids = "SELECT job_id FROM jobs INDEXED BY sqlite_autoindex_jobs_1 WHERE submission_id COLLATE NOCASE = ?"
    return rows.dumps(store.column(ids, submission_id))


def newest(
    store: Store, states: Collection[str], where: str, values: Sequence[object], limit: int | None
) -> list[int]:
    """The numbers of the newest jobs in some states that match, newest first; without a limit those of all.

    Each state has an index, that of the jobs that are over has all columns that filters compare: rows are not read.
    """
    numbers: list[int] = []
    for source in _sources(states, where):
        page = f"SELECT j.job_id FROM {source} AND {where} ORDER BY j.job_id DESC LIMIT ?"
        numbers += store.column(page, *values, -1 if limit is None else limit)
    return sorted(numbers, reverse=True)[:limit]


SINGLE = "j.array_index IS NULL"
"""The condition that a job is no member of an array."""


def count(
    store: Store, states: Collection[str], where: str, values: Sequence[object], shared: int = 0
) -> int:
    """How many jobs in some states match. ``shared``: how many of them have no rows of their own, as far as known."""
    counted, found = counts_by_status(store), 0
    if where == "1":
        return sum(counted.get(state, 0) for state in states)
    if where == SINGLE and (over := jb.FINAL.intersection(states)):  # only the members are counted one by one
        (source,) = _sources(over, where)
        arrays = f"arrays a CROSS JOIN {source} AND j.job_id BETWEEN a.first_job_id AND a.last_job_id"
        members: int = store.value(f"SELECT count(*) FROM {arrays}")
        members += sum(row["members"] - 1 for row in folded.among(store, in_states(over), ()))
        found = sum(counted.get(state, 0) for state in over) - members
        states = set(states) - over
    counts = (f"SELECT count(*) FROM {source} AND {where}" for source in _sources(states, where))
    found += sum(int(store.value(sql, *values)) for sql in counts)
    return (
        found + shared - folded.count(store, f"{in_states(states)} AND {where}", values) if states else found
    )


def _sources(states: Collection[str], where: str) -> Iterator[str]:
    if where in ("1", OWN_ROW) and len(states) == len(jb.STATES):
        yield "jobs j WHERE 1"
        return
    if jb.PENDING in states:
        yield "jobs j INDEXED BY jobs_queue WHERE j.status = 'PENDING'"
    if jb.RUNNING in states:
        yield "jobs j INDEXED BY jobs_running WHERE j.status = 'RUNNING'"
    if over := jb.FINAL.intersection(states):
        some = f" AND {in_states(over)}" if len(over) < len(jb.FINAL) else ""
        yield f"jobs j INDEXED BY jobs_over WHERE j.status NOT IN ('PENDING', 'RUNNING'){some}"


def in_states(states: Collection[str]) -> str:
    """The SQL condition that a job is in one of some states."""
    return f"j.status IN ({', '.join(map(repr, sorted(states)))})"


def with_numbers(numbers: Sequence[int]) -> Condition:
    """The SQL condition that a job has one of these numbers, which are the newest first."""
    spans = spans_of(reversed(numbers))
    if len(spans) == 1:
        return "j.job_id BETWEEN ? AND ?", [*spans[0]]
    return "j.job_id IN (SELECT value FROM json_each(?))", [rows.dumps(numbers)]


def unfinished_in(store: Store, cluster_id: str) -> list[Row]:
    """Unfinished jobs that were submitted to a cluster, and the unfinished job whose cluster it is; newest first."""
    where = f"(j.parent_cluster_id = ?1 OR j.cluster_id = ?1) AND {in_states({jb.PENDING, jb.RUNNING})}"
    return matching(store, where, [cluster_id])


def retrying(store: Store, span: tuple[int, int]) -> list[Row]:
    """The jobs among these that wait for another attempt, newest first."""
    return matching(store, "j.job_id BETWEEN ? AND ? AND j.status = 'PENDING' AND j.attempt > 0", span)


def head(store: Store, parent_id: str, limit: int) -> list[tuple[Row, int, int]]:
    """The first jobs of a cluster's queue by priority: (row, waiting jobs that it stands for, ready ones of them).

    A member of an array stands for the members behind it that have its priority; any other job stands for itself.
    """
    jobs: list[tuple[Row, int, int]] = []
    now, page = store.clock(), _page(store, parent_id, "1", (), limit)
    while page:
        row, *rest = page
        if row["array_id"] is None:
            jobs.append((row, 1, int(opens_at(row["held"], row["waits_for"], row["begin_at"]) <= now)))
            page = rest
            continue
        last: int = store.value("SELECT last_job_id FROM arrays WHERE array_id = ?", row["array_id"])
        first, behind = (
            queues.before(store, parent_id, row["priority"], job_id) for job_id in (row["job_id"], last + 1)
        )
        jobs.append((row, behind[0] - first[0], behind[1] - first[1]))
        priority, places = row["priority"], limit - len(jobs)
        page = _page(store, parent_id, "j.priority = ? AND j.job_id > ?", (priority, last), places)
        page += _page(store, parent_id, "j.priority < ?", (priority,), places - len(page))
    return jobs


def _page(store: Store, parent_id: str, where: str, values: Iterable[object], limit: int) -> list[Row]:
    return store.rows(
        f"{VIEW} WHERE j.status = 'PENDING' AND j.parent_cluster_id = ? AND {where}"
        " ORDER BY j.priority DESC, j.job_id LIMIT ?",
        parent_id, *values, limit,
    )  # fmt: skip


def running(store: Store, limit: int, where: str, values: Iterable[object]) -> list[Row]:
    """The running jobs that match, newest first."""
    return store.rows(
        f"SELECT {JOB} FROM {JOBS} WHERE j.status = 'RUNNING' AND {where} ORDER BY j.job_id DESC LIMIT ?",
        *values,
        limit,
    )


def running_by_user(store: Store, parent_id: str) -> dict[str, int]:
    """The number of running jobs that were submitted to a cluster, by user."""
    return dict(
        store.db.execute(
            "SELECT user, count(*) FROM jobs INDEXED BY jobs_running WHERE status = 'RUNNING'"
            " AND parent_cluster_id = ? GROUP BY 1",
            (parent_id,),
        ).fetchall()
    )


def recent_failures(store: Store, limit: int, since: int, where: str, values: Iterable[object]) -> list[Row]:
    """The jobs that match and failed after a moment, the latest first."""
    return store.rows(
        "SELECT * FROM jobs j INDEXED BY jobs_failed"
        f" WHERE status = 'FAILED' AND ended_at >= ? AND {where} ORDER BY ended_at DESC LIMIT ?",
        since, *values, limit,
    )  # fmt: skip


def counts_by_status(store: Store) -> dict[str, int]:
    """How many jobs are in each state."""
    return store.mapping("SELECT status, sum(count) FROM job_counts WHERE count <> 0 GROUP BY 1 ORDER BY 1")


def pending_by_reason(store: Store) -> dict[str, int]:
    """How many jobs wait for each reason."""
    return store.mapping(
        "SELECT state_reason, sum(members) FROM v_jobs WHERE status = 'PENDING' GROUP BY 1 ORDER BY 1"
    )


def counts_by_cluster(store: Store) -> dict[str, dict[str, int]]:
    """The numbers of pending and running jobs, by the cluster to which they were submitted."""
    counts: dict[str, dict[str, int]] = {}
    for parent, status, number in store.rows(
        "SELECT parent_cluster_id, status, sum(count) FROM job_counts WHERE status IN (?, ?) AND count <> 0"
        " GROUP BY 1, 2",
        jb.PENDING,
        jb.RUNNING,
    ):
        counts.setdefault(parent, {})[status.lower()] = number
    return counts


def ended_rows(store: Store, since_ns: int | None, until_ns: int | None) -> list[Row]:
    """Jobs submitted in a span of time that started and ended, by arrival; of a retried job the last try."""
    return store.rows(
        f"SELECT {JOB} FROM {JOBS} WHERE started_at IS NOT NULL AND ended_at IS NOT NULL"
        " AND submitted_at >= ? AND submitted_at < ? ORDER BY submitted_at, job_id",
        since_ns if since_ns is not None else 0, until_ns if until_ns is not None else 1 << 62,
    )  # fmt: skip


def never_ran(store: Store, since_ns: int | None, until_ns: int | None) -> dict[str, int]:
    """How many jobs were submitted in a span of time and did not start, or did not end, by state."""
    counts = store.rows(
        "SELECT status, sum(members) AS n FROM jobs WHERE (started_at IS NULL OR ended_at IS NULL)"
        " AND submitted_at >= ? AND submitted_at < ? GROUP BY status ORDER BY status",
        since_ns if since_ns is not None else 0, until_ns if until_ns is not None else 1 << 62,
    )  # fmt: skip
    return {row["status"]: row["n"] for row in counts}


def lent(store: Store) -> Amounts:
    """The sum of the amounts of all leases."""
    return rows.sums(store.rows("SELECT 0, amounts, count(*) FROM leases GROUP BY 2")).get(0, {})


def demanded(store: Store) -> Amounts:
    """The sum of the requests of all waiting jobs and tasks."""
    waiting = store.rows(
        "SELECT 0, resources, sum(members) FROM jobs WHERE status = 'PENDING' GROUP BY 2 UNION ALL SELECT"
        " 0, request, count(*) FROM tasks WHERE ended_at IS NULL AND state = 'PENDING_NODE_ASSIGNMENT' GROUP BY 2"
    )
    return rows.sums(waiting).get(0, {})
