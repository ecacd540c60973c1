"""SQL about runs: one process each, of one attempt of a job or of a task."""

from __future__ import annotations

from vctl.core import jobs as jb
from vctl.store.store import Row, Store


def warned_for(store: Store, run_id: str) -> int | None:
    """The end for which a process got its warning signal."""
    found: int | None = store.value("SELECT warned_for FROM runs WHERE run_id = ?", run_id)
    return found


def mark_warned(store: Store, run_id: str, end_ns: int) -> None:
    """The warning of this end was sent; another end is warned of anew."""
    store.db.execute("UPDATE runs SET warned_for = ? WHERE run_id = ?", (end_ns, run_id))


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
