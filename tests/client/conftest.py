"""A state directory with simulated nodes, a daemon, and Python programs that run as jobs in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import vctl
from tests.warm import Nursery

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
TOKEN = "token-for-tests-0123456789"
START = """
import json, os, subprocess, sys, threading, time
from vctl import *
from vctl.errors import *

def tell(**values):
    print(json.dumps(values), flush=True)

def sh(line, **more):
    return connect().run(["sh", "-c", line], **more)

"""


class Site:
    """A state directory and its client."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder
        self.client = vctl.connect(home)

    def nodes(self, count: int, resources: Mapping[str, float | str] | None = None, **more: Any) -> None:
        self.client.physical_nodes.add(resources=resources or {"CPU": 4}, count=count, **more)

    def start(self, source: str, client: vctl.Client | None = None, **more: Any) -> vctl.Job:
        """Submit a Python program."""
        file = self.folder / f"program-{os.urandom(4).hex()}.py"
        file.write_text(START + textwrap.dedent(source))
        env = {"PYTHONPATH": str(ROOT)}
        return (client or self.client).submit([sys.executable, str(file)], env=env, **more)

    def run(self, source: str, **more: Any) -> dict[str, Any]:
        """Run a program to its good end; all that it told."""
        job = self.start(source, **more)
        code = job.wait(timeout_s=PATIENCE_S)
        assert code == 0, job.logs()
        reported: dict[str, Any] = {}
        for line in job.logs().splitlines():
            reported.update(json.loads(line))
        return reported


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Nobody schedules here but a child of whoever waits."""
    monkeypatch.setenv("VCTL_LOCAL_NODE", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    home = tmp_path / "state"
    return Site(home, tmp_path)


@pytest.fixture
def daemon(site: Site) -> Iterator[Site]:
    """A daemon schedules."""
    env = {**os.environ, "VCTL_HOME": str(site.home)}
    process = subprocess.Popen([sys.executable, "-m", "vctl", "daemon"], env=env, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"schedules" in process.stderr.readline()
    yield site
    for job in site.client.list_jobs(filters=["status=RUNNING"]):
        site.client.jobs.stop(job["submission_id"], grace_s=0)
    process.terminate()
    process.communicate(timeout=30)


@pytest.fixture
def served(site: Site, nursery: Nursery) -> Iterator[vctl.Client]:
    """A client of a server of that state directory."""
    env = {**os.environ, "VCTL_HOME": str(site.home), "VCTL_TOKEN": TOKEN}
    process = nursery.start(["serve", "--port", "0"], env, Path.cwd())
    line = process.stderr.readline()
    address = line.partition(" answers at ")[2].partition(",")[0].strip()
    yield vctl.connect(address, token=TOKEN)
    process.terminate()
    process.wait(30)
    process.stderr.close()
