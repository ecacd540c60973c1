"""``vctl daemon --ray``: a stock Ray cluster as the machine; whatever is killed, nothing is lost and nothing stays."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

import pytest

from tests.integration.conftest import Place, eventually, is_gone
from tests.ray_cluster import (
    IN_CI,
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

COUNT = "for i in $(seq 100); do echo line $i; sleep 0.1; done; exit 7"
COUNTED = "".join(f"line {i}\n" for i in range(1, 101))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A head without CPUs and two nodes of two CPUs, one with two GPUs."""
    yield from running((2, 0), (2, 2))


@pytest.fixture
def ray(place: Place, cluster: RayCluster) -> Iterator[Place]:
    """A state directory whose daemon schedules on the Ray cluster. Afterwards all is there as it was before."""
    before = settled(cluster)
    begin(place, cluster)
    try:
        yield place
        leave(place, cluster)
        eventually(lambda: settled(cluster) <= before, "the processes of vctl to end", RAY_S)
    finally:
        for pid in left_of(place):
            os.kill(pid, signal.SIGKILL)


def test_a_job_on_a_node_of_ray(ray: Place, cluster: RayCluster) -> None:
    nodes = ray.read("node", "list")["items"]
    assert {one["source"] for one in nodes} == {"ray"}
    assert sorted(one["resources"].get("CPU", 0) for one in nodes) == [0, 2, 2]
    shell = "echo on $VCTL_NODE_ID; echo $HOME >&2; nice; env | grep -c ^RAY_; exit 3"
    ran = ray.run("job", "submit", "--submission-id", "a", "--", "sh", "-c", shell, RAY_AUTH_MODE="")
    assert ran.code == 3, ran
    assert ran.out.splitlines()[0].removeprefix("on ") in {one["node_id"] for one in nodes}
    assert ran.out.splitlines()[2] == str(os.nice(0))
    missing = ray.run("job", "submit", "--submission-id", "b", "--", "/nowhere/at-all")
    assert missing.code == 127
    assert ray.job("b")["state_reason"] == "LaunchFailed"
    ray.assert_sound()


@IN_CI
def test_nobody_else_enters_a_reservation(ray: Place, cluster: RayCluster) -> None:
    """A gang holds both nodes; another user's task waits until the gang has ended, and not longer."""
    spread = ("--nodes", "2", "--num-cpus", "2", "--per-node")
    ray.submit(
        "--submission-id", "gang", *spread, "--", "sh", "-c", "echo $RANK $MASTER_ADDR; exec sleep 1000"
    )
    eventually(
        lambda: sorted(log_of(ray, "gang").split("\n"))[-2:-1] and log_of(ray, "gang").count("\n") == 2
    )
    assert {line.split()[1] for line in log_of(ray, "gang").splitlines()} <= {"127.0.0.2", "127.0.0.3"}
    assert len(ray.job("gang")["node_ids"]) == 2
    (name,) = cluster.groups()
    task = (
        "task = ray.remote(lambda: 1).options(num_cpus=1).remote()\n"
        "print(len(ray.wait([task], timeout={})[0]), ray.available_resources().get('CPU', 0))"
    )
    assert cluster.ask(task.format(3)).split() == ["0", "0"]
    ray.ok("job", "stop", "gang")
    eventually(lambda: cluster.groups() == [], "the reservation to go", RAY_S)
    assert cluster.ask(task.format(RAY_S)).split()[0] == "1"
    assert name.endswith("-1.1.0")
    ray.assert_sound()


