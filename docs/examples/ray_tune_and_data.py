"""Trials on fixed virtual nodes, and data tasks beside them on flexible ones, which grow while there is data to read.

Neither takes the other's CPUs. The cluster starts with 2 CPUs, grows to 4 for the data, and shrinks when that is read.

vctl job submit --ray --virtual-cluster='{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}, "labels": {"role": "trial"}}]}], "flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 3}}' -- python docs/examples/ray_tune_and_data.py
"""  # noqa: E501  # a command is one line

from __future__ import annotations

import time

import ray


@ray.remote(num_cpus=1, label_selector={"role": "!trial"})
def read(block: int) -> list[int]:
    """One block of the data set."""
    time.sleep(5)
    return list(range(block * 100, block * 100 + 100))


@ray.remote(num_cpus=1, label_selector={"role": "trial"})
def trial(rate: float, *blocks: list[int]) -> float:
    """The result of one trial."""
    return rate * sum(map(sum, blocks))


ray.init(log_to_driver=False)
blocks = [read.remote(block) for block in range(8)]
while ray.cluster_resources()["CPU"] < 4:
    time.sleep(0.1)
print("grown to", ray.cluster_resources()["CPU"], "CPUs")
best = max(ray.get([trial.remote(rate, *blocks) for rate in (0.5, 1.0)]))
print("the best trial has", best)
