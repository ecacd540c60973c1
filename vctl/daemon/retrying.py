"""Another attempt for a job that ended badly, when its rule says so: RUNNING -> PENDING, after a backoff."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import RunningJob
from vctl.daemon.following import FollowedState
from vctl.daemon.stopping import end_waiting, stop_task
from vctl.engine.changes import JobRequeued
from vctl.ops.forms import timestamp
from vctl.store import jobs, rows
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.daemon.endings import Outcome

CAUSES = {
    jb.NODE_FAILED: "NodeFailed",
    jb.LAUNCH_FAILED: "LaunchFailed",
    jb.OUT_OF_MEMORY: "OutOfMemory",
    jb.NON_ZERO_EXIT: "ExitCode",
}
"""Reason of an ending -> what ``--retry-on`` calls it. A stop and a time limit are never tried again."""
LONGEST_BACKOFF_S = 24 * 3600.0


def is_wanted(job: RunningJob, outcome: Outcome) -> bool:
    """Whether a running job that ended like this is to be tried again."""
    if outcome.status != jb.FAILED or job.stop_requested_at is not None or job.rules == "{}":
        return False
    rules = rows.loads(job.rules)
    cause = CAUSES.get(outcome.reason or "")
    tried = job.attempt - job.preemptions  # what was ended for others was no failure
    return tried <= rules.get("max_retries", 0) and cause in rules["retry_on"]


def end_detached(store: Store, state: FollowedState, job_id: int) -> None:
    """The attempt is void, and with it what it started, detached or not: the next one gets a new cluster."""
    for task in state.tasks.of_job(job_id):
        if task.state == tk.RUNNING:
            stop_task(store, state, task, tk.OWNER_ENDED)
        else:
            end_waiting(store, state, task, "the attempt that started it has ended")


def requeue(store: Store, state: FollowedState, job: RunningJob, outcome: Outcome) -> None:
    """Queue the job again at its old place; its cluster is gone already."""
    rules = rows.loads(job.rules)
    attempt = job.attempt - job.preemptions
    backoff_s = min(rules["backoff_s"] * 2.0 ** min(attempt - 1, 60), LONGEST_BACKOFF_S)
    begin_at = store.clock() + int(backoff_s * 1e9) if backoff_s > 0 else None
    reason = message = None
    if begin_at is not None:
        reason = jb.BACKOFF
        message = (
            f"attempt {attempt} of {rules['max_retries'] + 1}: {outcome.message};"
            f" next try at {timestamp(begin_at)}"
        )
    row = jobs.get(store, job.job_id)
    assert row is not None
    state.emit(store, JobRequeued(
        replace(rows.pending(row), begin_at_ns=begin_at), reason, message, job.preemptions,
        {"attempt": job.attempt, "cause": outcome.reason, "exit_code": outcome.exit_code, "backoff_s": backoff_s},
    ))  # fmt: skip
