"""Queue settings while a scheduler follows: changed live, shown, obeyed; places in the queue agree with them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_holding import submit
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.errors import BadSpec
from vctl.ops import cluster_views, clusters, job_edits
from vctl.ops import jobs as job_ops
from vctl.scheduler.scheduling_class import Verdict
from vctl.spec.cluster_change import ClusterChange

pytestmark = spec("8.orders", "8.disciplines")

CPU = 10_000


@pytest.fixture
def two(life: Life) -> Life:
    """Two CPUs, one of them taken by ``first``."""
    life.nodes(1, "t", 2)
    submit(life, "first")
    life.until(lambda: life.job("first")["status"] == "RUNNING")
    return life


def settle(life: Life, **queue: Any) -> None:
    clusters.update(life.store, "primary", ClusterChange(queue=queue))


def state(life: Life, name: str) -> str:
    job = life.job(name)
    return str(job["state_reason"] or job["status"])


def test_strict_is_obeyed_at_once_and_best_effort_again(two: Life) -> None:
    settle(two, discipline="strict")
    submit(two, "head", entry={"CPU": 2 * CPU})
    submit(two, "small")
    two.turn()
    assert (state(two, "head"), state(two, "small")) == ("InsufficientResources", "HeadOfLine")
    assert "head" in two.job("small")["message"]
    settle(two, discipline=None)
    two.until(lambda: two.job("small")["status"] == "RUNNING")


def test_a_cap_holds_until_it_is_raised(two: Life) -> None:
    settle(two, max_running_jobs=1)
    submit(two, "next")
    two.turn()
    assert state(two, "next") == "CapReached"
    settle(two, max_running_jobs=2)
    two.until(lambda: two.job("next")["status"] == "RUNNING")


def test_a_user_limit_is_told_and_outlives_the_daemon(two: Life) -> None:
    settle(two, max_running_per_user=1)
    submit(two, "next")
    two.turn()
    assert state(two, "next") == "UserLimit"
    two.die()
    two.turn()
    assert state(two, "next") == "UserLimit"
    job_ops.stop(two.store, "first", grace_s=0.1)
    two.until(lambda: two.job("next")["status"] == "RUNNING")


def test_another_policy_judges_nothing_anew(life: Life) -> None:
    """Of the queues below a cluster, one gets another weight, order and discipline: every verdict stays what it was."""
    life.nodes(1, "t", 2)
    for name in ("a", "b"):
        clusters.create(
            life.store, name, ClusterChange(divisible=True, spec=ClusterSpec(flexible_min={"CPU": CPU}))
        )
        submit(life, f"{name}-first", cluster=name)
        submit(life, f"{name}-next", cluster=name)
    life.until(lambda: [life.job(f"{name}-first")["status"] for name in "ab"] == ["RUNNING"] * 2)
    life.turn()

    def verdicts() -> list[Verdict | None]:
        assert life.scheduler is not None
        assert life.scheduler.state is not None
        state = life.scheduler.state
        return [
            queue.blocked(state.ledger, one)
            for queue in (state.queues[name] for name in "ab")
            for one in queue.shapes.values()
        ]

    before = verdicts()
    assert len(before) == 2
    assert None not in before
    for queue in ({"weight": 3}, {"order": "fifo"}, {"discipline": "strict"}, {"max_running_jobs": 7}):
        clusters.update(life.store, "a", ClusterChange(queue=queue))
        life.turn()
        assert all(now is was for now, was in zip(verdicts(), before, strict=True)), queue
    clusters.update(life.store, "a", ClusterChange(borrow_limit={"CPU": 0}))
    life.turn()
    assert verdicts()[0] is not before[0]
    assert verdicts()[1] is before[1]
    job_ops.stop(life.store, "a-first", grace_s=0.1)
    life.until(lambda: life.job("a-next")["status"] == "RUNNING")


def test_places_agree_with_the_order(two: Life) -> None:
    submit(two, "low", entry={"CPU": 2 * CPU})
    submit(two, "high", entry={"CPU": 2 * CPU}, priority=5)
    assert places(two) == {"high": 1, "low": 2}
    for order in ("fifo", "fair"):
        settle(two, order=order)
        assert places(two) == ({"low": 1, "high": 2} if order == "fifo" else {"high": 1, "low": 2})
    job_edits.hold(two.store, "high")
    assert set(places(two)) == {"low", "high"}


def test_the_longest_or_the_shortest_goes_first_also_after_an_edit(two: Life) -> None:
    for name, limit_s in (("brief", 10), ("middle", 600), ("long", 7200)):
        submit(two, name, entry={"CPU": 2 * CPU}, time_limit_s=limit_s)
    settle(two, order="longest")
    assert places(two) == {"long": 1, "middle": 2, "brief": 3}
    job_edits.edit(two.store, "brief", {"time_limit_s": None})
    assert places(two) == {"brief": 1, "long": 2, "middle": 3}
    settle(two, order="shortest")
    assert places(two) == {"middle": 1, "long": 2, "brief": 3}
    job_ops.stop(two.store, "first", grace_s=0.1)
    two.until(lambda: two.job("middle")["status"] == "RUNNING")


def places(life: Life) -> dict[str, int]:
    found = {job["submission_id"]: job["queue_position"] for job in job_ops.list_jobs(life.store)[0]}
    one_by_one = {name: job_ops.get_job(life.store, name)["queue_position"] for name in found}
    assert found == one_by_one
    return {name: place for name, place in found.items() if place is not None}


def test_backfill_reserves_for_the_head(two: Life) -> None:
    settle(two, discipline="backfill")
    two.end("first")
    submit(two, "limited", time_limit_s=100)
    two.until(lambda: two.job("limited")["status"] == "RUNNING")
    submit(two, "head", entry={"CPU": 2 * CPU})
    submit(two, "long")
    submit(two, "short", time_limit_s=50)
    two.until(lambda: two.job("short")["status"] == "RUNNING")
    assert (state(two, "head"), state(two, "long")) == ("InsufficientResources", "HeadOfLine")


def test_settings_are_shown_and_checked(life: Life) -> None:
    settle(life, order="fair", half_life_s=3600, backfill_depth=3)
    shown = cluster_views.get_cluster(life.store, "primary")["queue"]
    assert (shown["order"], shown["half_life_s"], shown["backfill_depth"]) == ("fair", 3600, 3)
    settle(life, half_life_s=None)
    assert cluster_views.get_cluster(life.store, "primary")["queue"]["half_life_s"] is None
    for bad in ({"order": "lifo"}, {"weight": 0}, {"ageing_s": 0}, {"half_life_s": 1e-10}, {"speed": 1}):
        with pytest.raises(BadSpec):
            settle(life, **bad)
    with pytest.raises(BadSpec):
        clusters.update(life.store, "primary", ClusterChange(divisible=True, queue={"order": "fifo"}))
