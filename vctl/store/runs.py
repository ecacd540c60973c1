"""SQL about runs: a run is one process of one attempt of a job or a task."""

from __future__ import annotations

from vctl.core import jobs as jb
from vctl.store.store import Row, Store


def live_rows(store: Store) -> list[Row]:
    """Runs that are not over."""
    return store.rows("SELECT * FROM runs ORDER BY run_id")


def unseen(store: Store, before: int) -> list[Row]:
    """Runs that were assigned before a time and whose processes have not been seen yet."""
    return store.rows(
        "SELECT run_id, job_id, task_id, supervisor FROM runs WHERE state = ? AND assigned_at < ?",
        jb.ASSIGNED, before,
    )  # fmt: skip


def never_again(store: Store) -> int:
    """Mark all assigned runs as started, because they may have been. Returns the number of live runs."""
    live = live_rows(store)
    for row in live:
        if row["state"] == jb.ASSIGNED:
            from vctl.engine.changes import RunSeen  # here, because ``status`` reads runs, too

            store.emit(RunSeen(row["run_id"]))
    return len(live)
