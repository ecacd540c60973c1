"""spec 10, 11: why a task waits, as for jobs: the reason is true when shown, and each change was tried."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import CPU, SCALE
from vctl.errors import NotFound
from vctl.ops import jobs, nodes, submitting, tasks, views, why
from vctl.scheduler.explain import whatif
from vctl.spec.job_request import JobRequest
from vctl.spec.selectors import parse_selector
from vctl.spec.task_request import TaskRequest

pytestmark = spec("11.why")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job with a virtual node of 2 CPUs on each of two nodes."""
    with World(tmp_path / "state") as made:
        nodes.add(made.store, resources={CPU: 4 * SCALE}, count=2, template="t")
        group = Group((FixedNode({CPU: 2 * SCALE}),) * 2, "STRICT_SPREAD")
        spec = ClusterSpec(groups=(group,), flexible=False)
        request = JobRequest(argv=("x",), submission_id="j", spec=spec, cwd="/")
        submitting.submit(made.store, request, environment={"PATH": "/bin"})
        made.turn()
        yield made


def task(world: World, cpus: float = 1, **fields: Any) -> str:
    request = TaskRequest(argv=("sleep", "9"), job="j", request={CPU: round(cpus * SCALE)}, cwd="/", **fields)
    form = tasks.run(world.store, request, environment={"PATH": "/bin"})
    assert form["state_reason"] == "PendingEvaluation"
    world.turn()
    return str(form["task_id"])


def reported(world: World, task_id: str) -> tuple[str, str]:
    form = tasks.get_task(world.store, task_id)
    assert tasks.list_tasks(world.store, filters=[f"task_id={task_id}"])[0] == [form]
    return form["state_reason"], form["message"]


def test_a_node_that_does_not_exist_is_refused(world: World) -> None:
    before = list(world.store.db.iterdump())
    with pytest.raises(NotFound, match="there is no node nosuch in primary##j") as refused:
        task(world, strategy="NODE:nosuch")
    assert "NODE:nosuch:soft" in str(refused.value.fix)
    assert list(world.store.db.iterdump()) == before
    soft = task(world, strategy="NODE:nosuch:soft")
    assert tasks.get_task(world.store, soft)["state"] == "RUNNING"
    for named in ("t-01", "kPrimaryClusterID##j/1"):
        assert tasks.get_task(world.store, task(world, strategy=f"NODE:{named}"))["node_id"] == "t-01"


def test_who_holds_nothing_is_no_holder(world: World) -> None:
    answer = why.why(world.store, task(world, 3))
    assert [node["holders"] for node in answer["nodes"]] == [[], []]


