"""Programs that use Ray's APIs, and the examples in Ray's own package: what passes beside Ray passes in a job.

A marked set (``pytest -m ray_set``, about twenty minutes): each program runs once beside `ray start --head` and
once in one job with a private Ray of the same size. What does not pass beside Ray is no comparison, and is
skipped with the last line that it wrote. The programs of ``tests/ray_programs`` are ours. A short part of
them runs where Ray is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.conftest import ROOT, Place
from tests.ray_cluster import IN_CI, RAY_S, WITH_RAY, RayCluster, log_of
from tests.specification import spec
from vctl.ray.private.raylets import free_port

pytestmark = [spec("16.ray"), pytest.mark.timeout(7200), *WITH_RAY]  # the first of two time limits holds

FOLDER = ROOT / "tests/ray_programs"
NEEDS = {
    "data": ("pandas", "pyarrow"),
    "serve": ("grpc_reflection", "starlette", "watchfiles"),
    "train": ("pandas", "pyarrow"),
    "tune": ("pandas", "pyarrow", "tensorboardX"),
    "optuna": ("pandas", "pyarrow", "tensorboardX", "optuna"),
    "bayesopt": ("pandas", "pyarrow", "tensorboardX", "bayes_opt"),
    "hyperopt": ("pandas", "pyarrow", "tensorboardX", "hyperopt"),
    "nevergrad": ("pandas", "pyarrow", "tensorboardX", "nevergrad"),
    "xgboost": ("pandas", "pyarrow", "tensorboardX", "xgboost", "sklearn"),
    "lightgbm": ("pandas", "pyarrow", "tensorboardX", "lightgbm", "sklearn"),
    "torch": ("pandas", "pyarrow", "torch"),
}
TUNE = "ray.tune.examples."
EXAMPLES = {
    "tune": (
        f"{TUNE}async_hyperband_example --smoke-test", f"{TUNE}custom_checkpointing_with_callback",
        f"{TUNE}custom_func_checkpointing --smoke-test", f"{TUNE}logging_example --smoke-test",
        f"{TUNE}tune_basic_example --smoke-test",
    ),
    "optuna": (
        f"{TUNE}optuna_example --smoke-test", f"{TUNE}optuna_define_by_run_example --smoke-test",
        f"{TUNE}optuna_multiobjective_example --smoke-test",
    ),
    "bayesopt": (f"{TUNE}bayesopt_example --smoke-test",),
    "hyperopt": (f"{TUNE}hyperopt_conditional_search_space_example --smoke-test",),
    "nevergrad": (f"{TUNE}nevergrad_example --smoke-test",),
    "xgboost": (f"{TUNE}xgboost_example",),
    "lightgbm": (f"{TUNE}lightgbm_example",),
    "torch": ("ray.train.examples.pytorch.torch_linear_example",),
}  # fmt: skip
"""In Ray's package: those that need neither files from elsewhere, nor minutes, nor a Ray of their own."""
SHORT = ("core_tasks", "core_actors", "core_groups")
PROGRAM_S = 240
NODE = {"resources": {"CPU": 2, "memory": "2GiB"}}
TWO_NODES = json.dumps({"fixed_size_nodes": [{"nodes": [NODE, NODE], "scheduling_policy": "STRICT_SPREAD"}]})

RUN = """
import json, subprocess, sys

programs, folder, limit = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
for name, words in programs.items():
    with open(f"{folder}/{name}.log", "w") as log:
        try:
            code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            code = "no end"
    with open(f"{folder}/{name}.code", "w") as file:
        file.write(str(code))
"""
Results = Mapping[str, tuple[str, str]]


def programs() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> the library that it needs, and its words."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        more = (str(free_port()),) if path.stem in ("serve_apps", "serve_commands") else ()
        found[path.stem] = (path.stem.partition("_")[0], (sys.executable, str(path), *more))
    for library, lines in EXAMPLES.items():
        for line in lines:
            module, *options = line.split()
            found[module.rpartition(".")[2]] = (library, (sys.executable, "-m", module, *options))
    return found


PROGRAMS = programs()


def command(names: Sequence[str], folder: Path) -> list[str]:
    words = {name: PROGRAMS[name][1] for name in names}
    return [sys.executable, "-c", RUN, json.dumps(words), str(folder), str(PROGRAM_S)]


def results(names: Sequence[str], folder: Path) -> Results:
    return {
        name: ((folder / f"{name}.code").read_text(), (folder / f"{name}.log").read_text())
        for name in names
        if (folder / f"{name}.code").exists()
    }


def in_a_job(place: Place, names: Sequence[str]) -> Results:
    """Run the programs in one job with a private Ray of two nodes."""
    place.add_nodes(2)
    place.daemon()
    folder = place.folder / "inside"
    folder.mkdir()
    place.ok(
        "job", "submit", "--no-wait", "--ray-dashboard", "--submission-id", "set", "--virtual-cluster", TWO_NODES,
        "--private", "pids",  # programs and results may lie in /tmp, which no word of the command names
        "--env", f"HOME={place.folder}", "--", *command(names, folder),
    )  # fmt: skip
    limit = RAY_S + PROGRAM_S * len(names)
    job = place.reach("set", "SUCCEEDED", "FAILED", within_s=limit)
    assert job["status"] == "SUCCEEDED", log_of(place, "set")
    return results(names, folder)


class WithDashboard(RayCluster):
    """A Ray on this machine with its dashboard."""

    def begin(self, *more: str) -> None:
        super().begin("--no-monitor", "--include-dashboard=true", "--dashboard-port=0", *more)


def beside_ray(names: Sequence[str]) -> Results:
    """Run the programs beside a Ray of two nodes."""
    cluster = WithDashboard()
    try:
        for _ in range(2):
            cluster.add(2)
        folder = Path(tempfile.mkdtemp(dir=cluster.folder))
        env = {**cluster.env, "RAY_ADDRESS": cluster.address}
        subprocess.run(
            command(names, folder), env=env, cwd=cluster.folder, check=True, stdin=subprocess.DEVNULL
        )
        return results(names, folder)
    finally:
        cluster.end()


@pytest.fixture(scope="module")
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Results, Results]]:
    """What the chosen programs did beside Ray, and in a job."""
    chosen = [item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")]
    names = [name for name in PROGRAMS if name in chosen and not lacking(name)]
    folder = tmp_path_factory.mktemp("set")
    place = Place(folder / "state", folder / "work")
    try:
        yield beside_ray(names), in_a_job(place, names)
    finally:
        place.end()


def lacking(name: str) -> list[str]:
    """The packages that a program needs and that are not installed."""
    return [package for package in NEEDS.get(PROGRAMS[name][0], ()) if find_spec(package) is None]


@pytest.mark.ray_set
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_passes_beside_ray_passes_in_a_job(name: str, request: pytest.FixtureRequest) -> None:
    if missing := lacking(name):
        pytest.skip(f"{', '.join(missing)} is needed")
    beside, inside = request.getfixturevalue("both")
    code, log = beside[name]
    if code != "0":
        pytest.skip(f"beside Ray it ends with {code}: {(log.splitlines() or [''])[-1]}")
    assert inside[name][0] == "0", inside[name][1]


@IN_CI
def test_a_short_part_of_the_set_passes_in_a_job(place: Place) -> None:
    for name, (code, log) in in_a_job(place, SHORT).items():
        assert code == "0", (name, log)
    assert len(list((place.folder / "inside").glob("*.code"))) == len(SHORT)
