"""Placement groups of each strategy, labels of nodes, affinity."""

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

ray.init(log_to_driver=False)


@ray.remote(num_cpus=1)
def node():
    return ray.get_runtime_context().get_node_id()


for strategy, nodes in (("PACK", {1}), ("STRICT_PACK", {1}), ("SPREAD", {1, 2}), ("STRICT_SPREAD", {2})):
    group = placement_group([{"CPU": 1}] * 2, strategy=strategy)
    assert group.wait(60), strategy
    there = [
        node.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index)).remote()
        for index in range(2)
    ]
    assert len(set(ray.get(there))) in nodes, strategy
    remove_placement_group(group)
ids = [one["NodeID"] for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU")]
for wanted in ids:
    strategy = NodeAffinitySchedulingStrategy(wanted, soft=False)
    assert ray.get(node.options(scheduling_strategy=strategy).remote()) == wanted
assert ray.get(node.options(scheduling_strategy="SPREAD").remote()) in ids
too_much = placement_group([{"CPU": 100}])
assert not too_much.wait(1)
print("groups", len(ids))
