"""A gang of two actors, each on a virtual node of its own that it finds by its label. Both start, or neither.

vctl job submit --ray --virtual-cluster='{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}, "labels": {"bundle_index": "0"}}, {"resources": {"CPU": 1}, "labels": {"bundle_index": "1"}}], "scheduling_policy": "SPREAD"}]}' -- python docs/examples/ray_gang.py
"""  # noqa: E501  # a command is one line

from __future__ import annotations

import ray

MEMBERS = 2


@ray.remote(num_cpus=1)
class Worker:
    """A member of the gang, which holds a part of the numbers."""

    def __init__(self, rank: int) -> None:
        self.numbers = range(rank, 1000, MEMBERS)

    def node(self) -> str:
        """The virtual node on which it runs."""
        return ray.get_runtime_context().get_node_id()

    def partial(self) -> int:
        """The sum of its part."""
        return sum(self.numbers)


ray.init(log_to_driver=False)
gang = [Worker.options(label_selector={"bundle_index": str(rank)}).remote(rank) for rank in range(MEMBERS)]
nodes = ray.get([worker.node.remote() for worker in gang])
labels = {node["NodeID"]: node["Labels"]["bundle_index"] for node in ray.nodes()}
assert [labels[node] for node in nodes] == ["0", "1"]
assert ray.cluster_resources()["CPU"] == MEMBERS, "the job has these two CPUs and sees no other"
print("the sum is", sum(ray.get([worker.partial.remote() for worker in gang])))
