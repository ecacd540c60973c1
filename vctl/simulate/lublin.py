"""A published model of the workload of parallel machines: sizes, run times and arrivals of rigid jobs.

U. Lublin and D. G. Feitelson, "The workload on parallel supercomputers: modeling the characteristics of rigid
jobs", Journal of Parallel and Distributed Computing 63(11), 2003. The constants are those for all jobs
together (neither batch nor interactive alone). Sizes follow the size of the machine as the authors recommend:
``umed`` = log2(nodes) - 2.5.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from math import exp, lgamma, log, log2
from random import Random

from vctl.core.values import value

SERIAL, POWER_OF_TWO = 0.244, 0.576
"""The fraction of the jobs that request one node, and of those whose size is rounded to a power of two."""
U_LOW, U_BELOW_TOP, U_FIRST = 0.8, 2.5, 0.86
"""Parameters of the two-stage uniform distribution of log2(size) of parallel jobs: its lower end, the
distance of ``umed`` from its upper end, and the probability of the first stage, below ``umed``.
"""
RUN_SHORT, RUN_LONG = (4.2, 0.94), (312.0, 0.03)
"""The two gamma distributions (shape, scale) of the natural logarithm of the run time in seconds."""
MIX_SLOPE, MIX_AT_ZERO = -0.0054, 0.78
"""The probability of the first distribution falls linearly with the size: larger jobs run longer."""
LONGEST = 12.0
"""The natural logarithm of the longest run time in seconds: about two days."""
GAP = (10.2303, 0.4871)
"""The gamma distribution (shape, scale) of the natural logarithm of the gap between rush-hour arrivals."""
GAP_ALL_DAY = 1.0225
"""The factor of the shape of ``GAP`` with which the distribution stands for all hours of the day."""
LONGEST_GAP = 13.0
"""The natural logarithm of the longest gap in seconds."""
CYCLE = (8.1737, 3.9631)
"""The gamma distribution (shape, scale) of arrivals over the half hours of a day, from ``FIRST_SLOT`` on."""
SLOTS, SLOT_S, FIRST_SLOT = 48, 1800, 11
DAY_S = SLOTS * SLOT_S


@value(frozen=True, slots=True)
class ModelJob:
    """A job of the model: arrival ``at`` and run time ``runs`` in seconds, size in nodes, user number."""

    at: float
    nodes: int
    runs: int
    user: int


def jobs(count: int, *, nodes: int, seed: int, load: float, users: int = 64) -> list[ModelJob]:
    """Jobs of the model for a machine of ``nodes`` nodes; the same arguments give the same jobs.

    The gaps between arrivals are scaled, the daily cycle is not, so that the work of the jobs is ``load``
    times the capacity of the machine until the last arrival. The model knows no users: each job gets a user
    from 1 to ``users``; low numbers submit most.
    """
    random = Random(seed)
    sizes = [_size(random, nodes) for _ in range(count)]
    runs = [_run_time(random, size) for size in sizes]
    whose = [min(int(random.expovariate(8 / users)), users - 1) + 1 for _ in range(count)]
    marks = list(accumulate(_gap(random) for _ in range(count)))
    work = sum(size * time for size, time in zip(sizes, runs, strict=True))
    day = _Day()
    scale = day.points_until(work / (nodes * load)) / marks[-1] if marks else 1.0
    return [
        ModelJob(day.time_of(mark * scale), size, time, user)
        for mark, size, time, user in zip(marks, sizes, runs, whose, strict=True)
    ]


def _size(random: Random, nodes: int) -> int:
    kind = random.random()
    if kind <= SERIAL or nodes == 1:
        return 1
    top = log2(nodes)
    middle = max(U_LOW, top - U_BELOW_TOP)
    low, high = (U_LOW, middle) if random.random() <= U_FIRST else (middle, top)
    exponent = random.uniform(min(low, high), high)
    if kind <= SERIAL + POWER_OF_TWO:
        exponent = float(int(exponent + 0.5))
    return min(nodes, int(2**exponent + 0.5))


def _run_time(random: Random, size: int) -> int:
    first = min(1.0, max(0.0, MIX_SLOPE * size + MIX_AT_ZERO))
    while True:
        shape, scale = RUN_SHORT if random.random() <= first else RUN_LONG
        logarithm = random.gammavariate(shape, scale)
        if logarithm <= LONGEST:
            return max(1, int(exp(logarithm)))


def _gap(random: Random) -> float:
    while True:
        logarithm = random.gammavariate(GAP[0] * GAP_ALL_DAY, GAP[1])
        if logarithm <= LONGEST_GAP:
            return exp(logarithm)


class _Day:
    """The daily cycle of arrivals: it converts points, the unit of the gaps, to seconds.

    A busy half hour gives more points per second. The average is one point per second, so a whole day has as
    many points as seconds.
    """

    def __init__(self) -> None:
        shares = [0.0] * SLOTS
        for slot in range(FIRST_SLOT, FIRST_SLOT + SLOTS):
            shares[(slot - 1) % SLOTS] = _gamma_cdf(slot + 0.5, *CYCLE) - _gamma_cdf(slot - 0.5, *CYCLE)
        mean = sum(shares) / SLOTS
        self.rate = [share / mean for share in shares]
        self.before = [SLOT_S * points for points in accumulate(self.rate, initial=0.0)]
        """The points of a day until each half hour begins."""

    def time_of(self, points: float) -> float:
        """The seconds from midnight of the first day until this number of points is reached."""
        days, rest = divmod(points, DAY_S)
        slot = min(bisect_right(self.before, rest), SLOTS) - 1
        return days * DAY_S + slot * SLOT_S + (rest - self.before[slot]) / self.rate[slot]

    def points_until(self, time: float) -> float:
        """The points until a time in seconds: the inverse of ``time_of``."""
        days, rest = divmod(time, DAY_S)
        slot = int(rest // SLOT_S)
        return days * DAY_S + self.before[slot] + (rest - slot * SLOT_S) * self.rate[slot]


def _gamma_cdf(x: float, shape: float, scale: float) -> float:
    """The regularised lower incomplete gamma function by its power series, which converges for every x."""
    x /= scale
    if x <= 0:
        return 0.0
    term = total = 1.0 / shape
    step = shape
    while term > total * 1e-12:
        step += 1
        term *= x / step
        total += term
    return total * exp(-x + shape * log(x) - lgamma(shape))
