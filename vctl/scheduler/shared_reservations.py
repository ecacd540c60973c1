"""Reservations that reach beyond one queue: what is reserved for a head on the level where its cluster grows.

Three have one: the sibling whose turn it is where the order is fair, so that others with small jobs do not pass it for
ever; a head that has starved; and the first heads of a queue that backfills. Everybody else below that level leaves it
alone, but for jobs that are over by then. A head that only limits of its clusters keep back has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from vctl.core import resources as rs
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, FAIR
from vctl.core.resources import Amounts
from vctl.scheduler.availability import Availability, amounts_of, elastic_below, idle_parts, level_of
from vctl.scheduler.backfill import reserve
from vctl.scheduler.disciplines import ReservationTable
from vctl.scheduler.elasticity import within_limits
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reservations import FOR_EVER, Reservation, View
from vctl.scheduler.running import Running
from vctl.scheduler.tasking import ancestors

MOST_SIBLINGS = 2
"""Siblings of one fair cluster for which something is reserved at a time."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A reservation on a level, its job, and the cluster below which it binds."""

    one: Reservation
    level: str
    scope: str
    own: frozenset[str]
    """The clusters through which the job's own grows."""
    is_turn: bool = False
    """Whether it is for the sibling whose turn it is."""


class SharedReservations:
    """Those of one round. Starved heads and those of backfilling queues bring theirs from the round before.

    ``grown``: clusters in which something came free since then. Where nothing did, the job with a reservation
    below a fair cluster needs no new search, if it is still its turn.
    """

    def __init__(
        self,
        ledger: Ledger,
        queues: Sequence[Queue],
        running: Running,
        now_ns: int,
        grown: Collection[str] = (),
    ) -> None:
        self.ledger = ledger
        self.running = running
        self.now_ns = now_ns
        self._fair: dict[str, dict[str, Shared]] = {}
        """Fair cluster -> sibling -> what is reserved for it, in the order of their turns."""
        self._before: dict[tuple[str, str], Shared] = {}
        """What was reserved there at the end of the last round, as long as nothing that it was found by has changed."""
        self._reserved: dict[int, Shared] = {}
        self._availability: dict[tuple[str, frozenset[str]], Availability] = {}
        self._above: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, tuple[str, str | None]] = {}
        for queue in queues:
            for job_id, shared in queue.shared.items():
                if job_id not in queue.jobs or not shared.one.stands(ledger, shared.level):
                    continue
                if not self._is_fair(shared):
                    self._reserved[job_id] = shared
                else:
                    self._take_over(queue.jobs[job_id], shared, grown)

    def binding(self, job: PendingJob) -> list[Shared]:
        """What a job must leave alone when it starts now."""
        fair = [shared for siblings in self._fair.values() for shared in siblings.values()]
        if not fair and not self._reserved:
            return []
        end_ns = None if job.time_limit_ns is None else self.now_ns + job.time_limit_ns
        above = self._chain(job.parent_id)
        return [
            shared
            for shared in (*fair, *self._reserved.values())
            if shared.one.job_id != job.job_id and shared.scope in above and shared.one.binds(end_ns)
        ]

    @contextmanager
    def hidden(self, binding: Sequence[Shared]) -> Iterator[None]:
        """Hide what is reserved: on the level, and what of it clusters below have borrowed and do not use."""
        charged: list[str] = []
        with ExitStack() as stack:
            for shared in binding:
                view = View(self.ledger, shared.level, [shared.one], self._profile(shared.level, shared.own))
                stack.enter_context(view.taken(f"shared:{shared.one.job_id}"))
                charged += self._hide_idle(shared, view)
            try:
                yield
            finally:
                for name in reversed(charged):
                    self.ledger.discharge(name)

    def _hide_idle(self, shared: Shared, view: View) -> list[str]:
        """What the claims need beyond what is free on the level, out of idle borrowed capacity on the same nodes."""
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
                want = {n: min(a, idle.amounts.get(n, 0)) for n, a in found.items()}
                want = {n: a for n, a in want.items() if a > 0}
                capacity = self.ledger.capacities[vnode_id].copy()
                if want and capacity.fits(want):
                    name = f"shared:{shared.one.job_id}:{vnode_id}"
                    self.ledger.charge(name, vnode_id, capacity.take(want))
                    charged.append(name)
                    for one, amount in want.items():
                        found[one] -= amount
        return charged

    def consider(self, queue: Queue, line: ReservationTable, job: PendingJob) -> None:
        """A head does not fit beside what is in use: keep something for it if it is due."""
        policy = queue.policy
        level, fair = self._about(queue.parent_id)
        if not self.concerns(queue):
            return
        if fair is not None:  # there whose turn it is decides, not who has waited long
            self.note_passed(queue, line, job)
            return
        if line.reserved.get(job.job_id) is not None:
            return
        starves = line.starves(job)
        if policy.discipline == BEST_EFFORT:
            if line.heads != 1 or not starves:
                return
        elif policy.discipline != BACKFILL or line.heads > policy.backfill_depth:
            return
        reserved = self._reserved.pop(job.job_id, None)
        if reserved is not None and not reserved.one.is_due(self.now_ns) and self._may_grow(job):
            self._reserved[job.job_id] = reserved
            return
        found = self._reserve(job, level, level, endless=starves)
        if found is not None and policy.discipline == BEST_EFFORT:  # without regard to time limits
            found = replace(found, one=replace(found.one, start_ns=None, end_ns=None))
        if found is not None:
            self._reserved[job.job_id] = found

    def _take_over(self, job: PendingJob, shared: Shared, grown: Collection[str]) -> None:
        """What was reserved in the last round. A turn lasts until the job starts, unless its start is unknown."""
        fair, sibling = shared.scope, self._sibling(shared.scope, job)
        is_found = not self._has_grown(shared.level, grown) and not shared.one.is_due(self.now_ns)
        if not shared.is_turn or shared.one.start_ns is None:
            if is_found:
                self._before[fair, sibling] = shared
        elif is_found and self._may_grow(job):
            self._fair.setdefault(fair, {})[sibling] = shared
        elif not is_found and (again := self._reserve(job, shared.level, fair, endless=True)) is not None:
            self._fair.setdefault(fair, {})[sibling] = again

    def note_passed(self, queue: Queue, line: ReservationTable, job: PendingJob) -> None:
        """The first job of a sibling is passed: those behind it leave alone what it needs next."""
        level, fair = self._about(queue.parent_id)
        if fair is None or (queue.policy.discipline == BACKFILL and line.reserved):
            return
        siblings, sibling = self._fair.setdefault(fair, {}), self._sibling(fair, job)
        if sibling in siblings or len(siblings) >= MOST_SIBLINGS:
            return
        shared = self._before.pop((fair, sibling), None)
        if shared is None or shared.one.job_id != job.job_id:
            shared = self._reserve(job, level, fair, endless=not siblings)
        elif not self._may_grow(job):
            shared = None
        if shared is not None:
            siblings[sibling] = shared

    def _sibling(self, fair: str, job: PendingJob) -> str:
        """Who competes in a fair cluster for a job: a child cluster, or a user of the cluster itself."""
        chain = self._chain(job.parent_id)
        at = chain.index(fair)
        return chain[at - 1] if at else f"user {job.user}"

    def finish(self, queues: Iterable[Queue]) -> None:
        """Leave what is reserved to the next round."""
        reserved = self._reserved | {shared.one.job_id: shared for shared in self._before.values()}
        for siblings in self._fair.values():
            for number, shared in enumerate(siblings.values()):
                is_turn = number == 0
                reserved[shared.one.job_id] = (
                    shared if shared.is_turn == is_turn else replace(shared, is_turn=is_turn)
                )
        for queue in queues:
            queue.shared = {job_id: one for job_id, one in reserved.items() if job_id in queue.jobs}

    def note_start(self, job: PendingJob) -> None:
        """A job starts: what was reserved for it is used."""
        self._reserved.pop(job.job_id, None)
        chain = self._chain(job.parent_id)
        for fair, siblings in self._fair.items():
            if (
                fair in chain
                and (one := siblings.get(self._sibling(fair, job)))
                and one.one.job_id == job.job_id
            ):
                del siblings[self._sibling(fair, job)]
        for key in [key for key in self._before if key[0] in chain]:
            del self._before[key]  # it went first, and needed not leave that alone
        self._availability.clear()

    def _reserve(self, job: PendingJob, level: str, scope: str, *, endless: bool) -> Shared | None:
        if not self._may_grow(job):
            return None
        own = frozenset(self._chain(job.parent_id))
        fair = [shared for siblings in self._fair.values() for shared in siblings.values()]
        others = [shared.one for shared in (*fair, *self._reserved.values()) if shared.level == level]
        others = [one for one in others if one.job_id != job.job_id]
        found = reserve(self.ledger, job, self._profile(level, own), others, endless=endless, level=level)
        return None if found is None else Shared(found, level, scope, own)

    def _may_grow(self, job: PendingJob) -> bool:
        """Whether limits let every cluster on the way grow by what the job needs beyond what is free in it."""
        fixed = rs.total(node.resources for node in job.spec.fixed)
        need: Amounts = rs.add(fixed, rs.maximum(job.spec.flexible_min, {} if fixed else job.entry))
        for cluster_id in self._chain(job.parent_id):
            cluster = self.ledger.clusters[cluster_id]
            if cluster_id == level_of(self.ledger, job.parent_id):
                return True
            free = self.ledger.available(cluster_id)
            more = {name: amount - free.get(name, 0) for name, amount in need.items()}
            if not within_limits(
                self.ledger, cluster, {name: amount for name, amount in more.items() if amount > 0}
            ):
                return False
        return True

    def _is_fair(self, shared: Shared) -> bool:
        cluster = self.ledger.clusters.get(shared.scope)
        return cluster is not None and cluster.queue.order == FAIR

    def _has_grown(self, level: str, grown: Collection[str]) -> bool:
        return bool(grown) and (
            level in grown or any(one in grown for one in elastic_below(self.ledger, level))
        )

    def concerns(self, queue: Queue) -> bool:
        """Whether anything may be reserved beyond a queue for jobs of it."""
        level, fair = self._about(queue.parent_id)
        return fair is not None or level != queue.parent_id

    def _about(self, cluster_id: str) -> tuple[str, str | None]:
        """The level of a cluster, and the highest cluster on the way up to it at which the order is fair."""
        known = self._known.get(cluster_id)
        if known is None:
            level, fair = level_of(self.ledger, cluster_id), None
            for one in self._chain(cluster_id):
                if self.ledger.clusters[one].queue.order == FAIR:
                    fair = one
                if one == level:
                    break
            known = self._known[cluster_id] = (level, fair)
        return known

    def _chain(self, cluster_id: str) -> tuple[str, ...]:
        found = self._above.get(cluster_id)
        if found is None:
            found = self._above[cluster_id] = tuple(ancestors(self.ledger, cluster_id))
        return found

    def _profile(self, level: str, own: frozenset[str]) -> Availability:
        found = self._availability.get((level, own))
        if found is None:
            found = Availability(self.ledger, level, self.running, self.now_ns, own)
            self._availability[level, own] = found
        return found
