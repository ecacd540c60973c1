"""Queue disciplines: what a job that does not fit (a head) means for the jobs behind it; one function each.

To add one: a function, an entry in ``DISCIPLINES``, a row in the table of
``tests/scheduler/test_disciplines.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import (
    BACKFILL,
    BEST_EFFORT,
    FAIR,
    FIFO,
    MOST_HEADS,
    SECOND,
    STRICT,
    QueuePolicy,
)
from vctl.core.values import replace
from vctl.scheduler.availability import AvailabilityProfile
from vctl.scheduler.backfill import reserve
from vctl.scheduler.bookings import booked_on
from vctl.scheduler.orders import order_key
from vctl.scheduler.plan import Start
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reservations import Claims, Reservation, View
from vctl.scheduler.running import Running
from vctl.scheduler.work import Budget

RESERVE = 100
"""The steps of a search for a reserved start."""
TURN_NS = 10 * SECOND
"""How long it is the turn of the same head to be searched an earlier start. It is long beside the delay between the
moment at which a job is to end and the round after its end, so a forecast mostly finds the same turns."""
MOST_KEPT = MOST_HEADS
"""The most reservations that a queue keeps for the next round."""


class ReservationTable:
    """The reservations of one queue in one round: the jobs behind must leave them alone."""

    def __init__(
        self, ledger: Ledger, queue: Queue, running: Running, budget: Budget, *, now_ns: int
    ) -> None:
        self.ledger = ledger
        self.queue = queue
        self.policy: QueuePolicy = queue.policy
        self.running = running
        self.now_ns = now_ns
        self.budget = budget
        self.stopped_by: PendingJob | None = None
        """The head that no job may pass."""
        self.heads = 0
        """The number of heads that were passed."""
        self.most_heads = self.policy.backfill_depth if self.policy.discipline == BACKFILL else 1
        """The number of heads that may get a reservation."""
        self.reserved = {n: reservation for n, reservation in queue.kept.items() if n in queue.jobs}
        if self.policy.discipline == BEST_EFFORT and len(self.reserved) > 1:
            # only the first head has one: two without a known start would keep each other from starting for ever
            first = min(self.reserved, key=lambda n: order_key(queue.jobs[n], self.policy))
            self.reserved = {first: self.reserved[first]}
        self._drop_fallen()
        self.seen: set[int] = set()
        """Jobs whose reservation, or lack of one, was settled in this round."""
        self._disturbed = queue.is_disturbed
        """Whether a job with a better right has ignored a reservation."""
        self._booked = booked_on(ledger, queue.parent_id)
        self._profile: AvailabilityProfile | None = None
        self._views: dict[tuple[int, ...], View] = {}

    def _drop_fallen(self) -> None:
        """Drop reservations on virtual nodes that are gone or too small since this was last checked.

        Others have started in what the cluster had borrowed and did not use.
        """
        nodes_at = self.ledger.capacity(self.queue.parent_id)
        if self.queue.kept_at != nodes_at:
            self.queue.kept_at = nodes_at
            standing = self.reserved.items()
            self.reserved = {n: one for n, one in standing if one.is_valid(self.ledger, self.queue.parent_id)}

    @property
    def profile(self) -> AvailabilityProfile:
        """What running jobs return by their time limits, including those that start in this round."""
        if self._profile is None:
            self._profile = AvailabilityProfile(self.ledger, self.queue.parent_id, self.running, self.now_ns)
        return self._profile

    def binding(self, job: PendingJob) -> list[Reservation]:
        """The reservations that a job must leave alone if it starts now: those that begin before its end."""
        if not self.reserved:
            return []
        self._drop_fallen()
        end_ns = None if job.time_limit_ns is None else self.now_ns + job.time_limit_ns
        return [
            reservation
            for reservation in self.reserved.values()
            if reservation.binds(end_ns)
            and reservation.job_id != job.job_id
            and not self._outranks(job, reservation)
        ]

    def _outranks(self, job: PendingJob, reservation: Reservation) -> bool:
        """Whether a job may ignore a reservation, because it has precedence over the job of the reservation.

        By arrival (``fifo``) no job has. A job of higher priority has, if it is also ahead in the order. In a
        fair order, a job of another user has if the job of the reservation was not passed in this round yet.
        """
        other = self.queue.jobs.get(reservation.job_id)
        if other is None or self.policy.order == FIFO:
            return False
        if self.policy.order == FAIR and job.user != other.user:
            return reservation.job_id not in self.seen
        return job.priority > other.priority and order_key(job, self.policy) < order_key(other, self.policy)

    def view(self, binding: Sequence[Reservation]) -> View:
        """The free capacity for a job that must leave these reservations alone."""
        key = tuple(map(id, binding))
        view = self._views.get(key)
        if view is None or not view.is_current:
            view = self._views[key] = View(self.ledger, self.queue.parent_id, binding, self.profile)
        return view

    def drop_views(self) -> None:
        """Drop views that missed a change of the cluster, before a start that the other views will follow."""
        self._views = {key: view for key, view in self._views.items() if view.is_current}

    def note_start(self, start: Start) -> None:
        """Note that a job was started: its reservation ends, and its end counts in the profile."""
        self.reserved.pop(start.job.job_id, None)
        self._profile = None
        if self.reserved and any(
            self._outranks(start.job, reservation) for reservation in self.reserved.values()
        ):
            self._disturbed = True
        if self._views:
            changed = [vnode.parent_id or "" for vnode in start.vnodes] or [start.vnode_id]
            for view in self._views.values():
                view.follow(changed, self.profile)

    def promise(self, job: PendingJob, reservation: Reservation | None) -> None:
        """Set the reservation of a job; None: it has none."""
        self.seen.add(job.job_id)
        before = self.reserved.pop(job.job_id, None)
        if reservation is None:
            return
        if reservation is not before and any(self._outranks(job, other) for other in self.reserved.values()):
            self._disturbed = True
        self.reserved[job.job_id] = reservation

    def of(self, job: PendingJob) -> Reservation | None:
        """The reservation of a job, if its virtual nodes are still there."""
        if not self.reserved:
            return None
        self._drop_fallen()
        return self.reserved.get(job.job_id)

    def others(self, job: PendingJob) -> list[Reservation]:
        """The reservations that a new reservation for a job must leave alone."""
        self._drop_fallen()
        return [
            reservation
            for reservation in self.reserved.values()
            if reservation.job_id != job.job_id and not self._outranks(job, reservation)
        ]

    def holds(self, reservation: Reservation) -> bool:
        """Whether a reservation can still be kept beside those that were confirmed before it."""
        if reservation.is_due(self.now_ns):
            return False  # the reserved start has come, and the job could not start
        if not self._disturbed or reservation.start_ns is None:
            return True
        confirmed = [self.reserved[n] for n in self.seen if n in self.reserved and n != reservation.job_id]
        return Claims(self.ledger, [*confirmed, reservation], self.profile).are_met(self.now_ns)

    def promises(self, *, is_over: bool = True) -> dict[int, Reservation]:
        """The reservations to keep for the next round; of too many, the first in the queue's order.

        ``is_over`` False: the round was cut, and those that were not confirmed are looked at in the next one.
        """
        self.queue.is_disturbed = self._disturbed and not is_over
        if self._disturbed and is_over:
            for job_id, reservation in list(self.reserved.items()):
                if job_id in self.seen:
                    continue
                self.seen.add(job_id)
                if not self.holds(reservation):
                    del self.reserved[job_id]
        most = max(MOST_KEPT, self.policy.backfill_depth)
        if len(self.reserved) > most:
            last = sorted(self.reserved, key=lambda n: order_key(self.queue.jobs[n], self.policy))[most:]
            for job_id in last:
                del self.reserved[job_id]
        return dict(self.reserved)

    def may_improve(self, job: PendingJob) -> bool:
        """Whether to search an earlier start for the present head: the first one, and one other in turn.

        The time says whose turn it is: a counter would be known to the running scheduler only, and a forecast from the
        tables would take other turns. Each cycle gives a turn to every head, and begins with another one: so each
        gets its turn in whatever rhythm jobs end.
        """
        if job.job_id in self.queue.improved or not self.queue.is_stale:
            return False
        if self.heads == 1:
            return True
        others = self.policy.backfill_depth - 1
        cycle, place = divmod(self.now_ns // TURN_NS, others)
        return (place + crc32(b"%d" % cycle)) % others == self.heads - 2

    def reserve(
        self,
        job: PendingJob,
        others: Sequence[Reservation] = (),
        *,
        before_ns: int | None = None,
        endless: bool = False,
    ) -> Reservation | None:
        """Search a reserved start for a job."""
        self.budget.spend(RESERVE)
        beside = [*self._booked, *others] if self._booked else others
        return reserve(self.ledger, job, self.profile, beside, before_ns=before_ns, endless=endless)

    def starves(self, job: PendingJob) -> bool:
        """Whether a job has waited long enough for a reservation; never in the order fair."""
        if self.policy.order == FAIR:
            return False
        left_ns = self.policy.starvation_after_ns - job.waited_ns(self.now_ns)
        if left_ns > 0:
            self.queue.note_until(self.now_ns + left_ns)
        return left_ns <= 0


def strict(table: ReservationTable, job: PendingJob) -> None:
    """No job passes a head that does not fit."""
    table.stopped_by = job


def best_effort(table: ReservationTable, job: PendingJob) -> None:
    """Every job passes a head. Once the first head has starved, it gets the only reservation."""
    table.heads += 1
    if table.heads > 1 or not table.starves(job):
        return
    reserved = table.of(job)
    if reserved is None and (found := table.reserve(job, endless=True)) is not None:
        # without times, so that it binds every other job
        reserved = replace(found, start_ns=None, end_ns=None)
    table.promise(job, reserved)


def backfill(table: ReservationTable, job: PendingJob) -> None:
    """The first heads get a reserved start, which no job may delay; any job passes a head without one."""
    table.heads += 1
    reserved = table.of(job)
    if reserved is not None and not table.holds(reserved):
        reserved = None
    if table.heads <= table.policy.backfill_depth and (reserved is None or table.may_improve(job)):
        before_ns = None if reserved is None else reserved.start_ns
        table.queue.improved.add(job.job_id)
        endless = reserved is None and table.starves(job)
        fresh = table.reserve(job, table.others(job), before_ns=before_ns, endless=endless)
        reserved = fresh or reserved
    table.promise(job, reserved)


DISCIPLINES: dict[str, Callable[[ReservationTable, PendingJob], None]] = {
    STRICT: strict,
    BEST_EFFORT: best_effort,
    BACKFILL: backfill,
}
