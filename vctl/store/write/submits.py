"""Writes submits and deletions of jobs to the tables. The command of a job is not part of the journal."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.core.spans import Spans
from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves, rows
from vctl.store.write import contents
from vctl.store.write.table import insert, writes

_OWN = ("job_id", "submission_id", "closed", "array_id", "array_index", "members", "step")
COMMON = (
    "parent_cluster_id",
    "shares_parent",
    "status",
    "priority",
    "command_id",
    "user",
    "held",
    "begin_at",
    "waits_for",
    "per_node",
    "submitted_at",
    "name",
    "metadata",
    "time_limit_s",
    "grace_s",
    "resources",
    "submitted_by",
    "notifies",
    "uid",
)
_JOB = f"jobs ({', '.join((*_OWN, *COMMON))})"
WAIT = "dependencies (job_id, condition, awaited)"


def common_of(
    db: sqlite3.Connection, job: PendingJob, details: ch.SubmitDetails, launch: ch.Launch | None
) -> tuple[object, ...]:
    """The columns that are the same for all members of an array."""
    launch = launch or ch.Launch()
    command_id = contents.command_of(db, launch, contents.request_of(job))
    return (
        job.parent_id, job.shares_parent, jb.PENDING, job.priority, command_id, job.user, job.held, job.begin_at_ns,
        job.waits_for, job.per_node, job.submitted_at_ns, details.name, details.metadata, details.time_limit_s,
        job.grace_s, details.resources, details.submitted_by, notifies(launch.options),
        details.uid,
    )  # fmt: skip


def notifies(options: str) -> bool:
    """Whether somebody is told of the end of a job with these options."""
    return '"notify"' in options and "notify" in rows.loads(options)


@writes(ch.JobSubmitted)
def _jobs_submitted(db: sqlite3.Connection, submitted: Sequence[ch.JobSubmitted]) -> None:
    jobs, waits = list[tuple[object, ...]](), list[tuple[object, ...]]()
    for one in submitted:
        job = one.job
        own = (job.job_id, job.submission_id, False, None, None, 1, 1)
        jobs.append((*own, *common_of(db, job, one.details, one.launch)))
        waits += ((job.job_id, condition, awaited) for condition, awaited in one.after)
    insert(db, _JOB, jobs)
    insert(db, WAIT, waits)


@writes(ch.ArraySubmitted)
def _arrays_submitted(db: sqlite3.Connection, submitted: Sequence[ch.ArraySubmitted]) -> None:
    for one in submitted:
        job, open_ = one.template, one.open
        first, array_id = job.job_id, job.submission_id
        db.execute(
            "INSERT INTO arrays (array_id, first_job_id, last_job_id, range, count, at_once) VALUES (?, ?, ?, ?, ?, ?)",
            (array_id, first, first + one.count - 1, one.shown, one.count, one.at_once),
        )
        common = common_of(db, job, one.details, one.launch)
        members = [
            (first + n, f"{array_id}_{index}", n >= open_, array_id, index, members, step, *common)
            for n, index, members, step in one.rows
        ]
        insert(db, _JOB, members)
        insert(
            db,
            WAIT,
            [(first + n, condition, awaited) for n, *_ in one.rows for condition, awaited in one.after],
        )
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'jobs'", (first + one.count - 1,))


def _delete(db: sqlite3.Connection, spans: Spans) -> None:
    from vctl.store.write import accounts  # here, because a submit does not need it

    accounts.keep_use(db, spans)
    commands = contents.used_by(db, spans)
    for table in ("tasks", "objects", "promises", "task_inputs", "nominations"):
        db.executemany(f"DELETE FROM {table} WHERE job_id BETWEEN ? AND ?", spans)
    moves.delete_spans(db, JOB, "forget", spans)
    contents.drop_unused(db, commands)


@writes(ch.JobForgotten)
def _jobs_forgotten(db: sqlite3.Connection, forgotten: Sequence[ch.JobForgotten]) -> None:
    _delete(db, tuple((one.job_id, one.job_id) for one in forgotten))


@writes(ch.ArrayForgotten)
def _arrays_forgotten(db: sqlite3.Connection, forgotten: Sequence[ch.ArrayForgotten]) -> None:
    for one in forgotten:
        _delete(db, one.spans)
    db.executemany("DELETE FROM arrays WHERE array_id = ?", [(one.array_id,) for one in forgotten])


@writes(ch.JobsPruned)
def _jobs_pruned(db: sqlite3.Connection, pruned: Sequence[ch.JobsPruned]) -> None:
    for one in pruned:
        _delete(db, one.spans)


@writes(ch.ArraysEmptied)
def _arrays_emptied(db: sqlite3.Connection, emptied: Sequence[ch.ArraysEmptied]) -> None:
    names = [(array_id,) for one in emptied for array_id in one.array_ids]
    db.executemany("DELETE FROM arrays WHERE array_id = ?", names)
