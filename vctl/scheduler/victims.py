"""The choice of victims: which running jobs must end so that a waiting job fits, with the least loss of work
on each level of priority.

The caller answers the question "does it fit when these jobs have gone?". With more jobs gone a yes never
turns to no. The caller also decides when the search has cost enough: from then on only whole levels of
priority are chosen, by bisection. The search is a generator (``Work``), so that the caller may pause it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from vctl.core import resources as rs
from vctl.core.jobs import RunningJob
from vctl.core.resources import Amounts
from vctl.core.values import value
from vctl.scheduler.work import Work

MOST_EXACT = 12
"""The most candidates of one level that are compared in all combinations."""
MOST_AT_FIRST = 64
"""If this many of the cheapest candidates are not enough, the next question is whether all are."""
SORTED = 20
"""The number of candidates that are sorted in one step."""
MOST_QUESTIONS = 1_000
"""The most questions of one choice; after them the best known choice is taken."""


@value(frozen=True, slots=True)
class Victim:
    """A running job that may be ended, and the work that would be lost (``loss_of``)."""

    job: RunningJob
    loss: int
    vnode_id: str = ""
    """The lowest id of the virtual nodes on which the job holds resources."""


Fits = Callable[[frozenset[int]], Work[bool]]
"""The question whether the waiting job fits when the jobs with these numbers have gone."""


class _Question:
    """The question, with a memory of its answers and a limit on their number."""

    def __init__(self, fits: Fits, has_cost_enough: Callable[[], bool]) -> None:
        self._fits = fits
        self._has_cost_enough = has_cost_enough
        self._known: dict[frozenset[int], bool] = {}

    def is_spent(self) -> bool:
        return len(self._known) >= MOST_QUESTIONS or self._has_cost_enough()

    def __call__(self, ended: frozenset[int]) -> Work[bool]:
        if ended not in self._known:
            self._known[ended] = yield from self._fits(ended)
        return self._known[ended]


def loss_of(elapsed_ns: int, held: Iterable[Amounts], total: Amounts) -> int:
    """The work lost if a job is ended: its run time times its dominant share of ``total``, in 1e-9 ms."""
    shares = (10**9 * n // total[name] for name, n in rs.total(held).items() if total.get(name))
    return max(0, elapsed_ns) // 10**6 * max(shares, default=0)


def choose(
    candidates: Sequence[Victim], fits: Fits, has_cost_enough: Callable[[], bool] = lambda: False
) -> Work[list[Victim] | None]:
    """The victims; None: not even all candidates would be enough. An empty list: no job has to be ended.

    From the highest level of priority down, the choice has the least loss of work on the level, with all
    levels below it gone; among equals the fewest victims, then the newest, then the lowest numbers. Every
    victim is needed.

    A search that has cost enough only bisects the levels, and takes whole levels.
    """
    question = _Question(fits, has_cost_enough)
    yield len(candidates) // SORTED
    newest_first = sorted(candidates, key=lambda v: (v.job.priority, -v.job.started_at_ns, v.job.job_id))
    order = [list(level) for _, level in groupby(newest_first, key=lambda v: v.job.priority)]
    below = [frozenset[int]()]  # the jobs of the lowest n levels
    for level in order:
        below.append(below[-1] | _numbers(level))
    if (yield from question(frozenset())):
        return []
    top = yield from _enough(order, question)
    if top is None:
        return None
    chosen: list[Victim] = []
    while True:
        fixed = _numbers(chosen)
        low, high = -1, top  # the lowest ``high`` levels are enough, the lowest ``low`` are not
        while high - low > 1:
            middle = (low + high) // 2
            does = yield from question(fixed | below[middle])
            low, high = (low, middle) if does else (middle, high)
        if high == 0:
            return chosen
        if question.is_spent():
            return chosen + [victim for level in order[:high] for victim in level]
        chosen += yield from _least(order[high - 1], fixed | below[high - 1], question)
        if question.is_spent():
            return chosen + [victim for level in order[: high - 1] for victim in level]
        top = high - 1


def _enough(order: list[list[Victim]], question: _Question) -> Work[int | None]:
    """A number of lowest levels that are enough, starting with few victims; None: not even all are."""
    by_loss = (sorted(level, key=lambda victim: victim.loss) for level in order)
    queue = [(number, victim) for number, level in enumerate(by_loss, 1) for victim in level]
    size = 0
    while not (yield from question(_numbers([victim for _, victim in queue[:size]]))):
        if size == len(queue):
            return None
        doubles = size < MOST_AT_FIRST and not question.is_spent()
        size = min(2 * size or 1, len(queue)) if doubles else len(queue)
    return queue[size - 1][0] if size else 0


def _least(level: list[Victim], ended: frozenset[int], question: _Question) -> Work[list[Victim]]:
    """The victims of a level with the least loss, beside the jobs ``ended``; the whole level is enough."""
    by_loss = sorted(level, key=lambda victim: -victim.loss)
    first = yield from _without_needless(by_loss, ended, question)
    second = yield from _without_needless(_by_vnode(level), ended, question)
    best = min((first, second), key=lambda some: _price(level, some))
    bound = sum(victim.loss for victim in best)
    worth = [victim for victim in level if victim.loss <= bound]
    if len(worth) > MOST_EXACT:
        return best
    return (yield from _exactly(worth, ended, question)) or best


def _without_needless(order: list[Victim], ended: frozenset[int], question: _Question) -> Work[list[Victim]]:
    """The jobs that are left after sparing jobs in this order as long as the waiting job still fits.

    As many as possible are spared at once.
    """
    needed: list[Victim] = []
    rest = order
    while rest:
        fixed, size = ended | _numbers(needed), len(rest)
        if question.is_spent():
            return needed + rest
        last, low, high = 0, -1, size  # the last ``high`` of the rest are enough, the last ``low`` are not
        while high - low > 1:
            does = yield from question(fixed | _numbers(rest[size - last :]))
            low, high = (low, last) if does else (last, high)
            last = min(2 * last or 1, (low + high) // 2)  # small changes first: they are cheap to try
        if high == 0:
            break
        needed.append(rest[size - high])
        rest = rest[size - high + 1 :]
    return needed


def _by_vnode(level: list[Victim]) -> list[Victim]:
    """A second order in which jobs are spared: by virtual node, the one with the largest total loss first."""
    total: dict[str, int] = {}
    for victim in level:
        total[victim.vnode_id] = total.get(victim.vnode_id, 0) + victim.loss
    return sorted(level, key=lambda victim: (-total[victim.vnode_id], victim.vnode_id, -victim.loss))


def _exactly(level: list[Victim], ended: frozenset[int], question: _Question) -> Work[list[Victim] | None]:
    """The cheapest combination that is enough; None if the questions are used up.

    A combination that is not enough is enlarged until it is maximal: all its subsets are not enough either
    (implicit hitting sets; Moreno-Centeno and Karp, Operations Research 61(2), 2013).
    """
    failing: list[int] = []
    whole = (1 << len(level)) - 1
    losses = [0] * (whole + 1)
    for mask in range(1, whole + 1):
        lowest = mask & -mask
        losses[mask] = losses[mask ^ lowest] + level[lowest.bit_length() - 1].loss
    for mask in sorted(range(1, whole + 1), key=lambda m: (losses[m], m.bit_count(), _ranks(m))):
        if any(mask & ~known == 0 for known in failing):
            continue
        if question.is_spent():
            return None
        if (yield from question(ended | _numbers(_members(level, mask)))):
            return _members(level, mask)
        for bit in (1 << n for n in range(len(level)) if not mask >> n & 1):
            if not (yield from question(ended | _numbers(_members(level, mask | bit)))):
                mask |= bit  # noqa: PLW2901  # enlarged to a maximal combination that fails
        failing.append(mask)
    return None


def _members(level: list[Victim], mask: int) -> list[Victim]:
    return [victim for number, victim in enumerate(level) if mask >> number & 1]


def _ranks(mask: int) -> tuple[int, ...]:
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def _price(level: list[Victim], some: list[Victim]) -> tuple[int, int, tuple[int, ...]]:
    chosen = _numbers(some)
    ranks = tuple(number for number, victim in enumerate(level) if victim.job.job_id in chosen)
    return sum(victim.loss for victim in some), len(some), ranks


def _numbers(some: Sequence[Victim]) -> frozenset[int]:
    return frozenset(victim.job.job_id for victim in some)
