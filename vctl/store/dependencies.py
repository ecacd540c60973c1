"""SQL about jobs that wait for other jobs; ``awaited`` is the id of a job or of an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vctl.store.store import Row, Store


def insert(store: Store, job_ids: Sequence[int], pairs: Sequence[tuple[str, str]]) -> None:
    """Let jobs wait for (condition, id) pairs."""
    store.db.executemany(
        "INSERT INTO dependencies (job_id, condition, awaited) VALUES (?, ?, ?)",
        ((job_id, condition, awaited) for job_id in job_ids for condition, awaited in pairs),
    )
    store.db.executemany(
        "UPDATE jobs SET waits_for = ? WHERE job_id = ?", ((len(pairs), job_id) for job_id in job_ids)
    )


def waiting_for(store: Store, awaited: str) -> list[Row]:
    """Who waits for a job or an array."""
    return store.rows("SELECT * FROM dependencies WHERE awaited = ? ORDER BY job_id", awaited)


def awaited_names(store: Store) -> list[str]:
    """All that somebody waits for."""
    return [row[0] for row in store.rows("SELECT DISTINCT awaited FROM dependencies ORDER BY 1")]


def awaited_members(store: Store, array: Row) -> list[str]:
    """The members of an array that somebody waits for."""
    found = store.rows(
        "SELECT DISTINCT d.awaited FROM dependencies d JOIN jobs j ON j.submission_id = d.awaited"
        " WHERE j.job_id BETWEEN ? AND ? ORDER BY 1",
        array["first_job_id"], array["last_job_id"],
    )  # fmt: skip
    return [row[0] for row in found]


def any_waits(store: Store, names: Iterable[str]) -> list[str]:
    """Of some ids, those that somebody waits for."""
    if store.value("SELECT 1 FROM dependencies LIMIT 1") is None:
        return []
    return [
        name
        for name in names
        if store.value("SELECT 1 FROM dependencies WHERE awaited = ? LIMIT 1", name) is not None
    ]


def remove(store: Store, job_id: int, condition: str, awaited: str) -> None:
    """A condition came true."""
    store.db.execute(
        "DELETE FROM dependencies WHERE job_id = ? AND condition = ? AND awaited = ?",
        (job_id, condition, awaited),
    )
    store.db.execute("UPDATE jobs SET waits_for = waits_for - 1 WHERE job_id = ?", (job_id,))


def remove_all(store: Store, job_id: int) -> None:
    """A job waits for nothing any more."""
    store.db.execute("DELETE FROM dependencies WHERE job_id = ?", (job_id,))
    store.db.execute("UPDATE jobs SET waits_for = 0 WHERE job_id = ?", (job_id,))


def endings(store: Store, name: str) -> tuple[int, int, int]:
    """How many of a job or an array ended well, ended badly, and are not over."""
    array = store.row("SELECT first_job_id, last_job_id FROM arrays WHERE array_id = ?", name)
    where, values = (
        ("submission_id = ?", (name,)) if array is None else ("job_id BETWEEN ? AND ?", tuple(array))
    )
    row = store.row(
        "SELECT coalesce(sum(status = 'SUCCEEDED'), 0), coalesce(sum(status IN ('FAILED', 'STOPPED')), 0),"
        f" coalesce(sum(status IN ('PENDING', 'RUNNING')), 0) FROM jobs WHERE {where}",
        *values,
    )
    assert row is not None
    return row[0], row[1], row[2]
