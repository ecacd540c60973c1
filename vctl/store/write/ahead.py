"""How changes of runs assigned ahead change the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves
from vctl.store.write.table import writes

_ASSIGN = (
    "INSERT INTO runs_ahead (run_id, job_id, follows, supervisor, revision)"
    f" SELECT ?, job_id, ?, ?, ? FROM jobs WHERE job_id = ? AND {moves.condition(JOB, 'assign_ahead')}"
)


@writes(ch.RunAssignedAhead)
def _runs_assigned_ahead(db: sqlite3.Connection, assigned: Sequence[ch.RunAssignedAhead]) -> None:
    values = [(one.run_id, one.follows, one.supervisor, one.revision, one.job_id) for one in assigned]
    if db.executemany(_ASSIGN, values).rowcount == len(values):
        return
    run_ids = {row[0] for row in db.execute("SELECT run_id FROM runs_ahead")}
    wrong = next(one.job_id for one in assigned if one.run_id not in run_ids)
    raise moves.refused(db, JOB, "assign_ahead", wrong)


@writes(ch.RunTakenBack)
def _runs_taken_back(db: sqlite3.Connection, taken: Sequence[ch.RunTakenBack]) -> None:
    db.executemany("DELETE FROM runs_ahead WHERE run_id = ?", [(one.run_id,) for one in taken])
