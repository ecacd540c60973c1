"""SQL about arrays: many jobs of one submit with consecutive numbers, which share what is launched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vctl.store.store import Row, Store


def insert(
    store: Store, array: Mapping[str, object], members: Iterable[tuple[object, ...]], names: str
) -> None:
    """An array and its jobs, with one event; ``names`` are the columns of the members."""
    marks = ", ".join("?" * (names.count(",") + 1))
    store.db.execute(
        "INSERT INTO arrays (array_id, first_job_id, last_job_id, range, count, at_once, argv, env, cwd, options)"
        " VALUES (:array_id, :first_job_id, :last_job_id, :range, :count, :at_once, :argv, :env, :cwd, :options)",
        dict(array),
    )
    store.db.executemany(f"INSERT INTO jobs ({names}) VALUES ({marks})", members)


def next_job_id(store: Store) -> int:
    """The number that the next job gets."""
    last: int = store.value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'")
    return last + 1


def get(store: Store, array_id: str) -> Row | None:
    """One array."""
    return store.row("SELECT * FROM arrays WHERE array_id = ?", array_id)


def of_job(store: Store, job_id: int) -> Row | None:
    """The array of a job."""
    return store.row("SELECT arrays.* FROM arrays JOIN jobs USING (array_id) WHERE jobs.job_id = ?", job_id)


def like(store: Store, prefix: str) -> list[Row]:
    """Arrays whose id starts with a prefix, at most two."""
    return store.rows(
        "SELECT * FROM arrays WHERE array_id >= ? AND array_id < ? ORDER BY 1 LIMIT 2",
        prefix,
        prefix + "\U0010ffff",
    )


def strangers_like(store: Store, prefix: str, array_id: str) -> bool:
    """Whether another job than the members of an array has an id with this prefix."""
    return (
        store.value(
            "SELECT 1 FROM jobs WHERE submission_id >= ? AND submission_id < ? AND array_id IS NOT ? LIMIT 1",
            prefix, prefix + "\U0010ffff", array_id,
        )
        is not None
    )  # fmt: skip


def matching(store: Store, where: str, values: Iterable[object]) -> list[Row]:
    """Arrays whose first job ``j`` matches, newest first."""
    return store.rows(
        f"SELECT arrays.* FROM arrays JOIN jobs j ON j.job_id = arrays.first_job_id WHERE {where}"
        " ORDER BY arrays.first_job_id DESC",
        *values,
    )


def all_rows(store: Store) -> list[Row]:
    """Every array, newest first."""
    return store.rows("SELECT * FROM arrays ORDER BY first_job_id DESC")


def members(store: Store, array: Row) -> list[Row]:
    """The jobs of an array that are still known, by index."""
    return store.rows(
        "SELECT * FROM jobs WHERE job_id BETWEEN ? AND ? ORDER BY job_id",
        array["first_job_id"],
        array["last_job_id"],
    )


def taken(store: Store, array_id: str) -> set[str]:
    """Ids of jobs that look like members of an array."""
    prefix = array_id + "_"
    found = store.rows(
        "SELECT submission_id FROM jobs WHERE submission_id >= ? AND submission_id < ?",
        prefix,
        prefix + "\U0010ffff",
    )
    return {row[0] for row in found}


def counts(store: Store, array: Row) -> dict[str, int]:
    """How many members are in each state."""
    found = store.rows(
        "SELECT status, count(*) FROM jobs WHERE job_id BETWEEN ? AND ? GROUP BY 1 ORDER BY 1",
        array["first_job_id"], array["last_job_id"],
    )  # fmt: skip
    return {row[0]: row[1] for row in found}


def span(store: Store, array: Row) -> Row:
    """When the first member started and the last one ended."""
    found = store.row(
        "SELECT min(started_at) AS started_at, max(ended_at) AS ended_at FROM jobs WHERE job_id BETWEEN ? AND ?",
        array["first_job_id"], array["last_job_id"],
    )  # fmt: skip
    assert found is not None
    return found


def is_unfinished(store: Store, array: Row) -> bool:
    """Whether a member waits or runs."""
    return (
        store.value(
            "SELECT 1 FROM jobs WHERE job_id BETWEEN ? AND ? AND status IN ('PENDING', 'RUNNING') LIMIT 1",
            array["first_job_id"], array["last_job_id"],
        )
        is not None
    )  # fmt: skip


def example(store: Store, array: Row, statuses: str) -> int | None:
    """The first member by index in one of some states; ``statuses`` is a list for SQL."""
    found: int | None = store.value(
        f"SELECT job_id FROM jobs WHERE job_id BETWEEN ? AND ? AND status IN ({statuses}) ORDER BY job_id LIMIT 1",
        array["first_job_id"], array["last_job_id"],
    )  # fmt: skip
    return found


def tell(store: Store, array: Row, kind: str, data: Mapping[str, object] | None = None) -> None:
    """One event for all members."""
    reach = {"first": array["first_job_id"], "last": array["last_job_id"]}
    store.event(kind, "array", array["array_id"], data={**reach, **(data or {})})


def running(store: Store, array: Row) -> list[Row]:
    """The members that run."""
    return store.rows(
        "SELECT * FROM jobs WHERE job_id BETWEEN ? AND ? AND status = 'RUNNING' ORDER BY job_id",
        array["first_job_id"], array["last_job_id"],
    )  # fmt: skip


def waiting_spans(store: Store, array: Row) -> list[tuple[int, int]]:
    """First and last numbers of the members that wait, in order."""
    found = store.rows(
        "SELECT min(job_id), max(job_id) FROM (SELECT job_id, job_id - row_number() OVER (ORDER BY job_id) AS span"
        " FROM jobs WHERE job_id BETWEEN ? AND ? AND status = 'PENDING') GROUP BY span ORDER BY 1",
        array["first_job_id"], array["last_job_id"],
    )  # fmt: skip
    return [(row[0], row[1]) for row in found]


def delete_members(store: Store, array: Row) -> None:
    """Forget all members of an array, and with them the array."""
    reach = (array["first_job_id"], array["last_job_id"])
    for table in ("runs", "tasks", "jobs"):
        store.db.execute(f"DELETE FROM {table} WHERE job_id BETWEEN ? AND ?", reach)
    store.db.execute("DELETE FROM arrays WHERE array_id = ?", (array["array_id"],))
    tell(store, array, "array.deleted")


def forget_empty(store: Store) -> None:
    """Forget arrays of which no member is left."""
    store.db.execute(
        "DELETE FROM arrays WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE job_id BETWEEN first_job_id AND last_job_id)"
    )


def limited(store: Store) -> list[Row]:
    """Id and running limit of arrays that have one and of which a member is not over."""
    return store.rows(
        "SELECT array_id, at_once FROM arrays a WHERE at_once IS NOT NULL AND EXISTS (SELECT 1 FROM jobs j"
        " WHERE j.job_id BETWEEN a.first_job_id AND a.last_job_id AND j.status IN ('PENDING', 'RUNNING'))"
    )


def at_once(store: Store, array_id: str) -> int | None:
    """How many members may run at once."""
    found: int | None = store.value("SELECT at_once FROM arrays WHERE array_id = ?", array_id)
    return found
