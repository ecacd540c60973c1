"""Writes edits of jobs, and changes of the gates that keep waiting jobs out of their queue, to the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves
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
