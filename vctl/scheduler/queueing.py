"""Queues: one per cluster that jobs are sent to, grouped by shape so that equal jobs are judged once.

A shape that did not fit is not looked at again until something grew that could help it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.scheduler.feasibility import could_help

OrderKey = tuple[int, int]


def by_priority(job: PendingJob) -> OrderKey:
    """Higher priority first, equals by arrival."""
    return (-job.priority, job.job_id)


@dataclass(slots=True)
class Shape:
    """The queued jobs of one shape, in order, and the verdict on them (None: not judged yet)."""

    example: PendingJob
    order: list[OrderKey] = field(default_factory=list)
    blocked: tuple[str, str] | None = None
    """(reason, message) of the last look."""
    before: tuple[str, str] | None = None
    """The verdict that growth in ``hope`` has lifted for this round."""
    hope: list[str] = field(default_factory=list)
    never: tuple[int, str | None] | None = None
    """(version of the parent, why it could never run or None): a judgement that holds until the parent changes."""
    exhausted: bool = False
    """That look ended at its step budget, so it proved nothing."""


class Queue:
    """Pending jobs of one parent cluster."""

    def __init__(self, parent_id: str) -> None:
        self.parent_id = parent_id
        self.jobs: dict[int, PendingJob] = {}
        self.shapes: dict[str, Shape] = {}
        self.timed: set[int] = set()
        """Jobs with a begin time."""
        self.emptied: set[str] = set()
        """Shapes whose last job left since the last commit."""

    def put(self, job: PendingJob) -> None:
        """Add a job, or take over its new row (priority, hold)."""
        if job.job_id in self.jobs:
            self.drop(job.job_id)
        self.jobs[job.job_id] = job
        shape = self.shapes.get(job.shape)
        if shape is None:
            shape = self.shapes[job.shape] = Shape(job)
            self.emptied.discard(job.shape)
        insort(shape.order, by_priority(job))
        if job.begin_at_ns is not None:
            self.timed.add(job.job_id)

    def drop(self, job_id: int) -> None:
        """A job left the queue."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        self.timed.discard(job_id)
        shape = self.shapes[job.shape]
        del shape.order[bisect_left(shape.order, by_priority(job))]
        if not shape.order:
            del self.shapes[job.shape]
            self.emptied.add(job.shape)

    def reconsider(self, ledger: Ledger, grown: Iterable[str]) -> None:
        """Forget the verdict on every shape that what has grown could help."""
        slots = [vnode_id for vnode_id in grown if vnode_id in ledger.rooms]
        if not slots:
            return
        for shape in self.shapes.values():
            if shape.blocked is None:
                continue
            if shape.exhausted or self.can_help(ledger, shape, slots):
                shape.before, shape.hope, shape.blocked = shape.blocked, slots, None

    def can_help(self, ledger: Ledger, shape: Shape, slots: list[str]) -> bool:
        """Whether room in these virtual nodes may be what a shape was waiting for."""
        job = shape.example
        return could_help(ledger, self.parent_id, job.spec, job.entry, slots)

    def is_hopeless(self, ledger: Ledger, shape: Shape) -> bool:
        """Whether others have taken by now what gave a blocked shape hope in this round; its verdict stands then."""
        if shape.before is None or shape.exhausted or self.can_help(ledger, shape, shape.hope):
            return False
        shape.blocked, shape.before = shape.before, None
        return True

    def forget_verdicts(self) -> None:
        """Judge every shape anew."""
        for shape in self.shapes.values():
            shape.blocked = shape.before = None

    def delayed(self) -> Iterator[PendingJob]:
        """Jobs with a begin time."""
        return (self.jobs[job_id] for job_id in self.timed)

    def candidates(self, shape: Shape, now_ns: int) -> Iterator[PendingJob]:
        """Jobs of a shape that may start now, in order."""
        for _, job_id in shape.order:
            job = self.jobs[job_id]
            if not job.held and (job.begin_at_ns is None or job.begin_at_ns <= now_ns):
                yield job
