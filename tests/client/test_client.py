"""The typed client: every verb on a state directory and on a server, with the command line's errors."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import vctl
from tests.client.conftest import PATIENCE_S, Site
from tests.specification import spec
from vctl.client.state_api import Filter
from vctl.errors import BadSpec, Conflict, Infeasible, NotFound, NotPermitted, TimedOut, Unreachable
from vctl.spec import documents

pytestmark = spec("15.client")

PLACES = ("directory", "server")


@pytest.fixture(params=PLACES)
def client(request: pytest.FixtureRequest, site: Site) -> vctl.Client:
    if request.param == "directory":
        return site.client
    found: vctl.Client = request.getfixturevalue("served")
    return found


def test_a_job_from_submit_to_delete(client: vctl.Client, tmp_path: Path) -> None:
    """Nobody schedules but a child, here or of the server, for as long as somebody waits."""
    client.physical_nodes.add(resources={"CPU": 4}, count=2)
    job = client.submit(
        "sh -c 'echo $WHO is in; pwd; exit 3'",
        virtual_cluster=vctl.VirtualCluster(flexible_resource_min={"CPU": 1}),
        name="first",
        env={"WHO": "ana"},
        working_dir=tmp_path,
        metadata={"team": "a"},
        time_limit="1m",
        hold=True,  # until its state has been read: a server starts a scheduler at once
    )
    assert (job.status(), job.info()["state_reason"]) == ("PENDING", "Held")
    job.release()
    assert job.wait(timeout_s=PATIENCE_S) == 3
    assert job.logs() == f"ana is in\n{tmp_path}\n"
    assert job.logs(tail=1) == client.jobs.logs("last", tail=1) == f"{tmp_path}\n"
    assert "".join(job.follow()) == job.logs()
    info = job.info()
    assert (info["status"], info["exit_code"], info["name"], info["metadata"]) == (
        "FAILED", 3, "first", {"team": "a"},
    )  # fmt: skip
    assert client.jobs.get(info["job_id"]) == client.jobs.get(job.submission_id) == job
    assert [one["submission_id"] for one in client.jobs.list(filters=[("status", "=", "FAILED")])] == [
        job.submission_id
    ]
    assert client.jobs.list(filters=["status!=FAILED"]) == []
    assert client.jobs.wait("last") == 3
    job.delete()
    with pytest.raises(NotFound) as caught:
        job.info()
    assert (caught.value.code, caught.value.exit_code) == ("NotFound", 4)


@spec("13.help")
def test_the_status_of_a_job_is_also_filtered_as_its_state(client: vctl.Client) -> None:
    """As docs/python.md shows it, and as for all other lists; also where no job is."""
    assert client.jobs.list(filters=["state=RUNNING"]) == []
    client.physical_nodes.add(resources={"CPU": 1})
    job = client.submit(["true"])
    assert job.wait() == 0
    for name in ("state", "status"):
        for filters, count in (
            ([f"{name}=SUCCEEDED"], 1),
            ([(name, "=", "succeeded")], 1),
            ([f"{name}!=SUCCEEDED"], 0),
            ([f"{name}=RUNNING,FAILED"], 0),
        ):
            assert len(client.jobs.list(filters=filters)) == count, filters
            assert len(client.list_jobs(filters=filters)) == count, filters


def test_stopping(client: vctl.Client) -> None:
    client.physical_nodes.add(resources={"CPU": 2})
    job = client.submit(["sleep", "100"], num_cpus=2, submission_id="long")
    behind = client.submit(["sleep", "100"], num_cpus=2, priority=-1, hold=True)
    threading.Timer(1.0, lambda: client.jobs.stop("long", wait=False)).start()
    with pytest.raises(TimedOut) as caught:
        job.wait(timeout_s=0.1)
    assert caught.value.exit_code == 7
    assert job.wait(timeout_s=PATIENCE_S) == 143
    assert behind.info()["state_reason"] == "Held"
    assert client.jobs.edit(behind.submission_id, priority=5)["priority"] == 5
    client.jobs.release(behind.submission_id)
    assert behind.stop(grace_s=0)["status"] == "STOPPED"  # whether or not it has started since
    again = client.jobs.rerun("long")
    assert again.ref != "long"
    assert again.info()["entrypoint"] == "sleep 100"
    assert again.stop(grace_s=0)["status"] == "STOPPED"
    assert len(client.jobs.delete("long", behind.submission_id)) == 2


def test_a_submit_counts_no_jobs_before_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asked for its place in the queue, and to count takes as long as all else that a submit reads."""
    site.client.physical_nodes.add(resources={"CPU": 4})
    monkeypatch.setattr("vctl.store.queues.position", None)
    assert site.client.submit("true", submission_id="mine", hold=True).ref == "mine"


