"""The order ``makespan``: simulates the queue by time limits in several orders and keeps the best of them.

List scheduling by one rule is seldom optimal and sometimes far off; the best of a few rules is nearly always
close. Then the job that ended last moves to the front as long as that helps. The same state gives the same
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import DEFAULT, MAKESPAN, SECOND
from vctl.core.resources import Allocation, FreeCapacity, maximum, total
from vctl.core.slots import SlotIndex
from vctl.core.values import replace
from vctl.scheduler.candidate_nodes import candidates_in
from vctl.scheduler.orders import longest, makespan
from vctl.scheduler.placement import Placed, place_on
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running, allocations_of
from vctl.scheduler.upper_bound import UpperBound

MOST_JOBS = 64
"""The number of jobs of a queue that are planned together; the others follow, the longest first."""
LOOKS = 500
"""The number of searches for a place in one plan; after them the best order so far is taken."""
COUNTS = 40
"""The number of upper bounds that cost as much as one search."""
STEPS = 400
"""The step budget of one search."""
UNKNOWN_NS = 3600 * SECOND
"""The run time assumed for a job without a time limit, unless a time limit in the queue is longer."""

Returned = tuple[tuple[str, Allocation], ...]
Score = tuple[int, int, int]
"""(Jobs without a place, end of the last job, sum of all ends): less is better."""


def follow_plan(ledger: Ledger, queue: Queue, running: Running, now_ns: int) -> None:
    """Order a queue with the order ``makespan`` by a plan, which is made anew after each change."""
    if queue.policy.order != MAKESPAN:
        return
    due = sum(job.may_start(now_ns) for job in queue.delayed())
    parent_id = queue.parent_id
    state = (
        queue.changes, queue.growths, running.version(parent_id), ledger.versions.get(parent_id), due
    )  # fmt: skip
    if queue.planned != state:
        planned = in_plan(ledger, parent_id, queue.jobs.values(), running, now_ns)
        queue.follow({job.job_id: job.place for job in planned})
        queue.planned = state


def in_plan(
    ledger: Ledger, parent_id: str, jobs: Iterable[PendingJob], running: Running, now_ns: int
) -> list[PendingJob]:
    """The jobs of a queue in the order of a plan made now, with their places; unplanned jobs come last."""
    places = foresee(ledger, parent_id, jobs := list(jobs), running, now_ns)
    last = len(places) + 1
    planned = [replace(job, place=places.get(job.job_id, last)) for job in jobs]
    return sorted(planned, key=lambda job: makespan(job, DEFAULT))


def foresee(
    ledger: Ledger, parent_id: str, jobs: Iterable[PendingJob], running: Running, now_ns: int
) -> dict[int, int]:
    """Job id -> place, from 1, in the best order found: the one in which the last job ends earliest.

    Jobs that may not start yet are left out. A higher priority always comes first. The plan uses the present
    nodes of the cluster, without growth.
    """
    ready = sorted((job for job in jobs if job.may_start(now_ns)), key=_by_length)
    seen, rest = ready[:MOST_JOBS], ready[MOST_JOBS:]
    best = _Forecast(ledger, parent_id, running, now_ns, seen).best_order()
    return {job.job_id: place for place, job in enumerate([*best, *rest], 1)}


def _by_length(job: PendingJob) -> tuple[int, int]:
    return longest(job, DEFAULT)


@dataclass(slots=True)
class _Play:
    """One order, its score, and the ends of its jobs, the last first."""

    order: Sequence[PendingJob]
    score: Score
    ends: list[tuple[int, PendingJob]]


@dataclass(slots=True)
class _State:
    """The free capacities of a cluster during a simulation."""

    ledger: Ledger
    parent_id: str
    capacities: dict[str, FreeCapacity] = field(default_factory=dict)
    index: SlotIndex = field(init=False)

    def __post_init__(self) -> None:
        self.index = self.ledger.index(self.parent_id).copy()

    def place(self, job: PendingJob) -> Placed | None:
        found = place_on(
            candidates_in(self.ledger, self.index, self.capacities), job.spec, job.entry, budget=STEPS
        )
        return found if isinstance(found, Placed) else None

    def change(self, parts: Iterable[tuple[str, Allocation]], *, take: bool) -> None:
        for slot_id, allocation in parts:
            capacity = self.capacities.get(slot_id)
            if capacity is None:
                capacity = self.capacities[slot_id] = self.ledger.capacities[slot_id].copy()
            capacity.take_exactly(allocation) if take else capacity.give_back(allocation)
            self.ledger.file(self.index, {slot_id: capacity})


class _Forecast:
    """Simulates orders of the jobs of one queue within a budget."""

    def __init__(
        self, ledger: Ledger, parent_id: str, running: Running, now_ns: int, jobs: Sequence[PendingJob]
    ) -> None:
        self.ledger, self.parent_id, self.now_ns, self.jobs = ledger, parent_id, now_ns, jobs
        self.left = LOOKS * COUNTS
        """The rest of the budget, counted in upper bounds."""
        self.counts = {job.shape: UpperBound(job.spec) for job in jobs}
        self.total = ledger.total(parent_id)
        known = [job.time_limit_ns for job in jobs if job.time_limit_ns is not None]
        self.unknown_ns = max([UNKNOWN_NS, *known])
        self.coming: list[tuple[int, int, Returned]] = [
            (max(job.ends_at_ns, now_ns), -job.job_id, tuple(allocations_of(ledger, job)))
            for job in running.of_parent.get(parent_id, {}).values()
            if job.ends_at_ns is not None
        ]

    def best_order(self) -> Sequence[PendingJob]:
        """The best order found within the budget."""
        if len(self.jobs) < 2:
            return self.jobs
        best: _Play | None = None
        orders = [
            sorted(self.jobs, key=lambda job: (-job.priority, -rule(self, job), job.job_id)) for rule in RULES
        ]
        for order in orders:
            played = self.play(order)
            if played is None:
                break
            if best is None or played.score < best.score:
                best = played
        return orders[0] if best is None else self._improved(best).order

    def _improved(self, best: _Play) -> _Play:
        """Move the last job to end to the front of its priority, then the one before, until nothing helps."""
        tried = 0
        while tried < len(best.ends):
            late = best.ends[tried][1]
            others = [job for job in best.order if job is not late]
            at = next((i for i, job in enumerate(others) if job.priority <= late.priority), len(others))
            played = self.play([*others[:at], late, *others[at:]])
            if played is None:
                break
            tried += 1
            if played.score < best.score:
                best, tried = played, 0
        return best

    def play(self, order: Sequence[PendingJob]) -> _Play | None:
        """Simulate an order: at each end start every job that fits; None when the budget does not suffice."""
        state = _State(self.ledger, self.parent_id)
        coming = list(self.coming)
        heapify(coming)
        waiting, ends, now_ns = list(order), [], self.now_ns
        while waiting:
            blocked: set[str] = set()
            left = []
            for job in waiting:
                if job.shape not in blocked:
                    if self.left <= 0:
                        return None
                    placed = self._look(state, job)
                    if placed is not None:
                        state.change(placed.parts, take=True)
                        end_ns = now_ns + self.length(job)
                        heappush(coming, (end_ns, job.job_id, placed.parts))
                        ends.append((end_ns, job))
                        continue
                    blocked.add(job.shape)
                left.append(job)
            waiting = left
            if not coming:
                break
            now_ns = coming[0][0]
            while coming and coming[0][0] == now_ns:
                state.change(heappop(coming)[2], take=False)
        ends.sort(key=lambda one: (-one[0], one[1].job_id))
        score = (len(waiting), ends[0][0] if ends else 0, sum(end_ns for end_ns, _ in ends))
        return _Play(order, score, ends)

    def _look(self, state: _State, job: PendingJob) -> Placed | None:
        """A place for a job. A search is made only if the upper bound allows a place."""
        self.left -= 1
        count = self.counts[job.shape]
        if not count.is_met(count.within(state.index.classes.values())):
            return None
        self.left -= COUNTS
        return state.place(job)

    def length(self, job: PendingJob) -> int:
        return self.unknown_ns if job.time_limit_ns is None else job.time_limit_ns

    def share(self, job: PendingJob) -> float:
        """The dominant share of a job: the largest part that it takes of any resource of the cluster."""
        minimum = job.spec.flexible_min if job.spec.flexible else {}
        wanted = maximum(total([minimum, *(node.resources for node in job.spec.fixed)]), job.entry)
        return max((amount / self.total[n] for n, amount in wanted.items() if self.total.get(n)), default=0.0)


RULES: tuple[Callable[[_Forecast, PendingJob], float], ...] = (
    lambda forecast, job: forecast.length(job) * (0.3 + forecast.share(job)),
    lambda forecast, job: forecast.length(job),
    lambda forecast, job: forecast.length(job) * forecast.share(job),
    lambda forecast, job: forecast.share(job),
    lambda _forecast, _job: 0.0,
)
"""The rules of the orders to try, larger values first: long and large, long, much work, large, early."""
