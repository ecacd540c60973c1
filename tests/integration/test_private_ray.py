"""``job submit --ray`` with stock Ray: each job sees its own virtual nodes, and nothing stays, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import SPREAD_2X1, Place, eventually
from tests.ray_cluster import IN_CI, RAY_S, WITH_RAY, left_of, log_of
from tests.specification import spec
from vctl.daemon.isolation import private_store
from vctl.runtime import namespaces, processes

pytestmark = [spec("16.ray"), *WITH_RAY]

FIND = """
import json, os, subprocess, sys

FOUND = '''
import json, os, ray
found = []
for address in (None, "auto", None, "auto"):
    ray.init(address, log_to_driver=False)
    found.append([ray.get_runtime_context().gcs_address, ray.cluster_resources()["CPU"], os.environ.get("MINE")])
    ray.shutdown()
    if len(found) == 2:
        del os.environ["RAY_ADDRESS"]
print("found", json.dumps(found))
'''
BETWEEN = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


def find():
    words = [sys.executable, "-c", BETWEEN, sys.executable, "-c", FOUND]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.partition("found ")[2])
"""
"""`find`: the Rays that a process of a process finds, their CPUs, a variable; the last two without RAY_ADDRESS."""

LOOK = (
    FIND
    + """
import time
from pathlib import Path
import ray

ray.init(log_to_driver=False)
here, (me, other) = Path.cwd(), sys.argv[1:3]
(here / f"{me}.up").touch()
while not (here / f"{other}.up").exists():
    time.sleep(0.05)


@ray.remote(num_cpus=1)
class Place:
    def node(self):
        return ray.get_runtime_context().get_node_id()

    def find(self):
        return find()


@ray.remote(num_cpus=1)
def node():
    return ray.get_runtime_context().get_node_id()


actors = [Place.options(name=f"place-{n}").remote() for n in range(2)]
of_actors = ray.get([actor.node.remote() for actor in actors])
changed = {"env_vars": {"MINE": "1"}}
finds = {"a": ray.remote(num_cpus=0, runtime_env=changed)(find), "b": actors[1].find}[me]
found = ray.get(finds.remote())
third = Place.remote()
waits = ray.wait([third.node.remote()], timeout=1)[0]
for actor in (*actors, third):
    ray.kill(actor)
group = ray.util.placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
assert group.wait(400)
ray.util.remove_placement_group(group)
seen = {
    "cpus": ray.cluster_resources()["CPU"],
    "labels": [node["Labels"] for node in ray.nodes()],
    "names": sorted(node["NodeName"] for node in ray.nodes()),
    "found": found,
    "ids": sorted(node["NodeID"] for node in ray.nodes()),
    "actors": sorted(of_actors),
    "tasks": sorted(set(ray.get([node.remote() for _ in range(4)]))),
    "third waits": not waits,
    "named": [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)],
    "address": os.environ["RAY_ADDRESS"],
}
if len(sys.argv) > 3:
    from ray.util.state import list_nodes
    seen["state"] = sorted(one.node_id for one in list_nodes())
(here / f"{me}.json").write_text(json.dumps(seen))
(here / f"{me}.seen").touch()
while not (here / f"{other}.seen").exists():
    time.sleep(0.05)
"""
)

STAY = """
import pathlib, time
import ray

ray.init(log_to_driver=False)


@ray.remote(num_cpus=1)
def count():
    return 1


assert sum(ray.get([count.remote() for _ in range(2)])) == 2
pathlib.Path("up").touch()
most = 2.0
while not pathlib.Path("go").exists():
    most = max(most, ray.cluster_resources().get("CPU", 0.0))
    time.sleep(0.02)
assert most == 2.0, f"a raylet that was killed counts beside the one in its place: {most} CPUs of 2"
assert sum(ray.get([count.options(scheduling_strategy="SPREAD").remote() for _ in range(8)])) == 8
while ray.cluster_resources().get("CPU") != 2.0:
    time.sleep(0.05)
