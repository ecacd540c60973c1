"""Assigns waiting jobs to follow running ones in their place, and starts them when these end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from vctl.core.clusters import JOB
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.leases import CALLED
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, RAY
from vctl.core.queue_policy import BEST_EFFORT, FIFO
from vctl.engine.ahead import run_after
from vctl.engine.changes import (
    Change,
    JobEnded,
    JobStarted,
    MembersAdmitted,
    RunAssignedAhead,
    RunEnded,
    RunSeen,
    RunTakenBack,
)
from vctl.engine.rules import leases
from vctl.engine.rules.revocation import keeping
from vctl.engine.rules.starts import Supply, grow
from vctl.engine.state import SchedulerState
from vctl.scheduler.elasticity import allowance, growing
from vctl.scheduler.fairness import is_fair
from vctl.scheduler.handover import moved, over
from vctl.scheduler.limits import LimitUse, has_limit, may_follow, use_of
from vctl.scheduler.orders import Turn, turn_of
from vctl.scheduler.plan import has_room
from vctl.scheduler.queueing import Queue

_MAX_CLASSES = 8
"""In a queue with more shapes, no run is assigned ahead: finding the next job looks at each shape."""
_MAX_QUEUES = 32
"""Nor where jobs wait in more queues: the first job of each is compared."""
_MAX_TOGETHER, _LEAST = 64, 2
"""The most runs assigned ahead in all, shared by the live runs; but ``_LEAST`` may follow each of them."""
_MAX_ALONE = 4
"""Where more runs are live, no place goes over to another cluster ahead: a search for one of many ends pays little."""
_EXPECTED = (
    JobStarted, JobEnded, RunAssignedAhead, RunEnded, RunSeen, RunTakenBack, MembersAdmitted,
)  # fmt: skip
"""The changes of runs that end and follow each other. After any other change another job may be the next."""


def keeps_order(change: Change) -> bool:
    """Whether the runs that are assigned ahead are still the next ones after this change."""
    return isinstance(change, _EXPECTED) and (not isinstance(change, JobEnded) or change.move == "end")


def follower(state: SchedulerState, run_id: str, now: int, lease: Callable[[], int]) -> Iterator[Change]:
    """Start the run that was assigned to follow a run that is over, in its place.

    It may run already, so it is taken back only if its place does not exist any more or is not free.
    ``lease`` gives the number of one more lease, as the place may go over to another cluster.
    """
    ahead = state.ahead.runs.get(state.ahead.follower.get(run_id, ""))
    if ahead is None:
        return
    state.end_trial()
    ledger = state.ledger
    nodes = [ledger.nodes.get(node_id) for node_id in ahead.nodes]
    is_dead = any(node is None or node.state == DEAD for node in nodes)
    start = None if is_dead or ahead.start.job.parent_id not in ledger.clusters else ahead.start
    with ledger.bookings_in_force(()):  # its process may run already
        if start is not None and ahead.moves:
            start = moved(ledger, start)
        elif start is not None and not has_room(ledger, start, anyway=True):
            start = None
    if start is None:
        for after in (ahead, *state.ahead.chain(ahead.run.run_id)):
            yield RunTakenBack(after.run.run_id, after.start.job.job_id)
        return
    loans = leases.loans_of(start.growth) if start.growth else {}
    if start.growth:
        yield from grow(state, start.growth, None, lease, now, loans)
    begun, runs = ahead.begun(now), (ahead.run,)
    yield JobStarted(now, begun, ahead.nodes, runs, start.cluster, start.vnodes, was_ahead=True)
    if loans:
        yield from leases.granted_to_gang(
            start.vnodes, loans, now, lease, lease_s=state.lease_terms.duration_s, job_id=start.job.job_id
        )


def assign(state: SchedulerState, supply: Supply, now: int, limit: int) -> Iterator[Change]:
    """Assign the next jobs ahead, behind jobs of their kind that have started lately, up to ``limit`` each.

    Where nobody waits in the cluster of such a job, the next job of another cluster follows it.
    """
    started = list(state.changed.started)
    queues = _queues(state) if started else {}
    if not queues:
        return
    last: dict[str, tuple[Run, str, PendingJob, int]] = {}
    """Run -> (that run, the last run that follows it, the job of that one, how many runs follow)."""
    # A supervisor may have two runs here: the rules have not seen the end of the first yet. The latest leads.
    latest = {run.supervisor: run for run_id in started if (run := state.runs.get(run_id)) is not None}
    use = use_of(state.ledger, state.running, now)
    for run in latest.values():
        if _leads(state, run) and _keeps_limits(state, use, run):
            last[run.run_id] = run, run.run_id, state.requests[run.job_id], 0
            for length, after in enumerate(state.ahead.chain(run.run_id), 1):
                last[run.run_id] = run, after.run.run_id, after.start.job, length
    firsts = {name: _first_of(state.ledger, queue) for name, queue in queues.items() if len(queues) > 1}
    limit = min(limit, max(_LEAST, _MAX_TOGETHER // max(1, len(state.runs))))
    for depth in range(1, limit + 1):
        for head, (run, before, like, length) in last.items():
            if length >= depth or (queue := queues.get(like.parent_id)) is None or _moves(state, before):
                continue
            job = _next(state, queue, now)
            if (
                job is None
                or _kind(job) != _kind(like)
                or _is_tried_again(like)
                or not _precedes(job, firsts)
            ):
                continue
            run_id = f"{job.job_id}.{job.attempt + 1}.0.{supply.name()}"
            yield RunAssignedAhead(run_id, job.job_id, before, run.supervisor, supply.revision())
            last[head] = run, run_id, job, depth
            if firsts and queue.jobs:
                firsts[job.parent_id] = _first_of(state.ledger, queue)
            else:
                firsts.pop(job.parent_id, None)
    alone = next((run for run, _, _, length in last.values() if not length), None)
    if limit and alone is not None and not state.ahead.runs and len(state.runs) <= _MAX_ALONE:
        if (job := _heir(state, queues, alone, now)) is not None:
            run_id = f"{job.job_id}.{job.attempt + 1}.0.{supply.name()}"
            yield RunAssignedAhead(run_id, job.job_id, alone.run_id, alone.supervisor, supply.revision())


def _moves(state: SchedulerState, run_id: str) -> bool:
    """Whether a run takes over the place of another cluster: nobody follows it before it has that."""
    return run_id in state.ahead.runs and state.ahead.runs[run_id].moves


def _heir(state: SchedulerState, queues: dict[str, Queue], run: Run, now: int) -> PendingJob | None:
    """The job of another cluster that starts in the place of a run, certainly and before all others."""
    parent_id = state.requests[run.job_id].parent_id
    if any(queue.kept or queue.shared for queue in queues.values()):
        return None
    firsts = {name: _first_of(state.ledger, queue) for name, queue in queues.items() if queue.jobs}
    if not firsts:
        return None
    name = min(firsts, key=lambda name: firsts[name].turn(parent_id))
    job = None if name == parent_id else _next(state, queues[name], now)
    if job is None or not _is_certain(state, run, job, now, borrows=parent_id not in firsts[name].grows_in):
        return None
    return job


def _is_certain(state: SchedulerState, run: Run, job: PendingJob, now: int, *, borrows: bool) -> bool:
    """Whether a job of another cluster starts in exactly the place of a run, once that is over.

    ``borrows``: loans may move for it.
    """
    ledger, like = state.ledger, state.requests[run.job_id]
    if (job.shape, job.spec, job.entry) != (like.shape, like.spec, like.entry) or job.shares_parent:
        return False
    if ledger.clusters[run.cluster_id].kind != JOB:
        return False
    if ledger.limits or has_limit(ledger.clusters[job.parent_id].queue):
        return False
    if any(allowance(ledger, ledger.clusters[cluster_id]) for cluster_id in growing(ledger, job.parent_id)):
        return False
    start = run_after(ledger, run, job, "", 0, 0).start
    with over(ledger, run):
        there = None if keeping(state, now) else moved(ledger, start)
    return there is not None and (
        borrows or all(step.returns is None and step.lends is None for step in there.growth)
    )


def _kind(job: PendingJob) -> tuple[str, str, str]:
    """What a job has in common with the job that takes its place, so that all limits count them alike."""
    return job.parent_id, job.user, job.shape


def _queues(state: SchedulerState) -> dict[str, Queue]:
    """The queues in which jobs wait, by cluster; none where the end of a run may be for others than the next job.

    So it is with bookings, nominations and preemptions, waiting tasks, fair shares, loans that are to come back or are
    kept back for their lender, and reservations where several queues wait.
    """
    clusters = state.ledger.clusters
    waiting = (queue for queue in state.queues.values() if queue.jobs and queue.parent_id in clusters)
    queues = {queue.parent_id: queue for queue in waiting if clusters[queue.parent_id].starts_jobs}
    if state.nominations or state.preemptions or any(queue.tasks for queue in state.tasks.queues.values()):
        return {}
    leases = state.leases.values()
    if state.ledger.timed:
        return {}
    if state.ledger.withheld or any(lease.state == CALLED or lease.expires_at for lease in leases):
        return {}
    if any(len(queue.shapes) > _MAX_CLASSES for queue in queues.values()):
        return {}
    if len(queues) == 1:
        return {} if is_fair(state.ledger, next(iter(queues))) else queues
    if len(queues) > _MAX_QUEUES or any(queue.kept or queue.shared for queue in queues.values()):
        return {}
    if any(queue.policy.order == FIFO or queue.policy.ageing_ns is not None for queue in queues.values()):
        return {}  # the second job of a queue may have a higher priority than the first
    return {} if any(is_fair(state.ledger, name) for name in (*queues, *state.running.of_parent)) else queues


class _First(NamedTuple):
    """The first job of a queue, as other queues see it."""

    job: PendingJob
    grows_in: frozenset[str | None]
    """The clusters whose free capacity is free to it without a loan of another cluster."""

    def turn(self, parent_id: str) -> Turn:
        """Its turn (``QueueScan.rank``) where the place of a run in a cluster comes free."""
        return turn_of(self.job.priority, self.job.job_id, is_held=parent_id not in self.grows_in)


def _precedes(job: PendingJob, firsts: Mapping[str, _First]) -> bool:
    """Whether a job in the place of a running one of its cluster starts before the first one of each other queue."""
    turn = turn_of(job.priority, job.job_id, is_held=False)
    return all(turn < first.turn(job.parent_id) for name, first in firsts.items() if name != job.parent_id)


def _first_of(ledger: Ledger, queue: Queue) -> _First:
    above = (ledger.clusters[cluster_id].parent_id for cluster_id in growing(ledger, queue.parent_id))
    return _First(queue.jobs[queue.first[1]], frozenset((queue.parent_id, *above)))


def _leads(state: SchedulerState, run: Run) -> bool:
    """Whether the end of a run certainly ends its job, and frees at once everything that the job has."""
    job = state.running.jobs.get(run.job_id)
    if job is None or run.task_id is not None or run.stop_reason is not None:
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
    own = run.cluster_id if cluster.kind == JOB else None
    if any(lease.job_id == run.job_id or lease.borrower_id == own for lease in state.leases.values()):
        return False  # a loan to the job, or for it, ends with it
    members = state.ledger.slots(run.cluster_id) if cluster.kind == JOB else ()
    nodes = [state.ledger.nodes[node_id] for node_id in {run.node_id, *(vnode.node_id for vnode in members)}]
    return all(node.schedulable and node.source != RAY and not node.fences for node in nodes)


def _keeps_limits(state: SchedulerState, use: LimitUse, run: Run) -> bool:
    """Whether the limits let a job start in the place of one like it."""
    job = state.running.jobs[run.job_id]
    return may_follow(state.ledger.clusters[job.parent_id].queue, state.running, use, job)


def _is_tried_again(job: PendingJob | RunningJob) -> bool:
    """Whether a job may be tried again if this attempt fails; for a waiting job, its next attempt."""
    attempt = job.attempt + isinstance(job, PendingJob)
    return attempt - job.preemptions <= _retries(job.rules)


@lru_cache
def _retries(rules: str) -> int:
    return int(json.loads(rules).get("max_retries", 0))


def _next(state: SchedulerState, queue: Queue, now: int) -> PendingJob | None:
    """The next job of a queue; None if it cannot be assigned ahead.

    The last one of a class stays in its queue, unless only one run is live: where another one ends first, there is
    then somebody for its place. Where a job must not be passed by others that fit, none leaves its queue while jobs of
    other shapes wait there: these would start at once, where it would have started if the run before it lasts.
    """
    if queue.policy.discipline != BEST_EFFORT and len(queue.shapes) > 1:
        return None
    if not queue.jobs:
        return None
    (_, job_id), alike = queue.heads[0]
    job = queue.jobs[job_id]
    if len(alike.order) == 1 and len(state.runs) > 1:
        return None
    return job if job.may_start(now) and not job.per_node else None