def test_an_array(site: Site) -> None:
    client = site.client
    client.physical_nodes.add(resources={"CPU": 4})
    job = client.submit(["sh", "-c", "exit $VCTL_ARRAY_INDEX"], array="0-2%2", submission_id="many")
    assert job.wait(timeout_s=PATIENCE_S) == 1
    assert client.jobs.get("many_2").wait() == 2
    assert client.jobs.get("many_0").status() == "SUCCEEDED"
    assert job.status() == "FAILED"


def test_what_waits_asks_for_something_else(client: vctl.Client, tmp_path: Path) -> None:
    """In the directory and through a server; what a verb or a handle is not given stays."""
    client.physical_nodes.add(resources={"CPU": 4})
    client.submit(["true"], submission_id="first", hold=True)
    shell = ["sh", "-c", "echo $A $B $PWD"]
    job = client.submit(shell, submission_id="a", hold=True, env={"B": "kept"}, time_limit="1m")
    form = job.edit(num_cpus=2, env={"A": "new"}, working_dir=tmp_path, after=["ok:first"], priority=4)
    assert (form["resources"], form["priority"], form["time_limit_s"]) == ({"CPU": 2.0}, 4, 60)
    assert client.jobs.edit("a", time_limit="none", after="none", name=None)["time_limit_s"] is None
    with pytest.raises(BadSpec, match="first would wait for itself"):
        client.jobs.edit("first", after=["ok:first"])
    with pytest.raises(Infeasible):
        job.edit(num_cpus=400)
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_cpu'"):
        job.edit(num_cpu=1)  # type: ignore[call-arg]
    job.release()
    assert job.wait(timeout_s=PATIENCE_S) == 0
    assert job.logs() == f"new kept {tmp_path}\n"
    with pytest.raises(Conflict, match="is SUCCEEDED"):
        job.edit(priority=1)
    sweep = client.submit(["true"], array="0-9%2", submission_id="sweep", hold=True)
    assert sweep.edit(max_running=4)["array"]["at_once"] == 4  # type: ignore[typeddict-item]
    assert sweep.edit(max_running="none")["array"]["at_once"] is None  # type: ignore[typeddict-item]


def test_a_sweep_is_repaired(client: vctl.Client, tmp_path: Path) -> None:
    """What failed runs again with more time in the same array, in the directory and through a server."""
    client.physical_nodes.add(resources={"CPU": 4})
    fails = "case $VCTL_ARRAY_INDEX in 1) exit 3;; 2) sleep 9;; esac"
    line = f"echo try $VCTL_ATTEMPT; test -e {tmp_path}/data && exit; {fails}"
    sweep = client.submit(
        ["sh", "-c", line], array="0-3", submission_id="sweep", time_limit=0.5, metadata={"a": "1"}
    )
    assert sweep.wait(timeout_s=PATIENCE_S) == 3
    failures = sweep.info()["array"]["failures"]  # type: ignore[typeddict-item]  # an array
    assert [(one["state_reason"], one["exit_code"], one["count"], one["indices"]) for one in failures] == [
        ("NonZeroExit", 3, 1, "1"), ("TimeLimit", 124, 1, "2"),
    ]  # fmt: skip
    (tmp_path / "data").touch()
    again = client.jobs.rerun("sweep", failed=True, time_limit="1m", priority=3, metadata={"b": "2"})
    assert again == sweep
    assert sweep.wait(timeout_s=PATIENCE_S) == 0
    assert client.jobs.wait("sweep_[0-2]", "sweep_3", timeout_s=PATIENCE_S) == 0
    assert sweep.logs() == "0: try 1\n1: try 1\n1: try 2\n2: try 1\n2: try 2\n3: try 1\n"
    assert sorted("".join(sweep.follow()).splitlines()) == sorted(sweep.logs().splitlines())
    jobs = {one["array_index"]: one for one in client.jobs.list()}
    assert [jobs[index]["attempt"] for index in range(4)] == [1, 2, 2, 1]
    assert [jobs[index]["time_limit_s"] for index in range(4)] == [0.5, 60, 60, 0.5]
    assert [jobs[index]["metadata"] for index in (0, 1)] == [{"a": "1"}, {"a": "1", "b": "2"}]
    with pytest.raises(Conflict):
        sweep.rerun(failed=True)
    with pytest.raises(NotFound, match="'swoop_"):
        client.jobs.wait("swoop_*")
    with pytest.raises(BadSpec, match="names 4 jobs"):
        client.jobs.get("sweep_?")
    with pytest.raises(TypeError, match=r"rerun.*unexpected keyword argument 'limit'"):
        client.jobs.rerun("sweep", limit=1)  # type: ignore[call-arg]
    other = client.jobs.rerun("sweep_1", time_limit=None, num_cpus=0.5, submission_id="other")
    assert (other.ref, other.info()["time_limit_s"], other.info()["resources"]["CPU"]) == ("other", None, 0.5)
    assert len(client.jobs.delete("sweep_2-3")) == 2
    assert sweep.info()["array"]["count"] == 2  # type: ignore[typeddict-item]


