"""Reservations beyond one queue: heads of clusters that grow, on what siblings hold and will return (spec 8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.trace import Given, Trace
from tests.specification import spec
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, FAIR, SECOND, STRICT, QueuePolicy
from vctl.core.resources import CPU, SCALE
from vctl.core.values import replace
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Plan
from vctl.scheduler.work import Budget
from vctl.simulate import play

pytestmark = spec("8.disciplines")

BACK = QueuePolicy(discipline=BACKFILL)
GUARD = QueuePolicy(discipline=BEST_EFFORT, starvation_after_ns=600 * SECOND)


def elastic(trace: Trace, name: str, policy: QueuePolicy, *, parent: str = PRIMARY, least: int = 0) -> None:
    spec = ClusterSpec({CPU: least * SCALE} if least else {})
    trace.ledger.put_cluster(Cluster(name, parent, LOGICAL, spec, True, queue=policy))


def busy(trace: Trace, cluster: str, *, limit: bool, seconds: int = 100) -> list[Given]:
    """Jobs of one node without an end: four at first, one after the other comes free."""
    return [
        Given(
            f"{cluster}-{n}", 1, seconds, at=0 if n < 4 else n * seconds // 4, cluster=cluster,
            limit=seconds if limit else None,
        )
        for n in range(200)
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [True, False], ids=["with limits", "without limits"])
@pytest.mark.parametrize("where", ["b", "org", PRIMARY], ids=["a sibling", "a cousin", "above"])
def test_a_starving_gang_gets_what_growing_clusters_give_back(limit: bool, where: str) -> None:
    """Spec 8: the guard keeps room on all that a cluster may use, not only on its own, which is nothing here. The
    cluster above lends to those below it, and its own jobs waited for ever."""
    trace = Trace(4, 1, GUARD)
    elastic(trace, "a", GUARD)
    elastic(trace, "org", GUARD)
    elastic(trace, "b", GUARD, parent="org" if where == "org" else PRIMARY)
    cluster = PRIMARY if where == PRIMARY else "b"
    jobs = [*busy(trace, "a", limit=limit), Given("gang", 1, 50, nodes=4, at=10, cluster=cluster, limit=50)]
    trace.play(jobs, until=4000)
    assert 610 <= trace.started["gang"] <= 610 + 2 * 100
    assert len(trace.started) > 100  # and then the others go on


@pytest.mark.parametrize("cluster", ["b", PRIMARY])
def test_a_backfilling_cluster_reserves_on_what_others_hold_and_short_jobs_pass(cluster: str) -> None:
    """Spec 8: by their limits they cannot delay it."""
    trace = Trace(4, 1, BACK if cluster == PRIMARY else QueuePolicy())
    elastic(trace, "a", QueuePolicy())
    elastic(trace, "b", BACK)
    jobs = [Given(f"a-{n}", 1, 100 + 50 * n, cluster="a", limit=100 + 50 * n) for n in range(4)]
    jobs += [
        Given("gang", 1, 50, nodes=4, at=10, cluster=cluster, limit=50),
        Given("long", 1, 500, at=20, cluster="a", limit=500),
        Given("short", 1, 60, at=20, cluster="a", limit=60),
        Given("straight", 1, 60, at=20, limit=60),
    ]
    trace.play(jobs, until=3000)
    assert trace.started["gang"] == 250
    assert trace.started["short"] < 250
    assert trace.started["straight"] < 250
    assert trace.started["long"] >= 300


def test_nothing_is_kept_for_whom_only_a_limit_of_its_cluster_keeps_back() -> None:
    """Spec 8 and 9."""
    trace = Trace(4, 1, GUARD)
    elastic(trace, "a", GUARD)
    elastic(trace, "b", GUARD)
    small = replace(trace.ledger.clusters["b"], spec=ClusterSpec({}, {CPU: 2 * SCALE}))
    trace.ledger.put_cluster(small)
    jobs = [Given("first", 1, 10_000, cluster="b"), Given("more", 1, 10_000, nodes=2, at=10, cluster="b")]
    jobs += [Given(f"a-{n}", 1, 100, at=1000, cluster="a") for n in range(6)]
    trace.play(jobs, until=3000)
    assert [trace.started[f"a-{n}"] for n in range(6)] == [1000] * 3 + [1100] * 3


def test_whose_turn_it_is_is_not_passed_for_ever() -> None:
    """Spec 8: in fair order the head of the least served sibling is next, however small the others' jobs are."""
    trace = Trace(4, 1, QueuePolicy(FAIR))
    elastic(trace, "a", QueuePolicy())
    elastic(trace, "b", QueuePolicy())
    jobs = [*busy(trace, "a", limit=False), Given("gang", 1, 50, nodes=4, at=10, cluster="b")]
    trace.play(jobs, until=2000)
    assert trace.started["gang"] <= 200


