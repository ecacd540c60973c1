"""Carrying preemptions out: a job is told (a file, its signal), has a grace, is ended; then it waits again or is over.

First the signal, then the record: a scheduler that dies in between sends it once more, never not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.jobs import Preemption, Run, RunningJob
from vctl.core.queue_policy import OFF, REQUEUE
from vctl.daemon import notices
from vctl.daemon.following import FollowedState
from vctl.engine.changes import JobPreempted, JobRequeued, PreemptionMoved
from vctl.engine.rules import preemption
from vctl.ops.forms import amounts
from vctl.store import jobs, rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.daemon.endings import Outcome

PAUSE_NS = 10**9
"""So long a job waits at least that had to give back what was lent to it."""
Stop = Callable[[Run, str, float], None]
Warn = Callable[[str, int], object]


class Preempting:
    """What is due for jobs that end for others."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def nearest_ns(self, state: FollowedState) -> int | None:
        """When something is due: a grace that ends, a job that will have run long enough."""
        due = [one.ends_ns for one in state.preemptions.values() if one.told and not one.ending]
        due += [queue.again_ns for queue in state.queues.values() if queue.again_ns is not None]
        return min(due, default=None)

    def review(self, state: FollowedState) -> None:
        """Reserve nothing more for jobs that do not want it any more."""
        state.emit_all(self.store, lambda: preemption.review(state, self.store.clock()))

    def turn(self, state: FollowedState, stop: Stop, warn: Warn) -> None:
        """Tell those who do not know yet, end those whose grace is over."""
        now = self.store.clock()
        for name in state.spared:
            notices.remove(self.store.home, name)
        state.spared.clear()
        for one in sorted(state.preemptions.values(), key=lambda one: one.victim_id):
            job = state.running.jobs.get(one.victim_id)
            if one.ending or job is None:
                continue
            if job.stop_requested_at is not None:
                self._move(state, one, "end")  # it ends already, and nobody spares it
            elif not one.told:
                self._tell(state, one, job, stop, warn)
            elif one.ends_ns <= now:
                self._end(state, one, job.grace_s, stop)

    def _tell(self, state: FollowedState, one: Preemption, job: RunningJob, stop: Stop, warn: Warn) -> None:
        notices.write(
            self.store.home, one.victim,
            {"preempted_for": one.winner, "rule": one.rule, "ends_at_ns": one.ends_ns},
        )  # fmt: skip
        signal = rows.loads(job.rules).get("signal") if one.warns else None
        heard = signal is not None and [
            warn(run_id, signal["number"]) for run_id in sorted(state.members_of(one.victim_id))
        ]
        if not heard or not any(heard):
            self._end(state, one, max(0.0, (one.ends_ns - self.store.clock()) / 1e9), stop)
            return
        self._move(state, one, "tell")

    def _end(self, state: FollowedState, one: Preemption, grace_s: float, stop: Stop) -> None:
        for run_id in sorted(state.runs_of_job.get(one.victim_id, ())):
            run = state.runs[run_id]
            if state.is_attached(run):
                stop(run, jb.PREEMPTED, grace_s)
        self._move(state, one, "end")

    def _move(self, state: FollowedState, one: Preemption, move: str) -> None:
        with self.store.transaction():
            state.emit(self.store, PreemptionMoved(one.victim_id, move))


# ---- how it ends ----


def judged(state: FollowedState, job: RunningJob, outcome: Outcome) -> Outcome:
    """The outcome of a job that was told to make room: one that ended well did, one that was stopped is stopped."""
    one = state.preemption_of(job)
    told = one is not None and one.told and outcome.reason == jb.NON_ZERO_EXIT
    if outcome.reason != jb.PREEMPTED and not told:
        return outcome
    if job.stop_requested_at is not None:
        words = "stopped by the user"
        return replace(
            outcome,
            status=jb.STOPPED,
            reason=jb.STOPPED_BY_USER,
            exit_code=jb.EXIT_STOPPED,
            message=words,
        )
    message = outcome.message if one is None else f"preempted by {one.winner}, which has a higher priority"
    return replace(
        outcome, status=jb.STOPPED, reason=jb.PREEMPTED, exit_code=jb.EXIT_STOPPED, message=message
    )


def rule_of(state: FollowedState, job: RunningJob) -> str:
    """What becomes of a job that had to make room: by what was decided then, else as its cluster says now."""
    one = state.preemption_of(job)
    if one is not None:
        return one.rule
    parent = state.ledger.clusters.get(job.parent_id)
    return OFF if parent is None else parent.queue.preemption


def is_requeued(state: FollowedState, job: RunningJob, outcome: Outcome) -> bool:
    """Whether a job that ended like this waits again."""
    return outcome.reason == jb.PREEMPTED and rule_of(state, job) == REQUEUE


def requeue(store: Store, state: FollowedState, job: RunningJob, outcome: Outcome) -> None:
    """Queue the job again at its old place; its cluster is gone already. This was no failure of its own."""
    row = jobs.get(store, job.job_id)
    assert row is not None
    one = state.preemption_of(job)
    _tell_loss(store, state, row, one, REQUEUE, outcome)
    # what a lender called back lies in the job's cluster for a moment still, and is not to be taken again
    begin_at = None if one is not None else store.clock() + PAUSE_NS
    state.emit(store, JobRequeued(
        replace(rows.pending(row), begin_at_ns=begin_at), jb.PREEMPTED,
        f"{outcome.message}; it runs again when its resources are free", job.preemptions + 1,
        {"attempt": job.attempt, "cause": jb.PREEMPTED, "exit_code": outcome.exit_code},
    ))  # fmt: skip
    over(store, state, job.job_id)
    notices.remove(store.home, job.submission_id)


def ended(store: Store, state: FollowedState, job: RunningJob, outcome: Outcome) -> None:
    """A job is over for good; who waited for its resources waits no longer."""
    if outcome.reason == jb.PREEMPTED:
        row = jobs.get(store, job.job_id)
        assert row is not None
        _tell_loss(store, state, row, state.preemption_of(job), rule_of(state, job), outcome)
    over(store, state, job.job_id)


def over(store: Store, state: FollowedState, job_id: int) -> None:
    """A running job has ended, whatever for: nobody waits for it any more."""
    if state.preemptions or state.nominations:
        for change in preemption.over(state, job_id):
            state.emit(store, change)


def _tell_loss(
    store: Store, state: FollowedState, row: Row, one: Preemption | None, rule: str, outcome: Outcome
) -> None:
    """Record what was lost: the time of the attempt, and that times what the job held."""
    lost_s = max(0, store.clock() - (row["started_at"] or store.clock())) / 1e9
    held = amounts(rows.loads(row["resources"] or "{}"))
    data = {
        "winner": None if one is None else one.winner, "rule": rule, "attempt": row["attempt"],
        "exit_code": outcome.exit_code, "lost_s": round(lost_s, 3),
        "lost_resource_seconds": {name: round(amount * lost_s, 3) for name, amount in held.items()},
    }  # fmt: skip
    state.emit(store, JobPreempted(row["job_id"], row["submission_id"], row["parent_cluster_id"], data))