"""


def folders(place: Place) -> set[str]:
    """The temporary directories of Ray that the jobs of a state directory have, as they are called outside of jobs."""
    return {_outside(place, path) for path in (place.home / "gangs").glob("*.ray")}


def _outside(place: Place, path: Path) -> str:
    folder = str(json.loads(path.read_text())["folder"])
    if not folder or namespaces.why_not([namespaces.TMP]):
        return folder
    job_id, attempt = map(int, path.stem.split("."))
    return folder.replace("/tmp", f"/tmp/{private_store(str(place.home), job_id, attempt)}/tmp")


def pids(place: Place, *, ending: bytes = b"", holding: bytes = b"") -> list[int]:
    """Processes of jobs, by the end of their program, or by a word."""
    return sorted(
        pid
        for pid in left_of(place)
        if (words := processes.command(pid))
        and words[3:4]
        != [os.fsencode(namespaces.SCRIPT)]  # it stands before the command, and shows its words
        and (words[0].endswith(ending) if ending else any(holding in word for word in words))
    )


def starts(place: Place) -> int:
    """How many `ray start` are under way."""
    return sum(words[2:3] == [b"start"] for words in left_of(place).values())


@pytest.fixture
def boxes(place: Place) -> Place:
    place.add_nodes(2)
    return place


def assert_clean(place: Place, used: set[str]) -> None:
    """No process, no file, and all resources are whole."""
    eventually(lambda: not left_of(place), f"the end of {left_of(place)}", RAY_S)
    eventually(lambda: not any(map(os.path.exists, used)), f"{used} to be removed", RAY_S)
    eventually(lambda: not list((place.home / "gangs").iterdir()), "the files of jobs to be removed", RAY_S)
    assert set(place.free().values()) == {4.0}
    place.assert_sound()


def submit(place: Place, name: str, program: str, *words: str, dashboard: bool = False) -> None:
    script = place.folder / f"{name}.py"
    script.write_text(program)
    kind = "--ray-dashboard" if dashboard else "--ray"
    place.ok(
        "job", "submit", "--no-wait", kind, "--submission-id", name, "--virtual-cluster", SPREAD_2X1,
        "--", sys.executable, str(script), *words,
    )  # fmt: skip


@IN_CI
def test_two_jobs_side_by_side_see_their_own_nodes_alone(boxes: Place) -> None:
    boxes.daemon()
    submit(boxes, "a", LOOK, "a", "b")
    submit(boxes, "b", LOOK, "b", "a", "with the state", dashboard=True)
    eventually(lambda: len(folders(boxes)) == 2, "both to be launched", RAY_S)
    used = folders(boxes)
    for name in ("a", "b"):
        job = boxes.reach(name, "SUCCEEDED", "FAILED", within_s=RAY_S)
        assert job["status"] == "SUCCEEDED", log_of(boxes, name)
    seen: dict[str, Any] = {name: json.loads((boxes.folder / f"{name}.json").read_text()) for name in "ab"}
    for name, one in seen.items():
        assert one["cpus"] == 2.0
        assert {label["ray.io/vcluster_id"] for label in one["labels"]} == {f"kPrimaryClusterID--{name}"}
        assert sorted(label["ray.io/vnode_id"] for label in one["labels"]) == [
            f"kPrimaryClusterID--{name}.0",
            f"kPrimaryClusterID--{name}.1",
        ]
        assert one["names"] == [f"kPrimaryClusterID##{name}.0", f"kPrimaryClusterID##{name}.1"]
        assert one["found"] == [[one["address"], 2.0, {"a": "1", "b": None}[name]]] * 4
        assert len({label["vctl.io/node-id"] for label in one["labels"]}) == 2
        assert one["actors"] == one["ids"]
        assert set(one["tasks"]) <= set(one["ids"])
        assert one["third waits"]
        assert all(other["name"].startswith("place-") for other in one["named"])
    assert seen["b"]["state"] == seen["b"]["ids"]
    assert not set(seen["a"]["ids"]) & set(seen["b"]["ids"])
    assert seen["a"]["address"] != seen["b"]["address"]
    assert log_of(boxes, "a").count("--ray-dashboard adds it") == 1
    assert "Ray dashboard: http://127.0.0.1:" in log_of(boxes, "b")
    assert_clean(boxes, used)
    tops = {os.path.dirname(os.path.dirname(path)) for path in used}
    assert not any(map(os.path.exists, tops - {"/"})), "the /tmp of a job goes with it"


def supervisor(place: Place) -> list[int]:
    return [place.supervisor_of("stay")]


def keeper(place: Place) -> list[int]:
    found = pids(place, holding=b"/private_ray.py")
    assert len(found) == 1  # the main process is the command by now
    return found


def driver(place: Place) -> list[int]:
    return [place.running_process("stay")]


def launcher(place: Place) -> list[int]:
    below = processes.descendants(place.heartbeat()["pid"])
    found = [pid for pid in below if processes.name(pid) == b"vctl-launcher"]
    assert found
    return found


def head(place: Place) -> list[int]:
    found = pids(place, ending=b"/gcs_server")
    assert len(found) == 1
    return found


def raylet_of(rank: int) -> Callable[[Place], list[int]]:
    def find(place: Place) -> list[int]:
        found = [
            pid
            for pid in pids(place, ending=b"/raylet")
            if any(
                word.endswith(f".{rank}".encode())
                for word in processes.command(pid)
                if b"--node-name=" in word
            )
        ]
        assert len(found) == 1
        return found

    return find


GOES_ON, ENDS = "SUCCEEDED", "FAILED"
KILLS: dict[str, tuple[Callable[[Place], list[int]], str, set[int | None]]] = {
    "launcher": (launcher, GOES_ON, {0}),
    "keeper": (keeper, GOES_ON, {0}),
    "raylet": (raylet_of(1), GOES_ON, {0}),
    "raylet of the head": (raylet_of(0), ENDS, {137}),
    "head": (head, ENDS, {137}),
    "driver": (driver, ENDS, {137}),
    "supervisor": (supervisor, ENDS, {None}),
}


@pytest.mark.parametrize("what", KILLS)
def test_what_is_killed_leaves_nothing(boxes: Place, what: str) -> None:
    find, status, codes = KILLS[what]
    boxes.daemon()
    submit(boxes, "stay", STAY)
    up = boxes.folder / "up"
    eventually(lambda: up.exists() or boxes.job("stay")["status"] == "FAILED", "the job to be up", RAY_S)
    assert up.exists(), log_of(boxes, "stay")
    used = folders(boxes)
    assert len(used) == 1
    before = set(pids(boxes, ending=b"/raylet"))
    for pid in find(boxes):
        os.kill(pid, signal.SIGKILL)
    if what == "raylet":
        eventually(
            lambda: len(set(pids(boxes, ending=b"/raylet")) - before) == 1, "another raylet to start", RAY_S
        )
    (boxes.folder / "go").touch()
    job = boxes.reach("stay", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == status, log_of(boxes, "stay")
    assert job["exit_code"] in codes
    assert_clean(boxes, used)


def test_a_daemon_that_is_killed_finds_the_job_again(boxes: Place) -> None:
    """Also when the job ends, and its keeper is killed, while nobody schedules."""
    daemon = boxes.daemon()
    submit(boxes, "stay", STAY)
    submit(boxes, "gone", STAY)
    eventually((boxes.folder / "up").exists, "a job to be up", RAY_S)
    eventually(lambda: len(pids(boxes, ending=b"/raylet")) == 4, "both to be up", RAY_S)
    used = folders(boxes)
    assert len(used) == 2
    boxes.kill(daemon)
    os.kill(boxes.running_process("gone"), signal.SIGKILL)
    (boxes.folder / "go").touch()
    time.sleep(1)
    boxes.daemon()
    assert boxes.reach("gone", "FAILED", within_s=RAY_S)["exit_code"] == 137
    assert boxes.reach("stay", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(
        boxes, "stay"
    )
    assert_clean(boxes, used)


@IN_CI
def test_a_killed_raylet_does_not_count_beside_its_successor(boxes: Place) -> None:
    """Its keeper tells Ray of its death; by its health checks alone, this Ray would notice after a minute."""
    (boxes.folder / "bin").mkdir()
    (wrapper := boxes.folder / "bin/ray").write_text(
        f'#!/bin/sh\nRAY_health_check_failure_threshold=60 exec {Path(sys.executable).parent / "ray"} "$@"\n'
    )
    wrapper.chmod(0o755)
    boxes.more["PATH"] = f"{boxes.folder / 'bin'}:{os.environ['PATH']}"
    boxes.daemon()
    (boxes.folder / "stay.py").write_text(STAY)
    boxes.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", "stay", "--virtual-cluster", SPREAD_2X1,
        "--", "env", sys.executable, "stay.py",
    )  # fmt: skip
    up = boxes.folder / "up"
    eventually(lambda: up.exists() or boxes.job("stay")["status"] == "FAILED", "the job to be up", RAY_S)
    used, before = folders(boxes), set(pids(boxes, ending=b"/raylet"))
    for pid in raylet_of(1)(boxes):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: set(pids(boxes, ending=b"/raylet")) - before, "another raylet to start", RAY_S)
    eventually(lambda: not starts(boxes), "it to have joined", RAY_S)
    time.sleep(1)  # in which the program counts the CPUs
    (boxes.folder / "go").touch()
    job = boxes.reach("stay", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == "SUCCEEDED", log_of(boxes, "stay")
    assert_clean(boxes, used)


def test_many_that_start_at_once_take_turns(boxes: Place) -> None:
    """At most as many starts of Ray at once as the machine has CPUs, so that each is in time for Ray."""
    boxes.daemon()
    names = [f"j{number}" for number in range((os.cpu_count() or 1) + 1)]
    assert len(names) <= 4, "a machine with few CPUs is needed"
    (boxes.folder / "see.py").write_text(
        "import ray; ray.init(log_to_driver=False); print(ray.cluster_resources()['CPU'])"
    )
    for name in names:
        words = ("--submission-id", name, "--num-cpus", "2", "--", sys.executable, "see.py")
        boxes.ok("job", "submit", "--no-wait", "--ray", *words)
    most, used = 0, set[str]()
    while any(job["status"] in ("PENDING", "RUNNING") for job in boxes.jobs().values()):
        most = max(most, starts(boxes))
        used |= folders(boxes)
        time.sleep(0.05)
    assert 1 < most <= (os.cpu_count() or 1)
    for name in names:
        assert boxes.job(name)["status"] == "SUCCEEDED", log_of(boxes, name)
        assert "2.0" in log_of(boxes, name)
    assert_clean(boxes, used)


def test_a_stop_ends_all_of_it(boxes: Place) -> None:
    boxes.daemon()
    submit(boxes, "stay", STAY)
    eventually((boxes.folder / "up").exists, "the job to be up", RAY_S)
    used = folders(boxes)
    boxes.ok("job", "stop", "stay")
    job = boxes.reach("stay", "STOPPED", within_s=RAY_S)
    assert job["exit_code"] == 143
    assert_clean(boxes, used)


GROW = """
import subprocess, sys, time
import ray

