"""Writes edits of jobs, and changes of the gates that keep waiting jobs out of their queue, to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence

from vctl.core.spans import numbers_of
from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves, rows
from vctl.store.write import contents
from vctl.store.write.submits import WAIT, notifies
from vctl.store.write.table import insert, writes


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


_COLUMN_OF = {
    "parent_id": "parent_cluster_id", "shares_parent": "shares_parent", "priority": "priority", "per_node": "per_node",
    "begin_at_ns": "begin_at", "waits_for": "waits_for", "grace_s": "grace_s",
}  # fmt: skip
"""Field of a waiting job -> its column. The other fields are in the command of the job, or in ``columns``."""

_REQUEST = {"shape", "spec", "entry", "rules"}
"""The fields of a waiting job that are in its command, as a content of its own."""


@writes(ch.JobsEdited)
def _jobs_edited(db: sqlite3.Connection, edited: Sequence[ch.JobsEdited]) -> None:
    for one in edited:
        columns, before = dict(one.columns), set[int]()
        columns |= {_COLUMN_OF[name]: getattr(one.job, name) for name in one.edited if name in _COLUMN_OF}
        if one.launch is not None or not _REQUEST.isdisjoint(one.edited):  # the journal has no command
            launch, before = one.launch or ch.Launch(), contents.used_by(db, one.spans)
            columns["command_id"] = contents.command_of(db, launch, contents.request_of(one.job))
            columns["notifies"] = notifies(launch.options)
        if columns:
            named = ", ".join(f"{name} = ?" for name in columns)
            moves.update_spans(db, JOB, "edit", one.spans, named, tuple(columns.values()))
        contents.drop_unused(db, before)
        if one.after is not None:
            db.executemany("DELETE FROM dependencies WHERE job_id BETWEEN ? AND ?", one.spans)
            insert(db, WAIT, [(job_id, *pair) for job_id in numbers_of(one.spans) for pair in one.after])


@writes(ch.ArrayLimited)
def _arrays_limited(db: sqlite3.Connection, limited: Sequence[ch.ArrayLimited]) -> None:
    for one in limited:
        db.execute(
            "UPDATE arrays SET at_once = ?, range = ? WHERE array_id = ?",
            (one.at_once, one.shown, one.array_id),
        )
        moves.update_spans(db, JOB, "gate", one.closed, "closed = 1", ())
        moves.update_spans(db, JOB, "gate", one.opened, "closed = 0", ())
