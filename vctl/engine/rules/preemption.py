"""Preemption: what a plan decided and still stands, which resources stay reserved, and which jobs are spared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from vctl.core import jobs as jb
from vctl.core.jobs import Preemption, RunningJob
from vctl.core.queue_policy import OFF, STOP
from vctl.core.resources import SCALE
from vctl.core.values import replace
from vctl.core.wording import amounts_text, cluster_text, listed, timestamp
from vctl.engine.changes import (
    Change,
    JobNominated,
    JobPreempted,
    JobPreempting,
    JobSpared,
    NominationDropped,
    PreemptionMoved,
    PreemptionOver,
)
from vctl.engine.rules import stops
from vctl.engine.rules.outcomes import Outcome
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import JobNotified, Stimulus
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.preemption import Preempt

NAMED = 5
"""So many victims are named in a message."""


def still_stands(state: SchedulerState, one: Preempt) -> bool:
    """Whether the winner still waits, its victims still run, and the resources are still there."""
    queue = state.queues.get(one.job.parent_id)
    if queue is None or queue.jobs.get(one.job.job_id) != one.job:
        return False
    for victim in one.victims:
        job_id = victim.job.job_id
        if state.running.jobs.get(job_id) != victim.job or job_id in state.running.leaving:
            return False
    return one.nomination.stands(state.ledger)


def begin(state: SchedulerState, one: Preempt, now: int) -> Iterator[Change]:
    """Running jobs are to end for a waiting one."""
    policy = state.ledger.clusters[one.job.parent_id].queue
    ends_ns = now + policy.preemption_grace_ns
    ends_at = timestamp(ends_ns)
    for victim in one.victims:
        job = victim.job
        begun = Preemption(
            job.job_id, job.submission_id, job.attempt, one.job.job_id, one.job.submission_id, policy.preemption,
            json.loads(job.rules).get("signal") is not None, ends_ns,
        )  # fmt: skip
        yield JobPreempting(begun, job.cluster_id, ends_at)
    names = listed([victim.job.submission_id for victim in one.victims], NAMED)
    yield nominated(
        one.nomination, f"preempts {names}, by {ends_at} at the latest{_growth_text(state, one.nomination)}"
    )


def nominated(nomination: Nomination, message: str | None = None) -> JobNominated:
    """The change that reserves this."""
    return JobNominated(
        nomination.job_id, nomination.submission_id, nomination.priority, nomination.parent_id, nomination.pieces,
        tuple(sorted(nomination.awaited)), message,
    )  # fmt: skip


def _growth_text(state: SchedulerState, nomination: Nomination) -> str:
    """By how much the cluster grows when the job starts, if it does."""
    growth = nomination.growth(state.ledger)
    gained = {} if growth is None else growth.gained.get(nomination.parent_id, {})
    return f"; then {cluster_text(nomination.parent_id)} grows by {amounts_text(gained)}" if gained else ""


def review(state: SchedulerState, now: int) -> Iterator[Change]:
    """Reserve nothing more for jobs that do not want it any more. Nobody waits for a job that was lost."""
    for victim_id in state.preemptions.keys() - state.running.jobs.keys():
        yield PreemptionOver(victim_id)
    for nomination in list(state.nominations.values()):
        if (why := _why_over(state, nomination, now)) is not None:
            yield from give_up(state, nomination.job_id, why)
        elif not nomination.awaited <= state.running.leaving:
            yield nominated(replace(nomination, awaited=nomination.awaited & state.running.leaving))


def _why_over(state: SchedulerState, nomination: Nomination, now: int) -> str | None:
    queue = state.queues.get(nomination.parent_id)
    parent = state.ledger.clusters.get(nomination.parent_id)
    if queue is None or (job := queue.jobs.get(nomination.job_id)) is None:
        return "it is not waiting any more"
    if job.priority < nomination.priority:
        return "its priority is lower now"
    if not job.may_start(now):
        return "it cannot start now"
    if parent is None or not parent.starts_jobs:
        return "its cluster admits no jobs"
    if parent.queue.preemption == OFF:
        return "preemption was turned off"
    return None if nomination.stands(state.ledger) else "the resources reserved for it are gone"


def notified(state: SchedulerState, stimuli: Iterable[Stimulus]) -> Iterator[Change]:
    """Jobs were told that they end for others. One that did not hear it, or has no signal, is ended now."""
    for one in stimuli:
        if isinstance(one, JobNotified) and state.preemptions.get(one.preemption.victim_id) == one.preemption:
            if one.heard:
                yield PreemptionMoved(one.preemption.victim_id, "tell")
            else:
                yield from _end(state, one.preemption)


def due(state: SchedulerState, now: int) -> Iterator[Change]:
    """Jobs whose grace is over, and those that end anyway: nobody spares these."""
    for one in sorted(state.preemptions.values(), key=lambda one: one.victim_id):
        job = state.running.jobs.get(one.victim_id)
        if one.ending or job is None:
            continue
        if job.stop_requested_at is not None:
            yield PreemptionMoved(one.victim_id, "end")
        elif one.told and one.ends_ns <= now:
            yield from _end(state, one)


def _end(state: SchedulerState, one: Preemption) -> Iterator[Change]:
    attached = (
        run_id for run_id in state.runs_of_job.get(one.victim_id, ()) if state.is_attached(state.runs[run_id])
    )
    yield from stops.stop(state, sorted(attached), jb.PREEMPTED)
    yield PreemptionMoved(one.victim_id, "end")


def nearest(state: SchedulerState) -> list[int]:
    """When something is due: a grace that ends, a job that will have run long enough."""
    ends = [one.ends_ns for one in state.preemptions.values() if one.told and not one.ending]
    return ends + [queue.again_ns for queue in state.queues.values() if queue.again_ns is not None]


def give_up(state: SchedulerState, job_id: int, why: str) -> Iterator[Change]:
    """Reserve nothing more for a job; those that were to end for it, and were not told to end yet, go on."""
    if job_id not in state.nominations:
        return
    yield NominationDropped(job_id)
    others = (one for one in state.nominations.values() if one.job_id != job_id)
    awaited = {victim_id for one in others for victim_id in one.awaited}
    for one in list(state.preemptions.values()):
        if one.winner_id == job_id and not one.ending and one.victim_id not in awaited:
            yield JobSpared(one.victim_id, one.victim, one.winner, why)


def rule_of(state: SchedulerState, job: RunningJob) -> str:
    """What becomes of a job that ended for another: as it was decided then, else as its cluster says now.

    A lender calls back its resources also where jobs preempt none: then the job is over.
    """
    one = state.preemption_of(job)
    if one is not None:
        return one.rule
    parent = state.ledger.clusters.get(job.parent_id)
    return STOP if parent is None or parent.queue.preemption == OFF else parent.queue.preemption


def loss(state: SchedulerState, job: RunningJob, outcome: Outcome, now: int) -> JobPreempted:
    """The loss: the time of the attempt, and that time multiplied by the resources that the job held."""
    one = state.preemption_of(job)
    lost_s = max(0, now - (job.started_at_ns or now)) / 1e9
    data = {
        "winner": None if one is None else one.winner, "rule": rule_of(state, job), "attempt": job.attempt,
        "exit_code": outcome.exit_code, "lost_s": round(lost_s, 3),
        "lost_resource_seconds": {
            name: round(amount / SCALE * lost_s, 3) for name, amount in sorted(job.held.items())
        },
    }  # fmt: skip
    return JobPreempted(job.job_id, job.submission_id, job.parent_id, data)


def over(state: SchedulerState, job_id: int) -> Iterator[Change]:
    """A running job has ended, whatever for: nobody waits for it any more."""
    if job_id in state.preemptions:
        yield PreemptionOver(job_id)
    for one in list(state.nominations.values()):
        if job_id in one.awaited:
            yield nominated(replace(one, awaited=one.awaited - {job_id}))
