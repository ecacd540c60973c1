"""SQL about arrays: an array is many jobs of one submit, with consecutive numbers and one shared command."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from vctl.core.spans import Spans, spans_of
from vctl.store import folded
from vctl.store.rows import dumps
from vctl.store.store import Row, Store


def _span(array: Row) -> tuple[int, int]:
    """The first and the last job of an array."""
    return array["first_job_id"], array["last_job_id"]


def get(store: Store, array_id: str) -> Row | None:
    """One array."""
    return store.row("SELECT * FROM arrays WHERE array_id = ?", array_id)


def of_job(store: Store, job_id: int) -> Row | None:
    """The array of a job."""
    row = folded.row_of(store, job_id)
    its = "SELECT arrays.* FROM arrays JOIN jobs USING (array_id) WHERE jobs.job_id = ?"
    return store.row(its, job_id if row is None else row)


def like(store: Store, prefix: str) -> list[Row]:
    """Arrays whose id starts with a prefix, at most two."""
    return store.rows(
        "SELECT * FROM arrays WHERE array_id >= ? AND array_id < ? ORDER BY 1 LIMIT 2",
        prefix,
        prefix + "\U0010ffff",
    )


def matching_id(store: Store, pattern: str) -> list[Row]:
    """Arrays whose id matches a pattern of SQLite's GLOB."""
    return store.rows("SELECT * FROM arrays WHERE array_id GLOB ? ORDER BY first_job_id", pattern)


def first(store: Store, array: Row) -> int:
    """The number of the first member that was not deleted; an array without members is deleted with the last."""
    found: int = store.value("SELECT min(job_id) FROM jobs WHERE job_id BETWEEN ? AND ?", *_span(array))
    return found


def numbered(store: Store, array: Row) -> Iterator[tuple[int, int]]:
    """Number and index of the members."""
    for row in store.rows(
        "SELECT job_id, array_index, members, step FROM jobs WHERE job_id BETWEEN ? AND ? ORDER BY 1",
        *_span(array),
    ):
        for n in range(row["members"]):
            yield row["job_id"] + n, row["array_index"] + n * row["step"]


def failures(store: Store, array: Row) -> list[Row]:
    """What members failed of, or were stopped by, most members first: with the message of one.

    ``indices``: first, number and step of the indices of each row, as JSON.
    """
    return store.rows(
        "SELECT status, state_reason, exit_code, min(message) AS message, sum(members) AS count,"
        " json_group_array(json_array(array_index, members, step)) AS indices FROM jobs WHERE job_id BETWEEN ? AND ?"
        " AND status IN ('FAILED', 'STOPPED') GROUP BY 1, 2, 3 ORDER BY sum(members) DESC, min(job_id)",
        *_span(array),
    )


def strangers_like(store: Store, prefix: str, array_id: str) -> bool:
    """Whether a job outside of an array has an id with this prefix."""
    other = "SELECT 1 FROM jobs WHERE submission_id >= ? AND submission_id < ? AND array_id IS NOT ? LIMIT 1"
    return store.row(other, prefix, prefix + "\U0010ffff", array_id) is not None


def matching(store: Store, where: str, values: Iterable[object]) -> list[Row]:
    """Arrays whose first job ``j`` matches, newest first."""
    return store.rows(
        f"SELECT arrays.* FROM arrays JOIN jobs j ON j.job_id = arrays.first_job_id WHERE {where}"
        " ORDER BY arrays.first_job_id DESC",
        *values,
    )


def unfinished(store: Store, found: Iterable[Row]) -> list[Row]:
    """Those arrays that have a member that waits or runs; of the others no members are read."""
    blocks = set(store.column("SELECT DISTINCT block FROM job_counts WHERE status = 'PENDING' AND count > 0"))
    numbers = store.column("SELECT job_id FROM jobs WHERE status = 'RUNNING'")
    blocks.update(number >> 10 for number in numbers)
    return [
        array
        for array in found
        if not blocks.isdisjoint(range(array["first_job_id"] >> 10, (array["last_job_id"] >> 10) + 1))
        and is_unfinished(store, array)
    ]


def with_running(store: Store) -> set[str]:
    """The ids of the arrays of which a member runs."""
    return set(
        store.column("SELECT DISTINCT array_id FROM jobs INDEXED BY jobs_running WHERE status = 'RUNNING'")
    )


