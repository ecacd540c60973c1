"""Whatever runs in a job's own Ray finds it: what Ray's processes, whose environment workers inherit, are started with.

Ray's command is a stand-in that leaves processes behind, as Ray's does, and notes how it was called.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from vctl.ray.private import private_ray, ray_join, ray_parent, ray_satellite

pytestmark = spec("16.ray")
PATIENCE_S = 40.0
RAY = """
import json, os, sys

words, folder = sys.argv[1:], os.path.dirname(os.path.abspath(__file__))
name = next(word for word in words if word.startswith("--node-name="))
with open(f"{folder}/called/{name.partition('=')[2]}", "w") as file:
    json.dump({"words": words, "env": dict(os.environ)}, file)
for program in ["raylet", "gcs_server"] if "--head" in words else ["raylet"]:
    running, starting = os.pipe()
    if not os.fork():
        os.setsid()
        os.execv("/bin/sh", [f"{folder}/{program}", "-c", "sleep 1000; :", name])
    os.close(starting)
    os.read(running, 1)  # as Ray's command, it ends when the program runs
"""
AROUND = {
    "RAY_ADDRESS": "192.0.2.1:6379",
    "RAY_API_SERVER_ADDRESS": "http://192.0.2.1:8265",
    "RAY_DASHBOARD_ADDRESS": "http://192.0.2.1:8265",
    "RAY_TMPDIR": "/nowhere",
    "RAY_AUTH_TOKEN": "of another Ray",
    "OMP_NUM_THREADS": "7",
    "MINE": "kept",
}
"""The environment of whoever submitted the job, within another Ray."""
TELLS = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_TMPDIR", "RAY_enable_autoscaler_v2")


class Ground:
    """A directory with the stand-in for Ray's command, and the files of a job."""

    def __init__(self, folder: Path) -> None:
        self.called, self.folder, self.nodes = folder / "called", folder / "f", folder / "job.ray"
        self.called.mkdir()
        (folder / "ray").write_text(f"#!{sys.executable}\n{RAY}")
        (folder / "ray").chmod(0o755)
        self.sh = folder / "sh"
        self.sh.symlink_to("/bin/sh")
        self.started: list[subprocess.Popen[bytes]] = []

    def show(self, *names: str, **more: Any) -> None:
        node = {
            "resources": {"CPU": 1.0},
            "unused": {},
            "growth": False,
            "gpus": [],
            "cores": None,
            "labels": {},
        }
        self.nodes.write_text(json.dumps({"nodes": [{"id": name, **node} for name in names], **more}))

    def start(self, script: Any, *words: str, **env: str) -> subprocess.Popen[bytes]:
        own = [sys.executable, "-I", "-S", script.__file__, str(self.nodes), str(self.folder)]
        around = {**os.environ, **AROUND, **env}
        process = subprocess.Popen(
            [*own, *words], env=around, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """The end of the directory, or SIGTERM, ends each of them and what it has left behind."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for process in self.started:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)

    def call(self, name: str) -> dict[str, Any]:
        """How Ray's command was called for the raylet of this name."""
        path = self.called / name
        reached(lambda: path.exists() and path.stat().st_size)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.end()


def reached(condition: Callable[[], Any]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def tells(env: dict[str, str]) -> dict[str, str | None]:
    return {name: env.get(name) for name in TELLS}


def test_the_command_and_every_process_of_its_ray_are_told_the_same(ground: Ground) -> None:
    """Workers had none of it, so a subprocess of a task started a Ray with all CPUs of the machine."""
    ground.show("c##j/0", "c##j/1")
    command = f"env -0; cat {ground.folder}/{ray_parent.JOIN}"
    done = ground.start(private_ray, "plain", "--", str(ground.sh), "-c", command)
    *variables, join = done.communicate(timeout=PATIENCE_S)[0].decode().split("\0")
    assert done.returncode == 0
    mine = dict(one.split("=", 1) for one in variables)
    reported = tells(mine)
    assert None not in reported.values()
    assert reported["RAY_TMPDIR"] == str(ground.folder)
    assert not any(reported[name] == AROUND[name] for name in TELLS if name in AROUND)
    assert (mine["MINE"], mine["OMP_NUM_THREADS"]) == ("kept", "7")
    head, other = ground.call("c##j.0"), ground.call("c##j.1")
    for call in (head, other):
        assert tells(call["env"]) == reported
        assert call["env"]["MINE"] == "kept"
        assert "OMP_NUM_THREADS" not in call["env"]
    for env in (mine, head["env"], other["env"]):
        assert not env.keys() & {"RAY_API_SERVER_ADDRESS", "RAY_DASHBOARD_ADDRESS"}, "of a server around"
    address = reported["RAY_ADDRESS"]
    assert address is not None
    assert {"--head", f"--port={address.rpartition(':')[2]}", f"--temp-dir={ground.folder}/ray"} <= set(
        head["words"]
    )
    assert f"--address={address}" in other["words"]
    assert json.loads(join)["address"] == address
    reached(lambda: not ground.folder.exists())


def test_a_raylet_of_a_task_is_told_the_same(ground: Ground) -> None:
    """A growth raylet is in the Ray of its job too, and its name is a file name."""
    ground.show("c##j/0")
    ground.folder.mkdir()
    reported = {"RAY_ADDRESS": "127.0.0.1:7", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t"}
    join = {"ray": str(ground.nodes.parent / "ray"), "address": "127.0.0.1:7", "env": reported}
    ray_parent.put(f"{ground.folder}/{ray_parent.JOIN}", join)
    task = {"VCTL_TASK_ID": "5", "VCTL_VNODE_ID": "c##j/0", "VCTL_RESOURCES": '{"CPU": 1}'}
    guest = ground.start(ray_join, **task)
    env = ground.call("c##j.0#5")["env"]
    assert {name: env[name] for name in reported} == reported
    assert env["RAY_TMPDIR"] == str(ground.folder)
    assert not env.keys() & {"VCTL_TASK_ID", "OMP_NUM_THREADS", "RAY_API_SERVER_ADDRESS"}
    shutil.rmtree(ground.folder)
    guest.communicate(timeout=PATIENCE_S)
    assert guest.returncode == 0


def test_raylets_of_another_machine_are_told_the_same_but_their_directory(ground: Ground) -> None:
    reported = {
        "RAY_ADDRESS": "192.0.2.7:7",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "t",
        "RAY_TMPDIR": "/theirs",
    }
    join = {"ray": "", "address": "192.0.2.7:7", "env": reported}
    ground.show("c##j/1", address="192.0.2.8", join=join)
    satellite = ground.start(ray_satellite, "--", str(ground.sh))
    call = ground.call("c##j.1")
    assert tells(call["env"]) == {**tells(reported), "RAY_TMPDIR": str(ground.folder)}
    assert {"--address=192.0.2.7:7", "--node-ip-address=192.0.2.8"} <= set(call["words"])
    satellite.terminate()
    satellite.communicate(timeout=PATIENCE_S)
    assert satellite.returncode == 0
    assert not ground.folder.exists()
