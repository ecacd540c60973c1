"""``ps`` lists what runs, then the queue in its order, then what is over; the limit cuts the end (spec 13)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.core.listed import Alike, Listed, field_of
from vctl.ops import jobs
from vctl.ops.clusters import create, update
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.options import parse_array

pytestmark = spec("13.output")


def run(ground: Ground, name: str) -> None:
    with ground.store.transaction():
        ground.store.db.execute(
            "UPDATE jobs SET status = 'RUNNING', started_at = ? WHERE submission_id = ?", (ground.now, name)
        )


def names(ground: Ground, **given: Any) -> list[str]:
    return [job["submission_id"] for job in jobs.list_jobs(ground.store, by_turn=True, **given)[0]]


def test_what_runs_comes_first_then_the_queue_in_its_order_then_what_is_over(ground: Ground) -> None:
    for number in range(300):
        ground.submit(f"j{number}", priority=5 if number == 200 else 0)
    for number in range(40):
        run(ground, f"j{number}")
    ground.end("j299", "FAILED", 1)
    shown = names(ground, all=True, limit=100)
    assert shown[:40] == [f"j{number}" for number in reversed(range(40))]
    assert shown[40:] == ["j200", *(f"j{number}" for number in range(40, 99))]
    assert jobs.list_jobs(ground.store, all=True, limit=100, by_turn=True)[1] == 300
    assert names(ground, all=True)[-1] == "j299"
    assert names(ground, limit=3) == ["j39", "j38", "j37"]
    assert names(ground, limit=0) == []
    assert [job["submission_id"] for job in jobs.list_jobs(ground.store, all=True, limit=2)[0]] == [
        "j299",
        "j298",
    ]


def test_arrays_stand_among_the_jobs(ground: Ground) -> None:
    ground.submit("first")
    ground.submit("sweep", array=parse_array("0-9", "array"))
    ground.submit("later")
    ground.submit("grid", array=parse_array("0-9", "array"))
    ground.submit("urgent", priority=3)
    run(ground, "grid_0")
    run(ground, "later")
    shown = names(ground, members=False)
    assert shown == ["grid", "later", "urgent", "first", "sweep"]
    assert names(ground, members=False, limit=2) == ["grid", "later"]
    assert names(ground, members=False, limit=4) == ["grid", "later", "urgent", "first"]
    assert names(ground)[:3] == ["grid_0", "later", "urgent"]


@pytest.mark.parametrize("order", ["priority", "fifo", "longest", "shortest", "fair"])
def test_a_queue_keeps_its_own_order(ground: Ground, order: str) -> None:
    """Against the positions that the jobs have, for every order of a queue."""
    update(ground.store, "primary", ClusterChange(queue={"order": order}))
    chance = random.Random(order)
    for number in range(40):
        ground.submit(
            f"j{number}", priority=chance.randint(0, 3), time_limit_s=chance.choice([60.0, 600.0, 6000.0])
        )
    found = jobs.list_jobs(ground.store, by_turn=True)[0]
    assert [job["queue_position"] for job in found] == list(range(1, 41))


def test_filters_and_clusters_are_kept(ground: Ground) -> None:
    empty = parse_cluster_spec({"flexible_resource_min": {}}, logical=True)
    create(ground.store, "team", ClusterChange(divisible=True, spec=empty))
    ground.submit("a", priority=1)
    ground.submit("b", cluster="team", priority=9)
    ground.submit("c", hold=True)
    ground.submit("d")
    run(ground, "d")
    assert names(ground) == ["d", "b", "a", "c"]
    assert names(ground, cluster="team") == ["b"]
    assert names(ground, filters=["priority=0"]) == ["d", "c"]
    assert names(ground, filters=["state_reason=Held"], all=True) == ["c"]
    assert names(ground, filters=["state_reason!=Held"], all=True) == ["d", "b", "a"]


def test_members_that_share_a_row_have_their_own_places(ground: Ground) -> None:
    """A row stands for many members of an array: the limit and the filters are about members."""
    ground.submit("before")
    ground.submit("sweep", array=parse_array("0-999", "array"))
    ground.submit("after")
    ground.submit("urgent", priority=1)
    shown = ["urgent", "before", *(f"sweep_{index}" for index in range(1000)), "after"]
    assert names(ground) == shown
    assert names(ground, limit=5) == shown[:5]
    assert jobs.list_jobs(ground.store, limit=5, by_turn=True)[1] == 1003
    assert names(ground, filters=["submission_id=sweep_7"]) == ["sweep_7"]
    assert names(ground, filters=["submission_id!=sweep_0"], limit=4) == [
        "urgent",
        "before",
        "sweep_1",
        "sweep_2",
    ]
    assert names(ground, members=False) == ["urgent", "before", "sweep", "after"]
    update(ground.store, "primary", ClusterChange(queue={"order": "fair"}))
    assert names(ground, limit=5) == shown[:5]


def test_many_jobs_stay_columns(ground: Ground) -> None:
    """A table of thousands of jobs is written by column: a cell that all share is made once."""
    ground.submit("running")
    run(ground, "running")
    ground.submit("sweep", array=parse_array("0-999", "array"))
    found = jobs.list_jobs(ground.store, by_turn=True)[0]
    assert isinstance(found, Listed)
    assert [one["submission_id"] for one in found][:3] == ["running", "sweep_0", "sweep_1"]
    assert isinstance(field_of(found, "user"), Alike)