def test_what_is_kept_for_the_next_stays_until_something_comes_free() -> None:
    """Spec 8: arrivals do not move it, and nobody who arrives takes it; the first that ends leads to a new search."""
    trace = Trace(4, 1, QueuePolicy(FAIR))
    for name in "ab":
        elastic(trace, name, QueuePolicy())
    for number in range(3):
        trace.submit(Given(f"b-{number}", 1, 100, cluster="b"))
    assert len(trace.round()) == 3
    trace.submit(Given("gang", 1, 50, nodes=4, cluster="a"))
    assert trace.round() == []
    (kept,) = trace.queues["a"].shared.values()
    for number in range(3, 6):
        trace.submit(Given(f"b-{number}", 1, 100, cluster="b"))
        assert trace.round() == []  # one node is free, and kept
        assert next(iter(trace.queues["a"].shared.values())) is kept
    text = "its start would take resources that are reserved for gang"
    assert ("HeadOfLine", text) in trace.waits.values()
    trace.end(1)
    assert trace.round() == []
    (again,) = trace.queues["a"].shared.values()
    assert again is not kept
    trace.end(2)
    trace.end(3)
    assert trace.round() == ["gang"]
    assert trace.queues["a"].shared == {}


@pytest.mark.parametrize(
    ("budget", "starts"), [((), [300]), ((10_000, 10_000), [200, 300])], ids=["whole", "cut"]
)
def test_whose_turn_it_is_reserves_beside_what_has_started_before_it_was_asked(
    monkeypatch: pytest.MonkeyPatch, budget: tuple[int, ...], starts: list[int]
) -> None:
    """Spec 8: a job of another cluster, which the reservation does not bind, takes the node that comes free, so the
    reserved start of 200 s is none any more. A round that is cut there leaves the search to the next one."""
    trace = Trace(3, 1, QueuePolicy())
    elastic(trace, "fair", QueuePolicy(FAIR))
    elastic(trace, "other", QueuePolicy())
    for name, cluster, limit in (("ends", PRIMARY, 100), ("f-0", "fair", 300), ("o-0", "other", 200)):
        trace.submit(Given(name, 1, limit, cluster=cluster, limit=limit))
    assert len(trace.round()) == 3
    trace.submit(Given("gang", 1, 50, nodes=2, cluster="fair", limit=50))
    trace.submit(Given("outside", 1, 1000, limit=1000))

    def reserved() -> int | None:
        (shared,) = trace.queues["fair"].shared.values()
        start_ns = shared.reservation.start_ns
        return None if start_ns is None else start_ns // SECOND

    assert trace.round() == []
    assert reserved() == 200
    seen: list[int | None] = []

    def noted(*args: Any, **more: Any) -> Plan:
        plan = decide(*args, **{**more, "budget": Budget(*budget)})
        seen.append(reserved())
        return plan

    monkeypatch.setattr(play, "decide", noted)
    trace.end(1)
    assert trace.round() == ["outside"]
    assert seen == starts