def test_tasks(client: vctl.Client) -> None:
    client.physical_nodes.add(resources={"CPU": 4})
    job = client.submit("sleep 100", num_cpus=2, nodes=1, hold=True)
    with pytest.raises(Conflict):
        client.run("true", job=job.submission_id)
    job.release()
    with pytest.raises(TimedOut):
        job.wait(timeout_s=0.5)
    give_up = time.monotonic() + PATIENCE_S
    while job.status() != "RUNNING" and time.monotonic() < give_up:
        time.sleep(0.05)
    task = client.run("sh -c 'echo $HELLO; exit 4'", job=job.submission_id, env={"HELLO": "you"})
    assert task.wait(timeout_s=PATIENCE_S) == 4
    assert task.logs() == "you\n" == "".join(task.follow())
    stuck = client.tasks.run("true", num_cpus=64, job=job.submission_id, name="stuck", strategy="SPREAD")
    assert client.tasks.wait(task.task_id) == 4
    assert client.tasks.get("last") == stuck
    assert client.tasks.cancel(stuck.task_id, wait=False)["state"] == "FAILED"
    assert [one["name"] for one in client.tasks.list()] == [None, "stuck"]
    filters: dict[tuple[Filter, ...], list[str | None]] = {
        ("state=failed",): [None, "stuck"],
        ("state=RUNNING,FINISHED",): [],
        ("state!=RUNNING", "name=stuck"): ["stuck"],
        (f"task_id={task.task_id}", "resources!=x"): [None],
        (("job_id", "=", job.info()["job_id"]),): [None, "stuck"],
    }
    for chosen, names in filters.items():
        assert [one["name"] for one in client.tasks.list(filters=chosen)] == names, chosen
    with pytest.raises(BadSpec, match="unknown key 'stat'"):
        client.tasks.list(filters=["stat=FAILED"])
    inside = vctl.Client(client.backend, job.info()["cluster_id"])
    assert [one["name"] for one in inside.tasks.list(limit=1)] == [None]
    assert client.summarize_tasks()["counts"] == {"FAILED": 2}
    job.stop()
    assert job.status() == "STOPPED"


@spec("4.labels")
def test_system_labels_are_selected_by_ids_as_they_are(client: vctl.Client) -> None:
    client.physical_nodes.add(resources={"CPU": 4}, count=2, template="4c")

    def ask(**selector: object) -> vctl.VirtualCluster:
        labels = {f"ray.io/{name}": one for name, one in selector.items()}
        node = vctl.FixedSizeNode(resources={"CPU": 3}, label_selector=labels)
        return vctl.VirtualCluster(fixed_size_nodes=[vctl.FixedSizeNodes(nodes=[node])])

    name = "j" * 70
    job = client.submit(
        "sleep 100", submission_id=name,
        virtual_cluster=ask(vnode_id=vctl.NotIn("4c-00"), vcluster_id=vctl.In("kPrimaryClusterID", "other##s")),
    )  # fmt: skip
    give_up = time.monotonic() + PATIENCE_S
    while not job.info()["node_ids"] and time.monotonic() < give_up:
        time.sleep(0.05)
    assert job.info()["node_ids"] == ["4c-01"]
    own = f"kPrimaryClusterID##{name}"
    for selector in (
        {"ray.io/vcluster_id": own},
        {"ray.io/vnode_id": f"in({own}/0)", "ray.io/node-id": "4c-01"},
    ):
        assert client.run("true", job=name, label_selector=selector).wait(timeout_s=PATIENCE_S) == 0
    elsewhere = client.tasks.run("true", job=name, label_selector={"ray.io/vcluster_id": f"!{own}"})
    assert elsewhere.info()["state"] == "PENDING_NODE_ASSIGNMENT"
    with pytest.raises(Infeasible, match=r"ray\.io/vcluster_id: kPrimaryClusterID##gone"):
        client.submit("true", virtual_cluster=ask(vcluster_id="kPrimaryClusterID##gone"))
    with pytest.raises(BadSpec, match="is not a virtual cluster id"):
        client.submit("true", virtual_cluster=ask(vcluster_id="kPrimaryClusterID##"))
    job.stop()


