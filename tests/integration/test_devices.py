"""Processes that nobody booked, and processes that are left behind, keep devices from new jobs: real processes and
real schedulers; the figures of the devices are recorded ones."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import Place, eventually
from tests.specification import spec
from vctl.daemon.devices import STALE_S
from vctl.runtime import processes

pytestmark = spec("19.devices")

GIB = 1 << 30
AVOID = {"VCTL_FOREIGN_GPU_PROCESSES": "avoid"}
Start = Callable[..., int]


class Devices:
    """Two devices of this machine, of 80 GiB each."""

    def __init__(self, place: Place) -> None:
        self.file = place.folder / "devices.json"
        place.more |= {"VCTL_DEVICES_FILE": str(self.file), "VCTL_LOCAL_NODE": "1"}
        self.write([], [])

    def write(self, *held: list[tuple[int, int]]) -> None:
        """The processes on each device as (pid, bytes), in one write."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(
            json.dumps(
                {
                    "devices": [
                        {
                            "uuid": f"GPU-{at}", "name": "NVIDIA H100 80GB HBM3", "memory_total": 80 * GIB,
                            "utilization": 0, "processes": [{"pid": pid, "memory": memory} for pid, memory in some],
                        }
                        for at, some in enumerate(held)
                    ]
                }
            )
        )  # fmt: skip
        fresh.rename(self.file)


@pytest.fixture
def devices(place: Place) -> Devices:
    return Devices(place)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that is not vctl's."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(**env: str) -> int:
        children.append(subprocess.Popen(["sleep", "1000"], env={**os.environ, **env}))
        return children[-1].pid

    yield begin
    for child in children:
        child.kill()
        child.wait()


def end(pid: int) -> None:
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def gpu(place: Place, number: int) -> dict[str, Any]:
    found: dict[str, Any] = place.read("gpus")["items"][number]
    return found


def test_a_job_never_starts_beside_a_process_that_fills_the_memory(
    place: Place, devices: Devices, start: Start
) -> None:
    """gflow#208: a job of 82 GiB was placed beside a server that somebody had started by hand."""
    server, other = start(), start()
    devices.write([(server, 70 * GIB)], [(other, 70 * GIB)])
    place.more |= AVOID
    place.ok("run", "-d", "-g", "1", "--submission-id", "train", "--", "sleep", "1000")
    waits = eventually(lambda: (job := place.job("train"))["state_reason"] == "InsufficientResources" and job)
    assert waits["started_at"] is None
    said = place.ok("why", "train")
    assert f"pid {server} of " in said
    assert "70.0GiB" in said
    assert "nobody booked it" in said
    name = place.ok("node", "list", "-o", "name").strip()
    (remedy,) = [one for one in place.read("why", "train")["changes"] if one["kind"] == "ignore"]
    assert remedy["command"] == f"vctl node ignore {name} {server}"
    status = place.read("status")
    assert [one["gpu_id"].rpartition("/")[2] for one in status["devices"]] == ["0", "1"]
    assert f"pid {other}" in status["devices"][1]["message"]
    assert f"pid {server}" in place.run("doctor").out
    assert [gpu(place, number)["state"] for number in (0, 1)] == ["AVOIDED", "AVOIDED"]
    node = place.read("node", "list")["items"][0]
    assert (node["used"]["GPU"], node["available"]["GPU"]) == (0, 0)
    end(other)  # the device comes back by itself
    started = place.reach("train", "RUNNING")
    assert (started["attempt"], gpu(place, 1)["holders"][0]["submission_id"]) == (1, "train")
    kinds = [event["kind"] for event in place.read("events")["items"] if event["object"] == "device"]
    assert kinds == ["device.fenced", "device.fenced", "device.released"]


def test_by_default_it_is_reported_and_the_job_starts(place: Place, devices: Devices, start: Start) -> None:
    stranger = start()
    devices.write([(stranger, 642 << 20)], [])
    place.ok("run", "-d", "-g", "2", "--submission-id", "train", "--", "sleep", "1000")
    place.reach("train", "RUNNING")
    (reported,) = eventually(lambda: place.read("status")["devices"])
    assert f"pid {stranger} uses GPU 0" in reported["message"]
    assert f"pid {stranger} uses GPU 0" in place.run("doctor").out
    assert (gpu(place, 0)["state"], gpu(place, 0)["message"]) == ("BOOKED", None)


def test_a_little_memory_is_tolerated_and_the_policy_can_be_to_ignore(
    place: Place, devices: Devices, start: Start
) -> None:
    display = start()
    devices.write([(display, 100 << 20)], [])
    place.more |= AVOID
    place.ok("run", "-d", "-g", "2", "--submission-id", "one", "--", "sleep", "1000")
    place.reach("one", "RUNNING")
    assert place.read("status")["devices"] != []  # it is told all the same
    place.ok("daemon", "--stop")
    place.more |= {"VCTL_FOREIGN_GPU_PROCESSES": "ignore"}
    place.ok("run", "-d", "-n", "1", "--submission-id", "two", "--", "sleep", "1000")
    place.reach("two", "RUNNING")
    eventually(lambda: place.read("status")["devices"] == [], "nothing to be told")


