"""The outcome of a job or task after the end of its process, and whether it is tried again."""

from __future__ import annotations

import json
import signal
from typing import NamedTuple

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.jobs import Preemption, Run, RunningJob
from vctl.engine.stimuli import ProcessOver

CAUSES = {
    jb.NODE_FAILED: "NodeFailed",
    jb.LAUNCH_FAILED: "LaunchFailed",
    jb.OUT_OF_MEMORY: "OutOfMemory",
    jb.NON_ZERO_EXIT: "ExitCode",
}
"""Reason of an end -> its name in ``--retry-on``. After a stop or a time limit there is no retry."""
_WORDS = {
    jb.STOPPED_BY_USER: "stopped by the user",
    jb.BOOKING_ENDED: "the booking of its cluster has ended",
    jb.PREEMPTED: "the lender reclaimed the resources that it ran on",
    tk.CANCELLED: "cancelled",
    tk.OWNER_ENDED: "the job or task that started it has ended",
}


class Outcome(NamedTuple):
    """How a job or a task ended."""

    status: str
    reason: str | None
    exit_code: int | None
    message: str | None


def outcome_of(run: Run, end: ProcessOver) -> Outcome:
    """The outcome of a job or task after the end of its run."""
    record = end.exit
    if run.stop_reason == jb.NODE_FAILED and (record is None or record.stopped):
        return Outcome(jb.FAILED, jb.NODE_FAILED, None, f"node {run.node_id} died")
    if record is None and run.stop_reason is None:
        return Outcome(jb.FAILED, end.lost_reason, None, end.lost_message)
    if record is not None and record.launch_errno is not None:
        return Outcome(jb.FAILED, jb.LAUNCH_FAILED, record.exit_code, record.message)
    if run.stop_reason is not None and (record is None or record.stopped):
        if run.stop_reason == jb.TIME_LIMIT:
            return Outcome(jb.FAILED, jb.TIME_LIMIT, jb.EXIT_TIME_LIMIT, "ran longer than its time limit")
        return Outcome(jb.STOPPED, run.stop_reason, jb.EXIT_STOPPED, _WORDS.get(run.stop_reason, "stopped"))
    assert record is not None
    if record.signal is not None and record.message:
        return Outcome(jb.FAILED, jb.OUT_OF_MEMORY, record.exit_code, record.message)
    if record.exit_code == 0:
        return Outcome(jb.SUCCEEDED, None, 0, None)
    if record.signal is not None:
        message = f"ended by signal {record.signal} ({_name(record.signal)})"
    else:
        message = f"exited with code {record.exit_code}"
    return Outcome(jb.FAILED, jb.NON_ZERO_EXIT, record.exit_code, message)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def judged(job: RunningJob, outcome: Outcome, preemption: Preemption | None) -> Outcome:
    """The outcome of a job, adapted if a user stopped it with a message or it was preempted (``preemption``)."""
    if outcome.reason == jb.INSUFFICIENT and job.stop_requested_at is not None:
        outcome = Outcome(jb.STOPPED, jb.STOPPED_BY_USER, jb.EXIT_STOPPED, "stopped by the user")
    if outcome.reason in (jb.STOPPED_BY_USER, jb.BOOKING_ENDED) and job.message is not None:
        outcome = outcome._replace(message=job.message)
    was_notified = preemption is not None and preemption.told and outcome.reason == jb.NON_ZERO_EXIT
    if outcome.reason != jb.PREEMPTED and not was_notified:
        return outcome
    if job.stop_requested_at is not None:
        return Outcome(jb.STOPPED, jb.STOPPED_BY_USER, jb.EXIT_STOPPED, "stopped by the user")
    message = outcome.message
    if preemption is not None:
        message = f"preempted by {preemption.winner}, which has a higher priority"
    return Outcome(jb.STOPPED, jb.PREEMPTED, jb.EXIT_STOPPED, message)


def is_tried_again(job: RunningJob, outcome: Outcome) -> bool:
    """Whether the rules of a job demand another attempt after this outcome."""
    if outcome.status != jb.FAILED or job.stop_requested_at is not None or job.rules == "{}":
        return False
    rules = json.loads(job.rules)
    tried = job.attempt - job.preemptions  # a preempted attempt is not a failure
    return tried <= rules.get("max_retries", 0) and CAUSES.get(outcome.reason or "") in rules["retry_on"]
