"""How changes of runs assigned ahead change the tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from vctl.engine import changes as ch
from vctl.store.write.table import Table, insert

_COLUMNS = "runs_ahead (run_id, job_id, follows, supervisor, revision)"


def _runs_assigned_ahead(db: sqlite3.Connection, assigned: Sequence[ch.RunAssignedAhead]) -> None:
    rows = [(one.run_id, one.job_id, one.follows, one.supervisor, one.revision) for one in assigned]
    insert(db, _COLUMNS, rows)


def _runs_taken_back(db: sqlite3.Connection, taken: Sequence[ch.RunTakenBack]) -> None:
    db.executemany("DELETE FROM runs_ahead WHERE run_id = ?", [(one.run_id,) for one in taken])


WRITERS: Table = {ch.RunAssignedAhead: _runs_assigned_ahead, ch.RunTakenBack: _runs_taken_back}
