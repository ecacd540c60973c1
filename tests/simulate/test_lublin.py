"""The published workload model: what its constants imply, the load that is asked for, and the same jobs again."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import exp, log
from statistics import fmean

import pytest

from tests.specification import spec
from vctl.simulate import lublin
from vctl.simulate.lublin import GAP, GAP_ALL_DAY, POWER_OF_TWO, SERIAL, jobs

pytestmark = spec("13.simulate")

MANY = jobs(6000, nodes=256, seed=7, load=0.9)


def test_the_same_seed_gives_the_same_jobs() -> None:
    assert jobs(50, nodes=64, seed=3, load=0.7) == jobs(50, nodes=64, seed=3, load=0.7)
    assert jobs(50, nodes=64, seed=3, load=0.7) != jobs(50, nodes=64, seed=4, load=0.7)


@pytest.mark.parametrize("load", [0.3, 0.9, 2.5])
def test_the_load_is_as_asked_for(load: float) -> None:
    found = jobs(500, nodes=128, seed=1, load=load)
    assert sum(job.nodes * job.runs for job in found) / (128 * found[-1].at) == pytest.approx(load)


def test_sizes_follow_the_model() -> None:
    sizes = Counter(job.nodes for job in MANY)
    assert min(sizes) == 1 and max(sizes) <= 256
    assert sizes[1] / len(MANY) == pytest.approx(SERIAL, abs=0.03)
    powers = sum(count for size, count in sizes.items() if size > 1 and size & (size - 1) == 0)
    assert powers / len(MANY) >= POWER_OF_TWO - 0.03  # others fall on powers by chance


def test_larger_jobs_run_longer() -> None:
    small = fmean(log(job.runs) for job in MANY if job.nodes <= 4)
    large = fmean(log(job.runs) for job in MANY if job.nodes >= 64)
    shape, scale = lublin.RUN_SHORT
    assert shape * scale < small < large < lublin.RUN_LONG[0] * lublin.RUN_LONG[1]
    assert max(job.runs for job in MANY) <= exp(lublin.LONGEST)


def test_arrivals_follow_the_day() -> None:
    hours = Counter(int(job.at % lublin.DAY_S // 3600) for job in MANY)
    assert (
        sum(hours[hour] for hour in range(10, 18))
        > 4 * sum(hours[hour] for hour in (0, 1, 2, 3, 4, 5, 22, 23)) / 2
    )
    assert all(one.at <= other.at for one, other in pairwise(MANY))


def test_time_of_day_and_points_are_inverse() -> None:
    day = lublin._Day()
    for time in (0.0, 1.0, 1800.0, 40_000.5, 86_399.0, 86_400.0, 1e6):
        assert day.time_of(day.points_until(time)) == pytest.approx(time)
    assert day.points_until(lublin.DAY_S) == pytest.approx(lublin.DAY_S)


def test_the_gamma_function_is_right() -> None:
    assert lublin._gamma_cdf(2.0, 1.0, 1.0) == pytest.approx(1 - exp(-2.0))  # the exponential distribution
    assert lublin._gamma_cdf(3.0, 2.0, 1.0) == pytest.approx(1 - exp(-3.0) * 4.0)
    assert lublin._gamma_cdf(0.0, *GAP) == 0.0
    assert lublin._gamma_cdf(60.0, GAP[0] * GAP_ALL_DAY, GAP[1]) == pytest.approx(1.0)
