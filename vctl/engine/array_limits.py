"""Which members of arrays wait in the queue or run, which wait for a place, and which get a row of their own next.

Members that wait alike behind each other are one row, and one ``PendingJob``, which stands for all of them. Only the
next ones to start have rows of their own: at most ``WINDOW`` that have not run yet, whatever the length of the array.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from vctl.core.jobs import PendingJob
from vctl.core.values import field, value

WINDOW = 2_048
"""The most members of an array that get rows of their own because they are next. They get them when fewer than half
of these are left; so half of it is more than a round starts (``MOST_STARTS``), and no round runs out of them."""
Kind = tuple[int, int | None]
"""What the order of a member depends on beside its number: its priority and its time limit, in ns."""


@value(slots=True)
class Window:
    """The members of one array that are not over."""

    at_once: int | None
    """How many members may run at once; None: all."""
    open: set[int] = field(default_factory=set)
    """The members with a place: they wait in the queue, or run. Without a limit nobody counts them."""
    closed: set[int] = field(default_factory=set)
    """The members without a place."""
    waiting: list[int] = field(default_factory=list)
    """The closed members that wait for nothing else, by number."""
    folded: dict[int, PendingJob] = field(default_factory=dict)
    """The jobs that stand for several members, by number."""
    rest: dict[Kind, list[int]] = field(default_factory=dict)
    """Those of them that wait for nothing else, by number."""
    next_of: dict[int, Kind] = field(default_factory=dict)
    """The members with rows of their own that have not run yet and wait for nothing but a place, or their turn."""
    counts: dict[Kind, int] = field(default_factory=dict)
    """How many of them there are."""

    @property
    def next(self) -> list[int]:
        """The members that get the free places."""
        return [] if self.at_once is None else self.waiting[: max(0, self.at_once - len(self.open))]

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to look after."""
        return not (self.folded or (self.at_once is not None and (self.open or self.closed)))

    def put(self, job: PendingJob) -> None:
        """Add or replace a member that waits, or those for which it stands."""
        self.take_out(job.job_id)
        kind, is_free = (job.priority, job.time_limit_ns), not (job.held or job.waits_for)
        if job.members > 1:
            self.folded[job.job_id] = job
            if is_free:
                insort(self.rest.setdefault(kind, []), job.job_id)
            return
        if is_free and not job.attempt:
            self.next_of[job.job_id] = kind
            self.counts[kind] = self.counts.get(kind, 0) + 1
        if not job.closed:
            self._open(job.job_id)
        else:
            self.closed.add(job.job_id)
            if is_free:
                insort(self.waiting, job.job_id)

    def run(self, job_id: int) -> None:
        """Note that a member runs."""
        self._count_out(job_id)
        self._open(job_id)

    def _open(self, job_id: int) -> None:
        if self.at_once is not None:
            self.open.add(job_id)

    def take_out(self, job_id: int) -> None:
        """Remove a member, or those for which it stands."""
        self.open.discard(job_id)
        self._count_out(job_id)
        if job_id in self.closed:
            self.closed.discard(job_id)
            place = bisect_left(self.waiting, job_id)
            if place < len(self.waiting) and self.waiting[place] == job_id:
                del self.waiting[place]
        if (job := self.folded.pop(job_id, None)) is not None and not (job.held or job.waits_for):
            kind = job.priority, job.time_limit_ns
            self.rest[kind].remove(job_id)
            if not self.rest[kind]:
                del self.rest[kind]

    def _count_out(self, job_id: int) -> None:
        if (kind := self.next_of.pop(job_id, None)) is not None:
            self.counts[kind] -= 1
            if not self.counts[kind]:
                del self.counts[kind]

    def short(self) -> Iterator[tuple[PendingJob, int]]:
        """Jobs that stand for several members of which some get rows of their own now, and how many do."""
        for kind, numbers in self.rest.items():
            left = self.counts.get(kind, 0)
            if left < (WINDOW + 1) // 2:
                first = self.folded[numbers[0]]
                yield first, min(first.members, WINDOW - left)


class ArrayLimits:
    """All arrays that have a running limit and a member that is not over, or members without rows of their own."""

    def __init__(self) -> None:
        self.array_limits: dict[str, Window] = {}
        self.ready: set[str] = set()
        """Arrays that have a free place and a member that waits for it."""
        self.short: set[str] = set()
        """Arrays of which some members get rows of their own now."""

    def limit(self, array_id: str, at_once: int | None) -> None:
        """Add an array with its limit; an array that is known keeps its limit."""
        self.array_limits.setdefault(array_id, Window(at_once))

    def drop(self, array_id: str) -> None:
        """Forget the limit of an array."""
        self.array_limits.pop(array_id, None)
        self.ready.discard(array_id)
        self.short.discard(array_id)

    def put(self, job: PendingJob) -> None:
        """Record that a member waits, with or without a place."""
        window = self.array_limits.get(job.array_id or "")
        if window is not None and job.array_id is not None:
            window.put(job)
            self._sort(job.array_id, window)

    def run(self, array_id: str | None, job_id: int) -> None:
        """Record that a member runs."""
        if array_id is not None and (window := self.array_limits.get(array_id)) is not None:
            window.run(job_id)
            self._sort(array_id, window)

    def leave(self, array_id: str | None, job_id: int) -> None:
        """Record that a member is over; with its last member the array is dropped."""
        if array_id is not None and (window := self.array_limits.get(array_id)) is not None:
            window.take_out(job_id)
            self._sort(array_id, window)
            self.settle(array_id)

    def settle(self, array_id: str) -> None:
        """Drop an array of which nothing is to be looked after."""
        if (window := self.array_limits.get(array_id)) is not None and window.is_over:
            del self.array_limits[array_id]

    def is_beyond(self, array_id: str | None) -> bool:
        """Whether more members of an array run than may: an edit has lowered its limit."""
        window = self.array_limits.get(array_id or "")
        return window is not None and window.at_once is not None and len(window.open) > window.at_once

    def _sort(self, array_id: str, window: Window) -> None:
        is_ready = bool(window.waiting) and window.at_once is not None and len(window.open) < window.at_once
        (self.ready.add if is_ready else self.ready.discard)(array_id)
        is_short = bool(window.rest) and any(True for _ in window.short())
        (self.short.add if is_short else self.short.discard)(array_id)

    def due(self) -> dict[str, list[int]]:
        """Array -> the members that get a place now."""
        return {array_id: self.array_limits[array_id].next for array_id in sorted(self.ready)}

    def to_unfold(self) -> list[tuple[PendingJob, int]]:
        """Jobs that stand for several members, and how many of these get rows of their own now."""
        return [one for array_id in sorted(self.short) for one in self.array_limits[array_id].short()]
