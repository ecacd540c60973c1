"""SQL about runs: one process each, of one attempt of a job or of a task."""

from __future__ import annotations

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.engine.lifecycle import RUN
from vctl.store import moves, rows
from vctl.store.store import Row, Store


def insert(store: Store, run: Run) -> None:
    """Write the intent to start a process; the event is its job's."""
    amounts, instances, cores = rows.holding_columns(run.holding)
    store.db.execute(
        "INSERT INTO runs (run_id, job_id, task_id, attempt, rank, cluster_id, vnode_id, node_id, state, amounts,"
        " instances, cores, assigned_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            run.run_id, run.job_id, run.task_id, run.attempt, run.rank, run.cluster_id, run.vnode_id, run.node_id,
            run.state, amounts, instances, cores, store.clock(),
        ),
    )  # fmt: skip


def mark_launched(
    store: Store, run_id: str, *, pid: int, pid_start: int, boot_id: str, started_at: int
) -> None:
    """The process has been seen: how to find it again."""
    moves.update(
        store.db, RUN, "seen", run_id, "state = ?, pid = ?, pid_start = ?, boot_id = ?, started_at = ?",
        (jb.LAUNCHED, pid, pid_start, boot_id, started_at),
    )  # fmt: skip


def mark_stopping(store: Store, run_id: str, reason: str) -> None:
    """Remember why a run is being stopped, so that its end is told right after a crash too."""
    store.db.execute(
        "UPDATE runs SET stop_reason = coalesce(stop_reason, ?) WHERE run_id = ?", (reason, run_id)
    )


def warned_for(store: Store, run_id: str) -> int | None:
    """The end for which a process got its warning signal."""
    found: int | None = store.value("SELECT warned_for FROM runs WHERE run_id = ?", run_id)
    return found


def mark_warned(store: Store, run_id: str, end_ns: int) -> None:
    """The warning of this end was sent; another end is warned of anew."""
    store.db.execute("UPDATE runs SET warned_for = ? WHERE run_id = ?", (end_ns, run_id))


def end(store: Store, run_id: str, *, exit_code: int | None, message: str | None) -> None:
    """A process is over and everything it started is gone."""
    moves.update(
        store.db, RUN, "end", run_id, "state = ?, exit_code = ?, message = ?, ended_at = ?",
        (jb.ENDED, exit_code, message, store.clock()),
    )  # fmt: skip


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
    store.db.execute("UPDATE runs SET state = ? WHERE state = ?", (jb.LAUNCHED, jb.ASSIGNED))
    count: int = store.value("SELECT count(*) FROM runs WHERE state = ?", jb.LAUNCHED)
    return count