def test_a_job_waits_for_others_in_ray(ray: Place, cluster: RayCluster) -> None:
    """What others hold is not taken from them: jobs wait in their queue, and it is said who holds what.

    One that is stopped meanwhile never starts.
    """
    hold = (
        "from ray.util import placement_group\n"
        "group = placement_group([{'CPU': 2}] * 2, name='other', lifetime='detached')\nassert group.wait(60)"
    )
    cluster.ask(hold)
    try:
        ray.submit("--submission-id", "waits", "--", "echo", "started")
        ray.submit("--submission-id", "stopped", "--", "echo", "started")
        for ref in ("waits", "stopped"):
            eventually(
                lambda ref=ref: "other holds 2" in (ray.job(ref)["message"] or ""), "the holder", RAY_S
            )
            job = ray.job(ref)
            assert (job["status"], job["state_reason"]) == ("PENDING", "InsufficientResources")
            assert "0 of 2 are free in Ray" in job["message"]
        why = ray.read("why", "waits")
        assert (why["status"], why["state_reason"]) == ("PENDING", "InsufficientResources")
        assert "other holds 2" in why["message"]
        assert [
            one["submission_id"]
            for one in ray.read("job", "list", "--filter", "state_reason=InsufficientResources")["items"]
        ]
        assert ray.run("job", "stop", "stopped").code == 0
        assert ray.job("stopped")["status"] == "STOPPED"
        assert log_of(ray, "stopped") == ""
        assert log_of(ray, "waits") == ""
    finally:
        cluster.ask("ray.util.remove_placement_group(ray.util.get_placement_group('other'))")
    assert ray.reach("waits", "SUCCEEDED", within_s=RAY_S)["exit_code"] == 0
    assert log_of(ray, "waits") == "started\n"
    events = [
        (one["kind"], datetime.fromisoformat(one["at"]))
        for one in ray.read("events", "--job", "waits")["items"]
    ]
    asked = [
        (back - began).total_seconds()
        for (kind, began), (then, back) in pairwise(events)
        if (kind, then) == ("job.started", "job.requeued")
    ]
    assert asked, events
    assert min(asked) < 1.5, f"it is RUNNING for long although it waits for Ray: {asked}"
    ray.assert_sound()


def test_devices(ray: Place, cluster: RayCluster) -> None:
    """A job gets the device that Ray has reserved for it, not one that another user of Ray has."""
    shell = "echo $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.05; done"
    for ref in ("first", "second"):
        ray.submit("--submission-id", ref, "--num-gpus", "1", "--", "sh", "-c", shell)
    eventually(lambda: log_of(ray, "first") and log_of(ray, "second"), "both to start", RAY_S)
    assert {log_of(ray, "first"), log_of(ray, "second")} == {"0\n", "1\n"}
    (ray.folder / "go").touch()
    for ref in ("first", "second"):
        ray.reach(ref, "SUCCEEDED")
    ray.assert_sound()


def test_tasks_of_one_virtual_node_have_devices_of_their_own(ray: Place, cluster: RayCluster) -> None:
    """Ray reserves both for the virtual node; each task sees the one that no other task has."""
    two = json.dumps({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2, "GPU": 2}}]}]})
    run = f"{sys.executable} -m vctl task run --num-cpus 0 --num-gpus 1"
    task = "echo sees $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.05; done"
    shell = f"for i in 1 2; do {run} -- sh -c '{task}' & done; wait"
    ray.submit("--submission-id", "t", "--virtual-cluster", two, "--", "sh", "-c", shell)
    eventually(lambda: log_of(ray, "t").count("sees") == 2, "both to start", RAY_S)
    assert sorted(line for line in log_of(ray, "t").splitlines() if "sees" in line) == ["sees 0", "sees 1"]
    (ray.folder / "go").touch()
    assert ray.reach("t", "SUCCEEDED", "FAILED", within_s=RAY_S)["status"] == "SUCCEEDED", log_of(ray, "t")
    ray.assert_sound()


def test_stop_ends_everything(ray: Place) -> None:
    shell = "trap '' TERM; setsid sleep 1000 & echo up; sleep 2000"
    ray.submit("--submission-id", "stubborn", "--", "sh", "-c", shell)
    eventually(lambda: log_of(ray, "stubborn") == "up\n", "the job to start", RAY_S)
    eventually(lambda: len(left_of(ray)) >= 3, "all of its processes", RAY_S)
    assert ray.run("job", "stop", "--grace", "0.5s", "stubborn").code == 0
    assert not left_of(ray)
    ray.assert_sound()


