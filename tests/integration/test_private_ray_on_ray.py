"""``job submit --ray`` on the nodes of a Ray cluster: as on one machine, and nothing stays, whatever is killed.

All processes of the outer Ray are on loopback addresses of this machine, each node with its own address.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import SPREAD_2X1, Place, eventually
from tests.integration.test_private_ray import ELASTIC, LOOK, STAY, WORK, nodes_of, starts_of
from tests.ray_cluster import (
    RAY_S,
    WITH_RAY,
    RayCluster,
    agents,
    alive,
    begin,
    leave,
    left_of,
    log_of,
    running,
    settled,
)
from tests.specification import spec
from vctl.runtime import processes

pytestmark = [spec("16.ray"), *WITH_RAY]

_FOLDER = re.compile(rb"/tmp/vctl-ray-[0-9a-f]{16}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head without CPUs and three nodes of two CPUs."""
    yield from running((2, 0), (2, 0), (2, 0))


@pytest.fixture
def ray(place: Place, cluster: RayCluster) -> Iterator[Place]:
    """A state directory whose daemon schedules on the Ray cluster. Afterwards all is there as it was before."""
    before = settled(cluster)
    used: set[str] = set()
    try:
        yield place
        used |= folders(place)
        leave(place, cluster)
        eventually(lambda: settled(cluster) <= before, "the processes of vctl to end", RAY_S)
        assert not [one for one in used if os.path.exists(one)]
        eventually(lambda: not folders_of_agents(cluster), "the folders of the agents to go", RAY_S)
        assert not list((place.home / "gangs").iterdir())
        assert not list((place.home / "ray" / "runs").iterdir())
    finally:
        for pid in left_of(place):
            os.kill(pid, signal.SIGKILL)


def folders(place: Place) -> set[str]:
    """The directories of Rays that processes of jobs use."""
    words = (word for pid in left_of(place) for word in processes.command(pid))
    return {found[0].decode() for word in words for found in _FOLDER.finditer(word)}


def folders_of_agents(cluster: RayCluster) -> list[Path]:
    return list(cluster.folder.glob("vctl-on-ray-*/*"))


def submit(place: Place, name: str, program: str, *words: str, spec_of: str = SPREAD_2X1) -> None:
    script = place.folder / f"{name}.py"
    script.write_text(program)
    place.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", name, "--virtual-cluster", spec_of, "--",
        sys.executable, str(script), *words,
    )  # fmt: skip


def over(place: Place, name: str) -> dict[str, Any]:
    return place.reach(name, "SUCCEEDED", "FAILED", within_s=RAY_S)


def assert_gone(place: Place, used: set[str]) -> None:
    """No process and no directory."""
    eventually(lambda: not left_of(place), f"the end of {left_of(place)}", RAY_S)
    eventually(lambda: not any(map(os.path.exists, used)), f"{used} to be removed", RAY_S)


def of_job(place: Place, ending: bytes) -> dict[str, int]:
    """Processes of jobs whose program ends so, by the address of their node."""
    found = {}
    for pid in left_of(place):
        words = processes.command(pid)
        if words and any(word.endswith(ending) for word in words[:4]):
            address = [word for word in words if word.startswith(b"--node_ip_address=")]
            found[address[0].partition(b"=")[2].decode() if address else str(pid)] = pid
    return found


def test_two_jobs_side_by_side_see_their_own_nodes_alone(ray: Place, cluster: RayCluster) -> None:
    """Spec 16: `ray.init()`, resources, nodes, labels, tasks, actors and placement groups are those of the job."""
    begin(ray, cluster)
    submit(ray, "a", LOOK, "a", "b")
    submit(ray, "b", LOOK, "b", "a")
    eventually(lambda: len(folders(ray)) == 4, "two machines for each", RAY_S)
    used = folders(ray)
    assert cluster.ask("print(ray.available_resources()['CPU'])").strip() == "2.0", "four are reserved"
    for name in ("a", "b"):
        assert over(ray, name)["status"] == "SUCCEEDED", log_of(ray, name)
    seen: dict[str, Any] = {name: json.loads((ray.folder / f"{name}.json").read_text()) for name in "ab"}
    for name, one in seen.items():
        assert one["cpus"] == 2.0
        assert sorted(label["ray.io/vnode_id"] for label in one["labels"]) == [
            f"kPrimaryClusterID--{name}.0",
            f"kPrimaryClusterID--{name}.1",
        ]
        assert {label["vctl.io/node-id"] for label in one["labels"]} == set(ray.job(name)["node_ids"])
        assert one["names"] == [f"kPrimaryClusterID##{name}.0", f"kPrimaryClusterID##{name}.1"]
        assert one["found"] == [[one["address"], 2.0, {"a": "1", "b": None}[name]]] * 4
        assert one["actors"] == one["ids"]
        assert set(one["tasks"]) <= set(one["ids"])
        assert one["third waits"]
        assert all(other["name"].startswith("place-") for other in one["named"])
    assert not set(seen["a"]["ids"]) & set(seen["b"]["ids"])
    assert seen["a"]["address"] != seen["b"]["address"]
    assert_gone(ray, used)
    ray.assert_sound()


