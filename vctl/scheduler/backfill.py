"""Backfill: the earliest start and the place of a job that does not fit now, by time limits of running jobs.

Conservative backfilling (D. G. Feitelson and A. M. Weil, "Utilization and predictability in scheduling the
IBM SP2 with backfilling", IPPS 1998), with places instead of counts. Running jobs until their limits and
reservations over their whole span always fit together, on every virtual node and for every numbered instance.
Whatever is started or reserved later keeps that true, so the place of a reservation is free at its reserved
start, and no start is delayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.resources import FreeCapacity, subtract
from vctl.core.slots import SlotIndex
from vctl.core.values import value
from vctl.scheduler.availability import AvailabilityProfile, amounts_of
from vctl.scheduler.candidate_nodes import candidates_in
from vctl.scheduler.placement import Placed, place_on
from vctl.scheduler.reservations import FOR_EVER, Claims, Reservation
from vctl.scheduler.upper_bound import UpperBound

BUDGET = 2_000
"""The step budget of one search for a place in the future."""


def reserve(
    ledger: Ledger, job: PendingJob, profile: AvailabilityProfile, others: Sequence[Reservation], *,
    before_ns: int | None = None, endless: bool = False, level: str | None = None,
) -> Reservation | None:  # fmt: skip
    """A reservation for the earliest start of a job beside the ``others``; None: there is no start.

    ``before_ns``: search only for a start before this time. ``endless``: if time limits promise no start,
    reserve the place for which the fewest jobs without a limit, oldest first, must end; its start is None.
    ``level``: reserve virtual nodes of that cluster instead of the job's parent.
    """
    ahead = _Ahead(ledger, job, profile, others, level or job.parent_id)
    found = ahead.earliest(before_ns)
    if found is None and before_ns is None and endless:
        found = ahead.some_day()
    if found is None:
        return None
    start_ns, placed = found
    return Reservation.of(job, start_ns, placed) if placed.pieces else None


@value(eq=False)
class _Ahead:
    """The search for the place of one job in the future."""

    ledger: Ledger
    job: PendingJob
    profile: AvailabilityProfile
    others: Sequence[Reservation]
    level: str

    def __post_init__(self) -> None:
        self.claims = Claims(self.ledger, self.others, self.profile)
        self.count = UpperBound(self.job.spec)

    @property
    def index(self) -> SlotIndex:
        """The virtual nodes on which the search looks for a place."""
        return self.ledger.index(self.level)

    def earliest(self, before_ns: int | None) -> tuple[int | None, Placed] | None:
        """An early moment from which the job fits until its own end, and its place then.

        Moments are the ends of jobs and reservations: nothing comes free between them. Counting pieces skips
        the moments with too little capacity. While a tried moment has no place, the stride doubles; a
        bisection follows. It may miss an earlier moment that fits only until another reservation begins.
        """
        promising = self._promising(before_ns)
        moments: list[int] = []
        low, stride = -1, 1
        found = None
        while found is None:
            more = list(islice(promising, stride))
            if not more:
                return None
            moments += more
            if (found := self._fits(moments[-1])) is None:
                low, stride = len(moments) - 1, stride * 2
        at, found = _halved(low, len(moments) - 1, found, lambda number: self._fits(moments[number]))
        return moments[at], found

    def _promising(self, before_ns: int | None) -> Iterator[int]:
        """Moments at which the free capacity may hold all pieces, by counting them; soonest first."""
        profile = self.profile
        if (first := self._enough_from()) is None or (before_ns is not None and first >= before_ns):
            return
        others = {one.end_ns for one in self.others if one.end_ns is not None and one.end_ns > profile.now_ns}
        tally = _Tally(self)
        ends = iter(profile.ends)
        end = next(ends, None)
        for moment in sorted({at_ns for at_ns, _ in profile.ends} | others):
            if before_ns is not None and moment >= before_ns:
                return
            if moment < first:
                continue
            while end is not None and end[0] <= moment:
                tally.note_end(end[1])
                end = next(ends, None)
            if self.count.is_met(tally.totals) and self._is_left(tally, moment):
                yield moment

    def _enough_from(self) -> int | None:
        """The moment from which there may be enough, by the sum of each resource alone; None: never."""
        missing = dict(self.count.total)
        for group in self.index.classes.values():
            for name in missing:
                missing[name] -= max(group.capacity.free.get(name, 0), 0) * len(group.ids)
        missing = {name: amount for name, amount in missing.items() if amount > 0}
        if not missing:
            return self.profile.now_ns
        for at_ns, job in self.profile.ends:
            for name, amount in self.profile.amounts_of(job).items():
                if name in missing:
                    missing[name] -= amount
                    if missing[name] <= 0:
                        del missing[name]
            if not missing:
                return at_ns
        return None

    def _is_left(self, tally: _Tally, moment: int) -> bool:
        """Whether the free capacity may hold all pieces without the claims of the other reservations."""
        count, until_ns, totals = self.count, self._until(moment), tally.totals
        for vnode_id in self.claims.on:
            bare = tally.fits.get(vnode_id) or tally.at_first(vnode_id)
            if bare is None or not any(bare):
                continue
            needed = self.claims.needed(vnode_id, moment, until_ns)
            if not needed:
                continue
            capacity = tally.free.get(vnode_id) or self.ledger.capacities[vnode_id].free
            rest = count.of(subtract(capacity, amounts_of(needed)))
            if rest != bare:
                totals = [t - b + r for t, b, r in zip(totals, bare, rest, strict=True)]
                if not count.is_met(totals):
                    return False
        return True

    def _until(self, moment: int) -> int:
        limit_ns = self.job.time_limit_ns
        return FOR_EVER if limit_ns is None else moment + limit_ns

    def _fits(self, moment: int) -> Placed | None:
        over = [job for at_ns, job in self.profile.ends if at_ns <= moment]
        return self._place(over, moment, self._until(moment))

    def some_day(self) -> tuple[None, Placed] | None:
        """The place for which the fewest jobs without a limit, oldest first, must end.

        Counting pieces gives a lower bound of their number; a bisection follows.
        """
        timed = [job for _, job in self.profile.ends]
        endless = self.profile.endless

        def at(count: int) -> Placed | None:
            return self._place([*timed, *endless[:count]], self.profile.now_ns, FOR_EVER)

        tally = _Tally(self)
        for job in timed:
            tally.note_end(job)
        for low, job in enumerate(endless, 1):  # noqa: B007
            tally.note_end(job)
            if self.count.is_met(tally.totals):
                break
        else:
            return None
        if (found := at(low)) is not None:
            return None, found
        high = len(endless)
        if low == high or (found := at(high)) is None:
            return None
        return None, _halved(low, high, found, at)[1]

    def _place(self, over: Iterable[RunningJob], since_ns: int, until_ns: int) -> Placed | None:
        """A place in what is free once the jobs ``over`` have ended, less the claims in the span."""
        capacities: dict[str, FreeCapacity] = {}
        for job in over:
            for vnode_id, allocation in self.profile.held_by(job):
                if vnode_id not in capacities:
                    capacities[vnode_id] = self.ledger.capacities[vnode_id].copy()
                capacities[vnode_id].give_back(allocation)
        for vnode_id in self.claims.on:
            capacity = capacities.get(vnode_id) or self.ledger.capacities[vnode_id].copy()
            if self.claims.hide(capacity, vnode_id, since_ns, until_ns).amounts:
                capacities[vnode_id] = capacity
        index = self.ledger.index_with(self.level, capacities)
        if not self.count.is_met(self.count.inside(index)):
            return None
        found = place_on(
            candidates_in(self.ledger, index, capacities), self.job.spec, self.job.entry, budget=BUDGET
        )
        return found if isinstance(found, Placed) else None


def _halved(low: int, high: int, found: Placed, at: Callable[[int], Placed | None]) -> tuple[int, Placed]:
    """By bisection, the least number above ``low`` with a place, and that place; ``high`` has ``found``."""
    while high - low > 1:
        middle = (low + high) // 2
        if (there := at(middle)) is not None:
            found, high = there, middle
        else:
            low = middle
    return high, found


class _Tally:
    """The number of pieces that fit, and the free amounts by virtual node, as running jobs end one by one."""

    def __init__(self, ahead: _Ahead) -> None:
        self.ahead = ahead
        self.totals = ahead.count.inside(ahead.index)
        self.free: dict[str, dict[str, int]] = {}
        self.fits: dict[str, list[int]] = {}
        self._of_class: dict[int, list[int]] = {}

    def at_first(self, vnode_id: str) -> list[int] | None:
        """The number of pieces that fit before any job ends; None: the node takes no work."""
        group = self.ahead.index.class_of(vnode_id)
        if group is None:
            return None
        fits = self._of_class.get(id(group))
        if fits is None:
            fits = self._of_class[id(group)] = self.ahead.count.of(group.capacity.free)
        return fits

    def note_end(self, job: RunningJob) -> None:
        ahead, count = self.ahead, self.ahead.count
        for vnode_id, allocation in ahead.profile.held_by(job):
            free, was = self.free.get(vnode_id), self.fits.get(vnode_id)
            if free is None or was is None:
                if (was := self.at_first(vnode_id)) is None:
                    continue
                free = self.free[vnode_id] = dict(ahead.ledger.capacities[vnode_id].free)
                self.fits[vnode_id] = was
            for name, amount in allocation.amounts.items():
                free[name] = free.get(name, 0) + amount
            if (now := count.of(free)) != was:
                self.fits[vnode_id] = now
                self.totals = [t + b - a for t, a, b in zip(self.totals, was, now, strict=True)]
