"""Which of several running jobs have to go so that something fits: on every level of priority as little as possible.

The question "does it fit when these have gone?" is the caller's; more of them gone never hurts it. The caller also
says when the search has cost enough: from then on only the levels of priority are told apart, by bisection.

A search is a generator: it stops wherever a question does, and says what comes next will cost, so that the caller may
go on later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from vctl.core import resources as rs
from vctl.core.jobs import RunningJob
from vctl.core.resources import Amounts
from vctl.scheduler.work import Work

MOST_EXACT = 12
"""So many candidates of one level are compared in all combinations."""
MOST_AT_FIRST = 64
"""If so many of the cheapest are not enough, it is asked whether all are."""
SORTED = 20
"""So many candidates are put in order in a step."""
MOST_QUESTIONS = 1_000
"""Questions that one choice may cost; then what is known to do is taken."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A running job that may have to go, and the work that would be lost: see ``loss_of``."""

    job: RunningJob
    loss: int
    place: str = ""
    """The first virtual node on which it holds something."""


Fits = Callable[[frozenset[int]], Work[bool]]
"""Whether it fits when the jobs with these numbers have gone."""


class _Asked:
    """Answers that are known, and whether more may be asked for."""

    def __init__(self, fits: Fits, has_cost_enough: Callable[[], bool]) -> None:
        self._fits = fits
        self._has_cost_enough = has_cost_enough
        self._known: dict[frozenset[int], bool] = {}

    def is_spent(self) -> bool:
        return len(self._known) >= MOST_QUESTIONS or self._has_cost_enough()

    def __call__(self, gone: frozenset[int]) -> Work[bool]:
        if gone not in self._known:
            self._known[gone] = yield from self._fits(gone)
        return self._known[gone]


def loss_of(elapsed_ns: int, held: Iterable[Amounts], total: Amounts) -> int:
    """Work that is lost when a job is ended: its time times its dominant share of its parent, in ms times 1e-9."""
    share = max(
        (10**9 * n // total[name] for name, n in rs.total(held).items() if total.get(name)), default=0
    )
    return max(0, elapsed_ns) // 10**6 * share


def choose(
    candidates: Sequence[Victim], fits: Fits, has_cost_enough: Callable[[], bool] = lambda: False
) -> Work[list[Victim] | None]:
    """Who has to go; None when it would not help even if all went, an empty list when nobody has to.

    From the highest level of priority down: least work lost on the level, counting all those below it as gone; equals
    by fewest victims, then the newest first, then the lowest number. None of them could be left out.

    A search that has cost enough asks a question more for each halving of the levels, and takes a level whole.
    """
    asked = _Asked(fits, has_cost_enough)
    yield len(candidates) // SORTED
    levels: dict[int, list[Victim]] = {}
    for one in candidates:
        levels.setdefault(one.job.priority, []).append(one)
    order = [sorted(levels[priority], key=_newest_first) for priority in sorted(levels)]
    below = [frozenset[int]()]  # those of the lowest n levels
    for level in order:
        below.append(below[-1] | _numbers(level))
    if (yield from asked(frozenset())):
        return []
    top = yield from _enough(order, asked)
    if top is None:
        return None
    chosen: list[Victim] = []
    while True:
        fixed = _numbers(chosen)
        low, high = -1, top  # how many of the lowest levels it takes
        while high - low > 1:
            middle = (low + high) // 2
            does = yield from asked(fixed | below[middle])
            low, high = (low, middle) if does else (middle, high)
        if high == 0:
            return chosen
        if asked.is_spent():
            return chosen + [one for level in order[:high] for one in level]
        chosen += yield from _least(order[high - 1], fixed | below[high - 1], asked)
        if asked.is_spent():
            return chosen + [one for level in order[: high - 1] for one in level]
        top = high - 1


def _enough(order: list[list[Victim]], asked: _Asked) -> Work[int | None]:
    """A number of lowest levels that are enough, by asking for few first; None when not even all are."""
    line = [
        (number, one) for number, level in enumerate(order, 1) for one in sorted(level, key=lambda v: v.loss)
    ]
    size = 0
    while not (yield from asked(_numbers([one for _, one in line[:size]]))):
        if size == len(line):
            return None
        size = min(2 * size or 1, len(line)) if size < MOST_AT_FIRST and not asked.is_spent() else len(line)
    return line[size - 1][0] if size else 0


def _least(level: list[Victim], gone: frozenset[int], asked: _Asked) -> Work[list[Victim]]:
    """The cheapest of a level that have to go beside those that are gone; all of them together do."""
    by_loss = sorted(level, key=lambda one: -one.loss)
    first = yield from _without_needless(by_loss, gone, asked)
    second = yield from _without_needless(_by_place(level), gone, asked)
    best = min((first, second), key=lambda some: _price(level, some))
    bound = sum(one.loss for one in best)
    worth = [one for one in level if one.loss <= bound]
    if len(worth) > MOST_EXACT:
        return best
    return (yield from _exactly(worth, gone, asked)) or best


def _without_needless(order: list[Victim], gone: frozenset[int], asked: _Asked) -> Work[list[Victim]]:
    """Spare one after the other in this order, where it still fits; as many at once as possible."""
    needed: list[Victim] = []
    rest = order
    while rest:
        fixed, size = gone | _numbers(needed), len(rest)
        if asked.is_spent():
            return needed + rest
        last, low, high = 0, -1, size  # the last ``high`` of the rest are enough, the last ``low`` are not
        while high - low > 1:
            does = yield from asked(fixed | _numbers(rest[size - last :]))
            low, high = (low, last) if does else (last, high)
            last = min(2 * last or 1, (low + high) // 2)  # few are asked for first: that changes little
        if high == 0:
            break
        needed.append(rest[size - high])
        rest = rest[size - high + 1 :]
    return needed


def _by_place(level: list[Victim]) -> list[Victim]:
    """Those together whose clusters lie side by side, the dearest neighbourhood first: a second way to spare."""
    total: dict[str, int] = {}
    for one in level:
        total[one.place] = total.get(one.place, 0) + one.loss
    return sorted(level, key=lambda one: (-total[one.place], one.place, -one.loss))


def _exactly(level: list[Victim], gone: frozenset[int], asked: _Asked) -> Work[list[Victim] | None]:
    """The first combination in the order of price that does; None when the questions are used up.

    A combination that does not do is filled up until nothing more can be added: all parts of that fail as well
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
        if asked.is_spent():
            return None
        if (yield from asked(gone | _numbers(_members(level, mask)))):
            return _members(level, mask)
        for bit in (1 << n for n in range(len(level)) if not mask >> n & 1):
            if not (yield from asked(gone | _numbers(_members(level, mask | bit)))):
                mask |= bit  # noqa: PLW2901  # it grows to the largest that fails
        failing.append(mask)
    return None


def _members(level: list[Victim], mask: int) -> list[Victim]:
    return [one for number, one in enumerate(level) if mask >> number & 1]


def _ranks(mask: int) -> tuple[int, ...]:
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def _price(level: list[Victim], some: list[Victim]) -> tuple[int, int, tuple[int, ...]]:
    ranks = {one.job.job_id: number for number, one in enumerate(level)}
    return sum(one.loss for one in some), len(some), tuple(sorted(ranks[one.job.job_id] for one in some))


def _newest_first(one: Victim) -> tuple[int, int]:
    return -one.job.started_at_ns, one.job.job_id


def _numbers(some: Sequence[Victim]) -> frozenset[int]:
    return frozenset(one.job.job_id for one in some)
