"""Packages of a ``runtime_env``: the private Ray installs them for the command, its tasks and what these start."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.conftest import Place, eventually
from tests.integration.test_private_ray import assert_clean, folders
from tests.ray_cluster import IN_CI, RAY_S, WITH_RAY, log_of
from tests.specification import spec
from tests.wheels import wheel

pytestmark = [spec("16.ray"), *WITH_RAY]

PROGRAM = """
import importlib, subprocess, sys
import ray

names = sys.argv[1:]


def says():
    return [importlib.import_module(name).SAYS for name in names]


def of_a_process():
    code = "import importlib, sys; print(*(importlib.import_module(name).SAYS for name in sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *names], stdout=subprocess.PIPE, text=True).stdout.split()


print("command", *says())
ray.init(log_to_driver=False)
print("task", *ray.get(ray.remote(says).remote()))
print("process", *ray.get(ray.remote(of_a_process).remote()))
env = {"env_vars": {"MORE": "1"}}
print("more", *ray.get(ray.remote(runtime_env=env)(says).remote()))
"""
WHO = ("command", "task", "process", "more")


def submit(place: Place, runtime_env: dict[str, object], *names: str) -> None:
    (place.folder / "program.py").write_text(PROGRAM)
    place.ok(
        "job", "submit", "--no-wait", "--ray", "--submission-id", "e", "--runtime-env-json", json.dumps(runtime_env),
        "--", "python", "program.py", *names, PATH=os.path.dirname(sys.executable) + os.pathsep + os.defpath,
    )  # fmt: skip
    eventually(lambda: folders(place), "the job to be launched", RAY_S)


@IN_CI
def test_pip_and_modules_of_a_job(place: Place) -> None:
    """A wheel for pip, a wheel and a directory as modules; afterwards no file of it is left."""
    first, second = (wheel(place.folder, f"vctl_probe_{n}", n) for n in ("pip", "wheel"))
    (place.folder / "vctl_probe_folder").mkdir()
    (place.folder / "vctl_probe_folder/__init__.py").write_text("SAYS = 'folder'\n")
    place.add_nodes(1)
    place.daemon()
    modules = [second.name, "vctl_probe_folder"]
    submit(
        place, {"pip": [str(first)], "py_modules": modules, "env_vars": {"A": "1"}},
        "vctl_probe_pip", "vctl_probe_wheel", "vctl_probe_folder",
    )  # fmt: skip
    used = folders(place)
    job = place.reach("e", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == "SUCCEEDED", log_of(place, "e")
    lines = log_of(place, "e").splitlines()
    assert [line for line in lines if line.startswith(WHO)] == [f"{who} pip wheel folder" for who in WHO]
    assert_clean(place, used)


@pytest.mark.skipif(find_spec("uv") is None, reason="uv is needed: pip install uv")
def test_uv_of_a_job(place: Place) -> None:
    path = wheel(place.folder, "vctl_probe_uv", "uv")
    place.add_nodes(1)
    place.daemon()
    submit(place, {"uv": [str(path)]}, "vctl_probe_uv")
    job = place.reach("e", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert job["status"] == "SUCCEEDED", log_of(place, "e")
    lines = log_of(place, "e").splitlines()
    assert [line for line in lines if line.startswith(WHO)] == [f"{who} uv" for who in WHO]


def test_a_package_that_cannot_be_installed_ends_the_job(place: Place) -> None:
    """Its log has what pip says."""
    place.add_nodes(1)
    place.daemon()
    missing = Path(place.folder / "nosuch-1.0-py3-none-any.whl")
    submit(place, {"pip": [str(missing)]}, "nosuch")
    used = folders(place)
    job = place.reach("e", "SUCCEEDED", "FAILED", within_s=RAY_S)
    assert (job["status"], job["exit_code"]) == ("FAILED", 1), log_of(place, "e")
    said = log_of(place, "e")
    assert missing.name in said
    assert said.endswith("vctl: Ray has not installed the packages of the runtime_env\n")
    assert_clean(place, used)
