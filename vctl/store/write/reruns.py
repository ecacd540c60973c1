"""Writes reruns in place to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence

from vctl.core.spans import spans_of
from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB
from vctl.store import moves
from vctl.store.write import accounts, contents
from vctl.store.write.submits import COMMON, WAIT, common_of
from vctl.store.write.table import insert, writes

_AGAIN = tuple(name for name in COMMON if name not in ("user", "uid"))
"""The columns that a rerun writes; whose job it is does not change."""
_FORGOTTEN = (
    "state_reason", "message", "exit_code", "started_at", "ended_at", "outcome", "stop_requested_at", "stop_reason",
    "stop_grace_s", "node_ids", "master_port",
)  # fmt: skip
"""What a rerun forgets of the last attempt."""


@writes(ch.JobsRerun)
def _jobs_rerun(db: sqlite3.Connection, again: Sequence[ch.JobsRerun]) -> None:
    columns = ", ".join((*(f"{name} = ?" for name in _AGAIN), *(f"{name} = NULL" for name in _FORGOTTEN)))
    for one in again:
        for job_id, *_ in one.jobs:
            accounts.keep_attempt(db, job_id)
        before = contents.used_by(db, spans_of(job_id for job_id, *_ in one.jobs))
        common = dict(zip(COMMON, common_of(db, one.template, one.details, one.launch), strict=True))
        values = tuple(common[name] for name in _AGAIN)
        moves.update_all(
            db, JOB, "rerun", f"{columns}, preemptions = ?, closed = ?",
            [(*values, job.preemptions, job.closed, job.job_id) for job in one.waiting()],
        )  # fmt: skip
        insert(db, WAIT, [(job_id, *pair) for job_id, *_ in one.jobs for pair in one.after])
        contents.drop_unused(db, before)