@spec("4.errors")
def test_a_null_amount_is_refused(client: vctl.Client) -> None:
    client.physical_nodes.add(resources={"CPU": 4}, template="4c")
    nothing: Any = {"CPU": None}
    with pytest.raises(BadSpec, match=r"^flexible_resource_min\.CPU: null is no amount"):
        vctl.VirtualCluster(flexible_resource_min=nothing)
    wanted: dict[str, Any]
    for wanted, path in (
        ({"flexible_resource_min": nothing}, "flexible_resource_min.CPU"),
        ({"flexibleResourceMax": nothing}, "flexibleResourceMax.CPU"),
        (
            {"fixed_size_nodes": [{"nodes": [{"resources": nothing}]}]},
            "fixed_size_nodes[0].nodes[0].resources.CPU",
        ),
        ({"replica_sets": {"4c": None}}, "replica_sets.4c"),
    ):
        for ask in (
            lambda wanted=wanted: client.submit("true", virtual_cluster=wanted),
            lambda wanted=wanted: client.clusters.create("a", spec=wanted),
        ):
            with pytest.raises(BadSpec) as refused:
                ask()
            assert str(refused.value.details["path"]).endswith(path)
            assert refused.value.fix
    for ask in (
        lambda: client.physical_nodes.add(resources=nothing),
        lambda: client.physical_nodes.update("4c-00", resources=nothing),
        lambda: client.clusters.create("a", replica_sets={"4c": None}),
        lambda: client.clusters.create("a", spec={}, lending_limit=nothing),
        lambda: client.clusters.create("a", spec={}, borrow_limit=nothing),
    ):
        with pytest.raises(BadSpec, match="null"):
            ask()
    assert (client.clusters.list(), client.jobs.list(), len(client.list_nodes())) == (
        client.clusters.list(),
        [],
        1,
    )


@spec("7.revision")
def test_every_update_checks_the_revision_and_makes_a_new_one(client: vctl.Client) -> None:
    client.physical_nodes.add(resources={"CPU": 4}, count=2, template="4c")
    client.clusters.create("whole", replica_sets={"4c": 1})
    client.clusters.create("part", spec={"flexible_resource_min": {"CPU": 1}})
    changes: list[tuple[str, dict[str, Any]]] = [
        ("whole", {"replica_sets": {"4c": 1}}), ("whole", {"queue": {"order": "fifo"}}),
        ("part", {"spec": {"flexible_resource_min": {"CPU": 2}}}), ("part", {"lending_limit": {"CPU": 1}}),
        ("part", {"borrow_limit": {}}), ("part", {"queue": {"weight": 2, "max_running_jobs": None}}),
        ("primary", {"queue": {"order": "fair"}}), ("primary", {"queue": {"ageing_s": 60}}),
    ]  # fmt: skip
    for name, change in changes:
        before = client.clusters.get(name)["revision"]
        with pytest.raises(Conflict, match=rf"The revision \(5\) is expired, .* {before}"):
            client.clusters.update(name, revision=5, **change)
        assert client.clusters.get(name)["revision"] == before
        assert client.clusters.update(name, revision=str(before), **change)["revision"] > before


def test_clusters(client: vctl.Client) -> None:
    client.physical_nodes.add(resources={"CPU": 4}, count=4, template="4c")
    made = client.clusters.create("team", divisible=True, replica_sets={"4c": 2})
    assert (made["replica_sets"], made["total_resources"]) == ({"4c": 2}, {"CPU": 8.0})
    spec = vctl.VirtualCluster(flexible_resource_min={"CPU": 2})
    client.clusters.create("part", parent="team", spec=spec, borrow_limit={"CPU": 1})
    client.clusters.create("other", spec={"flexible_resource_min": {"CPU": 1}})
    own = vctl.Client(client.backend, "team")
    assert [one["cluster_id"] for one in own.list_clusters()] == ["team", "part"]
    assert {one["cluster_id"] for one in own.list_vnodes()} == {"team", "part"}
    assert (own.cluster_resources(), own.available_resources()) == ({"CPU": 8.0}, {"CPU": 6.0})
    assert len(own.nodes()) == len(own.list_nodes()) == 2
    assert len(client.list_nodes()) == 4
    assert own.clusters.tree()["tree"][0]["cluster_id"] == "part"
    assert own.clusters.get()["children"] == ["part"]
    assert {one["cluster_id"] for one in own.list_events()} <= {"team", "part"}
    info = own.current_cluster()
    assert (info.cluster_id(), [str(one) for one in info.child_clusters()]) == (
        "team", ["VirtualClusterInfo('part')"],
    )  # fmt: skip
    with pytest.raises(Conflict) as caught:
        client.clusters.update("team", replica_sets={"4c": 9})
    assert caught.value.details["replicaSetsToRecommend"] == {"4c": 1}
    with pytest.raises(Conflict):
        client.clusters.delete("team")
    assert client.clusters.stop("part", message="later")["state"] == "STOPPED"
    assert client.clusters.resume("part")["state"] == "ACTIVE"
    client.clusters.delete("part")
    client.clusters.update("team", replica_sets={"4c": 1})
    assert client.clusters.delete("team")["state"] == "REMOVED"
    document = client.export()
    assert client.plan(document)["changes"] == []


