"""A command line on its own state directory, run inside the test process.

The tests of the modules in ``TWICE`` run against the state directory and against a server of it, with the same
expectations; those that are about the machine itself are marked ``on_the_machine``.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TWICE = (
    "test_arrange",
    "test_batches",
    "test_bookings",
    "test_bounds",
    "test_cluster_files",
    "test_errors",
    "test_hostile_text",
    "test_nulls",
    "test_output",
    "test_revisions",
    "test_scope",
    "test_short_options",
    "test_slips",
    "test_state",
    "test_tasks",
)
DIRECTORY, SERVER = "directory", "server"
SERVED: list["Served"] = []
"""The one server of this process, once a test asked for it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for both backends."""
    module = metafunc.module.__name__.rpartition(".")[2]
    once = metafunc.definition.get_closest_marker("on_the_machine")
    if "cli" in metafunc.fixturenames and module in TWICE and once is None:
        metafunc.parametrize("backend", [DIRECTORY, SERVER], indirect=True)


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """``cli("job list -o json")``, or words one by one."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def __call__(self, *words: str) -> Ran:
        from vctl.cli.app import run

        argv = words[0].split() if len(words) == 1 else list(words)
        self._capsys.readouterr()
        code = run(argv)
        captured = self._capsys.readouterr()
        return Ran(code, captured.out, captured.err)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith("VCTL_") or name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("VCTL_HOME", str(home))
    monkeypatch.setenv("VCTL_LOCAL_NODE", "0")
    monkeypatch.setenv("VCTL_AUTOSTART", "0")  # what is submitted here waits
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return home


class Served:
    """A real server on a socket, in a thread of this process; each test gives it a state directory of its own."""

    def __init__(self, socket: Path) -> None:
        import uvicorn

        from vctl.config import load
        from vctl.http.app import create_app
        from vctl.http.context import Server

        self.address = f"unix:{socket}"
        self._of = Server(socket.parent / "first", load(), None)
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(create_app(self._of), uds=str(socket), log_config=None, lifespan="on")
        )
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)
        self._thread.start()
        give_up = time.monotonic() + 30
        while not self._uvicorn.started:
            assert time.monotonic() < give_up
            time.sleep(0.01)

    def turn_to(self, home: Path, env: Mapping[str, str]) -> None:
        """Serve another state directory, with the settings of an environment."""
        from vctl.config import load

        self._of.home, self._of.config = home, load(env=env)
        self._of.__post_init__()

    def end(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(15)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("VCTL_")}
    made = Served(tmp_path_factory.mktemp("served") / "socket")
    os.environ.update(before)
    SERVED.append(made)
    yield made
    made.end()


@pytest.fixture
def backend(request: pytest.FixtureRequest, clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What carries the commands of a test out."""
    wanted: str = getattr(request, "param", DIRECTORY)
    if wanted == SERVER:
        served: Served = request.getfixturevalue("served")
        served.turn_to(clean_environment, os.environ)
        monkeypatch.setenv("VCTL_ADDRESS", served.address)
    return wanted


@pytest.fixture
def cli(clean_environment: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(clean_environment, capsys)


@pytest.fixture
def nodes(cli: Cli) -> Cli:
    """Two simulated nodes of 4 CPUs and 8 GiB."""
    resources = '{"CPU": 4, "memory": "8GiB"}'
    assert cli("node", "add", "--count", "2", "--simulated", "--resources", resources).code == 0
    return cli


def python(*words: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    environment = {
        **os.environ,
        "VCTL_AUTOSTART": "1",
        "VCTL_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        **more,
    }
    if "VCTL_ADDRESS" in environment:
        SERVED[0].turn_to(home, environment)
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
