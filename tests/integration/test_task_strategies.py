"""Where tasks run and who is next, on the command line: GPUs are spared, a node is named, unequal tasks take turns."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Place, eventually
from tests.specification import spec

pytestmark = spec("10.strategies")

BOTH = (
    '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2, "GPU": 2}}, {"resources": {"CPU": 2}}],'
    ' "scheduling_policy": "STRICT_SPREAD"}]}'
)


@pytest.fixture
def job(place: Place) -> str:
    """A job with a virtual node with GPUs on ``gpus``, its first one, and one without on ``plain``."""
    for name, resources in (("gpus", '{"CPU": 2, "GPU": 2}'), ("plain", '{"CPU": 2}')):
        place.ok("node", "add", name, "--simulated", "--resources", resources)
    place.daemon()
    name = place.sleeper("--virtual-cluster", BOTH)
    place.reach(name, "RUNNING")
    return name


def task(place: Place, job: str, *words: str) -> dict[str, Any]:
    """Start a task that sleeps; how it is once the scheduler has looked at it."""
    task_id = place.ok("task", "run", "--job", job, "--no-wait", *words, "--", "sleep", "60").strip()

    def seen() -> dict[str, Any] | None:
        form: dict[str, Any] = place.read("task", "status", task_id)
        return form if form["state"] == "RUNNING" or form["state_reason"] == "InsufficientResources" else None

    found: dict[str, Any] = eventually(seen, f"{task_id} to run or wait")
    return found


def test_tasks_without_gpus_leave_the_gpus_alone(place: Place, job: str) -> None:
    """Spec 10, as in Ray: while a virtual node without GPUs is available. The first two went to the GPUs."""
    assert [task(place, job)["node_id"] for _ in range(4)] == ["plain", "plain", "gpus", "gpus"]
    assert task(place, job)["state_reason"] == "InsufficientResources"
    assert task(place, job, "-n", "0", "--num-gpus", "1")["node_id"] == "gpus"


def test_soft_waits_for_a_node_that_is_only_full_and_spill_does_not(place: Place, job: str) -> None:
    """Spec 10, Ray's default: soft went elsewhere at once."""
    full = task(place, job, "-n", "2", "--strategy", "NODE:plain")
    assert full["node_id"] == "plain"
    soft = task(place, job, "--strategy", "NODE:plain:soft")
    assert (soft["state"], soft["message"]) == (
        "PENDING_NODE_ASSIGNMENT",
        "needs 1 CPU on one node; free: plain 0",
    )
    assert task(place, job, "--strategy", "NODE:plain:spill")["node_id"] == "gpus"
    assert task(place, job, "-n", "0", "-g", "1", "--strategy", "NODE:plain:soft")["node_id"] == "gpus"
    assert task(place, job, "-n", "0", "--strategy", "NODE:nosuch:soft")["node_id"] == "plain"
    answer = place.read("why", soft["task_id"])
    commands = {change["kind"]: change["command"] for change in answer["changes"]}
    assert commands["cancel"] == f"vctl task cancel {full['task_id']}"
    assert "--strategy NODE:plain:spill" in commands["anywhere"]

    place.ok("node", "drain", "plain")
    eventually(lambda: place.read("task", "status", soft["task_id"])["node_id"] == "gpus")
    refused = place.run("task", "run", "--job", job, "--strategy", "NODE:plain:hard", "--", "true")
    assert refused.code == 2
    assert "write NODE:plain:soft, NODE:plain:spill or NODE:plain" in refused.err


def test_a_row_of_equal_tasks_holds_back_no_other(place: Place) -> None:
    """Spec 10: the task of half a CPU was the last of seven."""
    place.add_nodes(1, '{"CPU": 1}')
    first = place.daemon()
    job = place.sleeper("--virtual-cluster", '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}')
    place.reach(job, "RUNNING")
    place.kill(first)
    asked = ["task", "run", "--job", job, "--no-wait"]
    for cpus in (*["1"] * 6, "0.5", "0.5"):  # while nobody schedules, so that all wait at once
        place.ok(*asked, "--num-cpus", cpus, "--", "sleep", "0.1", VCTL_AUTOSTART="0")
    last = place.read("why", "task-8")
    assert [one["task_id"] for one in last["ahead"]] == ["task-1", "task-7", "task-2"]
    place.daemon()
    eventually(lambda: {one["state"] for one in place.read("task", "list")["items"]} == {"FINISHED"})
    events = place.read("list", "events", "--filter", "kind=task.started")["items"]
    started = [event["object_id"] for event in events]
    assert started == ["task-1", "task-7", "task-8", "task-2", "task-3", "task-4", "task-5", "task-6"]
