"""The heads of one scan: the first jobs of a queue's sub-queues, and jobs behind those that were passed.

Thousands may wait, and nearly all are known to wait on. So only those whose turn has come, or may come out of order,
are lined up; the others stand behind them in the order of the queue, and a scan passes over them by what their shapes
need.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from vctl.core.jobs import PendingJob
from vctl.core.queue_policy import QueuePolicy
from vctl.scheduler.orders import OrderKey, order_key
from vctl.scheduler.reservations import FOR_EVER, Reservation
from vctl.scheduler.scheduling_class import SchedulingClass, SubQueue


class Candidates:
    """Iterator over the jobs of a sub-queue that may start now, in order."""

    def __init__(
        self, jobs: Mapping[int, PendingJob], policy: QueuePolicy, sub_queue: SubQueue, now_ns: int
    ) -> None:
        self._jobs, self._policy = jobs, policy
        self._rest: Iterator[OrderKey] = iter(sub_queue.order)
        self._order = sub_queue.order
        self._now_ns = now_ns
        self._below_ns: int | None = None
        self._also: Collection[int] = ()

    def __iter__(self) -> Candidates:
        return self

    def __next__(self) -> PendingJob:
        jobs, below_ns = self._jobs, self._below_ns
        for _, job_id in self._rest:
            job = jobs[job_id]
            if below_ns is not None and job_id not in self._also:
                if job.time_limit_ns is None or job.time_limit_ns >= below_ns:
                    continue
            if job.may_start(self._now_ns):
                return job
        raise StopIteration

    def shorter_than(self, job: PendingJob, also: Collection[int]) -> None:
        """From now on, yield only jobs with a shorter time limit than this job, and the jobs in ``also``."""
        if job.time_limit_ns is not None:
            below_ns = self._below_ns
            self._below_ns = job.time_limit_ns if below_ns is None else min(below_ns, job.time_limit_ns)
        elif self._below_ns is None:
            self._below_ns = FOR_EVER
        self._also = also

    def only(self, job: PendingJob, these: Collection[int]) -> None:
        """From now on, yield only those of these jobs that stand behind this job in the sub-queue."""
        last, found = order_key(job, self._policy), []
        for job_id in these:
            other = self._jobs[job_id]
            if other.shape == job.shape and (key := order_key(other, self._policy)) > last:
                at = bisect_left(self._order, key)
                if at < len(self._order) and self._order[at] == key:
                    found.append(key)
        self._rest = iter(sorted(found))


Head = tuple[float, OrderKey, SubQueue, Candidates | None]
"""(Share of the user, key of the first job, sub-queue, the jobs behind it or None before the first try)."""

FEW = 32
"""Of so many shapes that may need a look the first is sought; of more, they are found among the heads in order."""


class Heads:
    """Heads in the order of their turns. Those behind are of users whose shares do not count."""

    def __init__(
        self, lined_up: Iterable[Head] = (), behind: Sequence[tuple[OrderKey, SubQueue]] = (), at: int = 0
    ) -> None:
        self.lined_up = list(lined_up)
        heapify(self.lined_up)
        self._behind, self._at = behind, at

    @property
    def is_empty(self) -> bool:
        """Whether none is left."""
        return not self.lined_up and not self.has_behind

    @property
    def has_behind(self) -> bool:
        """Whether some are not lined up."""
        return self._at < len(self._behind)

    @property
    def first(self) -> OrderKey:
        """The key of the next one."""
        return self._behind[self._at][0] if self._is_next_behind() else self.lined_up[0][1]

    def _is_next_behind(self) -> bool:
        return self.has_behind and (not self.lined_up or self._behind[self._at][0] < self.lined_up[0][1])

    def push(self, head: Head) -> None:
        """Line one up."""
        heappush(self.lined_up, head)

    def pop(self) -> Head:
        """Take out the next one."""
        if not self._is_next_behind():
            return heappop(self.lined_up)
        key, sub_queue = self._behind[self._at]
        self._at += 1
        return 0.0, key, sub_queue, None

    def line_up_all(self) -> list[Head]:
        """Line up those behind, too."""
        self.lined_up += [(0.0, key, sub_queue, None) for key, sub_queue in self._behind[self._at :]]
        self._at = len(self._behind)
        heapify(self.lined_up)
        return self.lined_up

    def retain(self, is_retained: Callable[[Head], bool]) -> None:
        """Drop all others of those that are lined up."""
        self.lined_up = list(filter(is_retained, self.lined_up))
        heapify(self.lined_up)

    def pass_over(
        self, shapes: Mapping[str, SchedulingClass], names: Set[str], needs_look: Callable[[str], bool]
    ) -> int:
        """Pass over those behind up to the first one that needs a look; returns how many were looked at.

        ``names``: all shapes that may need one.
        """
        behind, heads = self._behind, self._behind[self._at :]
        if len(names) <= FEW:
            ahead = heads[0][0]
            some = (one for name in names for one in shapes[name].sub_queues.values())
            heads = sorted(((one.order[0], one) for one in some if one.order[0] >= ahead), key=itemgetter(0))
        for number, (key, one) in enumerate(heads):
            if one.shape in names and needs_look(one.shape):
                self._at = bisect_left(behind, key, lo=self._at, key=itemgetter(0))
                return number
        self._at = len(behind)
        return len(heads)


class Rest(NamedTuple):
    """Where a scan was cut, if it needs no second look at what it has come to."""

    heads: Heads
    """The heads that it has not come to; the scan that goes on takes them over."""
    said: set[str]
    """The wait keys whose reason was reported."""
    seen: set[int]
    """The jobs whose reservation, or lack of one, was settled."""
    kept_off: set[Reservation]
    """The reservations that have kept a job from starting."""
