"""What the policies are worth, on published models of work. The table of ``docs/policies.md`` comes from here."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.scheduler.trace import Given, Trace
from tests.specification import spec
from vctl.core.jobs import PendingJob
from vctl.core.queue_policy import FAIR, SECOND, QueuePolicy
from vctl.ops.simulate import Question, chosen, model, parse_policy, simulate, trace_machine

pytestmark = spec("13.simulate", "8.orders")

POLICIES = (
    "fifo/strict",
    "fifo/best-effort",
    "fifo/backfill",
    "fifo/backfill,backfill_depth=2",
    "priority/backfill",
    "fair/backfill",
)
LIMIT_S = 60.0


def run(jobs: int, nodes: int, *policies: str) -> dict[str, dict[str, Any]]:
    """Policy -> its run on the Lublin-Feitelson model at load 0.9, time limits twice the true run time."""
    workload = chosen(model(jobs, nodes=nodes, seed=1, load=0.9), None, 2.0)
    found = simulate(Question(workload, trace_machine(workload, None), [parse_policy(p) for p in policies]))
    runs = found["items"]
    assert isinstance(runs, list)
    return {one["policy"]: one for one in runs}


def slowdown(one: dict[str, Any]) -> float:
    return float(one["figures"]["bounded_slowdown"]["mean"])


@pytest.mark.not_fast("takes seconds")
def test_backfill_is_worth_it_on_a_small_machine() -> None:
    runs = run(600, 64, "fifo/strict", "fifo/backfill", "fifo/backfill,backfill_depth=3")
    strict, *others = runs.values()
    for backfill in others:
        assert slowdown(strict) / slowdown(backfill) >= 3
        assert backfill["reserved"] > 20
        assert backfill["started_after_reserved"] == 0
        assert backfill["figures"]["started"] == 600


@pytest.mark.not_fast("takes seconds")
def test_in_fair_order_nobody_waits_for_ever() -> None:
    """Spec 8: what somebody got too much is made up for within bounds, also by who has large jobs and many of them."""
    runs = run(600, 64, "fifo/backfill", "fair/backfill")
    longest = {name: one["figures"]["wait"]["max"] for name, one in runs.items()}
    assert longest["fair/backfill"] <= 2 * longest["fifo/backfill"]


def test_a_run_is_deterministic() -> None:
    assert run(120, 32, *POLICIES) == run(120, 32, *POLICIES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_on_the_full_model(policy: str) -> None:
    """10,000 jobs on 256 nodes: each run under a minute, the same again, and no reserved start is missed."""
    began = time.process_time()
    first = run(10_000, 256, policy)[policy]
    took = time.process_time() - began
    assert took < LIMIT_S
    assert first["started_after_reserved"] == 0 or policy.startswith(
        "fair"
    )  # whose turn it is voids it there
    assert first["figures"]["started"] == 10_000
    assert run(10_000, 256, policy)[policy] == first


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_backfill_cuts_the_mean_bounded_slowdown_to_a_third() -> None:
    runs = run(10_000, 256, "fifo/strict", "fifo/backfill")
    assert slowdown(runs["fifo/strict"]) / slowdown(runs["fifo/backfill"]) >= 3


@pytest.mark.not_fast("takes seconds")
@pytest.mark.parametrize("half_life_s", [None, 600])
def test_siblings_keep_to_their_weights(half_life_s: int | None) -> None:
    """Weights 1:2:3:4, always backlogged, jobs of one node and at most five minutes: within 5 % in every hour."""
    hours = 2
    random = Random(1)
    half_life_ns = None if half_life_s is None else half_life_s * SECOND
    trace = Trace(20, 1, QueuePolicy(FAIR, half_life_ns=half_life_ns))
    weights = {f"w{weight}": weight for weight in (1, 2, 3, 4)}
    for name, weight in weights.items():
        trace.share(name, weight)
    count = 0

    def refill() -> None:
        nonlocal count
        for name in weights:
            while len(trace.queues[name].jobs if name in trace.queues else ()) < 30:
                count += 1
                trace.submit(Given(f"{name}-{count}", 1, random.randint(20, 300), cluster=name))

    trace.play([Given("first", 1, 1)], until=hours * 3600, each=refill)
    spent = [dict.fromkeys(weights, 0) for _ in range(hours)]
    for one in trace.player.jobs.values():
        if one.start_ns is not None and one.arrival.job.parent_id in weights:
            assert one.end_ns is not None
            for hour in range(hours):
                begin, end = hour * 3600 * SECOND, (hour + 1) * 3600 * SECOND
                lasted = max(0, min(one.end_ns, end) - max(one.start_ns, begin))
                spent[hour][one.arrival.job.parent_id] += lasted * one.held["CPU"]
    for hour in spent:
        for name, weight in weights.items():
            due = weight / 10
            assert abs(hour[name] / sum(hour.values()) - due) <= 0.05 * due, spent


EVEN = {"w1": (1, 2, 3, 4, 8), "w2": (1, 1, 2), "w3": (1, 2, 4, 6), "w4": (1, 2)}
UNEVEN = {"w1": (1,), "w2": (1, 2), "w3": (6, 8), "w4": (4, 10)}


@pytest.mark.not_fast("takes seconds")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sizes", "clusters", "hours"),
    [
        pytest.param(EVEN, True, 4, id="clusters"),
        pytest.param(EVEN, False, 4, id="users"),
        pytest.param(EVEN, True, 24, id="clusters for a day", marks=pytest.mark.slow),
        pytest.param(UNEVEN, True, 24, id="clusters with large jobs", marks=pytest.mark.slow),
        pytest.param(UNEVEN, False, 24, id="users with large jobs", marks=pytest.mark.slow),
    ],
)
def test_siblings_with_jobs_of_mixed_sizes_keep_to_their_weights(
    sizes: dict[str, tuple[int, ...]], clusters: bool, hours: int
) -> None:
    """Spec 8: who has small jobs does not pass who has large ones; within 5 % in every four hours, always backlogged.

    Clusters have the weights 1:2:3:4, users are equal. Time limits are up to twice the true run time.
    """
    random, window = Random(1), 4
    trace = Trace(20, 1, QueuePolicy(FAIR))
    weights = {name: int(name[1:]) if clusters else 1 for name in sizes}
    for name in sizes if clusters else ():
        trace.share(name, weights[name])

    def whose(job: PendingJob) -> str:
        return job.parent_id if clusters else job.user

    def refill() -> None:
        waiting = Counter(whose(job) for queue in trace.queues.values() for job in queue.jobs.values())
        for name, choices in sizes.items():
            for number in range(waiting[name], 10):
                runs = random.randint(20, 300)
                job = Given(
                    f"{name}-{len(trace.player.jobs)}-{number}", 1, runs, random.choice(choices),
                    limit=int(runs * random.uniform(1, 2)) + 1,
                )  # fmt: skip
                trace.submit(replace(job, cluster=name) if clusters else replace(job, user=name))

    trace.play([Given("first", 1, 1)], until=hours * 3600, each=refill)
    spent = [dict.fromkeys(sizes, 0) for _ in range(hours // window)]
    for one in trace.player.jobs.values():
        name = whose(one.arrival.job)
        if one.start_ns is not None and one.end_ns is not None and name in sizes:
            for number, part in enumerate(spent):
                begin, end = (n * window * 3600 * SECOND for n in (number, number + 1))
                part[name] += max(0, min(one.end_ns, end) - max(one.start_ns, begin)) * one.held["CPU"]
    for part in spent:
        for name, weight in weights.items():
            due = weight / sum(weights.values())
            assert abs(part[name] / sum(part.values()) - due) <= 0.05 * due, spent
        assert (
            sum(part.values()) > 0.85 * window * 3600 * SECOND * 20 * 10_000
        )  # nobody's place is kept for long
