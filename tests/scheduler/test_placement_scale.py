"""Placement must not grow with the number of equal nodes. Ratios only: a slow machine does not matter."""

from __future__ import annotations

import time

from tests import specification
from tests.scheduler import candidates
from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.scheduler.feasibility import ever
from vctl.scheduler.placement import Placed, place

pytestmark = specification.spec("18.budgets")


def equal_nodes(count: int) -> Ledger:
    world = Ledger()
    for number in range(count):
        world.put_node(Node(f"n{number:05}", "8c", rs.whole_node(candidates.amounts("8c 2g"))))
    world.index(PRIMARY)
    return world


def best_time(world: Ledger, spec: ClusterSpec, entry: str) -> float:
    times = []
    for _ in range(30):
        start = time.perf_counter()
        assert isinstance(place(world, PRIMARY, spec, candidates.amounts(entry)), Placed)
        times.append(time.perf_counter() - start)
    return min(times)


def test_ten_times_the_equal_nodes_cost_the_same() -> None:
    small, large = equal_nodes(1000), equal_nodes(10_000)
    for spec, entry in (
        (candidates.spec("PACK: 1c"), ""),
        (candidates.spec(flexible=""), "1c"),
        (candidates.spec("STRICT_SPREAD: 1c 1g, 1c 1g, 1c 1g, 1c 1g"), "1c"),
        (candidates.spec(flexible="20c"), ""),
        (candidates.spec(whole={"8c": 4}), ""),
    ):
        assert best_time(large, spec, entry) < 3 * best_time(small, spec, entry)


def test_the_largest_gang_a_cluster_holds_is_placed() -> None:
    world = equal_nodes(1000)
    plan = place(world, PRIMARY, candidates.spec("STRICT_SPREAD: " + ", ".join(["8c 2g"] * 1000)), {})
    assert isinstance(plan, Placed)
    assert not plan.exact
    assert [piece.node_id for piece in plan.pieces] == [f"n{number:05}" for number in range(1000)]


def test_never_possible_is_said_quickly_for_many_nodes() -> None:
    world = equal_nodes(2000)
    limit = ever(world, PRIMARY, candidates.spec("PACK: 9c"), {})
    assert limit is not None
    assert limit.refusal.have == 8 * rs.SCALE
