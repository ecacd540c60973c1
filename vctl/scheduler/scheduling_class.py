"""Scheduling classes: the queued jobs of one shape, so that one verdict and one search serve all of them.

A class is divided into sub-queues of jobs that are equal for the queue policy, too (same user, priority, nomination).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple

from vctl.core.jobs import PendingJob
from vctl.scheduler.orders import OrderKey
from vctl.scheduler.reservations import Reservation
from vctl.scheduler.upper_bound import UpperBound

if TYPE_CHECKING:
    from vctl.scheduler.placement import Places

SubQueueKey = tuple[str, int, int]


@dataclass(slots=True)
class SubQueue:
    """Queued jobs of one shape that are equal for the queue policy, in order.

    ``user`` is empty where users do not count, ``priority`` is 0 where no job is preempted. A nominated job has a
    sub-queue of its own; then ``winner`` is its number, else 0.
    """

    shape: str
    user: str
    priority: int = 0
    winner: int = 0
    order: list[OrderKey] = field(default_factory=list)
    blocked_by: tuple[Reservation, ...] = ()
    """Reservations that kept its first job back at the last attempt. They keep it back again, also with others."""
    no_victims: tuple[str, object, int, int | None] | None = None
    """The verdict that ending other jobs does not help, and the state for which it holds (see ``preemption``)."""

    def is_blocked_by(self, binding: Sequence[Reservation]) -> bool:
        """Whether these reservations are known to leave too little free."""
        return bool(self.blocked_by) and all(
            any(one is reservation for reservation in binding) for one in self.blocked_by
        )


class Verdict(NamedTuple):
    """Why the jobs of a scheduling class do not start, and how long that is known to hold."""

    reason: str
    message: str
    valid_for: int | None = None
    """The stamp of the free capacity for which it certainly holds; None: it depends on other clusters, too."""
    exhausted: bool = False
    """The search ended at its step budget, so it proved nothing."""
    nominations: frozenset[int] = frozenset()
    """The nominations that the search could use. A job that may use another one has to be tried itself."""


@dataclass(slots=True)
class SchedulingClass:
    """The queued jobs of one shape and the verdict on them (None: not judged yet)."""

    example: PendingJob
    sub_queues: dict[SubQueueKey, SubQueue] = field(default_factory=dict)
    verdict: Verdict | None = None
    """The verdict of the last attempt."""
    grown: list[str] | None = None
    """Virtual nodes in which something came free since then that may help; None: there are none."""
    places: Places = field(default_factory=dict)
    """Places of its gang by the free capacity of the cluster."""
    _count: UpperBound | None = None

    @property
    def count(self) -> UpperBound:
        """The upper bound on how many of its pieces fit."""
        if self._count is None:
            self._count = UpperBound(self.example.spec)
        return self._count

    @property
    def blocked(self) -> Verdict | None:
        """The verdict, unless something came free that may help."""
        return self.verdict if self.grown is None else None

    def judge(self, verdict: Verdict | None) -> None:
        """Take over the verdict of an attempt; None: there is no verdict any more."""
        self.verdict, self.grown = verdict, None

    def forget(self) -> None:
        """Forget all verdicts."""
        self.judge(None)
        for sub_queue in self.sub_queues.values():
            sub_queue.blocked_by, sub_queue.no_victims = (), None

    def forget_nominations(self) -> None:
        """The nominations have changed: a job that may use one has to be tried."""
        if self.verdict is not None:
            self.verdict = self.verdict._replace(nominations=frozenset())

    @property
    def order(self) -> Iterator[OrderKey]:
        """The keys of all its jobs, in order."""
        return merge(*(sub_queue.order for sub_queue in self.sub_queues.values()))
