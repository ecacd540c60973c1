"""How far the scheduler is from the shortest possible makespan. The optima were computed by CP-SAT (``optimum.py``).

They are kept in ``optima.json`` so that this can be judged without the solver; where it is
installed they are computed again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean

import pytest

from tests.scheduler.makespan import INSTANCES, Instance, instance, play
from tests.specification import spec
from vctl.core.queue_policy import BEST_EFFORT, LONGEST, PRIORITY, QueuePolicy

pytestmark = spec("8.disciplines")

RECORDED = Path(__file__).parent / "optima.json"
OPTIMA: dict[int, tuple[int, int]] = {
    int(seed): (best, bound) for seed, (best, bound) in json.loads(RECORDED.read_text()).items()
}
"""Seed -> (shortest makespan found, what none can beat)."""
PROVED = [seed for seed, (best, bound) in sorted(OPTIMA.items()) if best == bound]
SOME = PROVED[::3]


def ratios(order: str, seeds: Iterable[int]) -> list[float]:
    """Makespan by optimum, the smallest first."""
    policy = QueuePolicy(order, BEST_EFFORT)
    return sorted(play(instance(seed), policy) / OPTIMA[seed][0] for seed in seeds)


def percentile(sorted_values: list[float], part: float) -> float:
    return sorted_values[math.ceil(part * len(sorted_values)) - 1]


def least(given: Instance) -> int:
    """What no schedule can beat: the longest job, and the work for each resource over what there is of it."""
    bounds = [max(job.minutes for job in given.jobs)]
    for r in range(3):
        if total := sum(node[r] for node in given.nodes):
            work = sum(job.minutes * sum(size[r] for size in job.bundles) for job in given.jobs)
            bounds.append(-(-work // total))
    return max(bounds)


def test_nearly_all_optima_are_proved() -> None:
    assert sorted(OPTIMA) == list(range(INSTANCES))
    assert len(PROVED) >= 0.98 * INSTANCES
    assert all(best >= max(bound, least(instance(seed))) for seed, (best, bound) in OPTIMA.items())


def test_most_instances_are_no_trifle() -> None:
    """One long job alone decides the makespan of less than half of them."""
    trifles = [s for s in PROVED if OPTIMA[s][0] == max(job.minutes for job in instance(s).jobs)]
    assert len(trifles) < 0.5 * len(PROVED)


def is_near_the_optimum(longest: list[float]) -> bool:
    return mean(longest) <= 1.15 and percentile(longest, 0.95) <= 1.55


@pytest.mark.not_fast("takes seconds")
def test_the_longest_first_is_near_the_optimum_and_better_than_by_arrival() -> None:
    longest, arrival = ratios(LONGEST, SOME), ratios(PRIORITY, SOME)
    assert min(longest[0], arrival[0]) >= 1  # the solver's schedule is really the shortest
    assert is_near_the_optimum(longest)
    assert mean(longest) < mean(arrival)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_instances(record_property: Callable[[str, object], None]) -> None:
    found = {order: ratios(order, PROVED) for order in (PRIORITY, LONGEST)}
    for order, values in found.items():
        text = f"mean {mean(values):.4f}, 95 % {percentile(values, 0.95):.4f}, worst {values[-1]:.4f}"
        record_property(order, text)
        assert values[0] >= 1
    assert is_near_the_optimum(found[LONGEST])
    assert mean(found[LONGEST]) < mean(found[PRIORITY])


WITHOUT_SOLVER = "computing optima again needs OR-tools: pip install -e '.[solver]'"


def check_with_the_solver(seeds: Iterable[int]) -> None:
    pytest.importorskip("ortools", reason=WITHOUT_SOLVER)
    from tests.scheduler.optimum import solve

    for seed in seeds:
        solved = solve(instance(seed))
        assert (solved.best, solved.bound) == OPTIMA[seed], seed


def test_some_optima_again() -> None:
    quick = sorted(PROVED, key=lambda seed: (len(instance(seed).jobs), seed))
    check_with_the_solver(quick[:18:3])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_optima_again() -> None:
    check_with_the_solver(PROVED)
