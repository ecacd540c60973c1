"""SQL about runs: one process each, of one attempt of a job or of a task."""

from __future__ import annotations

from vctl.core import jobs as jb
from vctl.store.store import Row, Store


def strip(store: Store, run_id: str) -> None:
    """A run goes on without what was booked for it, which is not there any more."""
    store.db.execute(
        "UPDATE runs SET amounts = '{}', instances = '{}', cores = '[]' WHERE run_id = ?", (run_id,)
    )


def live_rows(store: Store) -> list[Row]:
    """Runs that are not over."""
    return store.rows("SELECT * FROM runs WHERE state <> 'ENDED' ORDER BY run_id")


def never_again(store: Store) -> int:
    """Whatever was to be started may have been, and is not started again. How many processes that concerns."""
    store.db.execute("UPDATE runs SET state = ? WHERE state = ?", (jb.RUNNING, jb.ASSIGNED))
    count: int = store.value("SELECT count(*) FROM runs WHERE state = ?", jb.RUNNING)
    return count
