"""What tests with real Ray have started ends with them, also when they are killed or their cluster does not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ray_guard
from tests.integration.conftest import Place, Ran, eventually, is_gone
from tests.ray_cluster import RayCluster
from tests.specification import spec
from vctl.ray.private.private_ray import TRIES

pytestmark = spec("16.ray")

TESTS = """
import subprocess, time
from tests import ray_guard

ray_guard.begin()
sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(sleeper.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGTERM])
def test_what_tests_have_started_ends_with_them(signo: int) -> None:
    before = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    tests = subprocess.Popen(
        [sys.executable, "-c", TESTS], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
    )
    try:
        assert tests.stdout is not None
        started = int(tests.stdout.readline())
        assert not is_gone(started)
        os.kill(tests.pid, signo)
        tests.communicate()
        eventually(lambda: is_gone(started), "what they have started to end")
        assert before.poll() is None
    finally:
        before.kill()
        before.wait()


@pytest.mark.parametrize("how", [Place.run, Place.fork])
def test_jobs_of_tests_have_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[..., Ran]
) -> None:
    """Where the agents of Ray start them they have the environment of their submit alone."""
    monkeypatch.setenv(ray_guard.VARIABLE, "1-2")
    place = Place(tmp_path / "state", tmp_path / "work")
    try:
        place.add_nodes(1)
        place.daemon()
        ran = how(place, "job", "submit", "--", "sh", "-c", f"echo ${ray_guard.VARIABLE}")
    finally:
        place.end()
    assert ran.out == "1-2\n", ran


def test_a_cluster_that_does_not_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a process of any try nor its folder; the next cluster has another folder."""
    ray = tmp_path / "ray"
    ray.write_text('#!/bin/sh\nsleep 1000 &\necho "$HOME $!" >> "$(dirname "$0")/tried"\nexit 1\n')
    ray.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            RayCluster()
    tried = [line.split() for line in (tmp_path / "tried").read_text().splitlines()]
    assert len(tried) == 2 * TRIES
    assert len({folder for folder, _ in tried}) == 2
    assert not any(Path(folder).exists() for folder, _ in tried)
    assert all(is_gone(int(pid)) for _, pid in tried)
