"""One scheduling round: the steps in order and nothing else. Reads its arguments, leaves the ledger as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.scheduler.feasibility import ever
from vctl.scheduler.placement import Placed, Unplaced, place
from vctl.scheduler.plan import Plan, Start, Wait, apply, revert, start_of
from vctl.scheduler.queueing import Queue, Shape, by_priority

MOST_STARTS = 256
"""Starts in one round: what is committed together, so that a burst still becomes visible step by step."""


def decide(ledger: Ledger, queues: Mapping[str, Queue], *, now_ns: int) -> Plan:
    """Plan one round over all queues.

    Best-effort discipline: in order of priority and arrival, later jobs may pass one that does not fit.
    A shape that does not fit is judged once; all its jobs share the verdict.
    """
    starts: list[Start] = []
    waits: list[Wait] = []
    try:
        for parent_id in sorted(queues):
            queues[parent_id].reconsider(ledger, ledger.grown.pop(parent_id, ()))
            _decide_queue(ledger, queues[parent_id], starts, waits, now_ns)
    finally:
        for start in reversed(starts):
            revert(ledger, start)
        ledger.grown.clear()  # what the reverts gave back was never gone
    cleared = tuple((queue.parent_id, shape) for queue in queues.values() for shape in sorted(queue.emptied))
    return Plan(tuple(starts), tuple(waits), cleared)


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
        found = place(ledger, queue.parent_id, job.spec, job.entry)
        if isinstance(found, Placed):
            start = start_of(ledger, job, found)
            apply(ledger, start)
            starts.append(start)
            _push_next(heads, name, rest)
        else:
            reason, message = _verdict(ledger, job, found)
            queue.shapes[name].exhausted = found.exhausted
            _block(queue, name, queue.shapes[name], reason, message, waits)


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


def _verdict(ledger: Ledger, job: PendingJob, found: Unplaced) -> tuple[str, str]:
    never = ever(ledger, job.parent_id, job.spec, job.entry)
    if never is not None and not never.exhausted:
        return jb.INFEASIBLE, never.message
    return jb.INSUFFICIENT, found.message


def _block(queue: Queue, name: str, shape: Shape, reason: str, message: str, waits: list[Wait]) -> None:
    if shape.blocked != (reason, message):
        waits.append(Wait(queue.parent_id, name, reason, message))
    shape.blocked = (reason, message)