def test_nodes_and_views(client: vctl.Client) -> None:
    (node,) = client.physical_nodes.add(
        resources={"CPU": 4, "memory": "1GiB"}, node_id="n", labels={"a": "b"}
    )
    assert node["resources"] == {"CPU": 4.0, "memory": float(2**30)}
    assert client.physical_nodes.update("n", resources={"CPU": 6})["resources"]["CPU"] == 6
    assert client.physical_nodes.drain("n", reason="disk")["reason"] == "disk"
    assert client.physical_nodes.undrain("n")["state"] == "ALIVE"
    assert client.physical_nodes.heartbeat("n", timeout_s=100)["heartbeat_timeout_s"] == 100
    client.submit("true", num_cpus=6, submission_id="asks", hold=True)
    assert [one["by"] for one in client.demand()] == [["asks"]]
    assert client.leases() == []
    assert client.status()["queue"]["pending"] == 1
    assert client.scheduler()["running"] is False
    assert [one["kind"] for one in client.events(job="asks")] == ["job.submitted"]
    assert client.doctor(prove=True)["findings"] == []
    assert client.replay(dry_run=True)
    assert client.prune("1h")["jobs"] == []
    assert client.physical_nodes.kill("n")["state"] == "DEAD"
    client.physical_nodes.remove("n")
    assert client.physical_nodes.list() == []


REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "never possible": ({"entrypoint": "true", "num_cpus": 100}, Infeasible),
    "a wrong field": (
        {"entrypoint": "true", "virtual_cluster": {"fixed_size_nodes": [{"cpus": 1}]}},
        BadSpec,
    ),
    "two ways": ({"entrypoint": "true", "num_cpus": 1, "virtual_cluster": {}}, BadSpec),
    "words of a shell": ({"entrypoint": "echo a && echo b"}, BadSpec),
    "open quotes": ({"entrypoint": "echo 'a"}, BadSpec),
    "no command": ({"entrypoint": []}, BadSpec),
    "no such cluster": ({"entrypoint": "true", "cluster": "nobody"}, NotFound),
    "a duration": ({"entrypoint": "true", "time_limit": "soon"}, BadSpec),
}


@pytest.mark.parametrize(("asked", "error"), REFUSED.values(), ids=REFUSED)
def test_a_refused_submit_leaves_nothing(site: Site, asked: dict[str, Any], error: type[Exception]) -> None:
    site.nodes(1)
    with pytest.raises(error) as caught:
        site.client.submit(**asked)
    assert isinstance(caught.value, vctl.VctlError)
    assert caught.value.fix
    assert site.client.jobs.list() == []


WRONG_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "a number as name": ({"name": 5}, "name"),
    "nothing as name": ({"name": None}, "name"),
    "a number as variables": ({"env": 5}, "env"),
    "no number as variables": ({"env": 0}, "env"),
    "a variable that is a number": ({"env": {"A": 1}}, "env.A"),
    "a number as metadata": ({"metadata": 5}, "metadata"),
    "an empty list as metadata": ({"metadata": []}, "metadata"),
    "a number in metadata": ({"metadata": {"a": 1}}, "metadata.a"),
    "a number in labels": ({"labels": {"a": 1}}, "labels.a"),
    "labels that are no text": ({"labels": {"a": "\udc80"}}, "labels.a"),
    "a text as priority": ({"priority": "high"}, "priority"),
    "a part of a priority": ({"priority": 1.5}, "priority"),
    "true as priority": ({"priority": True}, "priority"),
    "a priority out of range": ({"priority": 2**40}, "priority"),
    "a number as yes": ({"per_node": 1}, "per_node"),
    "a text as yes": ({"hold": "no"}, "hold"),
    "a text as number of nodes": ({"nodes": "2"}, "nodes"),
    "true as number of nodes": ({"nodes": True}, "nodes"),
    "a number as id": ({"submission_id": 5}, "submission_id"),
    "a number as cluster": ({"cluster": 5}, "cluster"),
    "a text as dependencies": ({"after": "ok:1"}, "after"),
    "a number as dependency": ({"after": [1]}, "after[0]"),
    "a number as causes": ({"retry_on": 5}, "retry_on"),
    "a number as word": ({"entrypoint": ["sleep", 1]}, "entrypoint[1]"),
    "a number as command": ({"entrypoint": 5}, "entrypoint"),
    "a number as directory": ({"working_dir": 5}, "working_dir"),
    "a number as array": ({"array": 5}, "array"),
    "a number as signal": ({"signal": 5}, "signal"),
    "a text as begin": ({"begin_at": "soon"}, "begin_at"),
    "a begin that never comes": ({"begin_at": float("nan")}, "begin_at"),
    "a number in quotes as begin": ({"begin_at": "5"}, "begin_at"),
    "true as begin": ({"begin_at": True}, "begin_at"),
    "true as CPUs": ({"num_cpus": True}, "num_cpus"),
    "a list as CPUs": ({"num_cpus": [1]}, "num_cpus"),
    "CPUs beside a spec": ({"num_cpus": 1, "virtual_cluster": {}}, "num_cpus"),
    "no nodes": ({"nodes": 0}, "nodes"),
    "a part of a GPU": ({"entrypoint_num_gpus": 1.5}, "entrypoint_num_gpus"),
}