@pytest.mark.parametrize("also", ["", "agent", "link"])
def test_a_daemon_that_is_killed(ray: Place, cluster: RayCluster, also: str) -> None:
    """The job goes on; the next daemon takes it over with every byte of its log and its exit code."""
    daemon = ray._started[-1]
    ray.submit("--submission-id", "counts", "--", "sh", "-c", COUNT)
    eventually(lambda: log_of(ray, "counts").count("\n") > 5, "the job to write", RAY_S)
    ray.kill(daemon)
    if also == "agent":
        found = agents(cluster)
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    begin(ray, cluster)
    if also == "link":
        for pid in links(ray):
            os.kill(pid, signal.SIGKILL)
    assert ray.reach("counts", "FAILED", within_s=RAY_S)["exit_code"] == 7
    assert log_of(ray, "counts") == COUNTED
    ray.assert_sound()


def test_a_job_that_ends_while_no_daemon_runs(ray: Place, cluster: RayCluster) -> None:
    daemon = ray._started[-1]
    ray.submit("--submission-id", "ends", "--", "sh", "-c", "echo $$; sleep 1; echo over; exit 5")
    eventually(lambda: log_of(ray, "ends"), "the job to start", RAY_S)
    ray.kill(daemon)
    eventually(lambda: is_gone(int(log_of(ray, "ends"))), "the job to end")
    begin(ray, cluster)
    assert ray.reach("ends", "FAILED", within_s=RAY_S)["exit_code"] == 5
    assert log_of(ray, "ends").endswith("over\n")
    ray.assert_sound()


@spec("12.node-death")
def test_a_raylet_that_is_killed(ray: Place, cluster: RayCluster) -> None:
    """Its node is dead: what ran there has ended, fails with NodeFailed, and is tried again elsewhere. It comes back as
    another node."""
    ray.submit("--submission-id", "stays", "--num-gpus", "1", "--", "sleep", "1000")
    retry = ("--max-retries", "1", "--retry-on", "NodeFailed", "--backoff", "0s")
    words = (
        "--num-cpus",
        "1",
        "--memory",
        "600MB",
        *retry,
        "--",
        "sh",
        "-c",
        "echo $VCTL_NODE_ID; sleep 1000",
    )
    ray.submit("--submission-id", "moves", *words)
    eventually(lambda: log_of(ray, "moves"), "the job to start", RAY_S)
    first = log_of(ray, "moves").strip()
    address = next(one["hostname"] for one in ray.read("node", "list")["items"] if one["node_id"] == first)
    old = set(left_of(ray))
    cluster.kill_raylet(address)
    eventually(lambda: address not in alive(ray), "the node to be dead", RAY_S)
    eventually(lambda: log_of(ray, "moves").count("\n") == 2, "the job to start elsewhere", RAY_S)
    assert log_of(ray, "moves").split()[1] != first
    assert old & set(left_of(ray)) < old
    cluster.add(cpus=2, gpus=2)
    eventually(lambda: len(alive(ray)) == 3, "another node", RAY_S)
    for ref in ("moves", "stays"):
        ray.run("job", "stop", ref)
        ray.reach(ref, "STOPPED", "FAILED")
    ray.assert_sound()


@spec("12.node-death")
@pytest.mark.parametrize("first", ["raylet", "supervisors"])
def test_a_job_on_a_killed_raylet_is_node_failed(ray: Place, cluster: RayCluster, first: str) -> None:
    """Whichever of its process and its node is heard of first: the guard ends it, or all of the machine ends."""
    address = cluster.add(cpus=3)
    eventually(lambda: address in alive(ray), "the node", RAY_S)
    ray.submit("--submission-id", "a", "--num-cpus", "3", "--", "sh", "-c", "echo $$; exec sleep 1000")
    eventually(lambda: log_of(ray, "a"), "the job to start", RAY_S)
    if first == "supervisors":
        main = processes.process(int(log_of(ray, "a")))
        assert main is not None
        os.kill(main.parent, signal.SIGKILL)
        time.sleep(0.3)
    cluster.kill_raylet(address)
    job = ray.reach("a", "FAILED", within_s=RAY_S)
    assert (job["state_reason"], job["exit_code"]) == ("NodeFailed", None)
    assert address not in alive(ray)
    ray.assert_sound()


