"""Scheduling classes: the queued jobs of one shape, so that one verdict and one search serve all of them.

A class is divided into sub-queues: the jobs of one sub-queue are equal for the queue policy, too (same user,
priority and nomination).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import merge
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from vctl.core.jobs import INFEASIBLE, INSUFFICIENT, PendingJob
from vctl.core.values import field, value
from vctl.scheduler.orders import OrderKey
from vctl.scheduler.reservations import Reservation
from vctl.scheduler.upper_bound import UpperBound

if TYPE_CHECKING:
    from vctl.scheduler.placement import Places

SubQueueKey = tuple[str, int, int]


@value(slots=True)
class SubQueue:
    """Queued jobs of one shape that are equal for the queue policy, in order.

    ``user`` is empty if users do not count, ``priority`` is 0 if the queue does not preempt. A nominated job
    has a sub-queue of its own, whose ``winner`` is its number; else that is 0.
    """

    shape: str
    user: str
    priority: int = 0
    winner: int = 0
    order: list[OrderKey] = field(default_factory=list)
    blocked_by: tuple[Reservation, ...] = ()
    """Reservations that kept its first job back at the last attempt; they do so while all of them bind."""
    blocked_at: tuple[int, int] = (0, 0)
    """``Doubts.regards`` and ``Doubts.frees`` at that attempt."""
    no_victims: tuple[str, object, int, int | None] | None = None
    """The verdict that ending other jobs does not help, and until when it holds (see ``preemption``)."""

    def is_blocked_by(self, binding: Sequence[Reservation]) -> bool:
        """Whether these reservations are known to leave too little free capacity."""
        return bool(self.blocked_by) and all(
            any(one is reservation for reservation in binding) for one in self.blocked_by
        )


class Verdict(NamedTuple):
    """Why the jobs of a scheduling class do not start, and how long that is known to hold."""

    reason: str
    message: str
    valid_for: int | None = None
    """The stamp of the free capacity for which the verdict holds; None: it depends on other clusters, too."""
    exhausted: bool = False
    """Whether the search ended at its step budget, so that the verdict is no proof."""
    nominations: frozenset[int] = frozenset()
    """The nominations that the search could use. A job that may use another one must be tried itself."""

    @property
    def is_sure(self) -> bool:
        """Whether it was a proof for what was free then."""
        return self.reason in (INFEASIBLE, INSUFFICIENT) and not (self.nominations or self.exhausted)


@value(slots=True)
class Doubts:
    """Which classes of a queue may need a look: they share this, so that nobody has to go through all of them."""

    regards: int = 0
    """The number of times that something came free elsewhere that may help any class (``Queue.regard``)."""
    frees: int = 0
    """The number of times that something came free in the cluster, which cannot grow (``Queue.reconsider``)."""
    freed: dict[str, int] = field(default_factory=dict)
    """Virtual node of the cluster -> when something came free there last, the latest one at the end."""
    known_at: int = 0
    """``frees`` when a scan was over: all classes that are not ``unreported`` stood then."""
    unreported: dict[str, None] = field(default_factory=dict)
    """The classes without a verdict that stood at the last look and was reported for all of their sub-queues."""
    unsure: dict[str, None] = field(default_factory=dict)
    """The classes whose verdict is no proof."""

    @property
    def now(self) -> tuple[int, int]:
        """Both numbers of times."""
        return self.regards, self.frees

    def note_freed(self, slots: Iterable[str]) -> None:
        """Note that something came free in these virtual nodes."""
        self.frees += 1
        for one in slots:
            self.freed.pop(one, None)
            self.freed[one] = self.frees

    def keep_freed(self, slots: Container[str]) -> None:
        """Forget virtual nodes that are gone: keep these."""
        self.freed = {one: frees for one, frees in self.freed.items() if one in slots}

    def freed_since(self, frees: int) -> list[str]:
        """The virtual nodes in which something came free since that time."""
        return [one for one, _ in takewhile(lambda item: item[1] > frees, reversed(self.freed.items()))]

    def drop(self, name: str) -> None:
        """Forget a class that has no jobs any more."""
        self.unreported.pop(name, None)
        self.unsure.pop(name, None)


@value(slots=True)
class SchedulingClass:
    """The queued jobs of one shape and the verdict on them (None: not judged yet)."""

    example: PendingJob
    count: UpperBound
    """The upper bound on the number of its pieces that fit."""
    doubts: Doubts = field(default_factory=Doubts)
    sub_queues: dict[SubQueueKey, SubQueue] = field(default_factory=dict)
    verdict: Verdict | None = None
    """The verdict of the last attempt."""
    judged_at: int = 0
    """``Doubts.regards`` at the last attempt."""
    stood_at: int = 0
    """``Doubts.frees`` at the last attempt, or when the verdict was found to stand."""
    places: Places = field(default_factory=dict)
    """Places of its gang by the free capacity of the cluster."""

    @property
    def is_reported(self) -> bool:
        """Whether the verdict stood when it was looked at last, and was reported for all of its sub-queues."""
        return self.example.shape not in self.doubts.unreported

    @property
    def freed(self) -> list[str]:
        """The virtual nodes of its cluster in which something came free since the verdict was known to stand."""
        doubts = self.doubts
        return doubts.freed_since(max(self.stood_at, doubts.known_at) if self.is_reported else self.stood_at)

    def note_reported(self, *, is_reported: bool) -> None:
        """Note whether that is so."""
        if is_reported:
            self.doubts.unreported.pop(self.example.shape, None)
        else:
            self.doubts.unreported[self.example.shape] = None

    def judge(self, verdict: Verdict | None) -> None:
        """Take over the verdict of an attempt; None: there is no verdict any more."""
        self.verdict, self.judged_at, self.stood_at = verdict, self.doubts.regards, self.doubts.frees
        self.note_reported(is_reported=False)
        if verdict is None or verdict.is_sure:
            self.doubts.unsure.pop(self.example.shape, None)
        else:
            self.doubts.unsure[self.example.shape] = None

    @property
    def is_doubted(self) -> bool:
        """Whether something came free elsewhere since the verdict."""
        return self.verdict is not None and self.judged_at != self.doubts.regards

    def forget(self) -> None:
        """Forget all verdicts."""
        self.judge(None)
        for sub_queue in self.sub_queues.values():
            sub_queue.blocked_by, sub_queue.no_victims = (), None

    def forget_nominations(self) -> None:
        """Note that the nominations have changed: a job that may use one must be tried."""
        if self.verdict is not None:
            self.verdict = self.verdict._replace(nominations=frozenset())

    @property
    def order(self) -> Iterator[OrderKey]:
        """The keys of all its jobs, in order."""
        return merge(*(sub_queue.order for sub_queue in self.sub_queues.values()))
