"""Private Rays on a machine that is out of memory: only the job that uses more than it has is touched.

The machine is not filled. In a mount namespace of the scheduler, and so of all its jobs, another file lies over
``/proc/meminfo``, which Ray's memory monitor reads: it says that 2 of 100 parts of the memory are left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.integration.conftest import Place, eventually
from tests.integration.test_private_ray import folders
from tests.ray_cluster import RAY_S, WITH_RAY, left_of, log_of
from tests.specification import spec

pytestmark = [spec("16.ray"), *WITH_RAY]

KIB_TOTAL = 8 << 20
OVER = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"')

IDLE = """
import os, pathlib, time
import ray

ray.init(log_to_driver=False)


@ray.remote(num_cpus=1)
class Place:
    def pid(self):
        return os.getpid()


place = Place.remote()
pid = ray.get(place.pid.remote())
pathlib.Path("idle.up").touch()
while not pathlib.Path("go").exists():
    assert ray.get(place.pid.remote()) == pid
    time.sleep(0.1)
"""

GREEDY = """
import pathlib, time
import ray

ray.init(log_to_driver=False)
while not pathlib.Path("idle.up").exists():
    time.sleep(0.1)


@ray.remote(num_cpus=1, max_retries=-1)
def fill():
    blocks = []
    while True:  # about 1 GiB a second
        blocks.append(b"x" * (100 << 20))
        time.sleep(0.1)


ray.get(fill.remote())
"""


@pytest.fixture
def full(place: Place) -> Sequence[str]:
    """The words before a command that make it see a machine without free memory."""
    lines = {"MemTotal": KIB_TOTAL, "MemFree": KIB_TOTAL // 100, "MemAvailable": KIB_TOTAL // 50}
    path = place.folder / "meminfo"
    path.write_text("".join(f"{name}: {kib} kB\n" for name, kib in lines.items()))
    words = (*OVER, str(path))
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace is needed, to show another /proc/meminfo")
    return words


def test_only_the_job_that_uses_more_than_it_has_is_touched(place: Place, full: Sequence[str]) -> None:
    """Ray's monitor killed the workers of both, again and again, and the greedy one could have filled the machine."""
    place.more["VCTL_LOCAL_NODE"] = "1"
    place.daemon(within=full)
    for name, program, memory in (("idle", IDLE, "1GiB"), ("greedy", GREEDY, "1.5GiB")):
        (place.folder / f"{name}.py").write_text(program)
        place.ok(
            "job", "submit", "--no-wait", "--ray", "--submission-id", name, "--num-cpus", "1", "--memory", memory,
            "--", sys.executable, f"{name}.py",
        )  # fmt: skip
    eventually(lambda: len(folders(place)) == 2, "both to be launched", RAY_S)
    used = folders(place)
    up = place.folder / "idle.up"
    eventually(lambda: up.exists() or place.job("idle")["status"] == "FAILED", "the idle one to be up", RAY_S)
    assert up.exists(), log_of(place, "idle")
    greedy = place.reach("greedy", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert (greedy["state_reason"], greedy["exit_code"]) == ("OutOfMemory", 137), log_of(place, "greedy")
    assert greedy["message"].startswith("asked 1.5 GiB, peak ")
    assert place.job("idle")["status"] == "RUNNING", log_of(place, "idle")
    (place.folder / "go").touch()
    idle = place.reach("idle", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert idle["status"] == "SUCCEEDED", log_of(place, "idle")
    eventually(lambda: not left_of(place), f"the end of {left_of(place)}", RAY_S)
    assert not any(map(os.path.exists, used))
