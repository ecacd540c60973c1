"""What of a Ray's demand lacks a raylet (spec 16: its own demand drives the growth of its virtual cluster)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specification import spec
from vctl.ray.private import ray_demand

pytestmark = spec("16.ray")

CPU = {"CPU": 1.0}


def lacking(free: list[ray_demand.Amounts], *more: Any) -> list[ray_demand.Node]:
    return ray_demand.lacking([(one, {"zone": "c"}) for one in free], *more)


def test_what_the_raylets_have_free_lacks_nothing() -> None:
    assert lacking([{"CPU": 2.0}, CPU], [(CPU, {}, 3)], [], {}, 1) == []
    assert lacking([{"CPU": 0.5}], [({"CPU": 0.25}, {}, 2)], [], {}, 1) == []
    assert lacking([], [({}, {}, 100)], [], {}, 1) == [], "without a request there is always a place"


def test_all_that_has_no_place_comes_as_one_node() -> None:
    assert lacking([CPU], [(CPU, {}, 8)], [], {}, 1) == [({"CPU": 7}, {}, True)]
    assert lacking([], [({"CPU": 0.5}, {}, 3)], [], {}, 1) == [({"CPU": 2}, {}, True)], (
        "nodes have whole CPUs"
    )
    assert lacking([], [(CPU, {}, 1)], [], {}, 1) == [(CPU, {}, False)]


def test_no_more_than_there_can_be() -> None:
    assert lacking([CPU], [(CPU, {}, 8)], [], {"CPU": 3.0}, 1) == [({"CPU": 3}, {}, True)]
    assert lacking([], [({"CPU": 4.0}, {}, 2)], [], {"CPU": 3.0}, 1) == []
    assert lacking([], [(CPU, {}, 8)], [], {}, 4) == [({"CPU": 2}, {}, True)]
    assert lacking([], [(CPU, {}, 2)], [], {}, 64) == [(CPU, {}, False)]


def test_each_shape_and_each_place_is_a_node_of_its_own() -> None:
    asked = [(CPU, {}, 1), ({"CPU": 1.0, "GPU": 1.0}, {}, 2), (CPU, {"zone": "!in(a,b)"}, 1)]
    assert lacking([], asked, [], {}, 1) == [
        ({"CPU": 2, "GPU": 2}, {}, True),
        (CPU, {}, False),
        (CPU, {"zone": "!in(a,b)"}, False),
    ]
    assert lacking([CPU], [(CPU, {"zone": "a"}, 1)], [], {}, 1) == [(CPU, {"zone": "a"}, False)]
    assert ray_demand.lacking([(CPU, {"zone": "a"})], [(CPU, {"zone": "a"}, 1)], [], {}, 1) == [], (
        "it is to come"
    )


@pytest.mark.parametrize("where", ["c", "!a", "in(b,c)", "!in(a,b)"])
def test_a_request_with_a_selector_is_placed_where_the_labels_match(where: str) -> None:
    assert lacking([CPU], [(CPU, {"zone": where}, 1)], [], {}, 1) == []
    assert lacking([CPU], [(CPU, {"zone": "!c"}, 1)], [], {}, 1) == [(CPU, {"zone": "!c"}, False)]


@pytest.mark.parametrize(
    ("strategy", "free", "found"),
    [
        ("PACK", [CPU], [{"CPU": 2}]),
        ("SPREAD", [CPU, CPU, CPU], []),
        ("STRICT_PACK", [CPU, CPU, CPU], [{"CPU": 3}]),
        ("STRICT_PACK", [{"CPU": 3.0}], []),
        ("STRICT_SPREAD", [{"CPU": 3.0}], [{"CPU": 1}, {"CPU": 1}]),
        ("STRICT_SPREAD", [CPU, CPU, CPU], []),
    ],
)
def test_placement_groups(
    strategy: str, free: list[ray_demand.Amounts], found: list[ray_demand.Amounts]
) -> None:
    group = [(strategy, [dict(CPU) for _ in range(3)])]
    assert [node[0] for node in lacking(free, [], group, {}, 1)] == found


def test_a_placement_group_takes_what_tasks_would_have() -> None:
    assert lacking([CPU], [(CPU, {}, 1)], [("PACK", [CPU])], {}, 1) == [(CPU, {}, False)]
    assert lacking([], [], [("STRICT_SPREAD", [CPU, {"CPU": 9.0}])], {"CPU": 4.0}, 1) == [], (
        "all of it or nothing"
    )
