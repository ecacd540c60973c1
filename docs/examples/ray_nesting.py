"""Placement groups in a virtual cluster: all strategies, and tasks of tasks that stay in the group of their parent.

vctl job submit --ray --virtual-cluster='{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}, {"resources": {"CPU": 2}}], "scheduling_policy": "SPREAD"}]}' -- python docs/examples/ray_nesting.py
"""  # noqa: E501  # a command is one line

from __future__ import annotations

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES = {"PACK": {1, 2}, "STRICT_PACK": {1}, "SPREAD": {1, 2}, "STRICT_SPREAD": {2}}
"""On how many nodes a group of two may lie: only the strict strategies are promises."""


@ray.remote(num_cpus=0.5)
def inner() -> str:
    """A task of a task."""
    return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=0.5)
def outer() -> list[str]:
    """A task that starts tasks."""
    return [ray.get_runtime_context().get_node_id(), *ray.get([inner.remote() for _ in range(4)])]


ray.init(log_to_driver=False)
for strategy, allowed in NODES.items():
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)
    assert group.wait(120)
    nodes = set(placement_group_table(group)["bundles_to_node_id"].values())
    assert len(nodes) in allowed
    place = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    assert set(ray.get(outer.options(scheduling_strategy=place).remote())) <= nodes
    remove_placement_group(group)
    print(strategy, len(nodes))
too_large = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
assert not too_large.wait(1), "there are two virtual nodes, however many machines there are"
