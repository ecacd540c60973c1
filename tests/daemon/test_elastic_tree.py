"""Growth through every level of the tree in one transaction, back through every level when idle; the walk-through."""

from __future__ import annotations

import json

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.specification import spec
from vctl.engine.settings import LeaseTerms
from vctl.ops import clusters, leases, nodes, tasks
from vctl.ops.views import available_resources, cluster_resources
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.provider_spec import parse_provider
from vctl.spec.quantities import parse_resources
from vctl.spec.task_request import TaskRequest

pytestmark = spec("9.growth", "9.return")

PATH = {"PATH": "/usr/bin:/bin"}


def minimum(cpus: int) -> dict[str, dict[str, int]]:
    return {"flexible_resource_min": {"CPU": cpus}}


def begin(life: Life, *, idle_s: float = 0.2) -> None:
    scheduler = life.start()
    scheduler.lease_terms = LeaseTerms(idle_s=idle_s, cooldown_s=0.0)


def start_task(life: Life, job: str, cpus: int, *, cluster: str | None = None) -> str:
    request = TaskRequest(argv=SLEEP, job=job, request=parse_resources({"CPU": cpus}, "r"), grace_s=0.1)
    inside = {} if cluster is None else {"VCTL_SUBMISSION_ID": job, "VCTL_CLUSTER_ID": cluster}
    return str(tasks.run(life.store, request, environment={**PATH, **inside})["task_id"])


def runs(life: Life, task: str) -> bool:
    return bool(tasks.get_task(life.store, task)["state"] == "RUNNING")


def has(life: Life, *cluster_ids: str) -> list[float]:
    return [cluster_resources(life.store, cluster_id).get("CPU", 0.0) for cluster_id in cluster_ids]


@pytest.fixture
def tree(life: Life) -> tuple[Life, list[str]]:
    """root (16 CPU) > org (4) > team (2) > a job (1) > its sub-cluster (1)."""
    life.node("n1", "16c", cpus=16)
    for name, cpus, parent in (("org", 4, None), ("team", 2, "org")):
        spec = parse_cluster_spec(minimum(cpus), logical=True)
        clusters.create(life.store, name, divisible=True, spec=spec, parent_id=parent)
    begin(life)
    life.run("train", cluster="team", spec=minimum(1))
    spec = parse_cluster_spec(minimum(1))
    sub = clusters.create(life.store, "inner", spec=spec, parent_id="team##train")["cluster_id"]
    return life, ["org", "team", "team##train", str(sub)]


def test_a_request_at_the_bottom_borrows_through_every_level_in_one_transaction(
    tree: tuple[Life, list[str]],
) -> None:
    life, levels = tree
    before = life.store.value("SELECT max(seq) FROM events")
    task = start_task(life, "train", 8, cluster=levels[-1])
    life.until(lambda: runs(life, task))
    found = [
        (one["borrower_id"], one["lender_id"], one["resources"]["CPU"])
        for one in leases.list_leases(life.store)
    ]
    assert found == [
        ("org", "kPrimaryClusterID", 4.0),
        ("team", "org", 6.0),
        ("team##train", "team", 7.0),
        ("team##train##inner", "team##train", 7.0),
    ]
    assert has(life, *levels) == [8.0, 8.0, 8.0, 8.0]
    kinds = [row[0] for row in life.store.rows("SELECT kind FROM events WHERE seq > ? ORDER BY seq", before)]
    # the four grants and the start follow each other without anything between: one commit
    assert kinds[kinds.index("lease.granted") :][:5] == ["lease.granted"] * 4 + ["task.started"]


def test_what_was_borrowed_returns_through_every_level_when_idle(tree: tuple[Life, list[str]]) -> None:
    life, levels = tree
    task = start_task(life, "train", 8, cluster=levels[-1])
    life.until(lambda: runs(life, task))
    tasks.cancel(life.store, task)
    life.until(lambda: not leases.list_leases(life.store))
    assert has(life, *levels) == [4.0, 2.0, 1.0, 1.0]
    assert available_resources(life.store)["CPU"] == 12.0


def test_nothing_is_borrowed_when_the_top_cannot_give_it(tree: tuple[Life, list[str]]) -> None:
    life, levels = tree
    task = start_task(life, "train", 17, cluster=levels[-1])
    life.until(lambda: tasks.get_task(life.store, task)["state_reason"] == "Infeasible")
    assert leases.list_leases(life.store) == []
    assert has(life, *levels) == [4.0, 2.0, 1.0, 1.0]


def test_a_job_goes_with_everything_below_it_and_what_was_borrowed_for_it_returns(
    tree: tuple[Life, list[str]],
) -> None:
    life, levels = tree
    task = start_task(life, "train", 8, cluster=levels[-1])
    life.until(lambda: runs(life, task))
    life.end("train")
    life.until(lambda: not leases.list_leases(life.store))
    assert has(life, "org", "team") == [4.0, 2.0]
    assert [one["cluster_id"] for one in clusters.list_clusters(life.store, all_kinds=False)] == [
        "org",
        "team",
    ]


def test_the_elastic_walk_through_step_by_step(life: Life) -> None:
    """One node of 2 CPU, a provider of nodes of 2 CPU, a job with a flexible minimum of 1 CPU and three tasks."""
    life.node("n1", "2c", cpus=2)
    begin(life, idle_s=60.0)
    assert life.scheduler is not None
    setting = {
        "kind": "simulated",
        "templates": {"2c": {"resources": {"CPU": 2}, "max": 4}},
        "idle_timeout": 0.2,
    }
    life.scheduler.provider.spec = parse_provider(json.dumps(setting))

    def free() -> tuple[float, float, float]:
        """(available in the primary, total of the job's cluster, available in it)"""
        inside = "kPrimaryClusterID##walk"
        return (
            available_resources(life.store)["CPU"],
            cluster_resources(life.store, inside)["CPU"],
            available_resources(life.store, inside)["CPU"],
        )

    life.run("walk", spec=minimum(1))
    assert free() == (1.0, 1.0, 1.0)

    first = start_task(life, "walk", 1)
    life.until(lambda: runs(life, first))
    assert free() == (1.0, 1.0, 0.0)
    assert leases.list_leases(life.store) == []

    second = start_task(life, "walk", 1)
    life.until(lambda: runs(life, second))
    assert free() == (0.0, 2.0, 0.0)
    assert [one["resources"] for one in leases.list_leases(life.store)] == [{"CPU": 1.0}]
    assert len({tasks.get_task(life.store, task)["vnode_id"] for task in (first, second)}) == 1

    third = start_task(life, "walk", 1)
    life.until(lambda: runs(life, third))
    assert free() == (1.0, 3.0, 0.0)
    assert len(nodes.list_nodes(life.store)) == 2
    assert tasks.get_task(life.store, third)["node_id"] != "n1"

    life.end("walk")
    assert available_resources(life.store)["CPU"] in (2.0, 4.0)  # the added node may be gone already
    life.until(lambda: len(nodes.list_nodes(life.store)) == 1)
    assert available_resources(life.store)["CPU"] == 2.0
    assert leases.list_leases(life.store) == []
