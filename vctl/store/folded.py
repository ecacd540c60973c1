"""SQL about members of arrays that have no row of their own: one row of ``jobs`` stands for many, which are all alike.

Such a row has the number, the id and the index of the first of them. They wait, or were stopped while they waited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase

from vctl.core.jobs import member_of
from vctl.store.contents import JOBS
from vctl.store.store import Row, Store

_INDEX = "f.array_index + (n.number - f.job_id) * f.step"
_ID = f"f.array_id || '_' || ({_INDEX})"
MEMBER = JOBS.replace(
    "jobs j",
    f"(SELECT n.number AS job_id, {_ID} AS submission_id, {_INDEX} AS array_index, 1 AS members, 1 AS step,"
    f" iif(f.shares_parent, f.parent_cluster_id, f.parent_cluster_id || '##' || {_ID}) AS cluster_id, f.*"
    " FROM jobs f, (SELECT ? AS number) n WHERE f.job_id = ?) j",
    1,
)
"""SQL: ``JOBS`` for one member, as if it had a row. Parameters: its number, and that of the row that stands for it."""


def row_of(store: Store, number: int) -> int | None:
    """The row that stands for a member and others; None if there is none."""
    found = store.row(
        "SELECT job_id FROM jobs WHERE job_id + members > ?1 AND job_id ="
        " (SELECT max(job_id) FROM jobs INDEXED BY jobs_folded WHERE members > 1 AND job_id <= ?1)",
        number,
    )
    return None if found is None else int(found[0])


def rows_of(store: Store, numbers: Iterable[int]) -> list[int]:
    """The rows of some jobs, newest first; that of a member may stand for others, too."""
    spans = store.rows("SELECT job_id, members FROM jobs INDEXED BY jobs_folded WHERE members > 1 ORDER BY 1")
    if not spans:
        return sorted({*numbers}, reverse=True)
    from bisect import bisect_right

    first, rows = [row[0] for row in spans], set[int]()
    for number in numbers:
        at = bisect_right(first, number) - 1
        rows.add(first[at] if at >= 0 and number < first[at] + spans[at][1] else number)
    return sorted(rows, reverse=True)


def matching(store: Store, pattern: str, without: Collection[str]) -> list[int]:
    """The numbers of members without rows of their own whose ids match a pattern of the shell."""
    found: list[int] = []
    for row in among(store, "1", ()):
        if row["array_id"] not in without:
            found += (number for number, name in members(row) if fnmatchcase(name, pattern))
    return found


def number_of(store: Store, name: str) -> int | None:
    """The number of the member with this id, if a row stands for it and others."""
    array_id, index = member_of(name)
    if index is None:
        return None
    return store.value(  # type: ignore[no-any-return]
        "SELECT j.job_id + (?2 - j.array_index) / j.step FROM arrays a JOIN jobs j INDEXED BY jobs_folded"
        " ON j.members > 1 AND j.job_id BETWEEN a.first_job_id AND a.last_job_id WHERE a.array_id = ?1"
        " AND (?2 - j.array_index) BETWEEN 0 AND (j.members - 1) * j.step AND (?2 - j.array_index) % j.step = 0",
        array_id,
        index,
    )


def named(store: Store, names: Iterable[str]) -> set[str]:
    """Those of some ids that members without a row of their own have."""
    if store.value("SELECT 1 FROM jobs INDEXED BY jobs_folded WHERE members > 1 LIMIT 1") is None:
        return set()
    return {name for name in names if number_of(store, name) is not None}


def like(store: Store, prefix: str) -> list[tuple[int, str]]:
    """Some members without rows of their own whose ids start with a prefix: at least two if there are two."""
    found: list[tuple[int, str]] = []
    for row in among(store, "1", ()):
        name, _, digits = prefix.rpartition("_")
        its = range(row["array_index"], row["array_index"] + row["members"] * row["step"], row["step"])
        if f"{row['array_id']}_".startswith(prefix):
            indices = list(its[:2])
        elif name == row["array_id"] and digits.isascii() and digits.isdigit() and digits[0] != "0":
            spans = (range(int(digits) * 10**n, (int(digits) + 1) * 10**n) for n in range(10 - len(digits)))
            indices = [index for span in spans for index in _within(its, span)]
        else:
            continue
        found += ((row["job_id"] + its.index(n), f"{row['array_id']}_{n}") for n in indices)
    return found


def _within(indices: range, span: range) -> range:
    """The first two of some indices that are in a span."""
    after = max(0, -(-(span.start - indices.start) // indices.step))
    return (
        range(indices[after], min(span.stop, indices.stop), indices.step)[:2]
        if after < len(indices)
        else range(0)
    )


def name_of(row: Row, number: int) -> str:
    """The id of a member for which a row stands."""
    return f"{row['array_id']}_{row['array_index'] + (number - row['job_id']) * row['step']}"


def members(row: Row) -> Iterator[tuple[int, str]]:
    """Number and id of the job of a row, or of all members for which it stands."""
    first, count = row["job_id"], row["members"]
    yield first, row["submission_id"]
    for number in range(first + 1, first + count):
        yield number, name_of(row, number)


def names(row: Row) -> Iterator[str]:
    """The ids of the same jobs."""
    return (name for _, name in members(row))


def among(store: Store, where: str, values: Iterable[object]) -> list[Row]:
    """The rows ``jobs j`` that stand for several members and match, newest first."""
    return store.rows(
        f"SELECT * FROM jobs j INDEXED BY jobs_folded WHERE j.members > 1 AND {where} ORDER BY j.job_id DESC",
        *values,
    )


def numbered(store: Store, numbers: Iterable[int]) -> list[Row]:
    """The rows of these numbers."""
    return [row for number in numbers for row in store.rows("SELECT * FROM jobs WHERE job_id = ?", number)]


def count(store: Store, where: str, values: Iterable[object]) -> int:
    """How many rows that stand for several members match."""
    sql = f"SELECT count(*) FROM jobs j INDEXED BY jobs_folded WHERE j.members > 1 AND {where}"
    return int(store.value(sql, *values))
