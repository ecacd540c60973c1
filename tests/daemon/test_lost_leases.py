"""Growth on a node that dies: tasks there fail or are tried again, the lease ends, the job goes on."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import SLEEP, Life, cpu
from tests.specification import spec
from vctl.ops import cluster_views
from vctl.ops import clusters as cluster_ops
from vctl.ops import jobs as job_ops
from vctl.ops import tasks as task_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.task_request import TaskRequest

pytestmark = spec("12.node-death", "9.return")


def run_task(life: Life, job: str, cpus: int, **more: int) -> str:
    request = TaskRequest(argv=SLEEP, job=job, request=cpu(cpus), grace_s=0.1, **more)  # type: ignore[arg-type]
    task_id = str(task_ops.run(life.store, request, environment={"PATH": "/usr/bin:/bin"})["task_id"])
    life.until(lambda: task(life, task_id)["state"] == "RUNNING")
    return task_id


def task(life: Life, task_id: str) -> dict[str, object]:
    return dict(task_ops.get_task(life.store, task_id))


def leases(life: Life) -> int:
    return int(life.store.value("SELECT count(*) FROM leases"))


def test_a_task_on_a_dead_node_fails_its_lease_ends_and_the_job_goes_on(life: Life) -> None:
    a, b = life.node("a", "small", cpus=2), life.node("b", "t")
    life.run("j", spec={"flexible_resource_min": {"CPU": 1}})
    task_id = run_task(life, "j", 4)
    assert task(life, task_id)["node_id"] == b
    assert leases(life) == 1
    life.kill(b)
    life.until(lambda: task(life, task_id)["state"] == "FAILED")
    life.turn()
    assert (task(life, task_id)["state_reason"], task(life, task_id)["exit_code"]) == ("NodeFailed", None)
    assert leases(life) == 0
    assert life.members("kPrimaryClusterID##j") == [a]
    assert life.job("j")["status"] == "RUNNING"
    assert life.state(b) == "DEAD"


def test_a_task_with_retries_is_tried_again_elsewhere(life: Life) -> None:
    life.node("a", "small", cpus=2)
    b, c = life.nodes(2, "t")
    life.run("j", spec={"flexible_resource_min": {"CPU": 1}})
    task_id = run_task(life, "j", 4, max_retries=1)
    assert task(life, task_id)["node_id"] == b
    life.kill(b)
    life.until(lambda: (task(life, task_id)["state"], task(life, task_id)["node_id"]) == ("RUNNING", c))
    assert task(life, task_id)["attempt"] == 2
    assert leases(life) == 1


def test_growth_through_several_levels_is_lost_at_each(life: Life) -> None:
    life.node("a", "small", cpus=2)
    b = life.node("b", "t")
    for cluster, parent in (("org", None), ("team", "org")):
        life.logical(cluster, divisible=True, spec={"flexible_resource_min": {"CPU": 1}}, parent=parent)
    life.run("j", cluster="team", spec={"flexible_resource_min": {"CPU": 1}})
    task_id = run_task(life, "j", 4)
    assert task(life, task_id)["node_id"] == b
    assert leases(life) == 3
    life.kill(b)
    life.until(lambda: task(life, task_id)["state"] == "FAILED")
    life.turn()
    assert leases(life) == 0
    for cluster in ("org", "team", "team##j"):
        assert b not in life.members(cluster)
        assert cluster_views.get_cluster(life.store, cluster)["total_resources"]["CPU"] == 1


@spec("12.maintenance")
def test_a_cluster_that_a_detached_task_kept_is_swept_when_nothing_lives_there(life: Life) -> None:
    life.nodes(1, "t")
    life.run("j", spec={"flexible_resource_min": {"CPU": 2}})
    task_id = run_task(life, "j", 1, detach=True)
    job_ops.stop(life.store, "j", grace_s=0)
    life.until(lambda: life.job("j")["status"] == "STOPPED")
    assert life.members("kPrimaryClusterID##j")
    life.turn()
    assert life.members("kPrimaryClusterID##j")  # lived in
    task_ops.cancel(life.store, task_id, grace_s=0)
    life.until(lambda: not life.members("kPrimaryClusterID##j"))


def test_an_empty_cluster_of_a_job_that_is_over_is_destroyed(life: Life) -> None:
    life.nodes(1, "t")
    life.run("j", spec={"flexible_resource_min": {"CPU": 2}})
    life.die()
    life.store.db.execute("DELETE FROM runs")
    life.store.db.execute("UPDATE jobs SET status = 'FAILED', ended_at = 1")
    life.store.db.execute("UPDATE clusters SET detached = 1")  # kept by a replay
    life.turn()
    assert life.store.value("SELECT count(*) FROM clusters") == 0


@pytest.mark.parametrize("backlog", [False, True])
def test_a_lender_gets_what_it_had_lent_on_a_dead_node_from_the_next_node(life: Life, backlog: bool) -> None:
    """Spec 9 and 12: its minimum is replaced, lent or not. It was lost, and its sibling borrowed the new node."""
    life.node("n1", "4c")
    for name, lends in (("a", 4), ("b", 0)):
        least = parse_cluster_spec({"flexible_resource_min": {"CPU": 4}}, logical=True)
        cluster_ops.create(
            life.store, name, ClusterChange(divisible=True, spec=least, lending_limit=cpu(lends))
        )
        life.node("n2", "4c") if name == "a" else None
    four = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 4}}]}]}
    jobs = [life.run(name, cluster="b", spec=four) for name in ("own", "lent")]
    (on_n1,) = (name for name in jobs if life.job(name)["node_ids"] == ["n1"])
    if backlog:
        life.submit("next", cluster="b", spec=four)
    life.kill("n1")
    life.until(lambda: life.job(on_n1)["status"] == "FAILED")
    life.turn()
    life.node("n3", "4c")
    life.until(lambda: life.job("next")["status"] == "RUNNING" if backlog else life.members("a") == ["n3"])
    lenders = life.store.column("SELECT lender_id FROM leases")
    assert lenders == (["a"] if backlog else [])
