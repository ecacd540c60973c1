"""SQL about jobs that wait for other jobs; ``awaited`` is the id of a job or of an array."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.store import folded, jobs
from vctl.store.store import Row, Store


def awaited(store: Store, job_id: int, limit: int) -> list[Row]:
    """The first few conditions of a job on other jobs."""
    its = "SELECT condition, awaited FROM dependencies WHERE job_id = ? ORDER BY awaited, condition LIMIT ?"
    return store.rows(its, job_id, limit) or store.rows(its, folded.row_of(store, job_id), limit)


def waiting_for(store: Store, awaited: str) -> tuple[tuple[int, str], ...]:
    """The jobs that wait for a job or an array, with their conditions."""
    waiting = store.rows(
        "SELECT job_id, condition FROM dependencies WHERE awaited = ? ORDER BY job_id, condition DESC",
        awaited,
    )
    return tuple((row[0], row[1]) for row in waiting)


def awaited_names(store: Store) -> list[str]:
    """The ids of all jobs and arrays that a job waits for."""
    return store.column("SELECT DISTINCT awaited FROM dependencies ORDER BY 1")


def awaited_members(store: Store, array: Row) -> list[str]:
    """The ids of the members of an array that a job waits for."""
    return store.column(
        "SELECT DISTINCT d.awaited FROM dependencies d JOIN jobs j ON j.submission_id = d.awaited"
        " WHERE j.job_id BETWEEN ? AND ? ORDER BY 1",
        array["first_job_id"],
        array["last_job_id"],
    )


def names_of(store: Store, name: str) -> list[str]:
    """The ids of the members of an array; none for a job."""
    return store.column(
        "SELECT submission_id FROM arrays JOIN jobs ON job_id BETWEEN first_job_id AND last_job_id"
        " WHERE arrays.array_id = ?",
        name,
    )


def awaited_by(store: Store, name: str) -> list[str]:
    """The ids for which a job, or members of an array, wait."""
    return store.column(
        "SELECT DISTINCT awaited FROM dependencies WHERE job_id IN (SELECT job_id FROM jobs WHERE submission_id = ?1"
        " UNION SELECT job_id FROM arrays JOIN jobs ON job_id BETWEEN first_job_id AND last_job_id"
        " WHERE arrays.array_id = ?1)",
        name,
    )


def any_waits(store: Store, names: Iterable[str]) -> list[str]:
    """The ids among ``names`` that a job waits for."""
    if store.value("SELECT 1 FROM dependencies LIMIT 1") is None:
        return []
    return [
        name
        for name in names
        if store.value("SELECT 1 FROM dependencies WHERE awaited = ? LIMIT 1", name) is not None
    ]


def endings(store: Store, name: str) -> tuple[int, int, int]:
    """Of a job, or of the members of an array: how many ended well, ended badly, and are not over."""
    array = store.row("SELECT first_job_id, last_job_id FROM arrays WHERE array_id = ?", name)
    where, values, times = "job_id BETWEEN ? AND ?", tuple(array or ()), "members"
    if array is None:
        number = jobs.number_of(store, name)
        own = None if number is None else folded.row_of(store, number)
        where, values, times = "job_id = ?", (number if own is None else own,), "1"
    row = store.row(
        f"SELECT coalesce(sum({times} * (status = 'SUCCEEDED')), 0),"
        f" coalesce(sum({times} * (status IN ('FAILED', 'STOPPED'))), 0),"
        f" coalesce(sum({times} * (status IN ('PENDING', 'RUNNING'))), 0) FROM jobs WHERE {where}",
        *values,
    )
    assert row is not None
    return row[0], row[1], row[2]
