"""Shared reservations: reservations for the head of a queue on the level up to which its cluster can grow.

Such a reservation binds all queues below a scope, because they compete for the same free capacity. Jobs that
end before the reserved start may use that capacity. Three kinds of heads get a shared reservation:
- in a fair cluster, the first job of the sibling whose turn it is, so that siblings with small jobs do not
  pass it for ever;
- a head that has starved, in a queue with the discipline best-effort;
- the first heads of a queue with the discipline backfill.
The last two also apply to the queue of the level itself: clusters below it may have grown over its capacity.
A head gets none if the limits of its clusters do not allow its growth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, FAIR
from vctl.core.resources import Amounts
from vctl.core.values import replace, value
from vctl.scheduler.availability import (
    Availability,
    amounts_of,
    elastic_below,
    has_elastic,
    idle_parts,
)
from vctl.scheduler.backfill import reserve
from vctl.scheduler.bookings import booked, returned_by
from vctl.scheduler.disciplines import RESERVE, ReservationTable
from vctl.scheduler.elasticity import level_above, within_limits
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reservations import FOR_EVER, Reservation, Shared, View
from vctl.scheduler.running import Running
from vctl.scheduler.work import Budget

MOST_SIBLINGS = 2
"""The most siblings of a fair cluster that have a reservation at a time."""


@value(frozen=True, slots=True)
class Kept:
    """What a queue keeps for one of its jobs until the next round: its own reservation, and the shared one."""

    own: Reservation | None = None
    shared: Shared | None = None

    def is_like(self, other: Kept | None) -> bool:
        """Whether the other one keeps the same places from the same starts."""
        if other is None or self != other:
            return False
        pairs = zip(self.reservations, other.reservations, strict=True)
        return all(a is b or a.placed == b.placed for a, b in pairs)

    @property
    def reservations(self) -> list[Reservation]:
        """Both, as far as there are any."""
        of_shared = None if self.shared is None else self.shared.reservation
        return [one for one in (self.own, of_shared) if one is not None]


def kept_by(queue: Queue) -> dict[int, Kept]:
    """What a queue keeps, by job."""
    return {
        job_id: Kept(queue.kept.get(job_id), queue.shared.get(job_id))
        for job_id in {**queue.kept, **queue.shared}
    }


def keep(queue: Queue, kept: Mapping[int, Kept]) -> None:
    """Let a queue keep this, and nothing else. Its policy is the one under which that was reserved."""
    queue.kept = {n: one.own for n, one in kept.items() if one.own is not None and n in queue.jobs}
    queue.shared = {n: one.shared for n, one in kept.items() if one.shared is not None and n in queue.jobs}
    queue.kept_at = queue.memo = None


class SharedReservations:
    """The shared reservations of one round. They begin with those of the last round, which the queues keep.

    ``grown``: clusters in which capacity came free since then. If none came free on its level or below, a
    reservation in a fair cluster holds without a new search as long as it is the turn of its sibling. Otherwise
    it is found again as soon as a job asks that it may bind: a job of another cluster may start before.
    """

    def __init__(
        self,
        ledger: Ledger,
        queues: Sequence[Queue],
        running: Running,
        now_ns: int,
        grown: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:
        self.ledger = ledger
        self.budget = budget or Budget()
        self.running = running
        self.now_ns = now_ns
        self._fair: dict[str, dict[str, Shared]] = {}
        """Fair cluster -> sibling -> its reservation, in the order of their turns."""
        self._before: dict[tuple[str, str], Shared] = {}
        """(Fair cluster, sibling) -> its last reservation, if no capacity came free since that was found."""
        self._outdated: list[tuple[PendingJob, Shared]] = []
        """Those in fair clusters that are to be found again."""
        self._reserved: dict[int, Shared] = {}
        self._booked = booked(ledger)
        """The bookings that have not begun. No round changes them."""
        self._fresh: set[int] = set()
        """The jobs that got their reservation in this round."""
        self._availability: dict[tuple[str, frozenset[str]], Availability] = {}
        self._above: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, tuple[str, str | None]] = {}
        self._elastic: dict[str, bool] = {}
        for queue in queues:
            for job_id, shared in queue.shared.items():
                if job_id not in queue.jobs or not shared.reservation.is_valid(ledger, shared.level):
                    continue
                if not self._is_fair(shared):
                    self._reserved[job_id] = shared
                else:
                    self._take_over(queue, queue.jobs[job_id], shared, grown)

    def of(self, job: PendingJob) -> Reservation | None:
        """The reservation of a job."""
        self._find_again_below(job.parent_id)
        for shared in self._all():
            if shared.reservation.job_id == job.job_id:
                return shared.reservation
        return None

    def holders(self, queue: Queue) -> set[int]:
        """The jobs of a queue that have a reservation."""
        self._find_again_below(queue.parent_id)
        return {n for shared in self._all() if (n := shared.reservation.job_id) in queue.jobs}

    def _all(self) -> list[Shared]:
        if not self._fair:
            return [*self._booked, *self._reserved.values()]
        fair = [shared for siblings in self._fair.values() for shared in siblings.values()]
        return [*self._booked, *fair, *self._reserved.values()]

    def binding(self, job: PendingJob) -> list[Shared]:
        """The reservations that a job must leave alone when it starts now."""
        self._find_again_below(job.parent_id)
        if not (self._fair or self._reserved or self._booked):
            return []
        shareds, mine = self._all(), self.of(job)
        end_ns = None if job.time_limit_ns is None else self.now_ns + job.time_limit_ns
        above = self._upward(job.parent_id)
        return [
            shared
            for shared in shareds
            if shared.reservation.job_id != job.job_id
            and shared.scope in above
            and self._binds(shared, job, end_ns)
            and not (mine is not None and shared.waits_for(mine))
        ]

    def _binds(self, shared: Shared, job: PendingJob, end_ns: int | None) -> bool:
        """Whether a job would be in the way of a reservation. No cluster grows over the place of a booking."""
        if shared.reservation.is_booking and shared.level != job.parent_id:
            above = self._upward(job.parent_id)
            level = above.index(level_above(self.ledger, job.parent_id))
            return shared.level not in above or above.index(shared.level) <= level
        return shared.reservation.binds(end_ns)

    @contextmanager
    def hidden(self, binding: Sequence[Shared]) -> Iterator[None]:
        """Charge the reserved amounts in the ledger inside the block.

        They are charged on the level; what is not free there is charged on idle capacity of clusters below.
        """
        charged: list[str] = []
        with ExitStack() as stack:
            if names := [one.reservation.submission_id for one in binding if one.reservation.is_booking]:
                returned_on = returned_by(self.ledger, self.running, self.now_ns)
                stack.enter_context(self.ledger.bookings_in_force(names, returned_on))
            for shared in binding:
                if shared.reservation.is_booking:
                    continue
                view = View(
                    self.ledger, shared.level, [shared.reservation], self._profile(shared.level, shared.own)
                )
                stack.enter_context(view.taken(f"shared:{shared.reservation.job_id}"))
                charged += self._hide_idle(shared, view)
            try:
                yield
            finally:
                for name in reversed(charged):
                    self.ledger.discharge(name)

    def _hide_idle(self, shared: Shared, view: View) -> list[str]:
        """Charge idle capacity of clusters below for claims that are not free on the level.

        Returns the names of the charges.
        """
        missing: dict[str, dict[str, int]] = {}
        for slot_id in view.claims.on:
            need = amounts_of(view.claims.needed(slot_id, self.now_ns, FOR_EVER))
            rest = {name: a - view.hidden.get(slot_id, {}).get(name, 0) for name, a in need.items()}
            if any(amount > 0 for amount in rest.values()):
                missing[slot_id] = rest
        charged: list[str] = []
        if not missing:
            return charged
        for cluster_id in elastic_below(self.ledger, shared.level):
            if cluster_id in shared.own:
                continue
            for vnode_id, idle in list(idle_parts(self.ledger, cluster_id)):
                found = missing.get(self._profile(shared.level, shared.own).slot_of(vnode_id))
                if found is None:
                    continue
                want = rs.least_of(found, idle.amounts)
                capacity = self.ledger.capacities[vnode_id].copy()
                if want and capacity.fits(want):
                    name = f"shared:{shared.reservation.job_id}:{vnode_id}"
                    self.ledger.charge(name, vnode_id, capacity.take(want))
                    charged.append(name)
                    for resource, amount in want.items():
                        found[resource] -= amount
        return charged

    def consider(self, queue: Queue, table: ReservationTable, job: PendingJob) -> None:
        """Reserve for a head that does not fit into the free capacity, if its queue's policy says so."""
        policy = queue.policy
        level, fair = self._level_and_fair(queue.parent_id)
        if fair is not None:  # in a fair cluster the turn decides, not the time of waiting
            self.note_passed(queue, table, job)
            return
        reserved = self._reserved.get(job.job_id)
        has_own = table.of(job) is not None
        if reserved is not None:
            if not has_own and not reserved.reservation.is_due(self.now_ns) and self._may_grow(job):
                return
            del self._reserved[job.job_id]
        starves = table.starves(job)
        if has_own:
            return
        if policy.discipline == BEST_EFFORT:
            if table.heads != 1 or not starves:
                return
        elif policy.discipline != BACKFILL or table.heads > policy.backfill_depth:
            return
        if level == queue.parent_id and not self._has_elastic(level):
            return  # nobody else holds what comes free here
        found = self._reserve(job, level, level, endless=starves)
        if found is not None and policy.discipline == BEST_EFFORT:  # it binds every job
            found = replace(found, reservation=replace(found.reservation, start_ns=None, end_ns=None))
        if found is not None:
            self._reserved[job.job_id] = found
            self._fresh.add(job.job_id)

    def _take_over(self, queue: Queue, job: PendingJob, shared: Shared, grown: Collection[str]) -> None:
        """Take over a reservation of the last round in a fair cluster.

        A turn lasts until its job starts, except if the reserved start is unknown.
        """
        fair, sibling = shared.scope, self._sibling(shared.scope, job)
        is_outdated = job.job_id in queue.outdated or self._has_grown(shared.level, grown)
        is_found = not is_outdated and not shared.reservation.is_due(self.now_ns)
        if not shared.is_turn or shared.reservation.start_ns is None:
            if is_found:
                self._before[fair, sibling] = shared
        elif is_found and self._may_grow(job):
            self._fair.setdefault(fair, {})[sibling] = shared
        elif not is_found:
            self._outdated.append((job, shared))

    def _find_again_below(self, cluster_id: str) -> None:
        """Find again what is to be found, if any of it may bind the jobs of a cluster."""
        if self._outdated and any(shared.scope in self._upward(cluster_id) for _, shared in self._outdated):
            self._find_again()

    def _find_again(self) -> None:
        """Find again what is to be found, each beside those before it; whatever has started by now counts."""
        outdated, self._outdated = self._outdated, []
        for job, shared in outdated:
            if (again := self._reserve(job, shared.level, shared.scope, endless=True)) is not None:
                self._fair.setdefault(shared.scope, {})[self._sibling(shared.scope, job)] = again

    def note_passed(self, queue: Queue, table: ReservationTable, job: PendingJob) -> None:
        """Reserve for the passed first job of a sibling in a fair cluster, if the sibling has none yet."""
        level, fair = self._level_and_fair(queue.parent_id)
        if fair is None or (queue.policy.discipline == BACKFILL and table.reserved):
            return
        self._find_again_below(queue.parent_id)
        siblings, sibling = self._fair.setdefault(fair, {}), self._sibling(fair, job)
        if table.stopped_by is job:  # other jobs of the queue come behind it, so they cannot start before
            held = {name: one.reservation.job_id for name, one in siblings.items()}
            for name, job_id in held.items():
                if job_id != job.job_id and job_id in queue.jobs:
                    del siblings[name]
        if sibling in siblings or len(siblings) >= MOST_SIBLINGS:
            return
        shared = self._before.pop((fair, sibling), None)
        if shared is None or shared.reservation.job_id != job.job_id:
            shared = self._reserve(job, level, fair, endless=not siblings)
        elif not self._may_grow(job):
            shared = None
        if shared is not None:
            siblings[sibling] = shared

    def _sibling(self, fair: str, job: PendingJob) -> str:
        """The sibling in a fair cluster to which a job belongs: a child cluster or a user of the cluster."""
        chain = self._upward(job.parent_id)
        at = chain.index(fair)
        return chain[at - 1] if at else f"user {job.user}"

    def finish(self, queues: Iterable[Queue], *, is_over: bool = True) -> None:
        """Hand the reservations over to the queues for the next round.

        A reservation whose start came before this round is dropped: its job was not tried, or has no other.
        ``is_over`` False: the round was cut, and the next one may try it, and find again what nobody has asked for.
        """
        if is_over:
            self._find_again()
        for job_id, shared in list(self._reserved.items()):
            if is_over and job_id not in self._fresh and shared.reservation.is_due(self.now_ns):
                del self._reserved[job_id]
        reserved = self._reserved | {shared.reservation.job_id: shared for shared in self._before.values()}
        for siblings in self._fair.values():
            for number, shared in enumerate(siblings.values()):
                is_turn = number == 0
                reserved[shared.reservation.job_id] = (
                    shared if shared.is_turn == is_turn else replace(shared, is_turn=is_turn)
                )
        outdated = {job.job_id: shared for job, shared in self._outdated}
        reserved |= outdated
        for queue in queues:
            queue.shared = {job_id: shared for job_id, shared in reserved.items() if job_id in queue.jobs}
            queue.outdated = outdated.keys() & queue.shared.keys()

    def note_start(self, job: PendingJob) -> None:
        """Note that a job starts: its reservation ends."""
        self._reserved.pop(job.job_id, None)
        self._availability.clear()
        if not (self._fair or self._before):
            return
        chain = self._upward(job.parent_id)
        for fair, siblings in self._fair.items():
            if (
                fair in chain
                and (shared := siblings.get(self._sibling(fair, job)))
                and shared.reservation.job_id == job.job_id
            ):
                del siblings[self._sibling(fair, job)]
        for key in [key for key in self._before if key[0] in chain]:
            del self._before[key]  # the start ignored this reservation, so it may not hold any more

    def _reserve(self, job: PendingJob, level: str, scope: str, *, endless: bool) -> Shared | None:
        if not self._may_grow(job):
            return None
        self._find_again()  # it is beside those
        self.budget.spend(RESERVE)
        own = frozenset(self._upward(job.parent_id))
        others = [shared.reservation for shared in self._all() if shared.level == level]
        others = [reservation for reservation in others if reservation.job_id != job.job_id]
        found = reserve(self.ledger, job, self._profile(level, own), others, endless=endless, level=level)
        behind = frozenset((one.job_id, one.start_ns) for one in others)
        return None if found is None else Shared(found, level, scope, own, behind=behind)

    def _may_grow(self, job: PendingJob) -> bool:
        """Whether the limits of all clusters below the level let them grow by what the job lacks there."""
        fixed = rs.total(node.resources for node in job.spec.fixed)
        need: Amounts = rs.add(fixed, rs.maximum(job.spec.flexible_min, {} if fixed else job.entry))
        for cluster_id in self._upward(job.parent_id):
            cluster = self.ledger.clusters[cluster_id]
            if cluster_id == level_above(self.ledger, job.parent_id):
                return True
            if not within_limits(self.ledger, cluster, rs.beyond(need, self.ledger.available(cluster_id))):
                return False
        return True

    def _is_fair(self, shared: Shared) -> bool:
        cluster = self.ledger.clusters.get(shared.scope)
        return cluster is not None and cluster.queue.order == FAIR

    def _has_grown(self, level: str, grown: Collection[str]) -> bool:
        return bool(grown) and (
            level in grown or any(cluster_id in grown for cluster_id in elastic_below(self.ledger, level))
        )

    def is_settled_for(self, queue: Queue, users: Collection[str]) -> bool:
        """Whether no further job of a queue that is passed gets a reservation. ``users``: those whose jobs wait in it.

        In a fair cluster one may, until its sibling has one or there are as many as there may be.
        """
        fair = self._level_and_fair(queue.parent_id)[1]
        if fair is None:
            return True
        self._find_again_below(queue.parent_id)
        siblings = self._fair.get(fair, {})
        if len(siblings) >= MOST_SIBLINGS:
            return True
        if queue.parent_id == fair:
            return all(f"user {user}" in siblings for user in users)
        chain = self._upward(queue.parent_id)
        return chain[chain.index(fair) - 1] in siblings

    def _has_elastic(self, level: str) -> bool:
        """Whether a cluster below a level may have grown over its capacity."""
        if level not in self._elastic:
            self._elastic[level] = has_elastic(self.ledger, level)
        return self._elastic[level]

    def _level_and_fair(self, cluster_id: str) -> tuple[str, str | None]:
        """The level of a cluster, and the highest cluster on the way up to it at which the order is fair."""
        known = self._known.get(cluster_id)
        if known is None:
            level, fair = level_above(self.ledger, cluster_id), None
            for ancestor in self._upward(cluster_id):
                if self.ledger.clusters[ancestor].queue.order == FAIR:
                    fair = ancestor
                if ancestor == level:
                    break
            known = self._known[cluster_id] = (level, fair)
        return known

    def _upward(self, cluster_id: str) -> tuple[str, ...]:
        found = self._above.get(cluster_id)
        if found is None:
            above = [up.cluster_id for up in self.ledger.upward(cluster_id)]
            found = self._above[cluster_id] = (*above, PRIMARY)
        return found

    def _profile(self, level: str, own: frozenset[str]) -> Availability:
        found = self._availability.get((level, own))
        if found is None:
            found = Availability(self.ledger, level, self.running, self.now_ns, own)
            self._availability[level, own] = found
        return found
