"""Jobs that are alike: one verdict and one search serve all of them, however many wait."""

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
    """Queued jobs of one shape that are alike for the policy too, in order.

    ``user`` is empty where users do not count, ``priority`` 0 where nobody is preempted. A nominated job
    stands in a sub-queue of its own, ``winner`` is its number; else that is 0.
    """

    shape: str
    user: str
    priority: int = 0
    winner: int = 0
    order: list[OrderKey] = field(default_factory=list)
    blocked_by: tuple[Reservation, ...] = ()
    """Reservations that kept a job of it back at the last look: these and more will do so again."""
    no_victims: tuple[str, object, int, int | None] | None = None
    """That ending others was no help for them, and what that verdict holds for; only ``preemption`` looks into it."""

    def is_blocked_by(self, binding: Sequence[Reservation]) -> bool:
        """Whether it is known that these leave too little free."""
        return bool(self.blocked_by) and all(
            any(one is other for other in binding) for one in self.blocked_by
        )


class Verdict(NamedTuple):
    """Why the jobs of a scheduling class do not start, and for what that holds."""

    reason: str
    message: str
    valid_for: int | None = None
    """The stamp of the free capacity in which it certainly holds; None: it depends on other clusters, too."""
    exhausted: bool = False
    """The look ended at its step budget, so it proved nothing."""
    nominations: frozenset[int] = frozenset()
    """Those that the look could use: a job that may use others, too, has to be tried itself."""


@dataclass(slots=True)
class SchedulingClass:
    """The queued jobs of one shape and the verdict on them (None: not judged yet)."""

    example: PendingJob
    sub_queues: dict[SubQueueKey, SubQueue] = field(default_factory=dict)
    verdict: Verdict | None = None
    """That of the last look."""
    grown: list[str] | None = None
    """Virtual nodes in which something came free since that may help; None: nothing did."""
    places: Places = field(default_factory=dict)
    """Where its gang goes, by the free capacity of the cluster."""
    _count: UpperBound | None = None

    @property
    def count(self) -> UpperBound:
        """What its gang asks about free capacity."""
        if self._count is None:
            self._count = UpperBound(self.example.spec)
        return self._count

    @property
    def blocked(self) -> Verdict | None:
        """The verdict, if nothing has happened that may help."""
        return self.verdict if self.grown is None else None

    def judge(self, verdict: Verdict | None) -> None:
        """Take over the verdict of a look; None: there is none any more."""
        self.verdict, self.grown = verdict, None

    def forget(self) -> None:
        """Forget all verdicts."""
        self.judge(None)
        for sub_queue in self.sub_queues.values():
            sub_queue.blocked_by, sub_queue.no_victims = (), None

    def forget_nominations(self) -> None:
        """Others may be used now: who may use any has to be tried."""
        if self.verdict is not None:
            self.verdict = self.verdict._replace(nominations=frozenset())

    @property
    def order(self) -> Iterator[OrderKey]:
        """All its jobs, in order."""
        return merge(*(sub_queue.order for sub_queue in self.sub_queues.values()))