ray.init(log_to_driver=False)


def reach(cpus):
    while ray.cluster_resources().get("CPU") != cpus:
        time.sleep(0.05)


reach(1.0)
task = [sys.executable, "-m", "vctl", "task", "run", "--no-wait", "--num-cpus", "2", "--", "sleep", "10"]
subprocess.run(task, check=True)
reach(3.0)
alive = [node for node in ray.nodes() if node["Alive"]]
assert sorted(node["Resources"]["CPU"] for node in alive) == [1.0, 2.0]
assert len({node["Labels"]["ray.io/vnode_id"] for node in alive}) == 1


@ray.remote(num_cpus=2)
def two():
    return 2


assert ray.get(two.remote()) == 2
reach(1.0)
"""


def test_raylets_come_and_go_with_what_the_virtual_cluster_has(boxes: Place) -> None:
    boxes.daemon(VCTL_LEASE_IDLE_TIMEOUT="1")
    (boxes.folder / "grow.py").write_text(GROW)
    boxes.ok("job", "submit", "--no-wait", "--ray", "--submission-id", "g", "--", sys.executable, "grow.py")
    eventually(lambda: folders(boxes), "the job to be launched", RAY_S)
    used = folders(boxes)
    assert boxes.reach("g", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(
        boxes, "g"
    )
    assert_clean(boxes, used)


ELASTIC = (
    FIND
    + """
