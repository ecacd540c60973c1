"""The figures of a run, against what is computed by hand."""

from __future__ import annotations

import pytest

from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.resources import CPU, GPU, SCALE
from vctl.simulate.metrics import SECOND, bounded_slowdown, figures, spread
from vctl.simulate.play import Played
from vctl.simulate.workload import Arrival

pytestmark = spec("13.simulate")

HOUR = 3600


def played(
    at: int, start: int | None, runs: int, cpus: float = 1, *, user: str = "u", cluster: str = PRIMARY, gpus: float = 0
) -> Played:  # fmt: skip
    job = PendingJob(1, "j", cluster, "s", ClusterSpec(), {}, user=user, submitted_at_ns=at * SECOND)
    one = Played(Arrival(job, runs * SECOND))
    if start is not None:
        one.start_ns, one.end_ns = start * SECOND, (start + runs) * SECOND
        one.held = {CPU: int(cpus * SCALE), GPU: int(gpus * SCALE)}
    return one


SLOWDOWNS = {
    "no wait": (played(0, 0, 100), 1.0),
    "as long as it ran": (played(0, 100, 100), 2.0),
    "a short job counts as ten seconds": (played(0, 90, 1), 9.1),
    "never below one": (played(0, 0, 1), 1.0),
}


@pytest.mark.parametrize(("one", "want"), SLOWDOWNS.values(), ids=SLOWDOWNS)
def test_bounded_slowdown(one: Played, want: float) -> None:
    assert bounded_slowdown(one) == pytest.approx(want)


def test_spread() -> None:
    found = spread([float(n) for n in range(1, 101)])
    assert (found.mean, found.median, found.p95, found.max) == (50.5, 50.5, 95.0, 100.0)
    assert spread([]).max == 0.0


def test_utilisation_is_that_of_the_resource_used_most() -> None:
    """Of 4 CPUs and 2 GPUs: 2 CPUs over 100 s and 2 GPUs over 50 s, arrivals at 0 and 60, the end at 100."""
    runs = [played(0, 0, 100, 2), played(60, 0, 50, 0, gpus=2)]
    found = figures(runs, {CPU: 4 * SCALE, GPU: 2 * SCALE}, {})
    assert found.utilisation == pytest.approx(0.5)
    assert found.dominant_resource == CPU
    assert found.utilisation_until_last_arrival == pytest.approx(0.5)
    assert found.makespan == 100.0


def test_of_jobs_that_arrive_at_once_the_whole_time_counts() -> None:
    found = figures([played(0, 0, 100, 2), played(0, 100, 100, 2)], {CPU: 4 * SCALE}, {})
    assert found.utilisation_until_last_arrival == found.utilisation == pytest.approx(0.5)


def test_jobs_that_never_started_count() -> None:
    found = figures([played(0, 0, 10), played(0, None, 10)], {CPU: SCALE}, {})
    assert (found.jobs, found.started, found.never_started) == (2, 1, 1)


def test_jain_is_one_when_all_suffer_alike_and_less_else() -> None:
    alike = [played(0, 100, 100, user="a"), played(0, 100, 100, user="b")]
    assert figures(alike, {CPU: SCALE}, {}).users.jain == pytest.approx(1.0)
    unlike = [played(0, 0, 100, user="a"), played(0, 300, 100, user="b")]  # slowdowns 1 and 4
    assert figures(unlike, {CPU: SCALE}, {}).users.jain == pytest.approx(25 / (2 * 17))


def test_share_deviation_looks_at_hours_in_which_both_waited() -> None:
    """Weights 1:3, but each held one of two CPUs in the second hour, in which both always had a job waiting."""
    jobs = [played(0, HOUR, HOUR, cluster=name) for name in ("a", "b")]
    jobs += [played(0, 2 * HOUR, 1, cluster=name) for name in ("a", "b")]
    found = figures(jobs, {CPU: 2 * SCALE}, {"a": 1, "b": 3}).clusters
    assert found.hours == 1  # in the first hour nothing was used
    assert found.share_deviation == pytest.approx(0.25)
    assert figures(jobs, {CPU: 2 * SCALE}, {"a": 1, "b": 1}).clusters.share_deviation == 0.0
