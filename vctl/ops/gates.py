"""Why a pending job is not in the queue yet: hold, dependency, begin time, the limit of its array.

Derived from the row whenever it is looked at; ``jobs.state_reason`` of a pending job says only why it waits again
after an attempt. The view ``v_jobs`` says the same in SQL.
"""

from __future__ import annotations

from vctl.core import jobs as jb
from vctl.ops.forms import timestamp
from vctl.store import dependencies
from vctl.store.store import Row, Store

NAMED = 5
"""So many of the jobs that are waited for are named."""


def gate(store: Store, row: Row) -> tuple[str | None, str | None]:
    """Reason and words for what holds a pending job back, (None, None) when nothing does."""
    if row["held"]:
        return jb.HELD, "held until `vctl job release`"
    if row["waits_for"]:
        return jb.DEPENDENCY, _awaited(store, row["job_id"])
    if row["state_reason"] == jb.PREEMPTED and not row["closed"]:
        return jb.PREEMPTED, row["message"]  # why it waits again is told until it runs
    if row["begin_at"] is not None and row["begin_at"] > store.clock():
        at = timestamp(row["begin_at"])
        if row["attempt"]:
            kept = row["message"] if row["state_reason"] == jb.BACKOFF else None
            return jb.BACKOFF, kept or f"next try at {at}"
        return jb.BEGIN_TIME, f"begins at {at}"
    if row["closed"]:
        return jb.ARRAY_LIMIT, "the running members of its array are at the limit"
    return None, None


def _awaited(store: Store, job_id: int) -> str:
    found = dependencies.awaited(store, job_id, NAMED + 1)
    names = ", ".join(f"{row['condition']}:{row['awaited']}" for row in found[:NAMED])
    return f"waits for {names}{' …' if len(found) > NAMED else ''}"