import time
import ray
import ray.autoscaler.sdk
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(log_to_driver=False)


@ray.remote(num_cpus=1)
def node():
    open(f"runs-{os.getpid()}", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_id()


assert ray.cluster_resources()["CPU"] == 1.0
tasks = [node.remote() for _ in range(8)]
while ray.cluster_resources()["CPU"] != 4.0:
    time.sleep(0.05)
while len([name for name in os.listdir() if name.startswith("runs-")]) < 4:
    time.sleep(0.05)
added = [node["NodeID"] for node in ray.nodes() if "vctl.io/task-id" in node["Labels"]]
there = NodeAffinitySchedulingStrategy(added[-1], soft=False)
found = ray.get(ray.remote(num_cpus=0, scheduling_strategy=there)(find).remote())
assert found == [[os.environ["RAY_ADDRESS"], 4.0, None]] * 4, found
print("grown", flush=True)
assert len(set(ray.get(tasks))) >= 2
while ray.cluster_resources()["CPU"] != 1.0:
    time.sleep(0.05)
print("back", flush=True)
group = ray.util.placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
assert group.wait(400)
assert ray.cluster_resources()["CPU"] <= 4.0
ray.util.remove_placement_group(group)
ray.get(ray.remote(num_cpus=0)(ray.autoscaler.sdk.request_resources).remote(num_cpus=2))
while ray.cluster_resources()["CPU"] != 2.0:  # the others are idle, this one is asked for
    time.sleep(0.05)
time.sleep(5)
assert ray.cluster_resources()["CPU"] == 2.0
ray.autoscaler.sdk.request_resources(num_cpus=0)
while ray.cluster_resources()["CPU"] != 1.0:
    time.sleep(0.05)
"""
)


@IN_CI
def test_what_ray_has_to_do_lets_the_virtual_cluster_grow_and_shrink(place: Place) -> None:
    """Spec 9 and 16: from its minimum to its maximum for pending tasks, back when idle, again for a placement group."""
    place.add_nodes(1)
    place.daemon(VCTL_LEASE_IDLE_TIMEOUT="3")
    (place.folder / "elastic.py").write_text(ELASTIC)
    spec_of = '{"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 4}}'
    place.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", "e", "--virtual-cluster", spec_of, "--",
        sys.executable, "elastic.py",
    )  # fmt: skip
    eventually(lambda: folders(place), "the job to be launched", RAY_S)
    used = folders(place)
    eventually(lambda: "grown" in log_of(place, "e"), "all that it may have", RAY_S)
    assert set(place.free().values()) == {0.0}
    (place.folder / "go").touch()
    eventually(lambda: "back" in log_of(place, "e"), "the return to the minimum", RAY_S)
    eventually(lambda: set(place.free().values()) == {3.0}, "the return of the leases", RAY_S)
    assert {os.stat(folder).st_mode & 0o777 for folder in used} == {0o700}, "the token of its Ray is in it"
    assert place.reach("e", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(
        place, "e"
    )
    assert_clean(place, used)


WORK = """
import os, sys, time
import ray

count, seconds, nodes = map(int, sys.argv[1:])
ray.init(log_to_driver=False)


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def work(number):
    with open(f"started-{number}", "a") as file:
        file.write(ray.get_runtime_context().get_node_id() + "\\n")
    time.sleep(seconds)
    return number


tasks = [work.remote(number) for number in range(count)]
while len([node for node in ray.nodes() if node["Alive"]]) < nodes:
    time.sleep(0.05)
print("all are here", flush=True)
assert sorted(ray.get(tasks)) == list(range(count))
"""


def starts_of(place: Place) -> dict[str, list[str]]:
    """The nodes on which each task of WORK has started."""
    return {path.name: path.read_text().split() for path in place.folder.glob("started-*")}


def nodes_of(place: Place) -> int:
    """On how many nodes tasks of WORK have started."""
    return len({node for nodes in starts_of(place).values() for node in nodes})


def test_an_update_drains_a_raylet_before_its_resources_are_taken(boxes: Place) -> None:
    """Spec 9 and 16: a job's cluster is resized live, and no task of its Ray is lost."""
    boxes.daemon()
    (boxes.folder / "work.py").write_text(WORK)
    one = {"nodes": [{"resources": {"CPU": 1}}]}
    boxes.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", "u", "--virtual-cluster",
        json.dumps({"fixed_size_nodes": [one, {"nodes": [{"resources": {"CPU": 2}}]}]}), "--",
        sys.executable, "work.py", "6", "5", "2",
    )  # fmt: skip
    eventually(lambda: folders(boxes), "the job to be launched", RAY_S)
    used = folders(boxes)
    eventually(lambda: nodes_of(boxes) == 2, "both raylets to work", RAY_S)
    raylets = pids(boxes, ending=b"/raylet")
    boxes.ok("vc", "update", "kPrimaryClusterID##u", "--spec", json.dumps({"fixed_size_nodes": [one]}))
    assert len(pids(boxes, ending=b"/raylet")) == len(raylets) - 1, "it has gone before the update returned"
    assert sum(boxes.free().values()) == 7.0
    assert boxes.reach("u", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(
        boxes, "u"
    )
    assert {len(nodes) for nodes in starts_of(boxes).values()} == {1}, "what had begun was finished"
    assert_clean(boxes, used)


def test_a_lease_that_is_called_back_drains_its_raylet(place: Place) -> None:
    """Spec 9 and 16: a lender reclaims; the raylet finishes its tasks in the grace, and none is lost."""
    place.add_nodes(1)
    place.daemon(VCTL_LEASE_IDLE_TIMEOUT="60", VCTL_RECLAIM_GRACE="30")
    lends = '{"flexible_resource_min": {"CPU": 3}}'
    place.ok("vc", "create", "lender", "--divisible", "--spec", lends, "--lending-limit", '{"CPU": 3}')
    (place.folder / "work.py").write_text(WORK)
    least = '{"flexible_resource_min": {"CPU": 1}}'
    place.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", "b", "--virtual-cluster", least, "--",
        sys.executable, "work.py", "12", "5", "2",
    )  # fmt: skip
    eventually(lambda: folders(place), "the job to be launched", RAY_S)
    used = folders(place)
    eventually(lambda: nodes_of(place) == 2, "both raylets to work", RAY_S)
    place.ok("run", "--no-wait", "-c", "lender", "--submission-id", "own", "-n", "3", "--", "true")
    assert place.reach("own", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED"
    assert place.reach("b", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(
        place, "b"
    )
    assert {len(nodes) for nodes in starts_of(place).values()} == {1}, "what had begun was finished"
    place.ok("vc", "delete", "lender")
    assert_clean(place, used)


def guest(place: Place) -> list[int]:
    found = pids(place, holding=b"/ray_join.py")
    assert len(found) == 1
    return found


@pytest.mark.parametrize("what", ["guest", "keeper", "daemon"])
def test_a_grown_ray_outlives_what_is_killed(place: Place, what: str) -> None:
    """Spec 12 and 16: the parent of a raylet that is a task, the keeper, the scheduler: Ray's tasks are retried."""
    place.add_nodes(1)
    daemon = place.daemon(VCTL_LEASE_IDLE_TIMEOUT="2")
    (place.folder / "work.py").write_text(WORK)
    spec_of = '{"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 3}}'
    place.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", "k", "--virtual-cluster", spec_of, "--",
        sys.executable, "work.py", "12", "5", "2",
    )  # fmt: skip
    eventually(lambda: folders(place), "the job to be launched", RAY_S)
    used = folders(place)
    eventually(lambda: nodes_of(place) == 2, "both raylets to work", RAY_S)
    if what == "daemon":
        place.kill(daemon)
        place.daemon(VCTL_LEASE_IDLE_TIMEOUT="2")
    else:
        (pid,) = guest(place) if what == "guest" else keeper(place)
        os.kill(pid, signal.SIGKILL)
    assert place.reach("k", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(
        place, "k"
    )
    assert_clean(place, used)
