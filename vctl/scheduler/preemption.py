"""Preemption by priority: the jobs to end for a job that does not fit, and the place to keep for it.

The problem. A job of high priority does not fit, and running jobs of lower priority hold what it needs. Which
of them have to end, with as little work lost as possible? Told to end, each has its grace, half a minute or
more, so they end at different moments. If the others went on as usual meanwhile, what the first victim returns
would go to any small job that fits; the winner still would not fit and would end more. And the question "does
it fit without these?" costs the placement of a whole gang, while a round has milliseconds.

The idea has three parts.

*The choice* (``victims``). With more jobs gone, a gang that fits never stops fitting. So the candidates are
taken by priority: the lowest levels that are enough are found by bisection; then, from the highest of these
down, each level gives the set with the least loss that is enough when all below it are gone. The loss of a job
is its run time times its dominant share, the largest part that it has of any resource of the cluster. In a
level jobs are spared one after the other, in one trial the dearest first, in another node by node; the better
result counts. Where at most 12 jobs each lose no more than that whole result, all their combinations are
weighed, so it is exact.

*The nomination* (``nominations``). With the victims the search names the place that the job will have when they
are gone, to the very instances. It is written in the transaction that begins the preemption. In each round,
what is free of it is charged in the ledger before anything is tried: tasks, other queues and growing clusters
find it in use, and need to know nothing of nominations. The charge is lifted for the job itself, and for jobs
of its queue with a higher priority that have none of their own. Its ``awaited`` are the jobs that still have to
return a part of it, whatever they end for. While one is awaited, nothing more is ended for this job. If none is
and the job still does not fit, the nomination lapses and the search begins again. Where the cluster has to grow
for the place, the nomination names what growth will take of clusters above and of siblings that lend, and their
limits count it as held; the growth itself happens with the start.

*The search that pauses* (``Search``, ``preemption_trial``). It asks a copy of the clusters concerned, made once
(``Snapshot``), so that nothing that happens meanwhile confuses it. It is a generator that says what its next step
costs; a round lets it work for ``MOST_STEPS``, and the next round goes on. Most questions are answered by
counting how many pieces fit on each node by amounts alone: too few is a certain no. At its end the victims and
the place are compared with the present. If a victim or the place is not there any more, it begins again; also
if something came free meanwhile, but then at most three times, so a busy cluster does not put it off for ever.
Each time it has an eighth of the budget that it had before. Beyond ``SEARCH_STEPS`` it only bisects, takes
whole levels, and then spares the jobs whose return the place does not need.

Invariants.

- A victim has a strictly lower base priority than the job it ends for; ageing does not count. So no victim can
  end its winner, and there are no cycles.
- A victim has run for the minimum runtime of the queue, and did not start in the same round. It belongs to the
  same cluster.
- No job of a higher level ends where lower levels suffice. In a search within its budget every victim is
  needed.
- A job that already ends counts as gone and is nobody's victim a second time.
- Preemption comes after growth and idle loans (``recall``): nobody's work ends where idle resources alone are
  enough.
- A verdict "nobody can help" is kept, for at most 30 s, with the part of the state on which it depends
  (``Preemptor._stamp``), so a queue of jobs that wait costs no search in each round.

Example (``tests/scheduler/test_theory.py``). A node has 8 CPUs, all in use by jobs of priority 0: ``a`` has 4
for 100 s, ``b`` 2 for 60 s, ``c`` 2 for 80 s. A job of priority 5 needs 4. Losses are 100 · 4/8 = 50, 60 · 2/8
= 15 and 80 · 2/8 = 20 seconds of the whole node. ``b`` and ``c`` together lose 35, less than ``a``, so they
end. The nomination is 4 CPUs of the node, awaiting both. ``b`` ends first: its 2 CPUs stay charged, and a job
of priority 4 that needs 1 waits. ``c`` ends: the winner starts.

What it costs. A step is about 30 µs. All searches of a round have 400 steps together, but a part that cannot
pause and costs more (placing a gang costs a step for each piece) is done where it is the only one. One search
has 10,000, a third of a second spread over rounds, and beyond them what it needs to come to an end. The copy
costs a step for each dozen virtual nodes. Without a waiting job of higher priority, or with a verdict that
holds, nothing.

Not done. Jobs of other clusters are no victims: taking back a loan is ``recall`` and ``engine/rules/leases``.
Idle loans of others do not count as free in the search. Which of several equal nodes are emptied is in a large
search the placement's choice, not the least loss. A higher priority that comes during the grace may take what
was freed; the first winner then searches again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import Allocation
from vctl.core.values import field, value
from vctl.scheduler.elasticity import growing
from vctl.scheduler.nominations import Nomination, Nominations, Part, by_vnode
from vctl.scheduler.preemption_trial import Claim, Emptied
from vctl.scheduler.reservations import Reservation
from vctl.scheduler.running import Running, returned_by
from vctl.scheduler.scheduling_class import SubQueue
from vctl.scheduler.victims import MOST_EXACT, Victim, choose
from vctl.scheduler.work import Work

MOST_STEPS = 400
"""The steps of one round in the search for victims, about 15 ms. The next round goes on."""
RETRY_NS = 30 * 10**9
"""The time after which a search is repeated without an event: other clusters may have returned resources."""
SNAPSHOT_NS = 2 * 10**9
"""The age up to which a ``Snapshot`` may serve further searches."""
MOST_RESTARTS = 3
"""The number of restarts after which the answer of a search is used although capacity came free meanwhile."""

NOBODY, NOT_EVEN_ALL, LEAVING_DO = "nobody", "not even all", "leaving do"
"""Why no job is ended: there is no candidate; all would not be enough; those that end anyway are enough."""
NoVictims = tuple[str, object, int, int | None]
"""(Verdict, state and time until which it holds, time when the next job has run long enough to be ended)."""


@value(frozen=True, slots=True)
class Preempt:
    """Running jobs that are to end for a waiting job, and the nomination of that job."""

    job: PendingJob
    victims: tuple[Victim, ...]
    nomination: Nomination


class PreemptingQueue(Protocol):
    """What preemption reads of a ``Queue``, and what it keeps there until the next round."""

    parent_id: str
    policy: QueuePolicy
    growths: int
    times_nominated: int
    snapshot: Snapshot | None
    search: Search | None

    def note_again(self, at_ns: int | None) -> None:
        """Scan the queue again at that time."""

    def note_until(self, at_ns: int) -> None:
        """Note that the scan finds something else from that time on."""


@value(eq=False)
class Preemptor:
    """The preemptions of one round. ``begun``: jobs that started in this round; they are not victims."""

    ledger: Ledger
    running: Running
    holds: Nominations
    now_ns: int
    active: bool = True
    steps: int | None = None
    begun: set[int] = field(default_factory=set)
    preempts: list[Preempt] = field(default_factory=list)
    lapsed: list[tuple[str, int]] = field(default_factory=list)
    """(parent id, job id) of nominations whose victims are over although the job still does not fit."""
    unsearched: bool = False
    """Whether a search is left for the next round."""

    def __post_init__(self) -> None:
        self._limit = self._remaining = MOST_STEPS if self.steps is None else self.steps

    def count(self, job: PendingJob) -> None:
        """Note that a job starts in this round: its nomination ends, and it is not a victim."""
        self.begun.add(job.job_id)
        self.holds.drop(job.job_id)

    def consider(
        self,
        queue: PreemptingQueue,
        sub_queue: SubQueue,
        job: PendingJob,
        reserved: Callable[[], Sequence[Reservation]],
    ) -> bool:
        """Search victims for a job that does not fit, unless an earlier verdict still holds.

        True: a preemption was found, and its nomination added. ``reserved``: returns the job's binding
        reservations.
        """
        if not self.active:
            return False
        own = self.holds.nominations.get(job.job_id)
        if own is not None:
            if own.awaited or any(preempt.job.job_id == job.job_id for preempt in self.preempts):
                return False
            self.lapse(job)
        if not queue.policy.preempts or not self.running.any_below(job.parent_id, job.priority):
            return False
        if sub_queue.no_victims is not None and self._is_known(sub_queue.no_victims, queue, job):
            return False

        def hidden() -> Reserved:
            binding = (r for r in reserved() if r.job_id not in self.holds.nominations)
            parts = [part for r in binding for part in r.placed.parts]
            if (booked := self.ledger.booked) is not None:
                end_ns = None if job.time_limit_ns is None else self.now_ns + job.time_limit_ns
                parts += booked.parts_of(booked.binding(job.parent_id, end_ns))
            return self.holds.out_of_reach(job), parts

        outcome = None
        if self._remaining > 0:
            with self.holds.lifted(list(self.holds.nominations)):
                outcome = self._search(queue, job, hidden)
        if outcome is None:
            self.unsearched = True
            return False
        if not isinstance(outcome, Preempt):
            retry_ns = self.now_ns + RETRY_NS
            young_ns = self._young_ns(queue, job)
            sub_queue.no_victims = (outcome, self._stamp(outcome, queue, job), retry_ns, young_ns)
            queue.note_again(young_ns)
            queue.note_until(retry_ns)
            return False
        self.preempts.append(outcome)
        self.holds.put(outcome.nomination)
        return True

    def lapse(self, job: PendingJob) -> None:
        """End the nomination of a job that still does not fit although no victim is awaited any more."""
        own = self.holds.nominations.get(job.job_id)
        if self.active and own is not None and not own.awaited:
            self.holds.drop(job.job_id)
            self.lapsed.append((job.parent_id, job.job_id))

    def _is_known(self, verdict: NoVictims, queue: PreemptingQueue, job: PendingJob) -> bool:
        """Whether a verdict still holds: the state on which it depends is the same and its time not over."""
        reason, stamp, retry_ns, young_ns = verdict
        if self.now_ns >= min(retry_ns, young_ns or retry_ns):
            return False
        queue.note_again(young_ns)
        queue.note_until(retry_ns)
        return stamp == self._stamp(reason, queue, job)

    def _stamp(self, reason: str, queue: PreemptingQueue, job: PendingJob) -> object:
        """The state on which a verdict depends."""
        parent_id, running = queue.parent_id, self.running
        state: object = (running.version(parent_id), queue.growths)
        if reason == NOT_EVEN_ALL:  # the verdict assumes that all jobs of lower priority end
            state = running.ends_from(parent_id, job.priority)
        elif reason == LEAVING_DO:
            state = running.leavings
        limits = tuple(self.ledger.clusters[cluster_id] for cluster_id in growing(self.ledger, parent_id))
        return self.ledger.versions.get(parent_id, 0), queue.times_nominated, limits, state

    def _search(
        self, queue: PreemptingQueue, job: PendingJob, reserved: Callable[[], Reserved]
    ) -> Preempt | str | None:
        """The preemption for a job, or the verdict why there is none; None: the next round must continue."""
        search, restarts = queue.search, 0
        if search is not None and search.job != job:
            search = queue.search = queue.snapshot = None  # the snapshot still holds the state of that search
        while True:
            if search is None:
                search = queue.search = self._begin(queue, job, reserved(), restarts)
            is_done, steps = search.go_on(self._remaining, alone=self._remaining == self._limit)
            self._remaining -= steps
            if not is_done:
                self._remaining = 0  # the next round continues this search first
                return None
            queue.search = None
            is_same = search.snapshot.state == self._state(queue)
            if search.choice is not None and search.choice.victims:
                is_whole = queue.growths == search.snapshot.growths or search.restarts >= MOST_RESTARTS
                if is_whole and (preempt := self._preempt(job, search.choice, reserved())) is not None:
                    return preempt
                if is_same and search.snapshot.maker is self:
                    return NOT_EVEN_ALL
            elif is_same:
                if not search.has_candidates:
                    return NOBODY
                return NOT_EVEN_ALL if search.choice is None else LEAVING_DO
            # the state has changed since the search began
            restarts, search, queue.snapshot = search.restarts + 1, None, None

    def _begin(self, queue: PreemptingQueue, job: PendingJob, reserved: Reserved, restarts: int) -> Search:
        ending = {victim.job.job_id for preempt in self.preempts for victim in preempt.victims}
        latest_ns = self.now_ns - queue.policy.min_runtime_ns
        running, begun = self.running, self.begun

        def leaves(job_id: int) -> bool:
            return job_id in ending or job_id in running.leaving or job_id not in running.jobs

        def may_end(victim: Victim) -> bool:
            return (
                victim.job.priority < job.priority
                and victim.job.started_at_ns <= latest_ns
                and running.jobs.get(victim.job.job_id) == victim.job
                and victim.job.job_id not in begun
            )

        last, now_ns = queue.snapshot, self.now_ns
        if last is None or last.growths != queue.growths or now_ns - last.made_ns > SNAPSHOT_NS:
            jobs = running.of_parent.get(queue.parent_id, {}).values()
            emptied = Emptied(
                self.ledger, running, queue.parent_id, [other for other in jobs if other.job_id not in begun]
            )
            last = queue.snapshot = Snapshot(now_ns, queue.growths, self._state(queue), self, emptied)
            self._remaining -= emptied.cost
        return Search(job, last, may_end, leaves, reserved, restarts)

    def _state(self, queue: PreemptingQueue) -> object:
        """A value that changes if a job of the queue's cluster starts or ends, or capacity comes free."""
        return (
            queue.growths, self.running.version(queue.parent_id), self.running.leavings, len(self.begun),
            self.ledger.versions.get(queue.parent_id, 0),
        )  # fmt: skip

    def _preempt(self, job: PendingJob, choice: Choice, reserved: Reserved) -> Preempt | None:
        """The preemption that a search has found, if it is still valid; else None."""
        running = self.running
        ending = {victim.job.job_id for preempt in self.preempts for victim in preempt.victims} | self.begun
        for victim in choice.victims:
            job_id = victim.job.job_id
            if running.jobs.get(job_id) != victim.job or job_id in running.leaving or job_id in ending:
                return None
        returned = {
            n: returned_by(self.ledger, running, running.jobs[n]) for n in choice.ended if n in running.jobs
        }
        if not is_there(self.ledger, choice, returned, reserved):
            return None
        claimed = {vnode_id for vnode_id, _ in choice.claim.parts}
        awaited = frozenset(n for n, parts in returned.items() if any(part[0] in claimed for part in parts))
        nomination = Nomination(
            job.job_id, job.submission_id, job.priority, job.parent_id, choice.claim.parts, awaited
        )
        return Preempt(job, choice.victims, nomination) if nomination.is_valid(self.ledger) else None

    def _young_ns(self, queue: PreemptingQueue, job: PendingJob) -> int | None:
        """The time when the next job of lower priority will have run long enough to be ended."""
        least = queue.policy.min_runtime_ns
        if not least:
            return None
        return min(
            (
                due
                for other in self.running.of_parent.get(job.parent_id, {}).values()
                if other.priority < job.priority and (due := other.started_at_ns + least) > self.now_ns
            ),
            default=None,
        )