def test_a_submit_that_waits_outlives_the_daemon(ray: Place, cluster: RayCluster) -> None:
    """Spec 12: as on one machine, another scheduler takes over, in the background and on the same Ray."""
    waits = ray.start("job", "submit", "--submission-id", "w", "--", "sh", "-c", COUNT)
    eventually(lambda: log_of(ray, "w").count("\n") > 5, "the job to write", RAY_S)
    ray.kill(next(one for one in ray._started if "daemon" in one.args))  # type: ignore[operator]
    ran = ray.finish(waits, within_s=RAY_S)
    assert (ran.code, ran.out) == (7, COUNTED), ran.err
    assert ray.scheduler()["kind"] == "background"
    begin(ray, cluster)
    assert ray.scheduler()["kind"] == "foreground"
    ray.assert_sound()


def test_what_is_not_done_on_ray_is_refused(ray: Place, cluster: RayCluster) -> None:
    ray.term(ray._started[-1])
    plain = ray.run("daemon")
    assert plain.code == 5
    assert "vctl daemon --ray" in plain.err
    ray.assert_sound()


def test_a_cluster_that_grows(ray: Place, cluster: RayCluster) -> None:
    """A task that makes its job's cluster grow: what was added is reserved too, and its process sees its part."""
    spec_ = json.dumps({"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 2}})
    task = f"{sys.executable} -m vctl task run --num-cpus 1 -- sh -c 'echo task on $VCTL_NODE_ID; sleep 1000'"
    ray.submit(
        "--submission-id",
        "grows",
        "--virtual-cluster",
        spec_,
        "--entrypoint-num-cpus",
        "1",
        "--",
        "sh",
        "-c",
        task,
    )
    eventually(lambda: len(cluster.groups()) == 2, "the addition to be reserved", RAY_S)
    assert [name.rpartition(".")[2] for name in cluster.groups()] == ["0", "1"]
    assert cluster.ask("print(ray.available_resources()['CPU'])").strip() == "2.0"
    assert ray.run("job", "stop", "grows").code == 0
    eventually(lambda: cluster.groups() == [], "the reservations to go", RAY_S)
    ray.assert_sound()


@spec("12.node-death")
def test_the_head_is_killed(ray: Place, cluster: RayCluster) -> None:
    """Raylets end without their head, and what ran there with them. The daemon stays; of the head that comes back
    instead it takes the new nodes, and the old ones are dead. This is the last test of this cluster."""
    ray.submit("--submission-id", "stays", "--", "sh", "-c", "echo up; exec sleep 1000")
    eventually(lambda: log_of(ray, "stays"), "the job to start", RAY_S)
    daemon = ray._started[-1]
    cluster.kill_head()
    eventually(lambda: not left_of(ray), "the processes of the job to end", RAY_S)
    assert daemon.poll() is None
    assert ray.job("stays")["status"] == "RUNNING"  # nobody has said what became of it
    cluster.kill()
    cluster.begin()
    cluster.add(cpus=2)
    assert ray.reach("stays", "FAILED", within_s=RAY_S)["state_reason"] == "NodeFailed"
    eventually(lambda: len(alive(ray)) == 2, "the new nodes", RAY_S)
    assert ray.run("job", "submit", "--", "echo", "again").out == "again\n"
    ray.assert_sound()


def links(place: Place) -> list[int]:
    return [
        one.pid
        for one in processes.all_processes()
        if (words := processes.command(one.pid))[1:3] == [b"-m", b"vctl.ray.on_ray.link"]
        and words[-1] == os.fsencode(place.home)
    ]
