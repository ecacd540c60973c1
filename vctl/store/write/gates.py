"""Writes edits of jobs, and changes of the gates that keep waiting jobs out of their queue, to the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves, rows
from vctl.store.write.table import writes


@writes(ch.JobsHeld)
def _jobs_held(db: sqlite3.Connection, held: Sequence[ch.JobsHeld]) -> None:
    for change in held:
        moves.update_spans(
            db, JOB, "gate", change.spans, "held = ?, closed = ?", (change.held, change.closed)
        )


@writes(ch.MembersAdmitted)
def _members_admitted(db: sqlite3.Connection, admitted: Sequence[ch.MembersAdmitted]) -> None:
    for change in admitted:
        moves.update_spans(db, JOB, "gate", change.spans, "closed = 0", ())


@writes(ch.MembersUnfolded)
def _members_unfolded(db: sqlite3.Connection, unfolded: Sequence[ch.MembersUnfolded]) -> None:
    like = [row[0] for row in db.execute("SELECT name FROM pragma_table_info('jobs')")]
    own = {
        "job_id": "first",
        "submission_id": "array_id || '_' || (array_index + (first - job_id) * step)",
        "array_index": "array_index + (first - job_id) * step",
        "members": "count",
        "step": "iif(count > 1, step, 1)",
    }
    copied = (
        f"INSERT INTO jobs ({', '.join(like)}) SELECT {', '.join(own.get(name, name) for name in like)}"
        " FROM jobs, (SELECT value ->> 0 AS first, value ->> 1 AS count FROM json_each(?)) WHERE job_id = ?"
    )
    for one in unfolded:
        (first, members), *others = one.parts
        db.execute(copied, (rows.dumps(others), first))
        db.execute(
            "INSERT INTO dependencies SELECT value ->> 0, condition, awaited FROM dependencies, json_each(?)"
            " WHERE job_id = ?",
            (rows.dumps(others), first),
        )
        kept = "UPDATE jobs SET members = ?, step = iif(? > 1, step, 1) WHERE job_id = ? AND members = ?"
        if db.execute(kept, (members, members, first, one.members)).rowcount != 1:
            raise moves.refused(db, JOB, "gate", first)


@writes(ch.BeginTimesPassed)
def _begin_times_passed(db: sqlite3.Connection, passed: Sequence[ch.BeginTimesPassed]) -> None:
    for change in passed:
        moves.update_spans(db, JOB, "gate", change.spans, "begin_at = NULL", ())


@writes(ch.DependencyMet)
def _dependencies_met(db: sqlite3.Connection, met: Sequence[ch.DependencyMet]) -> None:
    db.executemany(
        "DELETE FROM dependencies WHERE job_id = ? AND condition = ? AND awaited = ?",
        [(change.job_id, change.condition, change.awaited) for change in met],
    )
    for change in met:
        moves.update(db, JOB, "gate", change.job_id, "waits_for = ?", (change.left,))


@writes(ch.JobsEdited)
def _jobs_edited(db: sqlite3.Connection, edited: Sequence[ch.JobsEdited]) -> None:
    for change in edited:
        columns = ", ".join(f"{name} = ?" for name in change.values)
        moves.update_spans(db, JOB, "edit", change.spans, columns, tuple(change.values.values()))