def agent(place: Place, cluster: RayCluster) -> list[int]:
    return agents(cluster)


def launcher(place: Place, cluster: RayCluster) -> list[int]:
    below = [pid for one in agents(cluster) for pid in processes.descendants(one)]
    return [pid for pid in below if processes.name(pid) == b"vctl-launcher"]


def head(place: Place, cluster: RayCluster) -> list[int]:
    return list(of_job(place, b"/gcs_server").values())


def raylet_elsewhere(place: Place, cluster: RayCluster) -> list[int]:
    (of_head,) = head(place, cluster)
    parents = {one.parent for one in (processes.process(of_head),) if one is not None}
    return [pid for pid in of_job(place, b"/raylet").values() if processes.process(pid).parent not in parents]  # type: ignore[union-attr]


def keeper_elsewhere(place: Place, cluster: RayCluster) -> list[int]:
    return list(of_job(place, b"/ray_satellite.py").values())


def driver(place: Place, cluster: RayCluster) -> list[int]:
    return [
        pid
        for pid in left_of(place)
        if processes.command(pid)[1:2] == [os.fsencode(place.folder / "stay.py")]
    ]


GOES_ON, ENDS = "SUCCEEDED", "FAILED"
KILLS: dict[str, tuple[Callable[[Place, RayCluster], list[int]], str, set[int | None]]] = {
    "agents": (agent, GOES_ON, {0}),
    "launchers": (launcher, GOES_ON, {0}),
    "raylet elsewhere": (raylet_elsewhere, GOES_ON, {0}),
    "keeper elsewhere": (keeper_elsewhere, GOES_ON, {0}),
    "head": (head, ENDS, {137}),
    "driver": (driver, ENDS, {137}),
}


@pytest.mark.parametrize("what", [*KILLS, "daemon", "raylet around"])
def test_what_is_killed_leaves_nothing(ray: Place, cluster: RayCluster, what: str) -> None:
    """Spec 12 and 16."""
    daemon = begin(ray, cluster)
    submit(ray, "stay", STAY)
    up = ray.folder / "up"
    eventually(lambda: up.exists() or ray.job("stay")["status"] == "FAILED", "the job to be up", RAY_S)
    assert up.exists(), log_of(ray, "stay")
    used = folders(ray)
    assert len(used) == 2
    find, status, codes = KILLS.get(what, (driver, GOES_ON, {0}))
    if what == "daemon":
        ray.kill(daemon)
        begin(ray, cluster)
    elif what == "raylet around":
        status, codes = ENDS, {None}
        elsewhere = next(one for one in of_job(ray, b"/raylet") if one not in head_address(ray))
        cluster.kill_raylet(elsewhere)
    else:
        found = find(ray, cluster)
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    if what != "raylet around":  # Ray takes seconds to see its death, in which the job could end
        (ray.folder / "go").touch()
    job = over(ray, "stay")
    assert job["status"] == status, log_of(ray, "stay")
    assert job["exit_code"] in codes
    if what == "raylet around":
        assert job["state_reason"] == "NodeFailed"
        cluster.add(cpus=2)
    assert_gone(ray, used)
    ray.assert_sound()


def head_address(place: Place) -> set[str]:
    (pid,) = of_job(place, b"/gcs_server").values()
    words = b" ".join(processes.command(pid)).decode()
    return {one for one in of_job(place, b"/raylet") if re.search(re.escape(one) + r"\b", words)}


