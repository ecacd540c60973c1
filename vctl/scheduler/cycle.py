"""One scheduling round: the steps in order and nothing else. Reads its arguments, leaves the ledger as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.scheduler.feasibility import ever
from vctl.scheduler.gang_growth import grow_for_gang
from vctl.scheduler.placement import Placed, Unplaced, place
from vctl.scheduler.plan import Plan, Start, Wait, revert, start_of, take
from vctl.scheduler.plan_tasks import TaskStart, TaskWait, decide_tasks, revert_task
from vctl.scheduler.queueing import Queue, Shape, by_priority
from vctl.scheduler.tasking import TaskQueue, ancestors

MOST_STARTS = 256
"""Starts in one round: what is committed together, so that a burst still becomes visible step by step."""


def decide(
    ledger: Ledger, queues: Mapping[str, Queue], tasks: Mapping[str, TaskQueue] | None = None, *, now_ns: int
) -> Plan:
    """Plan one round over all queues: tasks of running jobs first, then jobs.

    Best-effort discipline: in order of priority and arrival, later jobs may pass one that does not fit.
    A shape that does not fit is judged once; all its jobs share the verdict.
    """
    starts: list[Start] = []
    waits: list[Wait] = []
    task_starts: list[TaskStart] = []
    task_waits: list[TaskWait] = []
    grown = dict(ledger.grown)
    try:
        if tasks:
            task_starts, task_waits = decide_tasks(ledger, tasks, set(grown), MOST_STARTS)
        for parent_id in sorted(queues):
            _reconsider(ledger, queues[parent_id], grown)
            _decide_queue(ledger, queues[parent_id], starts, waits, now_ns)
    finally:
        for start in reversed(starts):
            revert(ledger, start)
        for task in reversed(task_starts):
            revert_task(ledger, task)
        ledger.grown.clear()  # what the reverts gave back was never gone
    cleared = tuple((queue.parent_id, shape) for queue in queues.values() for shape in sorted(queue.emptied))
    return Plan(tuple(starts), tuple(waits), cleared, tuple(task_starts), tuple(task_waits))


def _reconsider(ledger: Ledger, queue: Queue, grown: Mapping[str, set[str]]) -> None:
    """Look again at what the growth since the last round could help: in the parent, or above it if it can grow."""
    parent = ledger.clusters.get(queue.parent_id)
    if parent is not None and parent.spec.flexible and len(grown) > 0:
        if not set(grown).isdisjoint(ancestors(ledger, queue.parent_id)[1:]):
            queue.forget_verdicts()
    queue.reconsider(ledger, grown.get(queue.parent_id, ()))


def _decide_queue(ledger: Ledger, queue: Queue, starts: list[Start], waits: list[Wait], now_ns: int) -> None:
    parent = ledger.clusters.get(queue.parent_id)
    if parent is None:
        return
    if parent.state != "ACTIVE":
        for name, shape in queue.shapes.items():
            _block(queue, name, shape, jb.CLUSTER_STOPPED, f"{queue.parent_id} admits no jobs", waits)
        return
    heads: list[tuple[tuple[int, int], str, Iterator[PendingJob], PendingJob]] = []
    for name, shape in queue.shapes.items():
        if shape.blocked is None:
            _push_next(heads, name, queue.candidates(shape, now_ns), push=False)
    heapify(heads)
    while heads and len(starts) < MOST_STARTS:
        _, name, rest, job = heappop(heads)
        if queue.is_hopeless(ledger, queue.shapes[name]):
            continue
        start, found = _try(ledger, job)
        if start is not None:
            starts.append(start)
            _push_next(heads, name, rest)
        elif found is not None:
            reason, message = _verdict(ledger, job, queue.shapes[name], found)
            queue.shapes[name].exhausted = found.exhausted
            _block(queue, name, queue.shapes[name], reason, message, waits)


def _try(ledger: Ledger, job: PendingJob) -> tuple[Start | None, Unplaced | None]:
    """Place a job, letting its parent grow when it has no room; what is started is applied to the ledger."""
    found = place(ledger, job.parent_id, job.spec, job.entry)
    if isinstance(found, Placed):
        start = start_of(ledger, job, found)
        take(ledger, start, start.run_id)
        return start, None
    can_grow = ledger.clusters[job.parent_id].spec.flexible
    grown = grow_for_gang(ledger, job.parent_id, job.spec, job.entry) if can_grow else None
    if grown is None:
        return None, found
    steps, placed = grown
    start = start_of(ledger, job, placed, steps)
    take(ledger, start, start.run_id)
    return start, None


def _push_next(
    heads: list[tuple[tuple[int, int], str, Iterator[PendingJob], PendingJob]],
    name: str,
    rest: Iterator[PendingJob],
    *,
    push: bool = True,
) -> None:
    job = next(rest, None)
    if job is not None:
        entry = (by_priority(job), name, rest, job)
        heappush(heads, entry) if push else heads.append(entry)


def _verdict(ledger: Ledger, job: PendingJob, shape: Shape, found: Unplaced) -> tuple[str, str]:
    """Reason and message; whether it could ever run depends only on what the parent has, so it is asked once."""
    version = ledger.versions.get(job.parent_id, 0)
    if shape.never is None or shape.never[0] != version:
        never = ever(ledger, job.parent_id, job.spec, job.entry)
        shape.never = (version, None if never is None else never.message)
    can_gain = ledger.may_gain_nodes or ledger.clusters[job.parent_id].spec.flexible
    if shape.never[1] is not None and not can_gain:
        return jb.INFEASIBLE, shape.never[1]
    return jb.INSUFFICIENT, found.message


def _block(queue: Queue, name: str, shape: Shape, reason: str, message: str, waits: list[Wait]) -> None:
    if (shape.blocked or shape.before) != (reason, message):
        waits.append(Wait(queue.parent_id, name, reason, message))
    shape.blocked, shape.before = (reason, message), None
