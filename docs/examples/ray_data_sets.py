"""Several data sets at the same time, each on virtual nodes of its own: a large one does not slow down a small one.

vctl job submit --ray --virtual-cluster='{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}, "labels": {"data": "small"}}]}, {"nodes": [{"resources": {"CPU": 1}, "labels": {"data": "large"}}]}]}' -- python docs/examples/ray_data_sets.py
"""  # noqa: E501  # a command is one line

from __future__ import annotations

import ray

BLOCKS = {"small": 3, "large": 30}


@ray.remote(num_cpus=1)
def transform(block: int) -> tuple[str, int]:
    """Where a block was read, and how many rows it has."""
    return ray.get_runtime_context().get_node_id(), sum(1 for number in range(1000) if number % (block + 2))


ray.init(log_to_driver=False)
labels = {node["NodeID"]: node["Labels"]["data"] for node in ray.nodes()}
sets = {
    name: [transform.options(label_selector={"data": name}).remote(block) for block in range(count)]
    for name, count in BLOCKS.items()
}
for name, blocks in sets.items():
    found = ray.get(blocks)
    assert {labels[node] for node, _ in found} == {name}
    print(name, sum(rows for _, rows in found))