# ---- one search ----

SEARCH_STEPS = 10_000
"""The steps of one search, about a third of a second in all.

Beyond them a search only bisects the levels of priority, and spares victims by the place that was found.
"""
Reserved = tuple[list[Nomination], list[Part]]
"""The capacity hidden from a job: nominations of other jobs, and the parts of reserved starts."""


@value(frozen=True, slots=True)
class Snapshot:
    """The running jobs of a cluster, and the work that each would lose, as of one moment."""

    made_ns: int
    growths: int
    """``Queue.growths`` at that moment."""
    state: object
    """The state on which verdicts depend."""
    maker: object
    """The preemptor of the round in which it was made."""
    emptied: Emptied


@value(frozen=True, slots=True)
class Choice:
    """The jobs to end, and the place of the waiting job then. No victims: jobs that end anyway are enough.

    ``ended``: the victims and the jobs that end anyway.
    """

    victims: tuple[Victim, ...]
    ended: frozenset[int]
    claim: Claim


@value(eq=False)
class Search:
    """The search for the victims of one job, which can pause.

    ``may_end``: whether a job is a candidate. ``leaves``: whether a job ends anyway. ``reserved``: the hidden
    capacity. ``restarts``: how often the search began anew because the state had changed; each restart has an
    eighth of the budget before.
    """

    job: PendingJob
    snapshot: Snapshot
    may_end: Callable[[Victim], bool]
    leaves: Callable[[int], bool]
    reserved: Reserved
    restarts: int = 0
    choice: Choice | None = None
    """None: ending all candidates would not be enough."""
    has_candidates: bool = False

    def __post_init__(self) -> None:
        self.steps = self._next = 0
        self._limit = SEARCH_STEPS >> 3 * self.restarts
        self._work = self._run()

    def go_on(self, limit: int, *, alone: bool) -> tuple[bool, int]:
        """Work for at most ``most`` steps; returns (whether the search is done, the steps taken).

        A part that costs more and cannot pause is done only if the round searches nothing else (``alone``).
        """
        used = 0
        while used + self._next <= limit or (alone and not used):
            used += self._next
            self.steps += self._next
            try:
                self._next = next(self._work)
            except StopIteration:
                return True, used
        return False, used

    def _run(self) -> Work[None]:
        emptied, job = self.snapshot.emptied, self.job
        yield from emptied.collect(self.snapshot.made_ns)
        always = frozenset(job_id for job_id in emptied.parts if self.leaves(job_id))
        candidates = [v for v in emptied.victims if v.job.job_id not in always and self.may_end(v)]
        if not candidates:
            return
        self.has_candidates = True
        before = self.steps
        yield from emptied.reserve(*self.reserved)

        def has_cost_enough() -> bool:
            return self.steps - before >= self._limit

        chosen = yield from choose(candidates, lambda some: emptied.fits(job, some | always), has_cost_enough)
        if chosen is None:
            return
        ended = always | {victim.job.job_id for victim in chosen}
        claim = yield from emptied.claim(job, ended)
        if claim is not None and (len(chosen) > MOST_EXACT or has_cost_enough()):
            needed = yield from emptied.needed(claim, chosen)
            fewer = always | {victim.job.job_id for victim in needed}
            smaller = (yield from emptied.claim(job, fewer)) if len(needed) < len(chosen) else None
            if smaller is not None:
                chosen, ended, claim = needed, fewer, smaller
        if claim is not None:
            self.choice = Choice(tuple(sorted(chosen, key=lambda victim: victim.job.job_id)), ended, claim)


def is_there(
    ledger: Ledger, choice: Choice, returned: Mapping[int, Sequence[Part]], reserved: Reserved
) -> bool:
    """Whether the place that a search found is free once the jobs in ``choice.ended`` have ended.

    ``returned``: job -> what it gives back.
    """
    given = by_vnode(part for job_id in choice.ended for part in returned.get(job_id, ()))
    hidden = by_vnode([*(part for nomination in reserved[0] for part in nomination.pieces), *reserved[1]])
    for vnode_id, allocations in by_vnode(choice.claim.parts).items():
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
