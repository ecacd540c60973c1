"""The running limit of arrays: which members are in the queue or run, and which wait for a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.ops import gates
from vctl.store import arrays, jobs
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.daemon.mirror import Mirror


@dataclass(slots=True)
class Window:
    """The members of one array: ``open`` may run or do, ``waiting`` have no place yet (a heap; may be outdated)."""

    at_once: int
    open: set[int] = field(default_factory=set)
    waiting: list[int] = field(default_factory=list)

    @property
    def has_room(self) -> bool:
        """Whether another member may be let in."""
        return bool(self.waiting) and len(self.open) < self.at_once


class Windows:
    """Every array with a limit of which a member is not over."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._changed: set[str] = set()

    def load(self, store: Store) -> None:
        """Read all of them."""
        for row in arrays.limited(store):
            self._windows.setdefault(row["array_id"], Window(row["at_once"]))
            self.take(store, row)

    def take(self, store: Store, row: Row) -> None:
        """Take over the row of a member."""
        array_id, job_id = row["array_id"], row["job_id"]
        if array_id is None:
            return
        window = self._windows.get(array_id)
        if window is None:
            limit = None if row["status"] in jb.FINAL else arrays.at_once(store, array_id)
            if limit is None:
                return
            window = self._windows[array_id] = Window(limit)
        self._changed.add(array_id)
        if row["status"] in jb.FINAL or row["closed"]:
            window.open.discard(job_id)
            if row["status"] == jb.PENDING and not row["held"] and not row["waits_for"]:
                heappush(window.waiting, job_id)
        else:
            window.open.add(job_id)

    def leave(self, row: Row) -> None:
        """A member is over."""
        window = self._windows.get(row["array_id"])
        if window is not None:
            window.open.discard(row["job_id"])
            self._changed.add(row["array_id"])

    def slide(self, store: Store, mirror: Mirror) -> None:
        """Let in as many as there is room for, in a transaction that is open."""
        for array_id in sorted(self._changed):
            window = self._windows[array_id]
            while window.has_room:
                job_id = heappop(window.waiting)
                row = jobs.get(store, job_id)
                if row is None or row["status"] != jb.PENDING or not row["closed"] or row["held"]:
                    continue  # it was outdated
                arrays.set_closed(store, job_id, closed=False)
                gates.refresh(store, job_id)
                mirror.reload_job(store, job_id)
            if not (window.open or window.waiting):
                del self._windows[array_id]
        self._changed.clear()

    @property
    def may_slide(self) -> bool:
        """Whether ``slide`` has something to do."""
        return any(self._windows[array_id].has_room for array_id in self._changed)
