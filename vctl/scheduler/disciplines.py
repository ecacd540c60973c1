"""Disciplines: what a job that does not fit means for those behind it. Each a function in a registry.

To add one: a function, an entry in ``DISCIPLINES``, a row in the table of ``tests/scheduler/test_disciplines.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, STRICT, QueuePolicy
from vctl.scheduler.backfill import Reservation, Returned, reserve, returned
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running


@dataclass(slots=True)
class Line:
    """The heads of one queue that were passed in this round, and what is kept for them."""

    ledger: Ledger
    queue: Queue
    policy: QueuePolicy
    running: Running
    now_ns: int
    stale: bool
    """Whether something came free since the last round, so that an earlier start may be found."""
    stopped_by: PendingJob | None = None
    """The head that nobody may pass."""
    heads: int = 0
    reserved: dict[int, Reservation] = field(default_factory=dict)
    _coming: Returned | None = None

    def kept_for(self, job: PendingJob) -> Reservation | None:
        """The reservation of the last round, if it still stands."""
        found = self.queue.kept.get(job.job_id)
        if isinstance(found, Reservation) and found.stands(self.ledger, self.queue.parent_id):
            return found
        return None

    def binding(self, job: PendingJob) -> list[Reservation]:
        """Reservations that a job must keep off when it starts now.

        Those of the heads it would pass; a head that has one itself respects all others that were given.
        """
        mine = list(self.reserved.values())
        own = self.kept_for(job)
        if own is not None and (own.start_ns is None or own.start_ns > self.now_ns):
            mine += self.others(job)  # before its own start is due, it leaves the others theirs
        end_ns = None if job.time_limit_ns is None else self.now_ns + job.time_limit_ns
        return [one for one in mine if one.binds(end_ns)]

    def others(self, job: PendingJob) -> list[Reservation]:
        """Reservations of the last round whose jobs have not been looked at in this one."""
        waiting = (self.queue.jobs.get(n) for n in self.queue.kept if n not in self.reserved)
        kept = (self.kept_for(one) for one in waiting if one is not None and one is not job)
        return [one for one in kept if one is not None]

    def coming(self) -> Returned:
        """What running jobs return by their limits; what starts in this round is not counted on."""
        if self._coming is None:
            self._coming = returned(self.ledger, self.queue.parent_id, self.running)
        return self._coming

    def starves(self, job: PendingJob) -> bool:
        """Whether a job has waited so long that room must be kept for it."""
        return job.waited_ns(self.now_ns) >= self.policy.starvation_after_ns


def strict(line: Line, job: PendingJob) -> None:
    """Nobody passes."""
    line.stopped_by = job


def best_effort(line: Line, job: PendingJob) -> None:
    """Everybody passes; only once the head has starved, nothing may use what is kept for it."""
    line.heads += 1
    if line.heads > 1 or not line.starves(job):
        return
    kept = line.kept_for(job) or reserve(line.ledger, job, line.running, (), line.now_ns)
    if kept is not None:  # without regard to time limits: only the head may use it
        line.reserved[job.job_id] = _forever(kept)


def backfill(line: Line, job: PendingJob) -> None:
    """The first heads get a reserved start, which nobody may delay; without one, as in best-effort."""
    line.heads += 1
    if line.heads > line.policy.backfill_depth:
        return
    kept = line.kept_for(job)
    if kept is None or line.stale:
        fresh = reserve(line.ledger, job, line.running, list(line.reserved.values()), line.now_ns)
        if kept is None or (fresh is not None and _earlier(fresh, kept)):
            kept = fresh if fresh is None or not any(map(fresh.clashes, line.others(job))) else kept
    if kept is None or (kept.start_ns is None and not line.starves(job)):
        return
    line.reserved[job.job_id] = kept


def _forever(kept: Reservation) -> Reservation:
    return Reservation(kept.job_id, kept.submission_id, None, None, kept.pieces)


def _earlier(one: Reservation, other: Reservation) -> bool:
    return one.start_ns is not None and (other.start_ns is None or one.start_ns < other.start_ns)


DISCIPLINES: dict[str, Callable[[Line, PendingJob], None]] = {
    STRICT: strict,
    BEST_EFFORT: best_effort,
    BACKFILL: backfill,
}
