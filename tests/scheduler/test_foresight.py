"""The order ``makespan``: what is planned, by hand-made cases, and what must hold for any."""

from __future__ import annotations

import pytest

from tests.scheduler.makespan import MINUTE, Given, Instance, instance, ledger_of, pending, play
from tests.scheduler.trace import Given as Arriving
from tests.scheduler.trace import Trace
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.queue_policy import LONGEST, MAKESPAN, QueuePolicy
from vctl.core.values import replace
from vctl.scheduler import foresight
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.plan import start_of, take
from vctl.scheduler.running import Running

pytestmark = spec("8.disciplines")

NODE = (4, 16, 0)
POLICY = QueuePolicy(MAKESPAN)


def one(cpus: int, minutes: int) -> Given:
    return Given(((cpus, 1, 0),), minutes)


def places(jobs: list[PendingJob], nodes: tuple[tuple[int, int, int], ...] = (NODE,)) -> list[int]:
    """Numbers of the jobs as planned."""
    found = foresight.foresee(ledger_of(nodes), PRIMARY, jobs, Running(), 0)
    return sorted(found, key=found.__getitem__)


def test_the_longest_does_not_stay_for_the_end() -> None:
    """Two at a time: 30 + 30 beside 60, not 30 beside 30 and then 60."""
    jobs = (one(2, 30), one(2, 30), one(2, 60))
    assert play(Instance((NODE,), jobs), QueuePolicy()) == 90
    assert play(Instance((NODE,), jobs), POLICY) == 60


def test_it_is_better_than_any_rule_where_the_longest_first_is_wrong() -> None:
    """Longest first puts the 50 and the 40 beside each other; the three small ones then wait for both."""
    jobs = (one(3, 50), one(1, 40), one(1, 30), one(1, 20), one(4, 10), one(2, 25))
    given = Instance((NODE,), jobs)
    assert play(given, POLICY) <= min(play(given, QueuePolicy(LONGEST)), play(given, QueuePolicy()))


def test_priority_comes_before_the_plan() -> None:
    """Done at the same time in either order; then the smaller sum of ends decides, unless priority does."""
    low, high = pending(1, one(1, 10)), pending(2, one(4, 100), priority=1)
    assert places([low, high]) == [2, 1]
    assert places([low, replace(high, priority=0)]) == [1, 2]


def test_a_job_without_a_limit_is_taken_for_long() -> None:
    jobs = [pending(n, one(2, 30)) for n in (1, 2, 3)]
    assert 3 in places([*jobs[:2], replace(jobs[2], time_limit_ns=None)])[:2]


def test_only_what_may_start_is_planned() -> None:
    held = replace(pending(1, one(4, 100)), held=True)
    later = replace(pending(2, one(4, 90)), begin_at_ns=5 * MINUTE)
    assert places([held, later, pending(3, one(1, 1))]) == [3]


def test_what_can_never_start_does_not_disturb() -> None:
    jobs = [pending(1, one(9, 100)), pending(2, one(2, 10)), pending(3, one(4, 20))]
    assert set(places(jobs)) == {1, 2, 3}


def test_behind_the_first_jobs_the_longest_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "MOST_JOBS", 2)
    jobs = [pending(n, one(4, minutes)) for n, minutes in enumerate((10, 40, 20, 30), 1)]
    assert places(jobs)[2:] == [3, 1]


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_the_same_state_gives_the_same_order_and_looks_are_counted(seed: int) -> None:
    given = instance(seed)
    jobs = [pending(n, job) for n, job in enumerate(given.jobs, 1)]
    ledger = ledger_of(given.nodes)
    before = {n: capacity.copy().free for n, capacity in ledger.capacities.items()}
    first = foresight.foresee(ledger, PRIMARY, jobs, Running(), 0)
    assert first == foresight.foresee(ledger_of(given.nodes), PRIMARY, jobs[::-1], Running(), 0)
    assert {n: capacity.free for n, capacity in ledger.capacities.items()} == before


@pytest.mark.parametrize("seed", range(2, 40, 4))
def test_never_worse_than_by_arrival_or_the_longest_first(seed: int) -> None:
    given = instance(seed)
    endless = {"starvation_after_ns": 10**18}
    best = play(given, POLICY)
    assert best <= min(play(given, QueuePolicy(**endless)), play(given, QueuePolicy(LONGEST, **endless)))


def test_jobs_that_come_later_are_planned_too() -> None:
    trace = Trace(1, 4, POLICY)
    jobs = [Arriving("now", 4, 10, limit=10), Arriving("brief", 2, 10, limit=10, at=1)]
    jobs += [Arriving("long", 2, 90, limit=90, at=2), Arriving("middle", 2, 80, limit=80, at=3)]
    trace.play(jobs)
    assert (trace.started["long"], trace.started["brief"], trace.started["middle"]) == (10, 10, 20)


def test_a_plan_costs_no_more_where_much_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of many ends each of many gangs might be looked for again: then it is counted first, and not for ever."""
    nodes, looks = 100, 0
    ledger, running = ledger_of(((2, 16, 0),) * nodes), Running()
    for n in range(2 * nodes):
        job = pending(n + 1, one(1, 100 + n))
        placed = place(ledger, PRIMARY, job.spec, job.entry)
        assert isinstance(placed, Placed)
        start = start_of(ledger, job, placed)
        take(ledger, start, start.run_id)
        running.put(RunningJob.begun(job, start.cluster_id, start.run_id, 0))
    look = foresight._State.place

    def counted(state: foresight._State, job: PendingJob) -> Placed | None:
        nonlocal looks
        looks += 1
        return look(state, job)

    monkeypatch.setattr(foresight._State, "place", counted)
    jobs = [pending(1000 + n, Given(((1, 1, 0),) * (150 + n), 10 + n)) for n in range(20)]
    found = foresight.foresee(ledger, PRIMARY, jobs, running, 0)
    assert len(found) == len(jobs)
    assert 20 < looks <= foresight.LOOKS
