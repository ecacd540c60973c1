"""Queues: one per cluster that jobs are sent to, grouped by shape so that equal jobs are judged once.

A shape that did not fit is not looked at again until something grew that could help it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import BACKFILL, DEFAULT, FAIR, QueuePolicy
from vctl.scheduler.feasibility import could_help
from vctl.scheduler.orders import OrderKey, order_key

LaneKey = tuple[str, int | None]


@dataclass(slots=True)
class Lane:
    """Queued jobs of one shape that are alike for the policy too, in order.

    ``user`` is empty where users do not count, ``limit_ns`` None where time limits do not.
    """

    shape: str
    user: str
    limit_ns: int | None
    order: list[OrderKey] = field(default_factory=list)
    walled: object = None
    """The reservations that kept its jobs back at the last look; they do as long as these are the same."""


@dataclass(slots=True)
class Shape:
    """The queued jobs of one shape and the verdict on them (None: not judged yet)."""

    example: PendingJob
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    blocked: tuple[str, str] | None = None
    """(reason, message) of the last look."""
    before: tuple[str, str] | None = None
    """The verdict that growth in ``hope`` has lifted for this round."""
    hope: list[str] = field(default_factory=list)
    never: tuple[int, str | None] | None = None
    """(version of the parent, why it could never run or None): a judgement that holds until the parent changes."""
    exhausted: bool = False
    """That look ended at its step budget, so it proved nothing."""

    @property
    def order(self) -> Iterator[OrderKey]:
        """All its jobs, in order."""
        return merge(*(lane.order for lane in self.lanes.values()))


class Queue:
    """Pending jobs of one parent cluster."""

    def __init__(self, parent_id: str, policy: QueuePolicy = DEFAULT) -> None:
        self.parent_id = parent_id
        self.policy = policy
        self.jobs: dict[int, PendingJob] = {}
        self.shapes: dict[str, Shape] = {}
        self.timed: set[int] = set()
        """Jobs with a begin time."""
        self.emptied: set[str] = set()
        """Shapes (and those of a user) whose last job left since the last commit."""
        self.told: dict[str, tuple[str, str]] = {}
        """Shape, or shape of a user -> (reason, message) that was told last."""
        self.kept: dict[int, object] = {}
        """Reservations of the last round, by job; only ``disciplines`` looks into them."""

    def put(self, job: PendingJob) -> None:
        """Add a job, or take over its new row (priority, hold)."""
        if job.job_id in self.jobs:
            self.drop(job.job_id)
        self.jobs[job.job_id] = job
        self._file(job)
        if job.begin_at_ns is not None:
            self.timed.add(job.job_id)

    def _file(self, job: PendingJob) -> None:
        shape = self.shapes.get(job.shape)
        if shape is None:
            shape = self.shapes[job.shape] = Shape(job)
        lane = shape.lanes.get(key := self._lane_key(job))
        if lane is None:
            lane = shape.lanes[key] = Lane(job.shape, *key)
            self.emptied.discard(self.wait_key(lane))
        insort(lane.order, order_key(job, self.policy))

    def drop(self, job_id: int) -> None:
        """A job left the queue."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        self.timed.discard(job_id)
        self.kept.pop(job_id, None)
        shape = self.shapes[job.shape]
        lane = shape.lanes[self._lane_key(job)]
        del lane.order[bisect_left(lane.order, order_key(job, self.policy))]
        if lane.order:
            return
        del shape.lanes[self._lane_key(job)]
        if not shape.lanes:
            del self.shapes[job.shape]
        key = self.wait_key(lane)
        if key not in self.shapes and not any(self.wait_key(other) == key for other in shape.lanes.values()):
            self.told.pop(key, None)
            self.emptied.add(key)

    def arrange(self, policy: QueuePolicy) -> None:
        """Follow new settings: order anew and judge anew."""
        if policy == self.policy:
            return
        told = set(self.told)
        self.policy = policy
        self.shapes.clear()
        self.told.clear()
        self.kept.clear()
        for job in self.jobs.values():
            self._file(job)
        keys = {self.wait_key(lane) for shape in self.shapes.values() for lane in shape.lanes.values()}
        self.emptied |= told - keys

    def wait_key(self, lane: Lane) -> str:
        """Under which name it is told why these jobs wait."""
        if self.policy.max_running_per_user is None:
            return lane.shape
        return f"{lane.shape};user={lane.user}"

    def _lane_key(self, job: PendingJob) -> LaneKey:
        policy = self.policy
        by_user = policy.order == FAIR or policy.max_running_per_user is not None
        limit_ns = job.time_limit_ns if policy.discipline == BACKFILL else None
        return (job.user if by_user else "", limit_ns)

    def reconsider(self, ledger: Ledger, grown: Iterable[str]) -> None:
        """Forget the verdict on every shape that what has grown could help."""
        slots = [vnode_id for vnode_id in grown if vnode_id in ledger.rooms]
        if not slots:
            return
        for shape in self.shapes.values():
            walled = [lane for lane in shape.lanes.values() if lane.walled is not None]
            if shape.blocked is None and not walled:
                continue
            if shape.exhausted or self.can_help(ledger, shape, slots):
                if shape.blocked is not None:
                    shape.before, shape.hope, shape.blocked = shape.blocked, slots, None
                for lane in walled:
                    lane.walled = None

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
            for lane in shape.lanes.values():
                lane.walled = None

    def delayed(self) -> Iterator[PendingJob]:
        """Jobs with a begin time."""
        return (self.jobs[job_id] for job_id in self.timed)

    def candidates(self, lane: Lane, now_ns: int) -> Iterator[PendingJob]:
        """Jobs of a lane that may start now, in order."""
        for _, job_id in lane.order:
            job = self.jobs[job_id]
            if job.may_start(now_ns):
                yield job