def test_one_command_lets_a_process_count_no_more(place: Place, devices: Devices, start: Start) -> None:
    mine = start()
    devices.write([(mine, 5 * GIB)], [])
    place.more |= AVOID
    place.ok("run", "-d", "-g", "2", "--submission-id", "train", "--", "sleep", "1000")
    eventually(lambda: place.job("train")["state_reason"] == "InsufficientResources")
    (command,) = gpu(place, 0)["commands"]
    place.ok(*command.split()[1:])  # as it is shown
    place.reach("train", "RUNNING")
    assert [one["kind"] for one in gpu(place, 0)["processes"]] == ["ignored"]
    place.ok(*command.split()[1:], "--off")
    assert eventually(lambda: gpu(place, 0)["state"] == "AVOIDED")
    node = place.read("node", "list")["items"][0]["node_id"]
    ran = place.run("node", "ignore", node, "4194304")
    assert (ran.code, "there is no process 4194304" in ran.err) == (4, True)


def test_a_device_is_fenced_until_what_a_run_left_behind_has_ended(
    place: Place, devices: Devices, start: Start
) -> None:
    """A container that a job has started through a service outlives the job, with its memory."""
    place.ok("run", "-d", "-g", "1", "--submission-id", "train", "--", "sleep", "1000")
    own = processes.environment(place.running_process("train"))
    left = start(VCTL_RUN_ID=own["VCTL_RUN_ID"], VCTL_HOME=own["VCTL_HOME"])
    devices.write([(left, 30 * GIB)], [])
    assert [one["kind"] for one in gpu(place, 0)["processes"]] == ["job"]
    place.ok("stop", "train")
    place.reach("train", "STOPPED")
    place.ok("run", "-d", "-g", "2", "--submission-id", "both", "--", "sleep", "1000")
    eventually(lambda: place.job("both")["state_reason"] == "InsufficientResources")
    shown = gpu(place, 0)
    assert (shown["state"], shown["processes"][0]["kind"]) == ("FENCED", "left")
    assert f"pid {left} of " in shown["message"]
    assert "left behind by job 1" in shown["message"]
    place.ok("daemon", "--stop")
    assert gpu(place, 0)["state"] == "FENCED"  # it lies in the tables
    place.ok("run", "-d", "-g", "1", "--submission-id", "other", "--priority", "1", "--", "sleep", "1000")
    place.reach("other", "RUNNING")
    assert gpu(place, 1)["holders"][0]["submission_id"] == "other"
    assert gpu(place, 0)["state"] == "FENCED"
    place.ok("stop", "other")
    end(left)
    place.reach("both", "RUNNING")


def test_what_runs_on_a_device_goes_on_when_a_stranger_comes(
    place: Place, devices: Devices, start: Start
) -> None:
    place.more |= AVOID
    place.ok("run", "-d", "-g", "0.5", "--submission-id", "first", "--", "sleep", "1000")
    place.reach("first", "RUNNING")
    devices.write([(start(), 5 * GIB)], [])
    time.sleep(STALE_S + 0.05)  # figures as young as that are not measured again
    place.ok("run", "-d", "-g", "0.5", "--submission-id", "second", "--", "sleep", "1000")
    place.reach("second", "RUNNING")
    assert place.job("first")["status"] == "RUNNING"
    one, two = place.read("gpus")["items"]
    assert [holder["submission_id"] for holder in one["holders"]] == ["first"]
    assert [holder["submission_id"] for holder in two["holders"]] == ["second"]


def test_a_driver_that_cannot_be_asked_stops_nothing(place: Place, devices: Devices) -> None:
    place.more |= AVOID
    place.ok("run", "-d", "-g", "1", "--submission-id", "first", "--", "sleep", "1000")
    place.reach("first", "RUNNING")
    devices.file.write_text("{")
    place.ok("run", "-d", "-g", "1", "--submission-id", "second", "--", "sleep", "1000")
    place.reach("second", "RUNNING")
    eventually(lambda: "devices cannot be measured" in (place.home / "daemon.log").read_text())
    assert "cannot be measured" in place.ok("gpus")


def test_a_job_that_does_not_use_its_device_is_named_and_goes_on(place: Place, devices: Devices) -> None:
    place.more |= {"VCTL_IDLE_GPU_AFTER": "1"}
    place.ok("run", "-d", "-g", "1", "--submission-id", "notebook", "--", "sleep", "1000")
    place.reach("notebook", "RUNNING")
    assert gpu(place, 0)["idle_since"] is None
    (reported,) = eventually(lambda: place.read("status")["devices"])
    assert reported["message"].startswith("notebook of ")
    assert "has booked GPU 0" in reported["message"]
    assert gpu(place, 0)["idle_since"] is not None
    assert ", idle " in place.ok("gpus")
    assert place.job("notebook")["status"] == "RUNNING"
    place.ok("stop", "notebook")
    place.reach("notebook", "STOPPED")
    assert (gpu(place, 0)["idle_since"], place.read("status")["devices"]) == (None, [])
