"""Whose jobs are: the users of a shared service, by the numbers of jobs."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.store.filters import Condition
from vctl.store.rows import dumps
from vctl.store.store import Row, Store

_OF = "SELECT job_id, uid, parent_cluster_id FROM jobs WHERE job_id"


def among(store: Store, numbers: Iterable[int]) -> list[Row]:
    """``job_id, uid, parent_cluster_id`` of those of these jobs that have rows of their own."""
    return store.rows(f"{_OF} IN (SELECT value FROM json_each(?))", dumps(sorted(numbers)))


def one(store: Store, number: int) -> Row | None:
    """The same of one row."""
    return store.row(f"{_OF} = ?", number)


def spans(store: Store) -> list[tuple[int, int]]:
    """The rows that stand for several members of arrays: their numbers, ascending, and for how many."""
    found = store.rows("SELECT job_id, members FROM jobs WHERE members > 1 ORDER BY job_id")
    return [(row[0], row[1]) for row in found]


def named_in(
    store: Store, cluster_ids: Iterable[str], uid: int, jobs: Iterable[str], arrays: Iterable[str]
) -> list[tuple[str, int]]:
    """Those of these ids of jobs and arrays that are of others than this user in some clusters, with their numbers."""
    theirs = "j.parent_cluster_id IN (SELECT value FROM json_each(?)) AND j.uid IS NOT ?"
    inside = dumps(list(cluster_ids)), uid
    found = store.rows(
        "SELECT j.submission_id, j.job_id FROM json_each(?) n CROSS JOIN jobs j ON j.submission_id = n.value"
        f" WHERE {theirs}",
        dumps(list(jobs)), *inside,
    )  # fmt: skip
    found += store.rows(
        "SELECT a.array_id, j.job_id FROM json_each(?) n CROSS JOIN arrays a ON a.array_id = n.value"
        f" JOIN jobs j ON j.job_id = a.first_job_id WHERE {theirs}",
        dumps(list(arrays)), *inside,
    )  # fmt: skip
    return [(row[0], row[1]) for row in found]


def outside_of(cluster_ids: Iterable[str], uid: int) -> Condition:
    """The SQL condition on ``jobs j`` that a job is this user's, or in none of some clusters."""
    sql = "(j.uid IS ? OR j.parent_cluster_id NOT IN (SELECT value FROM json_each(?)))"
    return sql, [uid, dumps(list(cluster_ids))]


def first_of_array(store: Store, array_id: str) -> int | None:
    """The number of the first member of an array; None if the array is gone."""
    first: int | None = store.value("SELECT first_job_id FROM arrays WHERE array_id = ?", array_id)
    return first
