"""What the counts of ``shortage`` rest on: what is free on a node, in a cluster and in those above it together."""

from __future__ import annotations

import random

import pytest

from tests.specification import spec
from vctl.core.resources import Allocation, FreeCapacity, add
from vctl.scheduler.explain.shortage import Above, Slot, Slots

pytestmark = spec("8.reasons")


def slots(dice: random.Random, nodes: list[str], *, several: bool) -> Slots:
    """Some virtual nodes on some of the nodes, in groups that share their free capacity."""
    groups = []
    for _ in range(dice.randint(0, 3)):
        amounts = {name: dice.randint(0, 9) for name in ("CPU", "GPU")}
        shares = {"GPU": dict.fromkeys(range(amounts["GPU"]), 10_000)}
        capacity = FreeCapacity(Allocation(amounts, shares))
        some = dice.sample(nodes, dice.randint(1, len(nodes)))
        groups.append([Slot(node_id, capacity, dict) for node_id in some])
        if not several:
            nodes = [node_id for node_id in nodes if node_id not in some] or ["another"]
    return Slots(groups)


@pytest.mark.parametrize("seed", range(200))
def test_what_is_free_on_a_node_is_the_sum_of_all_levels(seed: int) -> None:
    dice = random.Random(seed)
    nodes = [f"n{number}" for number in range(6)]
    levels = [slots(dice, nodes, several=dice.random() < 0.3) for _ in range(dice.randint(2, 4))]
    own, above = levels[0], [Above("", level, "", {}) for level in levels[1:]]
    want: dict[str, dict[str, int]] = {}
    instances: dict[str, int] = {}
    for slot in (slot for level in levels for slot in level.all):
        want[slot.node_id] = add(want.get(slot.node_id, {}), slot.capacity.free)
        most = max(slot.capacity.instances["GPU"], default=-1)
        instances[slot.node_id] = max(instances.get(slot.node_id, -1), most)
    joined = own.joined(above)
    assert {slot.node_id: dict(slot.capacity.free) for slot in joined.all} == want
    assert {s.node_id: max(s.capacity.instances["GPU"], default=-1) for s in joined.all} == instances
    assert len(joined.all) == len(want)
    assert joined.crowded is False
    assert own.joined(above) is joined


def test_nodes_on_which_a_cluster_has_nothing_are_counted_by_class() -> None:
    """A list of the jobs of 80 clusters took a second where each of them put 10,000 nodes together one by one."""
    capacity, rest = FreeCapacity(Allocation({"CPU": 8})), FreeCapacity(Allocation({"CPU": 2}))
    top = Slots([[Slot(f"n{number}", capacity, dict) for number in range(1_000)]])
    own = Slots([[Slot("n7", rest, dict)]])
    joined = own.joined([Above("", top, "", {})])
    assert sorted((len(group), group[0].capacity.free["CPU"]) for group in joined.groups) == [
        (1, 10),
        (999, 8),
    ]