def test_the_holders_are_the_tasks_on_the_virtual_node_itself(tmp_path: Path) -> None:
    """Two virtual nodes of a job on one node: each line had what both hold, more than its own total, by the job."""
    with World(tmp_path / "state") as world:
        nodes.add(world.store, resources={CPU: 4 * SCALE}, template="t")
        group = Group((FixedNode({CPU: 2 * SCALE}),) * 2, "STRICT_PACK")
        request = JobRequest(
            argv=("x",), submission_id="j", spec=ClusterSpec(groups=(group,), flexible=False), cwd="/",
            entry={CPU: SCALE // 2},
        )  # fmt: skip
        submitting.submit(world.store, request, environment={"PATH": "/bin"})
        world.turn()
        first, second = task(world, 1.5), task(world)
        answer = why.why(world.store, task(world, 2))
    assert [(node["vnode_id"], node["holders"]) for node in answer["nodes"]] == [
        (
            "kPrimaryClusterID##j/0",
            [
                {"task_id": first, "resources": {"CPU": 1.5}},
                {"submission_id": "j", "resources": {"CPU": 0.5}},
            ],
        ),
        ("kPrimaryClusterID##j/1", [{"task_id": second, "resources": {"CPU": 1.0}}]),
    ]


def test_a_node_that_left_is_named(world: World) -> None:
    full = task(world, 2, strategy="NODE:t-01")
    waits = task(world, 2, strategy="NODE:t-01", max_retries=3)
    assert reported(world, waits) == ("InsufficientResources", "needs 2 CPU on one node; free: t-01 0")
    nodes.drain(world.store, "t-01")  # no scheduler has looked since: the words are those of now all the same
    reason = ("Infeasible", "its strategy names t-01, where primary##j has no virtual node that takes work")
    assert reported(world, waits) == reason
    world.turn()
    assert reported(world, waits) == reason
    answer = why.why(world.store, waits)
    assert next((one["kind"], one["command"]) for one in answer["changes"]) == (
        "anywhere",
        (
            f"vctl task cancel {waits} && vctl task run --job 1 --num-cpus 2 --strategy NODE:t-01:spill"
            " --max-retries 3 --no-wait -- sleep 9"
        ),
    )
    assert tasks.get_task(world.store, full)["state"] == "RUNNING"


def test_a_cluster_grows_on_the_node_that_a_task_names(tmp_path: Path) -> None:
    """Spec 9, 10: a job without a spec has one CPU, which its command holds; a task on that node waited for ever."""
    with World(tmp_path / "state") as world:
        nodes.add(world.store, resources={CPU: 2 * SCALE}, count=2, template="t")
        submitting.submit(
            world.store, JobRequest(argv=("x",), submission_id="j", cwd="/"), environment={"PATH": "/bin"}
        )
        world.turn()
        for named in ("t-00", "t-01"):
            assert tasks.get_task(world.store, task(world, strategy=f"NODE:{named}"))["node_id"] == named
        waits = task(world, 2, strategy="NODE:t-01")
        assert reported(world, waits) == (
            "InsufficientResources",
            (
                "needs 2 CPU on one node with ray.io/node-id: t-01; free: t-01 0; in primary, from which"
                " primary##j can grow: t-01 1"
            ),
        )
        assert reported(world, task(world, 3, strategy="NODE:t-01"))[0] == "Infeasible"


def test_need_and_free_are_compared_on_the_node_concerned(world: World) -> None:
    task(world, 1.5, strategy="NODE:t-00")
    task(world, 1, strategy="NODE:t-01")
    waits = task(world, 2)
    assert reported(world, waits) == (
        "InsufficientResources",
        "needs 2 CPU on one node; free: t-01 1, t-00 0.5",
    )
    large = task(world, 3)
    assert reported(world, large) == (
        "Infeasible",
        "exceeds the capacity of primary##j: 3 CPU asked on one virtual node, the largest virtual node has 2 CPU",
    )
    (running,) = [run for run in world.processes.running() if run.startswith("task-2.")]
    world.processes.end(running, 0)
    world.turn()
    assert tasks.get_task(world.store, waits)["state"] == "RUNNING"
    assert reported(world, large)[0] == "Infeasible"


@spec("11.views")
def test_the_shown_name_of_a_virtual_node_is_accepted(world: World) -> None:
    """Tables show the alias of the primary cluster, also in front of the ids of jobs and virtual nodes."""
    here = task(world, strategy="NODE:primary##j/1")
    assert [
        one["task_id"] for one in tasks.list_tasks(world.store, filters=["vnode_id=primary##j/1"])[0]
    ] == [here]
    assert tasks.list_tasks(world.store, filters=["cluster_id!=primary##j"])[0] == []
    assert views.current_node(world.store, "primary##j/1")["node_id"] == "kPrimaryClusterID##j/1"


@spec("11.views", "13.output")
def test_instances_of_a_virtual_node_are_shares(world: World) -> None:
    """Amounts are numbers: the device itself is 1, and half of it 0.5, not their units of 1/10000."""
    nodes.add(world.store, resources={"GPU": 2 * SCALE}, count=1, template="g")
    group = Group((FixedNode({"GPU": SCALE}), FixedNode({"GPU": SCALE // 2})), "PACK")
    request = JobRequest(
        argv=("x",), submission_id="g", spec=ClusterSpec(groups=(group,), flexible=False), cwd="/"
    )
    submitting.submit(world.store, request, environment={"PATH": "/bin"})
    world.turn()
    shown = [one["instances"] for one in views.vnodes(world.store) if one["cluster_id"].endswith("##g")]
    assert [one["GPU"] for one in shown] == [{"0": 1.0}, {"1": 0.5}]


def test_labels_that_no_virtual_node_has_are_infeasible(world: World) -> None:
    """spec 10: what no virtual node could ever hold; the cluster is of a fixed size."""
    waits = task(world, selector=parse_selector({"zone": "x"}, ""))
    reason = ("Infeasible", "needs 1 CPU on one node with zone: x; free: no node of the cluster matches")
    assert reported(world, waits) == reason
    large = task(world, 3, selector=parse_selector({"ray.io/node-id": "t-01"}, ""))
    assert reported(world, large)[0] == "Infeasible"
    assert "the largest virtual node has 2 CPU" in reported(world, large)[1]
    fits = task(world, selector=parse_selector({"ray.io/node-id": "t-01"}, ""))
    assert tasks.get_task(world.store, fits)["node_id"] == "t-01"


def test_why_answers_as_for_jobs(world: World, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from vctl.cli.app import run

    task(world, 2, strategy="NODE:t-00")
    task(world, 2, strategy="NODE:t-01")
    task(world, 2)
    waits = task(world, 1)
    before = list(world.store.db.iterdump())
    answer = why.why(world.store, waits)
    assert list(world.store.db.iterdump()) == before
    assert {"job_id", "status", "state_reason", "queue_position", "ahead", "nodes", "changes"} <= set(answer)
    assert (answer["task_id"], answer["job_id"], answer["queue_position"]) == (waits, 1, 2)
    assert answer["ahead"] == [{"task_id": "task-3", "resources": {"CPU": 2.0}}]
    assert [(node["vnode_id"], node["verdict"], node["need"], node["have"]) for node in answer["nodes"]] == [
        (f"kPrimaryClusterID##j/{n}", "feasible but not available", {"CPU": 1.0}, {"CPU": 0.0}) for n in (0, 1)
    ]  # fmt: skip
    kinds = [change["kind"] for change in answer["changes"]]
    assert kinds == ["request"], answer["changes"]  # what came free would go to the one ahead
    monkeypatch.setenv("VCTL_HOME", str(world.home))
    monkeypatch.setenv("VCTL_LOCAL_NODE", "0")
    monkeypatch.setenv("VCTL_AUTOSTART", "0")  # the world schedules
    assert run(["why", waits, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["message"] == answer["message"]
    assert run(["why", waits]) == 0
    assert capsys.readouterr().out.startswith(
        f"{waits} waits (InsufficientResources): needs 1 CPU on one node; "
    )
    for line in answer["changes"][0]["command"].split(" && "):
        assert run(shlex.split(line)[1:]) == 0
    world.turn()
    assert tasks.get_task(world.store, "last")["state"] == "RUNNING"
    assert jobs.get_job(world.store, "j")["status"] == "RUNNING"


@spec("13.output")
def test_what_the_scheduler_says_has_the_name_of_the_cluster_that_screens_have(world: World) -> None:
    task(world, 2)
    task(world, 2)
    name = task(world, 2)
    ((said,),) = world.store.db.execute("SELECT message FROM tasks WHERE task_id = ?", (name,)).fetchall()
    assert said.endswith(
        "the 2 virtual nodes of primary##j; free: primary##j/0 nothing, primary##j/1 nothing"
    )


def test_a_full_node_that_a_task_prefers_is_named(world: World) -> None:
    """Spec 10: it waits for that node alone while it could hold it; its reason, its nodes and its changes say so."""
    task(world, 2, strategy="NODE:t-01")
    waits = task(world, 2, strategy="NODE:t-01:soft")
    assert reported(world, waits) == ("InsufficientResources", "needs 2 CPU on one node; free: t-01 0")
    answer = why.why(world.store, waits)
    assert [(one["node_id"], one["verdict"], one["note"]) for one in answer["nodes"]] == [
        ("t-00", "infeasible", "the strategy names t-01"),
        ("t-01", "feasible but not available", None),
    ]
    commands = {one["kind"]: one["command"] for one in answer["changes"]}
    assert f"task cancel {waits} && vctl task run" in commands["anywhere"]
    assert "--strategy NODE:t-01:spill" in commands["anywhere"]
    nodes.drain(world.store, "t-01")
    assert reported(world, waits) == (
        "PendingEvaluation",
        "it can start in the next round of the scheduler; needs 2 CPU on one node; free: t-00 2",
    )
    world.turn()
    assert tasks.get_task(world.store, waits)["node_id"] == "t-00"
    large = task(world, 3, strategy="NODE:t-00:soft")
    assert reported(world, large) == (
        "Infeasible",
        "exceeds the capacity of primary##j: 3 CPU asked on one virtual node, the largest virtual node has 2 CPU",
    )


def test_a_change_is_judged_by_whose_turn_it_is(world: World) -> None:
    """Spec 10, 11: tasks of 2 CPU run, so the task of 1.5 CPU is next, though one of 2 CPU came before it."""
    full = [task(world, 2) for _ in range(2)]
    task(world, 2)
    small = task(world, 1.5)
    answer = why.why(world.store, small)
    assert (answer["queue_position"], answer["ahead"]) == (1, [])
    commands = [one["command"] for one in answer["changes"]]
    assert f"vctl task cancel {full[0]}" in commands
    world.processes.end(world.store.value("SELECT run_id FROM runs WHERE task_id = ?", full[0]), 0)
    world.turn()
    assert tasks.get_task(world.store, small)["state"] == "RUNNING"


def test_with_too_much_to_try_the_answer_about_a_task_has_what_is_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task(world, 2)
    task(world, 2)
    waits = task(world, 2)
    known = why.why(world.store, waits)
    monkeypatch.setattr(whatif, "MOST_WORK", 0)
    answer = why.why(world.store, waits)
    assert answer == known | {"changes": [], "searched": False, "cut": why.NONE_TESTED}
    assert known["changes"]