def test_values_of_another_type_are_refused_as_by_a_server(site: Site, served: vctl.Client) -> None:
    site.nodes(1)
    for case, (asked, path) in WRONG_VALUES.items():
        for client in (site.client, served):
            with pytest.raises(BadSpec) as caught:
                client.submit(**{"entrypoint": "true", **asked})
            assert caught.value.fix, case
            if client is site.client:
                assert caught.value.details["path"] == path, case
                assert caught.value.problem.startswith(path + ": "), case
    with pytest.raises(BadSpec) as caught:  # JSON makes a text of it
        site.client.submit("true", env={1: "a"})  # type: ignore[dict-item]  # as an untyped program may
    assert caught.value.details["path"] == "env"
    assert site.client.jobs.list() == []
    job = site.client.submit("true", metadata={"a": "1"}, labels={"a b": "c"}, env={"A": ""}, hold=True)
    assert served.submit("true", labels={"a b": "c"}, hold=True).info()["metadata"] == {"a b": "c"}
    assert job.info()["metadata"] == {"a": "1", "a b": "c"}


LIMITS: dict[str, object] = {"below 0": -1, "a text": "1", "a part": 1.5, "true": True}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_a_limit_that_is_none_is_refused(site: Site, limit: Any) -> None:
    site.nodes(2)
    client = site.client
    state = (client.list_vnodes, client.list_leases, client.list_demand, client.list_objects)
    asked = (
        client.jobs.list,
        client.tasks.list,
        client.clusters.list,
        client.physical_nodes.list,
        client.events,
    )
    for list_ in (*asked, *state):
        with pytest.raises(BadSpec) as caught:
            list_(limit=limit)
        assert caught.value.details == {"path": "limit"}
        assert caught.value.fix
    assert len(client.physical_nodes.list(limit=1)) == 1
    assert client.physical_nodes.list(limit=0) == []


FILTERS: dict[str, Any] = {
    "a text": "state=PENDING",
    "a short tuple": [("state", "=")],
    "a number": [5],
    "no mark": ["x"],
    "an unknown key": ["nosuch=1"],
}


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
def test_a_filter_that_is_none_is_refused(site: Site, filters: Any) -> None:
    """Also where the list is empty; in words of Python, not of the command line."""
    site.nodes(1)
    client = site.client
    for list_ in (
        client.jobs.list,
        client.tasks.list,
        client.clusters.list,
        client.list_leases,
        client.list_events,
    ):
        with pytest.raises(BadSpec) as caught:
            list_(filters=filters)
        assert caught.value.fix
        assert "--" not in str(caught.value)


