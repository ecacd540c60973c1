"""A command line on its own state directory, run inside the test process."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


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


@pytest.fixture
def cli(clean_environment: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
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
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
