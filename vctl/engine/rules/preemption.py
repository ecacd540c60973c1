"""Preemption: begins what a plan has decided, keeps resources reserved, and spares jobs that need not end."""

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
"""The most victims that a message names."""


def still_holds(state: SchedulerState, preempt: Preempt) -> bool:
    """Whether the winner still waits, its victims still run, and the resources still exist."""
    queue = state.queues.get(preempt.job.parent_id)
    if queue is None or queue.jobs.get(preempt.job.job_id) != preempt.job:
        return False
    for victim in preempt.victims:
        job_id = victim.job.job_id
        if state.running.jobs.get(job_id) != victim.job or job_id in state.running.leaving:
            return False
    return preempt.nomination.is_valid(state.ledger)


def begin(state: SchedulerState, preempt: Preempt, now: int) -> Iterator[Change]:
    """Begin a preemption: running jobs are to end for a waiting one, for which resources are reserved."""
    winner, policy = preempt.job, state.ledger.clusters[preempt.job.parent_id].queue
    ends_ns = now + policy.preemption_grace_ns
    ends_at = timestamp(ends_ns)
    for victim in preempt.victims:
        job = victim.job
        begun = Preemption(
            job.job_id, job.submission_id, job.attempt, winner.job_id, winner.submission_id, policy.preemption,
            json.loads(job.rules).get("signal") is not None, ends_ns,
        )  # fmt: skip
        yield JobPreempting(begun, job.cluster_id, ends_at)
    names = listed([victim.job.submission_id for victim in preempt.victims], NAMED)
    growth = _growth_text(state, preempt.nomination)
    yield nominated(preempt.nomination, f"preempts {names}, by {ends_at} at the latest{growth}")


def nominated(nomination: Nomination, message: str | None = None) -> JobNominated:
    """The change that reserves the resources of a nomination."""
    return JobNominated(
        nomination.job_id, nomination.submission_id, nomination.priority, nomination.parent_id, nomination.pieces,
        tuple(sorted(nomination.awaited)), message,
    )  # fmt: skip


def _growth_text(state: SchedulerState, nomination: Nomination) -> str:
    """The words that say by how much the cluster grows when the job starts; empty if it does not grow."""
    growth = nomination.growth(state.ledger)
    gained = {} if growth is None else growth.gained.get(nomination.parent_id, {})
    return f"; then {cluster_text(nomination.parent_id)} grows by {amounts_text(gained)}" if gained else ""


def review(state: SchedulerState, now: int) -> Iterator[Change]:
    """Drop nominations that no longer hold and preemptions of lost jobs; await only jobs that still end."""
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
    return None if nomination.is_valid(state.ledger) else "the resources reserved for it are gone"


def notified(state: SchedulerState, stimuli: Iterable[Stimulus]) -> Iterator[Change]:
    """Record that victims got notice. A victim that did not hear it, or has no signal, is stopped now."""
    for stimulus in stimuli:
        if isinstance(stimulus, JobNotified):
            preemption, victim_id = stimulus.preemption, stimulus.preemption.victim_id
            if state.preemptions.get(victim_id) != preemption:
                continue
            if stimulus.delivered:
                yield PreemptionMoved(victim_id, "tell")
            else:
                yield from _end(state, preemption)


def due(state: SchedulerState, now: int) -> Iterator[Change]:
    """Stop victims whose grace is over. Victims that a user stops count as ending, and are not spared."""
    for preemption in sorted(state.preemptions.values(), key=lambda preemption: preemption.victim_id):
        job = state.running.jobs.get(preemption.victim_id)
        if preemption.ending or job is None:
            continue
        if job.stop_requested_at is not None:
            yield PreemptionMoved(preemption.victim_id, "end")
        elif preemption.told and preemption.ends_ns <= now:
            yield from _end(state, preemption)


def _end(state: SchedulerState, preemption: Preemption) -> Iterator[Change]:
    run_ids = state.runs_of_job.get(preemption.victim_id, ())
    attached = (run_id for run_id in run_ids if state.is_attached(state.runs[run_id]))
    yield from stops.stop(state, sorted(attached), jb.PREEMPTED)
    yield PreemptionMoved(preemption.victim_id, "end")


def nearest(state: SchedulerState) -> list[int]:
    """The times at which something is due: a grace ends, or a job has run long enough to be preempted."""
    ends = [begun.ends_ns for begun in state.preemptions.values() if begun.told and not begun.ending]
    return ends + [queue.again_ns for queue in state.queues.values() if queue.again_ns is not None]


def give_up(state: SchedulerState, job_id: int, why: str) -> Iterator[Change]:
    """Drop the nomination of a job. Victims that are not being stopped and not awaited by others go on."""
    if job_id not in state.nominations:
        return
    yield NominationDropped(job_id)
    others = (nomination for nomination in state.nominations.values() if nomination.job_id != job_id)
    awaited = {victim_id for nomination in others for victim_id in nomination.awaited}
    for preemption in list(state.preemptions.values()):
        if preemption.winner_id == job_id and not preemption.ending and preemption.victim_id not in awaited:
            yield JobSpared(preemption.victim_id, preemption.victim, preemption.winner, why)


def rule_of(state: SchedulerState, job: RunningJob) -> str:
    """What becomes of a preempted job: the rule of its preemption, else that of its cluster now.

    A lender reclaims its resources also from clusters with preemption ``off``: then the job is over.
    """
    preemption = state.preemption_of(job)
    if preemption is not None:
        return preemption.rule
    parent = state.ledger.clusters.get(job.parent_id)
    return STOP if parent is None or parent.queue.preemption == OFF else parent.queue.preemption


def loss(state: SchedulerState, job: RunningJob, outcome: Outcome, now: int) -> JobPreempted:
    """The change with a job's loss: the time of the attempt, and that time multiplied by what it held."""
    preemption = state.preemption_of(job)
    lost_s = max(0, now - (job.started_at_ns or now)) / 1e9
    data = {
        "winner": None if preemption is None else preemption.winner,
        "rule": rule_of(state, job), "attempt": job.attempt, "exit_code": outcome.exit_code, "lost_s": round(lost_s, 3),
        "lost_resource_seconds": {
            name: round(amount / SCALE * lost_s, 3) for name, amount in sorted(job.held.items())
        },
    }  # fmt: skip
    return JobPreempted(job.job_id, job.submission_id, job.parent_id, data)


def over(state: SchedulerState, job_id: int) -> Iterator[Change]:
    """Close the preemption of a job that has ended, for whatever reason; no nomination awaits it any more."""
    if job_id in state.preemptions:
        yield PreemptionOver(job_id)
    for nomination in list(state.nominations.values()):
        if job_id in nomination.awaited:
            yield nominated(replace(nomination, awaited=nomination.awaited - {job_id}))
