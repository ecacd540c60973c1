"""What each Python of a job with a private Ray does first: find a `ray stop`, and then be as any Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.ray.private.python_start.sitecustomize import arguments_of_a_stop
from vctl.ray.private.raylets import PYTHON_START, environment

pytestmark = spec("16.ray")

STOPS = {
    "python /env/bin/ray stop": ["stop"],
    "python ray stop --force": ["stop", "--force"],
    "python -u -X dev /env/bin/ray stop -v": ["stop", "-v"],
    "python -m ray.scripts.scripts stop": ["stop"],
    "python -m ray.scripts.scripts --logging-level debug stop -g 1": ["--logging-level", "debug", "stop", "-g", "1"],
    "python /env/bin/ray --log-style=record stop": ["--log-style=record", "stop"],
}  # fmt: skip
OTHERS = (
    "python", "python ray", "python -m ray.scripts.scripts", "python /env/bin/ray job stop j",
    "python /env/bin/ray start",
    "python train.py ray stop", "python -m mine ray stop", "python -c pass ray stop", "python - ray stop",
    "python /env/bin/array stop", "python -m ray stop.py", "python /env/bin/ray start stop",
)  # fmt: skip


@pytest.mark.parametrize("line", STOPS)
def test_a_stop_is_found(line: str) -> None:
    assert arguments_of_a_stop(line.split()) == STOPS[line]


@pytest.mark.parametrize("line", OTHERS)
def test_anything_else_is_none(line: str) -> None:
    assert arguments_of_a_stop(line.split()) is None


def python(*words: str, **env: str) -> str:
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **env}, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("own", [True, False])
def test_the_python_of_a_job_is_as_any_other(tmp_path: Path, *, own: bool) -> None:
    """Its own `sitecustomize` is imported, an error in it is told, and the search path is as it would be."""
    if own:
        (tmp_path / "sitecustomize.py").write_text("print('own')")
    code = "import sys; print(sys.path)"
    plain = python("-c", code, PYTHONPATH=str(tmp_path))
    assert plain.startswith("own") == own
    assert python("-c", code, PYTHONPATH=f"{PYTHON_START}{os.pathsep}{tmp_path}") == plain


def test_an_import_that_its_own_one_lacks_is_told(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import nosuch")
    done = subprocess.run(
        [sys.executable, "-c", "print('goes on')"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": f"{PYTHON_START}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    assert done.stdout == "goes on\n"
    assert "nosuch" in done.stderr


def test_all_processes_of_ray_have_the_folder_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert environment({}, "/f")["PYTHONPATH"] == PYTHON_START
    for given in ("/a", f"{PYTHON_START}{os.pathsep}/a"):
        monkeypatch.setenv("PYTHONPATH", given)
        assert environment({}, "/f")["PYTHONPATH"] == f"{PYTHON_START}{os.pathsep}/a"
