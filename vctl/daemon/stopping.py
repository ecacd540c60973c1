"""Telling running tasks to end, in the transaction of what ends them: the next scheduler carries on after a crash."""

from __future__ import annotations

from vctl.daemon.mirror import Mirror
from vctl.engine.changes import RunStopping
from vctl.store import tasks
from vctl.store.store import Row, Store


def stop_task(store: Store, mirror: Mirror, row: Row, reason: str) -> None:
    """The process of a running task is to be ended; inside a transaction."""
    tasks.request_cancel(store, row["task_id"], None)  # not tried again, should its node die first
    mirror.stop_task(row["task_id"], row["grace_s"], reason)
    for run in [run for run in mirror.runs.values() if run.task_id == row["task_id"]]:
        mirror.emit(store, RunStopping(run.run_id, run.stop_reason or reason))
