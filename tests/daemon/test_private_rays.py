"""``--ray``: what the keeper of a Ray is told of its virtual cluster, and what is refused at the submit."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.contents import LAUNCHES
from tests.daemon.conftest import Life, cpu
from tests.daemon.test_gangs import gang
from tests.daemon.test_holding import submit as queue
from tests.specification import spec
from vctl.core import labels as lb
from vctl.core.clusters import JOB, Cluster
from vctl.engine.settings import LeaseTerms
from vctl.errors import BadSpec, Conflict
from vctl.ops import clusters, jobs, reruns, submitting, tasks
from vctl.ray.daemon import private_rays
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRay, JobRequest
from vctl.spec.task_request import TaskRequest

pytestmark = spec("16.ray")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("kPrimaryClusterID##a", "kPrimaryClusterID--a"),
        ("kPrimaryClusterID##a##b/0", "kPrimaryClusterID--a--b.0"),
        ("kPrimaryClusterID", "kPrimaryClusterID"),
    ],
)
def test_an_id_as_a_label_of_ray(text: str, label: str) -> None:
    assert private_rays.label_value(text) == label


@pytest.mark.parametrize("text", ["kPrimaryClusterID##" + "x" * 45, "kPrimaryClusterID##ends-"])
def test_an_id_that_is_no_label_of_ray_ends_in_a_hash(text: str) -> None:
    label = private_rays.label_value(text)
    assert lb.value_problem(label) is None
    assert label.startswith(text.replace("##", "--")[:20])
    assert label != private_rays.label_value(text + "y")


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def here(life: Life) -> Life:
    life.nodes(2, "t")
    return life


def submit(life: Life, kind: str = "plain", path: str = "", **more: Any) -> None:
    request = JobRequest(
        argv=more.pop("argv", ("python3", "job.py")),
        submission_id="r",
        ray=JobRay(kind),
        cwd=str(life.home),
        **more,
    )
    submitting.submit(life.store, request, environment={"PATH": path or os.environ["PATH"]})


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "a part of a CPU": (
        {"spec": parse_cluster_spec({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 0.5}}]}]})},
        "0.5 CPU",
    ),
    "a part of a GPU": (
        {"spec": parse_cluster_spec({"flexible_resource_min": {"CPU": 1, "GPU": 0.5}})},
        "0.5 GPU",
    ),
    "a request of the command": ({"spec": gang(1), "entry": {"CPU": 10_000}}, "request of the entrypoint"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_node_of_ray_can_be_is_refused(here: Life, tmp_path: Path, what: str) -> None:
    more, problem = REFUSED[what]
    with pytest.raises(BadSpec, match=r"^ray: ") as error:
        submit(here, **more)
    assert problem in str(error.value)
    assert error.value.fix
    assert here.store.value("SELECT count(*) FROM jobs") == 0


def test_per_node_and_ray_exclude_each_other() -> None:
    with pytest.raises(BadSpec, match="ray"):
        JobRequest(argv=("x",), ray=JobRay("plain"), per_node=True)


def test_without_ray_the_submit_says_what_to_install(
    here: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (python := tmp_path / "bin").mkdir()
    program = str(executable(python / "python3"))
    with pytest.raises(BadSpec, match="Ray is not installed") as error:
        submit(here, argv=(program,), path=str(python))
    assert "pip install 'ray[default]'" in str(error.value.fix)
    assert here.store.value("SELECT count(*) FROM jobs") == 0
    executable(python / "ray")
    submit(here, argv=(program,), path=str(python), spec=gang(1, 2))
    assert json.loads(here.store.value("SELECT options FROM commands"))["private_ray"] == "plain"


def test_a_job_submitted_again_has_a_ray_again(here: Life, tmp_path: Path) -> None:
    executable(tmp_path / "ray")
    program = str(executable(tmp_path / "python3"))
    submit(here, "dashboard", argv=(program,), path=str(tmp_path), hold=True)
    again = reruns.rerun(here.store, "r")["submission_id"]
    options = here.store.column(f"SELECT options FROM {LAUNCHES}")
    assert [json.loads(text)["private_ray"] for text in options] == ["dashboard"] * 2
    assert again != "r"


def test_the_keeper_is_told_of_each_virtual_node_and_the_file_goes_with_the_job(here: Life) -> None:
    spec_of = parse_cluster_spec(
        {
            "fixed_size_nodes": [
                {"nodes": [{"resources": {"CPU": 1}, "labels": {"a": "b"}}, {"resources": {"CPU": 2}}]}
            ]
        }
    )
    queue(here, "g", "sleep", "60", entry=None, spec=spec_of)
    here.until(lambda: here.job("g")["status"] == "RUNNING")
    assert here.scheduler is not None
    state = here.scheduler.state
    assert state is not None
    (run,) = state.runs.values()
    words = private_rays.command(here.home, state.ledger, run, "plain")
    path, folder = Path(words[4]), Path(words[5])
    assert len(str(folder)) <= 40, "unix sockets lie in it: 107 bytes"
    first, second = json.loads(path.read_text())["nodes"]
    assert (first["resources"], second["resources"]) == ({"CPU": 1.0}, {"CPU": 2.0})
    assert first["id"] == "kPrimaryClusterID##g/0"
    assert first["labels"].items() >= {
        "a": "b", "ray.io/vnode_id": "kPrimaryClusterID--g.0", "ray.io/vcluster_id": "kPrimaryClusterID--g",
        "vctl.io/node-id": run.node_id,
    }.items()  # fmt: skip
    assert "ray.io/node-id" not in first["labels"], "Ray keeps it for itself"

    path.write_text(json.dumps({"folder": str(folder), "nodes": []}))
    rays = private_rays.PrivateRays(here.home, here.scheduler.runtime)
    rays.begin(state)  # another scheduler
    rays.follow(state)
    assert json.loads(path.read_text()) == {"folder": str(folder), "nodes": [first, second]}
    folder.mkdir()
    try:
        rays.forget(run)
        assert not path.exists()
        assert not folder.exists()
        private_rays.command(here.home, state.ledger, run, "plain")
        folder.mkdir()
        jobs.stop(here.store, "g")
        here.until(lambda: here.job("g")["status"] == "STOPPED")
        rays.begin(state)  # one that was killed before it could remove them
        assert not path.exists()
        assert not folder.exists()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_raylets_that_are_tasks_are_left_out_and_their_leases_return_at_once(here: Life) -> None:
    """Spec 9 and 16: growth by the demand of a Ray. What is leased and idle is no raylet's of the keeper."""
    least, most = {"CPU": 1}, {"CPU": 4}
    spec_of = parse_cluster_spec({"flexible_resource_min": least, "flexible_resource_max": most})
    queue(here, "g", "sleep", "60", entry=None, spec=spec_of)
    here.until(lambda: here.job("g")["status"] == "RUNNING")
    assert here.scheduler is not None
    here.scheduler.lease_terms = LeaseTerms(idle_s=3600, cooldown_s=0.0)
    state = here.scheduler.state
    assert state is not None
    (run,) = state.runs.values()
    path = Path(private_rays.command(here.home, state.ledger, run, "plain")[4])
    rays = private_rays.PrivateRays(here.home, here.scheduler.runtime)
    rays.begin(state)

    def shown() -> dict[str, Any]:
        rays.follow(state)
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def task(name: str, cpus: float, *argv: str, strategy: str = "HYBRID") -> str:
        request = TaskRequest(
            argv=argv, job="g", request=cpu(cpus), name=name, strategy=strategy, grace_s=0.1
        )
        return str(tasks.run(here.store, request, environment={"PATH": os.environ["PATH"]})["task_id"])

    def is_over(task_id: str) -> bool:
        return tasks.get_task(here.store, task_id)["state"] in ("FINISHED", "FAILED")

    def cpus_of(document: dict[str, Any]) -> list[float]:
        """Of the virtual nodes that the keeper has raylets for."""
        mine = [node for node in document["nodes"] if node["resources"] or not node["growth"]]
        return [node["resources"]["CPU"] for node in mine]

    assert cpus_of(shown()) == [1.0]
    assert shown()["nodes"][0]["unused"] == {"CPU": 1.0}
    elastic = {
        "most": {"CPU": 4.0},
        "largest": {"CPU": 4.0},
        "idle_s": state.lease_terms.idle_s,
        "raylets": {},
    }
    assert shown()["elastic"] == elastic
    task("ray-hold", 1, "sleep", "60", strategy=f"NODE:{run.vnode_id}")
    raylet = task(private_rays.RAYLET, 3, "sleep", "60")
    here.until(lambda: len(state.runs) == 3)
    assert here.store.value("SELECT count(*) FROM leases") == 1
    assert cpus_of(shown()) == [1.0]
    assert shown()["elastic"]["raylets"] == {raylet: True}
    more = task(private_rays.RAYLET, 1, "sleep", "60")
    here.turn()
    assert shown()["elastic"]["raylets"] == {raylet: True, more: False}, "the maximum is reached"
    tasks.cancel(here.store, more)
    tasks.cancel(here.store, raylet)
    here.until(lambda: is_over(raylet))
    assert cpus_of(shown()) == [1.0], "what is leased and idle is not the keeper's"
    assert here.store.value("SELECT count(*) FROM leases") == 1, "it could have been any task"
    gone = task(private_rays.RAYLET, 1, sys.executable, "-I", "-S", private_rays._JOIN, str(path), "/nowhere")
    here.until(lambda: is_over(gone))
    here.until(lambda: not here.store.value("SELECT count(*) FROM leases"))
    path.unlink()


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ({"flexible_resource_min": {"CPU": 1}}, {}),
        ({"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 1}}, None),
        ({"flexible_resource_min": {"CPU": 1}, "flexible_resource_max": {"CPU": 4}}, {"CPU": 40_000}),
        ({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}, None),
        (
            {
                "fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}],
                "flexible_resource_max": {"CPU": 4, "GPU": 1},
            },
            {"CPU": 60_000, "GPU": 10_000},
        ),
    ],
)
def test_how_far_a_ray_may_grow(text: dict[str, Any], limits: dict[str, int] | None) -> None:
    cluster = Cluster("j", "kPrimaryClusterID", JOB, parse_cluster_spec(text), False, 1)
    assert private_rays.limits(cluster) == limits


