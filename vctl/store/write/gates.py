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
    for one in held:
        moves.update_spans(db, JOB, "gate", one.spans, "held = ?, closed = ?", (one.held, one.closed))


@writes(ch.MembersAdmitted)
def _members_admitted(db: sqlite3.Connection, admitted: Sequence[ch.MembersAdmitted]) -> None:
    for one in admitted:
        moves.update_spans(db, JOB, "gate", one.spans, "closed = 0", ())


@writes(ch.BeginTimesPassed)
def _begin_times_passed(db: sqlite3.Connection, passed: Sequence[ch.BeginTimesPassed]) -> None:
    for one in passed:
        moves.update_spans(db, JOB, "gate", one.spans, "begin_at = NULL", ())


@writes(ch.DependencyMet)
def _dependencies_met(db: sqlite3.Connection, met: Sequence[ch.DependencyMet]) -> None:
    db.executemany(
        "DELETE FROM dependencies WHERE job_id = ? AND condition = ? AND awaited = ?",
        [(one.job_id, one.condition, one.awaited) for one in met],
    )
    for one in met:
        moves.update(db, JOB, "gate", one.job_id, "waits_for = ?", (one.left,))


@writes(ch.JobsEdited)
def _jobs_edited(db: sqlite3.Connection, edited: Sequence[ch.JobsEdited]) -> None:
    for one in edited:
        columns = ", ".join(f"{name} = ?" for name in one.values)
        moves.update_spans(db, JOB, "edit", one.spans, columns, tuple(one.values.values()))