def test_who_meets_a_reservation_only_after_growth_does_not_keep_back_who_ends_before_it() -> None:
    """Spec 8: too little without growth is no verdict for all of its shape when growth would have been enough."""
    trace = Trace(2, 2, QueuePolicy())
    elastic(trace, "b", BACK, least=2)
    jobs = [
        Given("first", 2, 1, cluster="b", limit=1),  # from then on the cluster has all of one node
        Given("inside", 1, 100, at=2, cluster="b", limit=100),
        Given("beside", 1, 1000, at=2),
        Given("head", 2, 50, at=10, cluster="b", limit=50),
        Given("long", 1, 500, nodes=2, at=11, cluster="b", limit=500),
        Given("short", 1, 50, nodes=2, at=12, cluster="b", limit=50),
    ]
    seen = []
    trace.play(jobs, until=20, each=lambda: seen.append(trace.waits.get("1x2")))
    assert trace.first_reserved["head"] == 102
    text = "its start would take resources that are reserved for head"
    assert ("HeadOfLine", text) in seen  # from second 11 on, until the short one has taken the rest
    assert trace.started["short"] == 12
    assert "long" not in trace.started


def test_a_turn_lasts_until_the_job_starts_and_the_next_sibling_is_kept_from_those_behind_it() -> None:
    """Spec 8: who has a reserved start keeps it when another's job ends; who comes behind both leaves both alone."""
    trace = Trace(10, 1, QueuePolicy(FAIR))
    for name in "abc":
        elastic(trace, name, QueuePolicy())
    trace.submit(Given("b-0", 1, 100, nodes=3, cluster="b", limit=100))
    trace.submit(Given("c-0", 1, 300, nodes=4, cluster="c", limit=300))
    assert trace.round() == ["b-0", "c-0"]
    trace.submit(Given("wide", 1, 50, nodes=5, cluster="a", limit=50))
    trace.submit(Given("after", 1, 100, nodes=6, cluster="b", limit=100))
    trace.submit(Given("long", 1, 1000, nodes=1, cluster="c", limit=1000))
    assert trace.round() == []  # three nodes are free: "wide" has them in 100 s, "after" 50 s later
    trace.end(1)
    assert trace.round() == ["wide"]
    assert [one.reservation.submission_id for one in trace.queues["b"].shared.values()] == ["after"]
    trace.submit(Given("short", 1, 40, nodes=1, cluster="c", limit=40))
    assert trace.round() == ["short"]  # it is over when "after" starts


def test_whose_turn_it_was_keeps_it_when_another_sibling_falls_behind_it() -> None:
    """Spec 8: two with large jobs take turns; none of them takes the other's nodes again and again."""
    trace = Trace(10, 1, QueuePolicy(FAIR))
    for name in "abcd":
        elastic(trace, name, QueuePolicy())
    jobs = [
        Given(f"{name}-{n}", 1, 90 + n % 7, nodes=nodes, cluster=name, limit=120 + n % 7)
        for name, nodes in (("a", 6), ("b", 6), ("c", 1), ("d", 1))
        for n in range(60)
    ]
    trace.play(jobs, until=3600)
    count = {name: sum(one.startswith(name) for one in trace.started) for name in "ab"}
    assert abs(count["a"] - count["b"]) <= 2
    assert min(count.values()) >= 10


def test_what_comes_free_is_enough_together_with_idle_loans() -> None:
    """Spec 9: half of the node is idle in a sibling; a job of the level ends on the other half."""
    trace = Trace(1, 8, BACK)
    elastic(trace, "a", BACK)
    elastic(trace, "b", BACK)
    jobs = [
        Given("above", 4, 20),
        Given("loan", 4, 10, cluster="a"),
        Given("whole", 8, 10, at=5, cluster="b", limit=10),
    ]
    trace.play(jobs, until=100)
    assert trace.started["whole"] == 20


def test_in_a_strict_queue_the_turn_goes_to_the_job_that_must_start_first() -> None:
    """Spec 8: who has arrived later with a higher priority is ahead of the job whose turn it was."""
    trace = Trace(2, 1, QueuePolicy(FAIR))
    for name in "ab":
        elastic(trace, name, QueuePolicy(discipline=STRICT))
    jobs = [
        Given("b-0", 1, 10, cluster="b", limit=10),
        Given("b-1", 1, 20, cluster="b", limit=20),
        Given("turn", 1, 50, nodes=2, at=1, cluster="a", limit=50),
        Given("ahead", 1, 50, nodes=2, at=2, cluster="a", limit=50, priority=1),
    ]
    trace.play(jobs, until=500)
    assert (trace.started["ahead"], trace.started["turn"]) == (20, 70)
