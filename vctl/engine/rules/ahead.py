"""Which waiting jobs are to follow a running one in its place, and what becomes of them at its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

from vctl.core.clusters import JOB
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.nodes import DEAD, RAY
from vctl.engine.changes import (
    Change,
    JobEnded,
    JobStarted,
    MembersAdmitted,
    RunAssigned,
    RunAssignedAhead,
    RunEnded,
    RunSeen,
    RunTakenBack,
)
from vctl.engine.rules.starts import Supply
from vctl.engine.state import SchedulerState
from vctl.scheduler.fairness import is_fair
from vctl.scheduler.plan import has_place
from vctl.scheduler.queueing import Queue

_MOST_CLASSES = 8
"""In a queue with more, nobody follows: who is next costs a look at each."""
_MOST_TOGETHER, _LEAST = 64, 2
"""So many are assigned ahead at most where several run, unless that is less than two behind each."""
_EXPECTED = (
    JobStarted, JobEnded, RunAssigned, RunAssignedAhead, RunEnded, RunSeen, RunTakenBack, MembersAdmitted,
)  # fmt: skip
"""The changes that runs make which end and follow each other. After any other change another job may be next."""


def keeps_order(change: Change) -> bool:
    """Whether those that were to follow are still next after this change."""
    return isinstance(change, _EXPECTED) and (not isinstance(change, JobEnded) or change.move == "end")


def follower(state: SchedulerState, run_id: str, now: int) -> Iterator[Change]:
    """A run is over: the one that was assigned to follow it runs in its place.

    It may have started already, so only space that is not free after all keeps it from that.
    """
    one = state.ahead.runs.get(state.ahead.follower.get(run_id, ""))
    if one is None:
        return
    state.end_trial()
    ledger, start = state.ledger, one.start
    is_dead = any(node_id not in ledger.nodes or ledger.nodes[node_id].state == DEAD for node_id in one.nodes)
    if is_dead or start.job.parent_id not in ledger.clusters or not has_place(ledger, start, anyway=True):
        for after in (one, *state.ahead.chain(one.run.run_id)):
            yield RunTakenBack(after.run.run_id, after.start.job.job_id)
        return
    yield JobStarted(now, one.begun(now), one.nodes, (one.run,), start.cluster, start.vnodes, was_ahead=True)


def assign(state: SchedulerState, supply: Supply, now: int, most: int) -> Iterator[Change]:
    """Let the next jobs follow those of their kind that have started lately, so many each at most."""
    started = list(state.changed.started)
    queue = _only_queue(state) if started else None
    if queue is None or is_fair(state.ledger, queue.parent_id):
        return
    last: dict[str, tuple[Run, str, PendingJob, int]] = {}
    """Run -> it, the last one that follows it, the job of that, and how many follow."""
    # One that has said the end of a run before the rules hear of it may have a second one already: that one leads.
    latest = {run.supervisor: run for run_id in started if (run := state.runs.get(run_id)) is not None}
    for run in latest.values():
        if _leads(state, run):
            *_, (before, like, length) = (
                (run.run_id, state.requests[run.job_id], 0),
                *_chain(state, run.run_id),
            )
            last[run.run_id] = run, before, like, length
    most = min(most, max(_LEAST, _MOST_TOGETHER // max(1, len(state.runs))))
    for depth in range(1, most + 1):
        for head, (run, before, like, length) in last.items():
            if length >= depth:
                continue
            job = _next(queue, now)
            if job is None:
                return
            if _kind(job) != _kind(like) or _is_tried_again(like):
                continue
            run_id = f"{job.job_id}.{job.attempt + 1}.0.{supply.name()}"
            yield RunAssignedAhead(run_id, job.job_id, before, run.supervisor or 0, supply.revision())
            last[head] = run, run_id, job, depth


def _kind(job: PendingJob) -> tuple[str, str, str]:
    """What a job and the one that takes its place have in common, so that this is the same for all limits."""
    return job.parent_id, job.user, job.shape


def _chain(state: SchedulerState, run_id: str) -> Iterator[tuple[str, PendingJob, int]]:
    for length, one in enumerate(state.ahead.chain(run_id), 1):
        yield one.run.run_id, one.start.job, length


def _only_queue(state: SchedulerState) -> Queue | None:
    """The queue of all that wait for resources; None where several do, or where something is kept for somebody."""
    if state.nominations or state.preemptions or state.leases:
        return None
    if any(queue.tasks for queue in state.tasks.queues.values()):
        return None
    queues = [queue for queue in state.queues.values() if queue.jobs]
    if len(queues) != 1 or len(queues[0].shapes) > _MOST_CLASSES:
        return None
    return queues[0]


def _leads(state: SchedulerState, run: Run) -> bool:
    """Whether the end of a run certainly frees all that its job has, at once, and the job is over then."""
    job = state.running.jobs.get(run.job_id)
    if job is None or run.task_id is not None or run.stop_reason is not None or run.supervisor is None:
        return False
    if job.per_node or job.stop_requested_at is not None or job.outcome is not None:
        return False
    if len(state.runs_of_job.get(run.job_id, ())) != 1 or state.tasks.of_job(run.job_id):
        return False
    if _is_tried_again(job):
        return False
    cluster, request = state.ledger.clusters.get(run.cluster_id), state.requests.get(run.job_id)
    if cluster is None or request is None:
        return False
    if cluster.kind == JOB and (cluster.spec != request.spec or state.ledger.below(run.cluster_id)):
        return False
    members = state.ledger.members.get(run.cluster_id, ()) if cluster.kind == JOB else ()
    nodes = {run.node_id, *(state.ledger.vnodes[one].node_id for one in members)}
    places = [state.ledger.nodes[node_id] for node_id in nodes]
    return all(node.schedulable and node.source != RAY for node in places)


def _is_tried_again(job: PendingJob | RunningJob) -> bool:
    """Whether a job may wait again when it fails in this attempt, or in the next one of a job that waits."""
    attempt = job.attempt + isinstance(job, PendingJob)
    return attempt - job.preemptions <= _retries(job.rules)


@lru_cache
def _retries(rules: str) -> int:
    found: int = json.loads(rules).get("max_retries", 0)
    return found


def _next(queue: Queue, now: int) -> PendingJob | None:
    """The next job of a queue; None if it is the last one of its shape, which has to be told why it waits."""
    heads = [
        (sub_queue.order[0], len(sub_queue.order))
        for shape in queue.shapes.values()
        for sub_queue in shape.sub_queues.values()
    ]
    if not heads:
        return None
    (_, job_id), alike = min(heads)
    job = queue.jobs[job_id]
    return job if alike > 1 and job.may_start(now) and not job.per_node else None