def test_wrong_calls_are_refused_here_and_by_a_client_of_a_server(site: Site, served: vctl.Client) -> None:
    site.nodes(1)
    job = site.client.submit("true", hold=True)
    for client in (site.client, served):
        with pytest.raises(TypeError):
            client.clusters.update("a", nosuch=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            client.physical_nodes.add(template="t")  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            client.physical_nodes.add("mine", resources={"CPU": 1})  # type: ignore[arg-type, misc]
        with pytest.raises(TypeError):
            client.physical_nodes.kill("4c-00", "4c-01")  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            client.jobs.edit(job.ref, ref="other", priority=1)  # type: ignore[misc]
        with pytest.raises(BadSpec):
            client.jobs.logs(job.ref, tail=-1)
        with pytest.raises(BadSpec, match=r"model\.jobs"):
            client.simulate(model={"jobs": "x"})
        with pytest.raises(BadSpec, match=r"model\.nosuch"):
            client.simulate(model={"nosuch": 1})
        with pytest.raises(TimedOut, match=r"not over after 0\.2 s"):
            client.jobs.wait(job.ref, timeout_s=0.2)
    assert [node["node_id"] for node in site.client.physical_nodes.list()] == ["4c-00"]


def test_threads_share_a_client(site: Site) -> None:
    site.nodes(2)
    jobs: list[vctl.Job] = []
    threads = [threading.Thread(target=lambda: jobs.append(site.client.submit("true"))) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    waiting = [threading.Thread(target=lambda job=job: job.wait(timeout_s=PATIENCE_S)) for job in jobs]
    [thread.start() for thread in waiting]
    [thread.join() for thread in waiting]
    assert {job.status() for job in jobs} == {"SUCCEEDED"}


def test_output_as_it_comes(daemon: Site) -> None:
    daemon.nodes(1)
    job = daemon.client.submit(
        ["sh", "-c", "echo one; sleep 1; echo two; printf '\\303'; sleep 0.3; printf '\\244'"]
    )
    seen = [(text, time.monotonic()) for text in job.follow()]
    assert "".join(text for text, _ in seen) == "one\ntwo\nä"
    assert seen[-1][1] - seen[0][1] > 0.5


def test_a_program_that_a_server_was_sent(site: Site, served: vctl.Client) -> None:
    site.nodes(1)
    job = site.start(
        """
        with VirtualCluster(flexible_resource_min={"CPU": 1}) as vc:
            print(list_clusters()[0]["cluster_id"] == vc.cluster_id)
        """,
        served,
        virtual_cluster={"flexible_resource_min": {"CPU": 2}},
    )
    assert job.wait(timeout_s=PATIENCE_S) == 0, job.logs()
    assert job.logs() == "True\n"


def test_what_only_works_on_the_machine(served: vctl.Client, tmp_path: Path) -> None:
    with pytest.raises(NotPermitted):
        served.backup(tmp_path / "copy.db")
    with pytest.raises(Unreachable) as caught:
        vctl.connect("http://127.0.0.1:9").status()
    assert caught.value.exit_code == 6


def test_backup(site: Site, tmp_path: Path) -> None:
    site.nodes(1)
    site.client.backup(tmp_path / "copy.db")
    assert (tmp_path / "copy.db").stat().st_size > 0


def test_the_types_name_what_is_there(daemon: Site) -> None:
    """A form may have more than its type says, never less."""
    daemon.nodes(1, {"CPU": 8})
    client = daemon.client
    job = client.submit("sleep 100", virtual_cluster={"flexible_resource_min": {"CPU": 1}})
    client.submit("true", num_cpus=8)
    while job.status() != "RUNNING":
        time.sleep(0.02)
    task = client.run("sleep 100", num_cpus=2, job=job.submission_id)
    while task.state() != "RUNNING":
        time.sleep(0.02)
    own = vctl.Client(client.backend, job.info()["cluster_id"])
    node = own.nodes()[0]
    shown: list[tuple[Any, Any]] = [
        (documents.JobForm, job.info()),
        (documents.TaskForm, task.info()),
        (documents.ClusterForm, own.clusters.get()),
        (documents.ClusterTree, own.clusters.tree()),
        (documents.NodeForm, own.list_nodes()[0]),
        (documents.NodeOfCluster, node),
        (documents.VNodeForm, own.list_vnodes()[0]),
        (documents.LeaseForm, own.leases()[0]),
        (documents.DemandForm, client.demand()[0]),
        (documents.EventForm, own.events()[0]),
    ]
    for kind, form in shown:
        assert kind.__annotations__.keys() <= form.keys(), kind
    assert own.leases() == client.leases()
    job.stop()


@spec("11.scope", "7.tree-file")
def test_a_tree_file_has_the_part_of_the_client(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `vc export` does: inside a job nothing of the whole tree, unless it is asked for."""
    for name, parent in (("team", None), ("vision", "team"), ("other", None)):
        site.client.clusters.create(name, divisible=True, spec={}, parent=parent)
    monkeypatch.setenv("VCTL_HOME", os.fspath(site.home))

    def ids(found: dict[str, Any]) -> list[str]:
        return [one["id"] for one in found["clusters"]]

    assert ids(vctl.connect().export()) == ["other", "team"]
    assert ids(vctl.connect(cluster="vision").export()) == ids(vctl.connect().export("vision")) == ["vision"]
    monkeypatch.setenv("VCTL_CLUSTER_ID", "kPrimaryClusterID##job")
    assert ids(vctl.connect().export()) == []
    assert ids(vctl.connect().export("primary")) == ["other", "team"]


def test_a_client_knows_where_it_is(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "/state" in repr(site.client)
    monkeypatch.setenv("VCTL_HOME", os.fspath(site.home))
    monkeypatch.setenv("VCTL_CLUSTER_ID", "kPrimaryClusterID##gone")
    assert vctl.connect().cluster_id == "kPrimaryClusterID##gone"
    assert (
        vctl.connect(site.home).cluster_id
        == vctl.connect(cluster="primary").cluster_id
        == "kPrimaryClusterID"
    )
    with pytest.raises(NotFound):
        vctl.cluster_resources()
    with pytest.raises(NotFound):
        vctl.get_runtime_context().current_node()


@spec("3.totals", "4.labels")
def test_the_labels_of_a_node_change_one_by_one(client: vctl.Client) -> None:
    """As ``kubectl label`` does it: the others stay, and null removes one."""
    client.physical_nodes.add(node_id="n", resources={"CPU": 1}, labels={"rack": "r1", "disk": "ssd"})
    changed = client.physical_nodes.update("n", labels={"rack": "r2", "zone": "z"})
    assert changed["labels"] == {"rack": "r2", "disk": "ssd", "zone": "z"}
    assert client.physical_nodes.update("n", labels={"disk": None})["labels"] == {"rack": "r2", "zone": "z"}
    with pytest.raises(BadSpec, match=r"labels\.rack"):
        client.physical_nodes.update("n", labels={"rack": "-"})


@spec("13.batch")
def test_many_jobs_at_once(client: vctl.Client, tmp_path: Path) -> None:
    """Each has the arguments of ``submit``; all or none of them are queued."""
    client.physical_nodes.add(resources={"CPU": 4}, count=2)
    cluster = vctl.VirtualCluster(flexible_resource_min={"CPU": 1})
    jobs = client.jobs.submit_many(
        [
            {"entrypoint": "true", "submission_id": "a", "virtual_cluster": cluster, "time_limit": "1m"},
            {"entrypoint": ["sh", "-c", "echo $WHO; pwd; exit 3"], "env": {"WHO": "ana"}, "after": ["ok:a"],
             "working_dir": tmp_path, "metadata": {"team": "a"}},
            {"entrypoint": ["true"], "submission_id": "c", "array": "0-2", "after": ["any:a"]},
        ]
    )  # fmt: skip
    assert [job.submission_id for job in jobs][::2] == ["a", "c"]
    assert client.jobs.wait(*(job.submission_id for job in jobs), timeout_s=PATIENCE_S) == 3
    assert jobs[1].logs() == f"ana\n{tmp_path}\n"
    assert jobs[0].info()["time_limit_s"] == 60
    known = len(client.jobs.list())
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"entrypoint": ["true"], "time_limit": "soon"}, BadSpec, "line 2: time_limit: "),
        ({"entrypoint": ["true"], "tme_limit": "1m"}, BadSpec, "line 2: tme_limit: unknown field"),
        ({"entrypoint": ["true"], "time_limit_s": 1}, BadSpec, "line 2: time_limit_s: unknown field"),
        ({"entrypoint": ["true"], "priority": "high"}, BadSpec, "line 2: priority: "),
        ({"entrypoint": "a && b"}, BadSpec, "line 2: entrypoint: && needs a shell"),
        ({"entrypoint": []}, BadSpec, "line 2: entrypoint: there is no command"),
        ({"submission_id": "x"}, BadSpec, "line 2: entrypoint: there is no command"),
        ("true", BadSpec, "line 2: a job must be an object"),
        ({"entrypoint": ["true"], "num_cpus": 64}, Infeasible, "line 2: the job can never run"),
        ({"entrypoint": ["true"], "submission_id": "a"}, Conflict, "line 2: job a exists already"),
        (
            {"entrypoint": ["true"], "after": ["ok:nobody"]},
            NotFound,
            "line 2: after: there is no job 'nobody'",
        ),
    ]
    for job, kind, problem in wrong:
        with pytest.raises(kind) as found:
            client.jobs.submit_many([{"entrypoint": ["true"]}, job, {"entrypoint": ["true"]}])
        assert str(found.value).startswith(problem), found.value
        assert isinstance(found.value, vctl.VctlError) and found.value.details["line"] == 2
    with pytest.raises(BadSpec, match=r"^jobs: the list is empty"):
        client.jobs.submit_many([])
    assert len(client.jobs.list()) == known


@spec("10.commands")
def test_many_tasks_at_once(client: vctl.Client) -> None:
    """Each has the arguments of ``run``; all or none of them are started."""
    client.physical_nodes.add(resources={"CPU": 4})
    job = client.submit(["sleep", "1000"], submission_id="host", num_cpus=2)
    deadline = time.monotonic() + PATIENCE_S
    while job.status() != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    tasks = client.tasks.run_many(
        [
            {"command": "true", "job": "host", "label_selector": {}},
            {"command": ["sh", "-c", "echo $WHO > $VCTL_OBJECT_DIR/who"], "env": {"WHO": "ana"},
             "outputs": ["who"], "job": "host", "num_cpus": 0.5},
            {"command": ["sh", "-c", "cat $VCTL_OBJECT_DIR/who; exit 3"], "inputs": ["who"], "job": "host"},
        ]
    )  # fmt: skip
    assert client.tasks.wait(*(task.task_id for task in tasks), timeout_s=PATIENCE_S) == 3
    assert tasks[2].logs() == "ana\n"
    known = len(client.tasks.list())
    wrong: list[tuple[Any, type[Exception], str]] = [
        ({"command": ["true"], "job": "host", "grace": "soon"}, BadSpec, "line 2: grace: "),
        ({"command": ["true"], "job": "host", "inputs": ["/"]}, BadSpec, "line 2: inputs: "),
        ({"command": ["true"], "jb": "host"}, BadSpec, "line 2: jb: unknown field"),
        ({"job": "host"}, BadSpec, "line 2: entrypoint: there is no command"),
        ({"command": ["true"], "job": "nobody"}, NotFound, "line 2: job: there is no job 'nobody'"),
    ]
    for task, kind, problem in wrong:
        with pytest.raises(kind) as found:
            client.tasks.run_many([{"command": ["true"], "job": "host"}, task])
        assert str(found.value).startswith(problem), found.value
    with pytest.raises(BadSpec, match=r"^tasks: the list is empty"):
        client.tasks.run_many([])
    assert len(client.tasks.list()) == known
    job.stop()


def test_an_unknown_argument_of_a_submit_is_a_mistake_of_the_program(site: Site) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tme_limit'"):
        site.client.jobs.submit(["true"], tme_limit="1m")  # type: ignore[call-arg]
