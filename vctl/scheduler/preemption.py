"""Preemption by priority: the jobs to end for one that does not fit, and what to reserve for it until they are gone.

Only base priorities count, never aged ones: a victim has a strictly lower one than the job it is ended for, so it can
never take its place back, and there are no cycles.

A search works on a copy of the clusters that matter, so it is independent of what happens meanwhile, and its answer is
compared with the present at its end. A round does a bounded number of steps; the next round goes on with the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.scheduler.elasticity import growing
from vctl.scheduler.nominations import Nomination, Nominations, Part, by_vnode
from vctl.scheduler.preemption_trial import Emptied, Seat
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reservations import Reservation
from vctl.scheduler.running import Running, returned_by
from vctl.scheduler.scheduling_class import SubQueue
from vctl.scheduler.victims import MOST_EXACT, Victim, choose
from vctl.scheduler.work import Work

MOST_STEPS = 400
"""Steps of one round to find victims, about 15 ms; the next round goes on."""
RETRY_NS = 30 * 10**9
"""After so long the search is repeated, for what no event tells: resources that come back from elsewhere."""
LOOK_NS = 2 * 10**9
"""So long a look at who runs, and what they would lose, is good for further searches."""
MOST_RESTARTS = 3
"""After so many a search is a rough one, which is done before the state changes again."""

NOBODY, NOT_EVEN_ALL, LEAVING_DO = "nobody", "not even all", "leaving do"
"""Why nobody is ended: there is nobody; all would not be enough; those who leave anyway are."""
NoVictims = tuple[str, object, int, int | None]
"""Verdict, the state it holds in, until when it is believed, and when somebody will have run long enough."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Running jobs that are to end for one that waits, and what is reserved for it meanwhile."""

    job: PendingJob
    victims: tuple[Victim, ...]
    nomination: Nomination