def test_what_ray_has_to_do_lets_the_virtual_cluster_grow_and_shrink(ray: Place, cluster: RayCluster) -> None:
    """Spec 9 and 16: from its minimum to its maximum for pending tasks, over several machines, and back when idle."""
    ray.more["VCTL_LEASE_IDLE_TIMEOUT"] = "3"
    begin(ray, cluster)
    spec_of = '{"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 4}}'
    submit(ray, "e", ELASTIC, spec_of=spec_of)
    eventually(
        lambda: "grown" in log_of(ray, "e") or ray.job("e")["status"] == "FAILED", "all it may have", RAY_S
    )
    used = folders(ray)
    (ray.folder / "go").touch()
    assert over(ray, "e")["status"] == "SUCCEEDED", log_of(ray, "e")
    assert_gone(ray, used)
    ray.assert_sound()


def test_a_lease_that_is_called_back_drains_its_raylet(ray: Place, cluster: RayCluster) -> None:
    """Spec 9 and 16: a lender reclaims; the raylet finishes its tasks in the grace, and none is lost."""
    ray.more |= {"VCTL_LEASE_IDLE_TIMEOUT": "60", "VCTL_RECLAIM_GRACE": "30"}
    begin(ray, cluster)
    lends = '{"flexible_resource_min": {"CPU": 5}}'
    ray.ok("vc", "create", "lender", "--divisible", "--spec", lends, "--lending-limit", '{"CPU": 5}')
    submit(ray, "b", WORK, "12", "5", "2", spec_of='{"flexible_resource_min": {"CPU": 1}}')
    eventually(lambda: nodes_of(ray) >= 2 or ray.job("b")["status"] == "FAILED", "two raylets to work", RAY_S)
    used = folders(ray)
    ray.ok("run", "--no-wait", "-c", "lender", "--submission-id", "own", "-n", "2", "--", "true")
    assert over(ray, "own")["status"] == "SUCCEEDED"
    assert over(ray, "b")["status"] == "SUCCEEDED", log_of(ray, "b")
    assert {len(nodes) for nodes in starts_of(ray).values()} == {1}, "what had begun was finished"
    ray.ok("vc", "delete", "lender")
    assert_gone(ray, used)


def test_an_update_drains_a_raylet_before_its_resources_are_taken(ray: Place, cluster: RayCluster) -> None:
    """Spec 9 and 16: a job's cluster is resized live; the raylet of another machine goes first, and no task is lost."""
    begin(ray, cluster)
    one = {"nodes": [{"resources": {"CPU": 1}}]}
    both = [one, {"nodes": [{"resources": {"CPU": 2}}]}]
    submit(ray, "u", WORK, "6", "5", "2", spec_of=json.dumps({"fixed_size_nodes": both}))
    eventually(
        lambda: nodes_of(ray) == 2 or ray.job("u")["status"] == "FAILED", "both raylets to work", RAY_S
    )
    used, raylets = folders(ray), of_job(ray, b"/raylet")
    assert len(raylets) == 2
    ray.ok("vc", "update", "kPrimaryClusterID##u", "--spec", json.dumps({"fixed_size_nodes": [one]}))
    assert len(of_job(ray, b"/raylet")) == 1, "it has gone before the update returned"
    assert over(ray, "u")["status"] == "SUCCEEDED", log_of(ray, "u")
    assert {len(nodes) for nodes in starts_of(ray).values()} == {1}, "what had begun was finished"
    assert_gone(ray, used)
    ray.assert_sound()


@spec("12.node-death")
def test_the_head_around_is_killed(ray: Place, cluster: RayCluster) -> None:
    """The raylets around end without their head, and what ran there with them. The last test of this cluster."""
    begin(ray, cluster)
    submit(ray, "stay", STAY)
    eventually((ray.folder / "up").exists, "the job to be up", RAY_S)
    used = folders(ray)
    cluster.kill_head()
    assert_gone(ray, used)
    eventually(lambda: not folders_of_agents(cluster), "the guards to have done their work", RAY_S)
    cluster.kill()
    cluster.begin()
    cluster.add(cpus=2)
    assert over(ray, "stay")["state_reason"] == "NodeFailed"
    eventually(lambda: len(alive(ray)) == 2, "the new nodes", RAY_S)
    ray.assert_sound()
