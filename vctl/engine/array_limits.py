"""The running limits of arrays: which members wait in the queue or run, and which wait for a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True)
class Window:
    """The members of one array: ``open`` may run or do, ``waiting`` have no place yet (a heap; may be outdated)."""

    at_once: int
    open: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)

    @property
    def has_capacity(self) -> bool:
        """Whether another member may be let in."""
        return bool(self.waiting) and len(self.open) < self.at_once


class ArrayLimits:
    """Every array with a limit of which a member is not over."""

    def __init__(self) -> None:
        self.array_limits: dict[str, Window] = {}
        self.changed: set[str] = set()

    def let_in(self, array_id: str, job_id: int) -> None:
        """A member waits in the queue or runs."""
        self.changed.add(array_id)
        self.array_limits[array_id].open.add(job_id)

    def keep_out(self, array_id: str, job_id: int, *, waits: bool) -> None:
        """A member has no place; ``waits``: for nothing else."""
        self.leave(array_id, job_id)
        if waits:
            heappush(self.array_limits[array_id].waiting, job_id)

    def leave(self, array_id: str | None, job_id: int) -> None:
        """A member is over."""
        window = self.array_limits.get(array_id or "")
        if array_id is not None and window is not None:
            window.open.discard(job_id)
            self.changed.add(array_id)

    def next(self, window: Window) -> int:
        """The member that gets the next place, unless that is outdated."""
        return heappop(window.waiting)

    @property
    def may_slide(self) -> bool:
        """Whether a place is free that somebody waits for."""
        return any(self.array_limits[array_id].has_capacity for array_id in self.changed)
