"""SQL about jobs: one row each, from the submit to the end."""

from __future__ import annotations

import json
from _sqlite3 import Row
from collections.abc import Iterable, Sequence
from operator import itemgetter

from vctl.core.compact import dumps
from vctl.store import folded
from vctl.store.contents import COMMAND, COMMANDS, JOB, JOBS
from vctl.store.store import Store

SUBMITTED_BY = (
    "(WITH RECURSIVE own(id) AS (SELECT ? UNION SELECT s.job_id FROM jobs s JOIN own ON s.submitted_by = own.id)"
    " SELECT id FROM own)"
)
"""SQL: the numbers of a job and of all jobs that it submitted, directly or through other jobs."""
_TAKEN = """
SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM jobs WHERE submission_id = value)
    OR EXISTS (SELECT 1 FROM arrays WHERE array_id = value) OR EXISTS (SELECT 1 FROM tasks WHERE task_id = value)
"""


def is_own(store: Store, job_id: int, owner_id: int) -> bool:
    """Whether a job is the owner itself, or the owner submitted it, directly or through other jobs."""
    return store.row(f"SELECT 1 WHERE ? IN {SUBMITTED_BY}", job_id, owner_id) is not None


def next_number(store: Store) -> int:
    """The number that the next job gets; inside a transaction."""
    last: int = store.value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'jobs'")
    return last + 1


def main_run(store: Store, job_id: int) -> Row | None:
    """The main process of a job that runs; of a gang the one of the lowest rank."""
    return store.row(
        "SELECT * FROM runs WHERE job_id = ? AND task_id IS NULL AND state <> 'ENDED' ORDER BY rank LIMIT 1",
        job_id,
    )


def launch(store: Store, job_id: int) -> Row | None:
    """The command of a job: argv, environment, directory, options; ``count``: the members of its array."""
    count = "(SELECT count FROM arrays a WHERE a.array_id = jobs.array_id) AS count"
    launch = f"SELECT {COMMAND}, {count} FROM jobs {COMMANDS} WHERE job_id = ?"
    return store.row(launch, job_id) or store.row(launch, folded.row_of(store, job_id))


def command_id(store: Store, job_id: int) -> int | None:
    """The number of the command of a job."""
    found: int | None = store.value("SELECT command_id FROM jobs WHERE job_id = ?", job_id)
    return found


def files_in_use(store: Store, since: int) -> set[str]:
    """The directories with files of jobs that are not over, or ended after a moment."""
    return set(
        store.column(
            "SELECT json_extract(c.options, '$.ray.files') FROM commands c WHERE c.options LIKE '%\"files\"%'"
            " AND EXISTS (SELECT 1 FROM jobs j WHERE j.command_id = c.command_id"
            " AND (j.ended_at IS NULL OR j.ended_at > ?))",
            since,
        )
    )


def runtime_envs(store: Store, job_id: int | None = None) -> dict[int, str]:
    """The runtime environments, as JSON, of all jobs submitted through Ray's job API, or of one job."""
    which = "CROSS JOIN jobs USING (command_id)" if job_id is None else "JOIN jobs USING (command_id)"
    return store.mapping(
        f"SELECT job_id, json_extract(options, '$.ray.runtime_env') FROM commands {which}"
        f" WHERE options LIKE '%\"ray\"%' AND {'1' if job_id is None else 'job_id = ?'}",
        *([] if job_id is None else [job_id]),
    )


def number_of(store: Store, submission_id: str) -> int | None:
    """The number of a submission id."""
    found: int | None = store.value("SELECT job_id FROM jobs WHERE submission_id = ?", submission_id)
    return folded.number_of(store, submission_id) if found is None else found


def taken(store: Store, names: Iterable[str]) -> set[str]:
    """The ids among ``names`` that a job, an array or a task has."""
    wanted = list(names)
    return set(store.column(_TAKEN, dumps(wanted))) | folded.named(store, wanted)


def submission_id(store: Store, job_id: int) -> str | None:
    """The submission id of a job's number."""
    name: str | None = store.value("SELECT submission_id FROM jobs WHERE job_id = ?", job_id)
    return name


def metadata(store: Store, job_id: int) -> dict[str, str]:
    """The metadata that the submitter gave a job."""
    found: dict[str, str] = json.loads(
        store.value("SELECT metadata FROM jobs WHERE job_id = ?", job_id) or "{}"
    )
    return found


