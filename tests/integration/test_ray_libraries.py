"""Ray's libraries in a job's own Ray: Serve answers HTTP requests, Tune, Data and Train use the virtual nodes.

They need `pip install 'ray[serve,tune,data,train]'`; where that is not installed, they are skipped.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec

import pytest

from tests.integration.conftest import Place, eventually
from tests.integration.test_private_ray import FIND, folders
from tests.ray_cluster import RAY_S, WITH_RAY, left_of, log_of
from tests.specification import spec
from vctl.ray.private.raylets import free_port

pytestmark = [spec("16.ray"), *WITH_RAY]

NODE = {"resources": {"CPU": 1, "memory": 1e9}}
"""With memory, of which Data reserves a part for what it shuffles."""
TWO_NODES = json.dumps({"fixed_size_nodes": [{"nodes": [NODE, NODE], "scheduling_policy": "SPREAD"}]})
NEEDS = {
    "serve": ("grpc_reflection", "starlette", "watchfiles"),
    "tune": ("pandas", "pyarrow", "tensorboardX"),
    "data": ("pandas", "pyarrow"),
    "train": ("pandas", "pyarrow"),
}

SERVE = """
import sys, time, urllib.error, urllib.request
import ray
from ray import serve

ray.init(log_to_driver=False)
url = f"http://127.0.0.1:{sys.argv[1]}/hello?who=all"


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0.5})
class Hello:
    async def __call__(self, request):
        return f"hello {request.query_params['who']} of {ray.cluster_resources()['CPU']:g}"


serve.start(http_options={"port": int(sys.argv[1])})
serve.run(Hello.bind(), route_prefix="/hello")
for _ in range(20):
    while True:
        try:
            with urllib.request.urlopen(url) as answer:
                print(answer.read().decode(), flush=True)
            break
        except urllib.error.HTTPError as error:  # a proxy that has just started knows no routes yet
            assert error.code == 404, error
            time.sleep(0.05)
assert {str(one.value) for one in serve.status().proxies.values()} == {"HEALTHY"}
serve.shutdown()
"""

TUNE = (
    FIND
    + """
import tempfile
import ray
from ray import tune

ray.init(log_to_driver=False)


def trial(config):
    node = ray.get_runtime_context().get_node_id()
    tune.report({"score": config["x"] ** 2, "node": node, "found": find()})


found = tune.Tuner(
    tune.with_resources(trial, {"cpu": 1}),
    param_space={"x": tune.grid_search([1, 2, 3, 4])},
    tune_config=tune.TuneConfig(metric="score", mode="max"),
    run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(dir=os.getcwd()), verbose=0),
).fit()
assert {one.metrics["node"] for one in found} == {node["NodeID"] for node in ray.nodes()}
assert all(one.metrics["found"] == [[os.environ["RAY_ADDRESS"], 2.0, None]] * 4 for one in found)
print("best", found.get_best_result().metrics["score"])
"""
)

DATA = """
import ray

ray.init(log_to_driver=False)
doubled = ray.data.range(1000, override_num_blocks=8).map_batches(lambda batch: {"id": batch["id"] * 2})
print("sum", doubled.sum("id"))
"""

TRAIN = """
import os, tempfile
import ray, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

ray.init(log_to_driver=False)
folder = tempfile.mkdtemp(dir=os.getcwd())


def loop():
    context = ray.train.get_context()
    with open(f"{folder}/{context.get_world_rank()}", "w") as file:
        file.write(f"{context.get_world_size()} {ray.get_runtime_context().get_node_id()}")


scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
assert DataParallelTrainer(loop, scaling_config=scaling, run_config=RunConfig(storage_path=folder)).fit().error is None
ranks = [open(f"{folder}/{rank}").read().split() for rank in range(2)]
assert {node for _, node in ranks} == {node["NodeID"] for node in ray.nodes()}
print("world", *(size for size, _ in ranks))
"""

SAID = {
    "serve": (SERVE, ["hello all of 2"] * 20),
    "tune": (TUNE, ["best 16"]),
    "data": (DATA, ["sum 999000"]),
    "train": (TRAIN, ["world 2 2"]),
}


def submit(place: Place, library: str, *options: str) -> None:
    if missing := [name for name in NEEDS[library] if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} is needed: pip install 'ray[{library}]'")
    program, said = SAID[library]
    (place.folder / f"with_{library}.py").write_text(program)
    place.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", library, *options, "--",
        sys.executable, f"with_{library}.py", str(free_port()),
    )  # fmt: skip
    eventually(lambda: folders(place), "the job to be launched", RAY_S)
    used = folders(place)
    job = place.reach(library, "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == "SUCCEEDED", log_of(place, library)
    lines = log_of(place, library).splitlines()
    assert [line for line in lines if line in said] == said, lines
    eventually(lambda: not left_of(place), f"the end of {left_of(place)}", RAY_S)
    assert not any(map(os.path.exists, used))


@pytest.mark.parametrize("library", SAID)
def test_a_library_works_on_the_virtual_nodes(place: Place, library: str) -> None:
    """Serve's proxy could not start: its log has the name of the node, in which there was a `/`."""
    place.add_nodes(2)
    place.daemon()
    submit(place, library, "--virtual-cluster", TWO_NODES)


def test_serve_works_on_the_local_node(place: Place) -> None:
    place.more["VCTL_LOCAL_NODE"] = "1"
    place.daemon()
    submit(place, "serve", "--num-cpus", "2")
