"""`ray stop` in a job with a private Ray ends that Ray alone, however it is called and wherever; the job goes on."""

from __future__ import annotations

import sys

from tests.integration.conftest import SPREAD_2X1, Place, eventually
from tests.integration.test_private_ray import assert_clean, folders
from tests.ray_cluster import IN_CI, RAY_S, WITH_RAY, log_of
from tests.specification import spec

pytestmark = [spec("16.ray"), *WITH_RAY]

STAYS = """
import pathlib, time
import ray

ray.init(log_to_driver=False)


@ray.remote(num_cpus=1)
class Counter:
    def __init__(self):
        self.calls = 0

    def call(self):
        self.calls += 1
        return self.calls


counter, calls = Counter.remote(), 0
while not pathlib.Path("go").exists():
    calls += 1
    assert ray.get(counter.call.remote()) == calls
    pathlib.Path("stays.up").touch()
    time.sleep(0.1)
"""

STOPS = """
import json, os, pathlib, subprocess, sys, time
import ray

ray_command = os.path.join(os.path.dirname(sys.executable), "ray")
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
ways = [["ray", "stop"], [ray_command, "stop", "--force"], [sys.executable, "-m", "ray.scripts.scripts", "stop", "-v"]]
while not pathlib.Path("stays.up").exists():
    time.sleep(0.1)
nodes = []
for way in ways:
    ray.init(log_to_driver=False)
    while len(alive := [node["NodeID"] for node in ray.nodes() if node["Alive"]]) < 2:
        time.sleep(0.1)  # the head of another Ray takes connections before the other nodes have joined
    nodes += alive
    if way is ways[1]:  # in a task, whose process ends with its Ray
        stopped = ray.remote(num_cpus=1, max_retries=0)(lambda: os.system(" ".join(way))).remote()
        try:
            ray.get(stopped)
        except ray.exceptions.RayError as error:
            print("the task:", type(error).__name__, flush=True)
        ray.shutdown()
    else:
        ray.shutdown()
        done = subprocess.run(way, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
        assert "Stopped" in done.stdout, done.stdout
again = subprocess.run(["ray", "stop"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
assert "Did not find any active Ray processes." in again.stdout, again.stdout
assert len(set(nodes)) == 2 * len(ways), nodes  # two each
print("stopped", len(ways))
"""

CONNECTED = """
import os, sys, time
import ray

ray.init(log_to_driver=False)
assert os.waitstatus_to_exitcode(os.system(f"{os.path.dirname(sys.executable)}/ray stop")) == 0
time.sleep(20)
print("goes on", flush=True)
"""


@IN_CI
def test_ray_stop_ends_the_ray_of_its_job_alone(place: Place) -> None:
    """It ended every Ray of the user on the machine, also that of the other job."""
    place.add_nodes(2)
    place.daemon()
    for name, program, *options in (("stays", STAYS), ("stops", STOPS, "--virtual-cluster", SPREAD_2X1)):
        (place.folder / f"{name}.py").write_text(program)
        place.ok(
            "job", "submit", "--no-wait", "--ray", "--submission-id", name, *options, "--",
            sys.executable, f"{name}.py",
        )  # fmt: skip
    eventually(lambda: len(folders(place)) == 2, "both to be launched", RAY_S)
    used = folders(place)
    job = place.reach("stops", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == "SUCCEEDED", log_of(place, "stops")
    said = log_of(place, "stops")
    assert (
        said.count("`ray stop` has ended the job's Ray; another one starts when something connects to it")
        == 3
    )
    assert "stopped 3" in said.splitlines()
    assert place.job("stays")["status"] == "RUNNING", log_of(place, "stays")
    (place.folder / "go").touch()
    job = place.reach("stays", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == "SUCCEEDED", log_of(place, "stays")
    assert_clean(place, used)


def test_a_program_that_stops_its_ray_while_it_is_connected_goes_on(place: Place) -> None:
    place.add_nodes(1)
    place.daemon()
    (place.folder / "connected.py").write_text(CONNECTED)
    place.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", "c", "--", sys.executable, "connected.py"
    )
    job = place.reach("c", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == "SUCCEEDED", log_of(place, "c")
    assert "goes on" in log_of(place, "c").splitlines()