def matching_id(store: Store, pattern: str) -> list[tuple[int, str | None]]:
    """Number and array of the jobs whose id matches a pattern of SQLite's GLOB."""
    found = store.rows(
        "SELECT job_id, array_id FROM jobs WHERE members = 1 AND submission_id GLOB ?", pattern
    )
    return [(row[0], row[1]) for row in found]


def numbers_like(store: Store, prefix: str, limit: int = 5) -> list[tuple[int, str]]:
    """Jobs whose submission id starts with a prefix; the range of the unique index, no scan."""
    found = [
        (row[0], row[1])
        for row in store.rows(
            "SELECT job_id, submission_id FROM jobs WHERE submission_id >= ? AND submission_id < ? ORDER BY 2 LIMIT ?",
            prefix, prefix + "\U0010ffff", limit,
        )
    ]  # fmt: skip
    return sorted({*found, *folded.like(store, prefix)}, key=itemgetter(1))[:limit]


def last_number(store: Store) -> int | None:
    """The number of the newest job."""
    found: int | None = store.value("SELECT job_id + members - 1 FROM jobs ORDER BY job_id DESC LIMIT 1")
    return found


def with_name(store: Store, name: str, limit: int) -> list[str]:
    """The ids of the newest jobs that have a display name."""
    query = "SELECT submission_id FROM jobs WHERE name = ? ORDER BY job_id DESC LIMIT ?"
    return [str(row["submission_id"]) for row in store.rows(query, name, limit)] if name else []


def get(store: Store, job_id: int) -> Row | None:
    """One row of ``jobs``; for a member of an array without a row of its own, what it would have."""
    row = store.row(f"SELECT {JOB} FROM {JOBS} WHERE j.job_id = ?", job_id)
    if row is not None and row["members"] == 1:
        return row
    return store.row(f"SELECT {JOB} FROM {folded.MEMBER}", job_id, folded.row_of(store, job_id))


def is_running(store: Store, job_id: int) -> bool:
    """Whether a job runs."""
    return store.row("SELECT 1 FROM jobs WHERE job_id = ? AND status = 'RUNNING'", job_id) is not None


def running_rows(store: Store) -> list[Row]:
    """Jobs that run."""
    return store.rows(f"SELECT {JOB} FROM {JOBS} WHERE j.status = 'RUNNING' ORDER BY j.job_id")


def numbers_ended(store: Store, before_ns: int) -> list[int]:
    """The numbers of the jobs that ended before a moment, also of those that wait for their next attempt."""
    sql = "SELECT job_id FROM jobs INDEXED BY jobs_ended WHERE ended_at IS NOT NULL AND ended_at < ?"
    return store.column(sql, before_ns)


def rows_of(store: Store, numbers: Sequence[int]) -> list[int]:
    """For each of some jobs, how many rows go with it, itself included."""
    counts_of = dict.fromkeys(numbers, 1)
    for name in ("tasks", "objects", "task_inputs"):
        for job_id, count in store.rows(f"SELECT job_id, count(*) FROM {name} GROUP BY job_id"):
            if job_id in counts_of:
                counts_of[job_id] += count
    return list(counts_of.values())


def ended_before(store: Store, before_ns: int, numbers: Iterable[int]) -> list[Row]:
    """Those of some jobs that ended before a moment and have no unfinished task and no cluster left, by number."""
    return store.rows(
        "SELECT job_id, submission_id, array_id, array_index, members, step FROM jobs j"
        " WHERE job_id IN (SELECT value FROM json_each(?))"
        " AND ended_at IS NOT NULL AND ended_at < ? AND status NOT IN ('PENDING', 'RUNNING') AND NOT EXISTS"
        " (SELECT 1 FROM tasks t WHERE t.job_id = j.job_id AND t.ended_at IS NULL) AND NOT EXISTS"
        " (SELECT 1 FROM clusters c WHERE c.cluster_id = j.cluster_id AND c.job_id = j.job_id) ORDER BY job_id",
        dumps(list(numbers)), before_ns,
    )  # fmt: skip


def named(store: Store, names: Iterable[str]) -> set[str]:
    """Those of some ids that a job or a task has."""
    sql = (
        "SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM jobs WHERE submission_id = value)"
        " OR EXISTS (SELECT 1 FROM tasks WHERE task_id = value)"
    )
    wanted = list(names)
    return set(store.column(sql, dumps(wanted))) | folded.named(store, wanted)