@dataclass(eq=False)
class Preemptor:
    """The preemptions of one round. ``begun`` are jobs that started in it: these are nobody's victims."""

    ledger: Ledger
    running: Running
    holds: Nominations
    now_ns: int
    active: bool = True
    steps: int | None = None
    begun: set[int] = field(default_factory=set)
    found: list[Preempt] = field(default_factory=list)
    lapsed: list[tuple[str, int]] = field(default_factory=list)
    """(parent, job) of nominations whose victims are over, and with which the job still does not fit."""
    unsearched: bool = False
    """Whether something is left for the next round."""

    def __post_init__(self) -> None:
        self._most = self._left = MOST_STEPS if self.steps is None else self.steps

    def count(self, job: PendingJob) -> None:
        """A job starts in this round: nothing is reserved for it any more, and it is nobody's victim."""
        self.begun.add(job.job_id)
        self.holds.drop(job.job_id)

    def consider(
        self,
        queue: Queue,
        sub_queue: SubQueue,
        job: PendingJob,
        reserved: Callable[[], Sequence[Reservation]],
    ) -> bool:
        """Look for victims for a job that does not fit, unless that was in vain before and nothing has changed."""
        if not self.active:
            return False
        own = self.holds.nominations.get(job.job_id)
        if own is not None:
            if own.awaited or any(one.job.job_id == job.job_id for one in self.found):
                return False
            self.lapse(job)
        if not queue.policy.preempts or not self.running.any_below(job.parent_id, job.priority):
            return False
        if sub_queue.no_victims is not None and self._is_known(sub_queue.no_victims, queue, job):
            return False
        if self._left <= 0:
            self.unsearched = True
            return False
        with self.holds.lifted(list(self.holds.nominations)):
            found = self._search(queue, job, lambda: self._reserved_from(job, reserved()))
        if found is None:
            self.unsearched = True
            return False
        if not isinstance(found, Preempt):
            sub_queue.no_victims = (found, *self._stamp(found, queue, job), self._young_ns(queue, job))
            queue.note_again(sub_queue.no_victims[-1])
            return False
        self.found.append(found)
        self.holds.put(found.nomination)
        return True

    def _reserved_from(self, job: PendingJob, reserved: Sequence[Reservation]) -> Reserved:
        binding = [one for one in reserved if one.job_id not in self.holds.nominations]
        return self.holds.out_of_reach(job), [part for one in binding for part in one.placed.parts]

    def lapse(self, job: PendingJob) -> None:
        """What is reserved for a job ends if nobody is awaited for it: it still does not fit."""
        own = self.holds.nominations.get(job.job_id)
        if self.active and own is not None and not own.awaited:
            self.holds.drop(job.job_id)
            self.lapsed.append((job.parent_id, job.job_id))

    def _is_known(self, verdict: NoVictims, queue: Queue, job: PendingJob) -> bool:
        """Whether it would be in vain again: nothing has happened since that could make a difference."""
        found, stamp, retry_ns, young_ns = verdict
        if self.now_ns >= min(at for at in (retry_ns, young_ns or retry_ns)):
            return False
        queue.note_again(young_ns)
        return stamp == self._stamp(found, queue, job)[0]

    def _stamp(self, found: str, queue: Queue, job: PendingJob) -> tuple[object, int]:
        """What a verdict depends on, and until when it is believed at most."""
        parent_id, running = queue.parent_id, self.running
        limits = tuple(self.ledger.clusters[one] for one in growing(self.ledger, parent_id))
        common = (self.ledger.versions.get(parent_id, 0), queue.times_nominated, limits)
        if found == NOT_EVEN_ALL:  # who ends of lower priority was counted on
            return (*common, running.ends_from(parent_id, job.priority)), self.now_ns + RETRY_NS
        if found == LEAVING_DO:
            return (*common, running.leavings), self.now_ns + RETRY_NS
        return (*common, running.version(parent_id), queue.growths), self.now_ns + RETRY_NS

    def _search(
        self, queue: Queue, job: PendingJob, reserved: Callable[[], Reserved]
    ) -> Preempt | str | None:
        """The jobs to end for one, or why there are none; None when there is more to do in the next round."""
        one, restarts = queue.search, 0
        if one is not None and one.job != job:
            one = queue.search = queue.look = None  # what is left of that search is in it
        while True:
            if one is None:
                one = queue.search = self._begin(queue, job, reserved(), restarts)
            is_done, steps = one.go_on(self._left, alone=self._left == self._most)
            self._left -= steps
            if not is_done:
                self._left = 0  # this one goes on first
                return None
            queue.search = None
            is_same = one.look.state == self._state(queue)
            if one.found is not None and one.found.victims:
                is_whole = queue.growths == one.look.growths or one.restarts >= MOST_RESTARTS
                if is_whole and (found := self._preempt(job, one.found, reserved())) is not None:
                    return found
                if is_same and one.look.maker is self:
                    return NOT_EVEN_ALL
            elif is_same:
                if not one.has_candidates:
                    return NOBODY
                return NOT_EVEN_ALL if one.found is None else LEAVING_DO
            restarts, one, queue.look = one.restarts + 1, None, None  # something has changed since it began

    def _begin(self, queue: Queue, job: PendingJob, reserved: Reserved, restarts: int) -> Search:
        taken = {victim.job.job_id for one in self.found for victim in one.victims}
        latest_ns = self.now_ns - queue.policy.min_runtime_ns
        running, begun = self.running, self.begun

        def leaves(job_id: int) -> bool:
            return job_id in taken or job_id in running.leaving or job_id not in running.jobs

        def may_end(one: Victim) -> bool:
            return (
                one.job.priority < job.priority
                and one.job.started_at_ns <= latest_ns
                and running.jobs.get(one.job.job_id) == one.job
                and one.job.job_id not in begun
            )

        look = queue.look
        if look is None or look.growths != queue.growths or self.now_ns - look.made_ns > LOOK_NS:
            jobs = [
                one for one in running.of_parent.get(queue.parent_id, {}).values() if one.job_id not in begun
            ]
            emptied = Emptied(self.ledger, running, queue.parent_id, jobs)
            look = queue.look = Look(self.now_ns, queue.growths, self._state(queue), self, emptied)
            self._left -= emptied.cost
        return Search(job, look, may_end, leaves, reserved, restarts)

    def _state(self, queue: Queue) -> object:
        """As long as this is the same, nobody has started or ended there and nothing has come free."""
        return (
            queue.growths, self.running.version(queue.parent_id), self.running.leavings, len(self.begun),
            self.ledger.versions.get(queue.parent_id, 0),
        )  # fmt: skip

    def _preempt(self, job: PendingJob, choice: Choice, reserved: Reserved) -> Preempt | None:
        """What a search has found, if it is still right."""
        running = self.running
        taken = {victim.job.job_id for one in self.found for victim in one.victims}
        for victim in choice.victims:
            job_id = victim.job.job_id
            if (
                running.jobs.get(job_id) != victim.job
                or job_id in running.leaving
                or job_id in taken | self.begun
            ):
                return None
        returned = {
            n: returned_by(self.ledger, running, running.jobs[n]) for n in choice.gone if n in running.jobs
        }
        if not is_there(self.ledger, choice, returned, reserved):
            return None
        candidate_nodes = {vnode_id for vnode_id, _ in choice.seat.parts}
        awaited = {
            n for n, parts in returned.items() if not candidate_nodes.isdisjoint(part[0] for part in parts)
        }
        nomination = Nomination(
            job.job_id, job.submission_id, job.priority, job.parent_id, choice.seat.parts, frozenset(awaited)
        )
        return Preempt(job, choice.victims, nomination) if nomination.stands(self.ledger) else None

    def _young_ns(self, queue: Queue, job: PendingJob) -> int | None:
        """When the next job of lower priority will have run long enough."""
        least = queue.policy.min_runtime_ns
        if not least:
            return None
        return min(
            (
                due
                for one in self.running.of_parent.get(job.parent_id, {}).values()
                if one.priority < job.priority and (due := one.started_at_ns + least) > self.now_ns
            ),
            default=None,
        )


# ---- one search ----

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