def members(store: Store, array: Row) -> list[Row]:
    """The jobs of an array that are still known, by index."""
    return store.rows("SELECT * FROM jobs WHERE job_id BETWEEN ? AND ? ORDER BY job_id", *_span(array))


def taken(store: Store, array_id: str) -> set[str]:
    """Ids of existing jobs that begin like the ids of the members of an array."""
    prefix = array_id + "_"
    alike = "SELECT submission_id FROM jobs WHERE submission_id >= ? AND submission_id < ?"
    return set(store.column(alike, prefix, prefix + "\U0010ffff"))


def counts(store: Store, array: Row) -> dict[str, int]:
    """How many members are in each state."""
    return store.mapping(
        "SELECT status, sum(members) FROM jobs WHERE job_id BETWEEN ? AND ? GROUP BY 1 ORDER BY 1",
        *_span(array),
    )


def span(store: Store, array: Row) -> Row:
    """When the first member started and the last one ended."""
    found = store.row(
        "SELECT min(started_at) AS started_at, max(ended_at) AS ended_at FROM jobs WHERE job_id BETWEEN ? AND ?",
        *_span(array),
    )
    assert found is not None
    return found


def is_unfinished(store: Store, array: Row) -> bool:
    """Whether a member waits or runs."""
    member = "SELECT 1 FROM jobs WHERE job_id BETWEEN ? AND ? AND status IN ('PENDING', 'RUNNING') LIMIT 1"
    return store.row(member, *_span(array)) is not None


def example(store: Store, array: Row, statuses: str) -> int | None:
    """The first member by index that is in one of these states; ``statuses`` is a list for SQL."""
    found: int | None = store.value(
        f"SELECT job_id FROM jobs WHERE job_id BETWEEN ? AND ? AND status IN ({statuses}) ORDER BY job_id LIMIT 1",
        *_span(array),
    )
    return found


def running(store: Store, array: Row) -> list[Row]:
    """The members that run."""
    return store.rows(
        "SELECT * FROM jobs WHERE job_id BETWEEN ? AND ? AND status = 'RUNNING' ORDER BY job_id",
        *_span(array),
    )


def waiting_spans(store: Store, array: Row, without: Collection[int]) -> Spans:
    """The members that wait, without some of them."""
    waiting = "SELECT job_id FROM jobs WHERE job_id BETWEEN ? AND ? AND status = 'PENDING' ORDER BY 1"
    return spans_of(one for one in store.column(waiting, *_span(array)) if one not in without)


def emptied(store: Store, array_ids: Iterable[str]) -> list[str]:
    """Those of some arrays that have no member left."""
    return store.column(
        "SELECT array_id FROM json_each(?) JOIN arrays ON array_id = value WHERE NOT EXISTS"
        " (SELECT 1 FROM jobs WHERE job_id BETWEEN first_job_id AND last_job_id) ORDER BY 1",
        dumps(list(array_ids)),
    )


def limited(store: Store) -> list[Row]:
    """Id and running limit of the arrays that have such a limit and a member that is not over.

    And of those that have members without rows of their own that wait.
    """
    return store.rows(
        "SELECT array_id, at_once FROM arrays a WHERE at_once IS NOT NULL AND EXISTS (SELECT 1 FROM jobs j"
        " WHERE j.job_id BETWEEN a.first_job_id AND a.last_job_id AND j.status IN ('PENDING', 'RUNNING'))"
        " UNION SELECT array_id, at_once FROM jobs INDEXED BY jobs_folded JOIN arrays USING (array_id)"
        " WHERE members > 1 AND status = 'PENDING'"
    )


def at_once(store: Store, array_id: str) -> int | None:
    """How many members may run at once."""
    found: int | None = store.value("SELECT at_once FROM arrays WHERE array_id = ?", array_id)
    return found


def places(store: Store, array_id: str) -> tuple[int, int, int] | None:
    """The running limit of an array, how many members run, and how many others have a place; None without a limit.

    Places beyond the limit are not looked for.
    """
    array = get(store, array_id)
    if array is None or array["at_once"] is None:
        return None
    most = int(array["at_once"])
    run: int = store.value(
        "SELECT count(*) FROM jobs INDEXED BY jobs_running WHERE job_id BETWEEN ? AND ? AND status = 'RUNNING'",
        *_span(array),
    )
    following: int = store.value(
        "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE job_id BETWEEN ? AND ? AND status = 'PENDING'"
        " AND NOT closed LIMIT ?)",
        *_span(array),
        max(0, most - run),
    )
    return most, run, following