def test_an_update_of_a_job_whose_ray_is_gone_waits_for_nobody(here: Life) -> None:
    """Spec 9: a job's cluster is resized live; what its Ray has to drain is asked for before, and only then."""
    one, two = ({"nodes": [{"resources": {"CPU": count}}]} for count in (1, 2))
    spec_of = parse_cluster_spec({"fixed_size_nodes": [one, two]})
    queue(here, "g", "sleep", "60", entry=None, spec=spec_of)
    here.until(lambda: here.job("g")["status"] == "RUNNING")
    assert here.scheduler is not None
    state = here.scheduler.state
    assert state is not None
    (run,) = state.runs.values()
    path = Path(private_rays.command(here.home, state.ledger, run, "plain")[4])
    before = here.store.value("SELECT max(seq) FROM events")
    wanted = parse_cluster_spec({"fixed_size_nodes": [one]})
    with pytest.raises(Conflict):
        clusters.update(here.store, run.cluster_id, ClusterChange(spec=wanted), revision=1)
    assert here.store.value("SELECT max(seq) FROM events") == before, "it is only tried"
    clusters.update(here.store, run.cluster_id, ClusterChange(spec=wanted))
    assert here.store.value("SELECT count(*) FROM vnodes WHERE cluster_id = ?", run.cluster_id) == 1
    here.turn()
    path.unlink()
