"""spec 11, 13: a job that needs what its own submitter holds is told so; ``why`` says it too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World
from vctl.core.caller import Caller
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import CPU, SCALE
from vctl.ops import clusters, jobs, nodes, submitting, tasks, why
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array, parse_dependency
from vctl.spec.task_request import TaskRequest

pytestmark = spec("11.why", "13.waiting")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "state") as made:
        nodes.add(made.store, resources={CPU: 4 * SCALE}, count=1, template="t")
        yield made


def submit(
    world: World, name: str, cpus: int, inside: str | None = None, cluster: str | None = None, **fields: Any
) -> None:
    group = Group((FixedNode({CPU: cpus * SCALE}),))
    spec = ClusterSpec(groups=(group,), flexible=False)
    request = JobRequest(argv=("x",), submission_id=name, spec=spec, cwd="/", cluster=cluster, **fields)
    number = None if inside is None else jobs.get_job(world.store, inside)["job_id"]
    world.store.caller = None if inside is None or number is None else Caller(number, inside)
    submitting.submit(world.store, request, environment={"PATH": "/bin"})
    world.store.caller = None
    world.turn()


def task(world: World, cpus: int, owner: str | None = None) -> str:
    inside = {"VCTL_SUBMISSION_ID": "j", "VCTL_CLUSTER_ID": "kPrimaryClusterID##j"}
    around = {"PATH": "/bin", **inside, **({"VCTL_TASK_ID": owner} if owner else {})}
    request = TaskRequest(argv=("x",), job="j", request={CPU: cpus * SCALE}, cwd="/")
    form = tasks.run(world.store, request, environment=around)
    world.turn()
    return str(form["task_id"])


def said(world: World, name: str) -> str | None:
    """The warning; ``why`` has the same."""
    found = why.waits_for_itself(world.store, name)
    assert why.why(world.store, name)["waits_for_itself"] == found
    return found


def test_a_job_that_needs_what_its_submitter_holds(world: World) -> None:
    submit(world, "outer", 4)
    submit(world, "inner", 2, inside="outer")
    assert said(world, "inner") == (
        "inner cannot start before outer ends: it needs resources that are held there. outer submitted it; if outer"
        " waits for inner, both wait forever."
    )
    assert said(world, "outer") is None


def test_one_for_which_there_is_room_beside_its_submitter(world: World) -> None:
    """Others hold the rest now; they will end by themselves."""
    submit(world, "outer", 2)
    submit(world, "other", 2)
    submit(world, "inner", 2, inside="outer")
    assert jobs.get_job(world.store, "inner")["status"] == "PENDING"
    assert said(world, "inner") is None
    submit(world, "wider", 3, inside="outer")
    assert str(said(world, "wider")).startswith("wider cannot start before outer ends")
    submit(world, "stranger", 3)
    assert said(world, "stranger") is None


def test_deeper(world: World) -> None:
    submit(world, "outer", 2)
    submit(world, "middle", 1, inside="outer")
    submit(world, "inner", 2, inside="middle")
    assert str(said(world, "inner")).startswith("inner cannot start before middle or outer ends")
    submit(world, "small", 1, inside="middle")
    assert said(world, "small") is None  # it runs


@pytest.mark.parametrize("condition", ["ok", "any", "notok"])
def test_a_job_that_depends_on_its_submitter(world: World, condition: str) -> None:
    """There is room for all of them; also through a job between them."""
    submit(world, "outer", 1)
    submit(world, "inner", 1, inside="outer", after=(parse_dependency(f"{condition}:outer"),))
    assert said(world, "inner") == (
        "inner cannot start before outer ends: it waits for outer (--after). outer submitted it; if outer waits for"
        " inner, both wait forever."
    )
    submit(world, "next", 1, inside="outer", after=(parse_dependency("any:inner"),))
    assert str(said(world, "next")).startswith("next cannot start before outer ends: it waits for outer")
    submit(world, "stranger", 1, after=(parse_dependency("any:outer"),))
    assert said(world, "stranger") is None
    submit(world, "other", 1)
    submit(world, "late", 1, inside="outer", after=(parse_dependency("any:other"),))
    assert said(world, "late") is None


def test_a_member_of_an_array_that_depends_on_the_array(world: World) -> None:
    submit(world, "all", 1, array=parse_array("0-1"))
    submit(world, "inner", 1, inside="all_1", after=(parse_dependency("any:all"),))
    assert str(said(world, "inner")).startswith("inner cannot start before all_1 ends: it waits for all_1")


@pytest.mark.parametrize(
    ("limit", "of"), [("max_running_jobs", ""), ("max_running_per_user", " of each user")]
)
def test_a_limit_of_running_jobs(world: World, limit: str, of: str) -> None:
    """The limit of a user was not looked at: a job that waited for its submitter for ever was not warned of."""
    clusters.update(world.store, "primary", ClusterChange(queue={limit: 1}))
    submit(world, "outer", 1)
    submit(world, "inner", 1, inside="outer")
    assert f"at most 1{of} may run at a time" in str(said(world, "inner"))


def test_in_a_cluster_that_can_grow(world: World) -> None:
    """What the parent above has free counts, what the submitter made it take does not."""
    spec = parse_cluster_spec({"flexible_resource_max": {"CPU": 3}}, logical=True)
    clusters.create(world.store, "team", ClusterChange(divisible=True, spec=spec))
    submit(world, "outer", 2, cluster="team")
    submit(world, "fits", 1, inside="outer", cluster="team")
    assert said(world, "fits") is None
    submit(world, "beyond", 2, inside="outer", cluster="team")
    assert str(said(world, "beyond")).startswith("beyond cannot start before outer ends")


def test_a_task_that_needs_what_its_owner_holds(world: World) -> None:
    submit(world, "j", 3)
    first = task(world, 2)
    second = task(world, 2, owner=first)
    assert str(said(world, second)).startswith(f"{second} cannot start before {first} ends: it needs 2 CPU")
    third = task(world, 2)  # the command of the job holds nothing and started both
    assert said(world, third) is None
    assert said(world, task(world, 9)) is None  # too large, whoever holds what
