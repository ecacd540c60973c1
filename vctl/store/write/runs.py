"""Writes the changes of runs to the tables."""

from __future__ import annotations

import _sqlite3 as sqlite3
from collections.abc import Sequence
from itertools import groupby

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.engine import changes as ch
from vctl.engine.lifecycle import JOB, RUN
from vctl.store import moves, rows
from vctl.store.write.table import writes

RUN_COLUMNS = (
    "runs (run_id, job_id, task_id, attempt, rank, cluster_id, vnode_id, node_id, state, amounts, instances, cores,"
    " assigned_at, supervisor)"
)

_PROCESS = "pid = ?, pid_start = ?, boot_id = ?, started_at = ?"


def _process(process: ch.StartedProcess | None) -> tuple[object, ...]:
    if process is None:
        return ()
    return process.pid, process.pid_start, process.boot_id, process.started_at


def run_row(run: Run, at: int) -> tuple[object, ...]:
    """A run as a row."""
    amounts, instances, cores = rows.allocation_columns(run.allocation)
    return (
        run.run_id, run.job_id, run.task_id, run.attempt, run.rank, run.cluster_id, run.vnode_id, run.node_id,
        run.state, amounts, instances, cores, at, run.supervisor,
    )  # fmt: skip


@writes(ch.RunSeen)
def _runs_seen(db: sqlite3.Connection, seen: Sequence[ch.RunSeen]) -> None:
    for is_news, alike in groupby(seen, lambda change: change.process is not None):
        moves.update_all(
            db, RUN, "seen", f"state = ?, {_PROCESS}" if is_news else "state = ?",
            [(jb.RUNNING, *_process(change.process), change.run_id) for change in alike],
        )  # fmt: skip


@writes(ch.RunStopping)
def _runs_stopping(db: sqlite3.Connection, stopping: Sequence[ch.RunStopping]) -> None:
    for change in stopping:
        db.execute(
            "UPDATE runs SET stop_reason = coalesce(stop_reason, ?) WHERE run_id = ?",
            (change.reason, change.run_id),
        )


@writes(ch.RunWarned)
def _runs_warned(db: sqlite3.Connection, warned: Sequence[ch.RunWarned]) -> None:
    db.executemany(
        "UPDATE runs SET warned_for = ? WHERE run_id = ?",
        [(change.ends_ns, change.run_id) for change in warned],
    )


@writes(ch.RunEnded)
def _runs_ended(db: sqlite3.Connection, ended: Sequence[ch.RunEnded]) -> None:
    """Delete the runs: what became of a job or a task is in its own row and in the history."""
    moves.delete_all(db, RUN, "end", [change.run_id for change in ended])


_ASSIGN = (
    "INSERT INTO runs_ahead (run_id, job_id, follows, supervisor, revision)"
    f" SELECT ?, job_id, ?, ?, ? FROM jobs WHERE job_id = ? AND {moves.condition(JOB, 'assign_ahead')}"
)


@writes(ch.RunAssignedAhead)
def _runs_assigned_ahead(db: sqlite3.Connection, assigned: Sequence[ch.RunAssignedAhead]) -> None:
    values = [
        (change.run_id, change.follows, change.supervisor, change.revision, change.job_id)
        for change in assigned
    ]
    if db.executemany(_ASSIGN, values).rowcount == len(values):
        return
    run_ids = {row[0] for row in db.execute("SELECT run_id FROM runs_ahead")}
    wrong = next(change.job_id for change in assigned if change.run_id not in run_ids)
    raise moves.refused(db, JOB, "assign_ahead", wrong)


@writes(ch.RunTakenBack)
def _runs_taken_back(db: sqlite3.Connection, taken_back: Sequence[ch.RunTakenBack]) -> None:
    db.executemany("DELETE FROM runs_ahead WHERE run_id = ?", [(change.run_id,) for change in taken_back])
