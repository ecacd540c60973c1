"""One search for victims: on a copy of the clusters that matter, a bounded amount of work a round, resumed in the next.

The copy makes a search independent of what happens meanwhile; what it finds is compared with the present at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.scheduler.nominations import Nomination, Part, by_vnode
from vctl.scheduler.preemption_trial import Emptied, Seat
from vctl.scheduler.victims import MOST_EXACT, Victim, choose
from vctl.scheduler.work import Work

SEARCH_STEPS = 10_000
"""Steps of one search, about a third of a second in all.

A search that has cost as much asks only what bisection of the levels asks, and spares by the place that was found.
"""
Reserved = tuple[list[Nomination], list[Part]]
"""What is out of sight for a job: what is reserved for others, and reserved starts."""


@dataclass(frozen=True, slots=True)
class Look:
    """Who runs in a cluster and what each would lose, at one moment."""

    made_ns: int
    growths: int
    """How often something had come free."""
    state: object
    """What its verdicts depend on."""
    maker: object
    """The round in which it was made."""
    emptied: Emptied


@dataclass(frozen=True, slots=True)
class Choice:
    """The jobs to end, and the place that the job has then. No victims: what ends anyway is enough."""

    victims: tuple[Victim, ...]
    gone: frozenset[int]
    seat: Seat


@dataclass(eq=False)
class Search:
    """The search for the victims of one job, done bit by bit.

    ``may_end`` says who is a candidate, ``leaves`` who is gone anyway, ``reserved`` what is hidden. ``restarts`` is
    how often it was begun anew because the state had changed meanwhile: each of them is a shorter one.
    """

    job: PendingJob
    look: Look
    may_end: Callable[[Victim], bool]
    leaves: Callable[[int], bool]
    reserved: Reserved
    restarts: int = 0
    found: Choice | None = None
    """None: not even all would do."""
    has_candidates: bool = False

    def __post_init__(self) -> None:
        self.steps = self._next = 0
        self._most = SEARCH_STEPS >> 3 * self.restarts
        self._work = self._run()

    def go_on(self, most: int, *, alone: bool) -> tuple[bool, int]:
        """Work for so many steps; whether it is done, and how many they were.

        What cannot be divided and costs more is done only where the round does nothing else (``alone``).
        """
        used = 0
        while used + self._next <= most or (alone and not used):
            used += self._next
            self.steps += self._next
            try:
                self._next = next(self._work)
            except StopIteration:
                return True, used
        return False, used

    def _run(self) -> Work[None]:
        emptied, job = self.look.emptied, self.job
        yield from emptied.collect(self.look.made_ns)
        always = frozenset(job_id for job_id in emptied.parts if self.leaves(job_id))
        candidates = [one for one in emptied.victims if one.job.job_id not in always and self.may_end(one)]
        if not candidates:
            return
        self.has_candidates = True
        before = self.steps
        yield from emptied.reserve(*self.reserved)

        def has_cost_enough() -> bool:
            return self.steps - before >= self._most

        chosen = yield from choose(candidates, lambda some: emptied.fits(job, some | always), has_cost_enough)
        if chosen is None:
            return
        gone = always | {one.job.job_id for one in chosen}
        seat = yield from emptied.seat(job, gone)
        if seat is not None and (len(chosen) > MOST_EXACT or has_cost_enough()):
            needed = yield from emptied.needed(seat, chosen)
            fewer = always | {one.job.job_id for one in needed}
            again = (yield from emptied.seat(job, fewer)) if len(needed) < len(chosen) else None
            if again is not None:
                chosen, gone, seat = needed, fewer, again
        if seat is not None:
            self.found = Choice(tuple(sorted(chosen, key=lambda one: one.job.job_id)), gone, seat)


def is_there(
    ledger: Ledger,
    choice: Choice,
    returned: Mapping[int, Sequence[Part]],
    reserved: Reserved,
) -> bool:
    """Whether the place that a search found is there now, once those have gone; ``returned``: what each gives back."""
    given = by_vnode(part for job_id in choice.gone for part in returned.get(job_id, ()))
    hidden = by_vnode([*(part for one in reserved[0] for part in one.pieces), *reserved[1]])
    for vnode_id, allocations in by_vnode(choice.seat.parts).items():
        if vnode_id not in ledger.capacities:
            return False
        capacity = ledger.capacities[vnode_id].copy()
        for allocation in given.get(vnode_id, ()):
            capacity.give_back(allocation)
        for allocation in hidden.get(vnode_id, ()) if not capacity.is_overdrawn() else ():
            capacity.take_most(allocation)
        for allocation in allocations:
            bare = Allocation(allocation.amounts, allocation.instances)
            if not capacity.fits_exactly(bare):
                return False
            capacity.take_exactly(bare)
    return True
