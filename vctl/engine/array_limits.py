"""The running limits of arrays: which members wait in the queue or run, and which wait for a place."""

from __future__ import annotations

from bisect import bisect_left, insort

from vctl.core.jobs import PendingJob
from vctl.core.values import field, value


@value(slots=True)
class Window:
    """The members of one array that are not over."""

    at_once: int
    open: set[int] = field(default_factory=set)
    """The members with a place: they wait in the queue, or run."""
    closed: set[int] = field(default_factory=set)
    """The members without a place."""
    waiting: list[int] = field(default_factory=list)
    """The closed members that wait for nothing else, by number."""

    @property
    def next(self) -> list[int]:
        """The members that get the free places."""
        return self.waiting[: max(0, self.at_once - len(self.open))]


class ArrayLimits:
    """All arrays with a running limit and a member that is not over."""

    def __init__(self) -> None:
        self.array_limits: dict[str, Window] = {}
        self.ready: set[str] = set()
        """Arrays that have a free place and a member that waits for it."""

    def limit(self, array_id: str, at_once: int) -> None:
        """Add an array with its limit; an array that is known keeps its limit."""
        self.array_limits.setdefault(array_id, Window(at_once))

    def drop(self, array_id: str) -> None:
        """Forget the limit of an array."""
        self.array_limits.pop(array_id, None)
        self.ready.discard(array_id)

    def put(self, job: PendingJob) -> None:
        """Record that a member waits, with or without a place."""
        window = self.array_limits.get(job.array_id or "")
        if window is None or job.array_id is None:
            return
        self._take_out(window, job.job_id)
        if not job.closed:
            window.open.add(job.job_id)
        else:
            window.closed.add(job.job_id)
            if not (job.held or job.waits_for):
                insort(window.waiting, job.job_id)
        self._sort(job.array_id, window)

    def run(self, array_id: str | None, job_id: int) -> None:
        """Record that a member runs."""
        if array_id is not None and (window := self.array_limits.get(array_id)) is not None:
            window.open.add(job_id)
            self._sort(array_id, window)

    def leave(self, array_id: str | None, job_id: int) -> None:
        """Record that a member is over; with its last member the array is dropped."""
        window = self.array_limits.get(array_id or "")
        if window is None or array_id is None:
            return
        self._take_out(window, job_id)
        self._sort(array_id, window)
        if not (window.open or window.closed):
            del self.array_limits[array_id]

    def _take_out(self, window: Window, job_id: int) -> None:
        window.open.discard(job_id)
        if job_id in window.closed:
            window.closed.discard(job_id)
            place = bisect_left(window.waiting, job_id)
            if place < len(window.waiting) and window.waiting[place] == job_id:
                del window.waiting[place]

    def _sort(self, array_id: str, window: Window) -> None:
        is_ready = window.waiting and len(window.open) < window.at_once
        (self.ready.add if is_ready else self.ready.discard)(array_id)

    def due(self) -> dict[str, list[int]]:
        """Array -> the members that get a place now."""
        return {array_id: self.array_limits[array_id].next for array_id in sorted(self.ready)}
