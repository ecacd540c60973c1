"""Clusters of slices after a node: they move with what lies in them, and one that cannot is named everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life, cpu
from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.ops import cluster_views, health, overview
from vctl.ops import clusters as cluster_ops
from vctl.ops import nodes as node_ops
from vctl.ops import tasks as task_ops
from vctl.ops.prove import prove
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.quantities import parse_resources
from vctl.spec.task_request import TaskRequest
from vctl.store import clusters

pytestmark = spec("12.node-death")


def least(cpus: float, **more: float) -> dict[str, Any]:
    return {"flexible_resource_min": {"CPU": cpus, **more}}


def fixed(*cpus: float, policy: str = "PACK", **more: Any) -> dict[str, Any]:
    nodes = [{"resources": {"CPU": one}, **more} for one in cpus]
    return {"fixed_size_nodes": [{"nodes": nodes, "scheduling_policy": policy}]}


def total(life: Life, cluster_id: str) -> float:
    """The CPUs of a cluster on nodes that are not dead."""
    return cluster_views.get_cluster(life.store, cluster_id)["total_resources"].get("CPU", 0.0)


def vnodes(life: Life, cluster_id: str) -> list[tuple[str, float]]:
    """Node and CPUs of each virtual node of a cluster."""
    ledger = clusters.load_ledger(life.store)
    return [(one.node_id, one.allocation.amounts.get("CPU", 0) / 1e4) for one in ledger.slots(cluster_id)]


def findings(life: Life) -> list[str]:
    return [one for one in health.doctor(life.store, prove=True)["findings"] if "below its minimum" in one]


def below(life: Life) -> list[str]:
    """What status says of clusters below their minimum; doctor says the same."""
    lines = overview.status(life.store)["clusters"]
    said = [one["below_minimum"]["message"] for one in lines if one["below_minimum"] is not None]
    assert sorted(said) == sorted(findings(life))
    return said


# ---- dead nodes ----


@pytest.mark.parametrize("of_child", [True, False])
def test_a_cluster_of_slices_moves_with_the_cluster_in_it(life: Life, of_child: bool) -> None:
    n = life.nodes(6, "t")
    life.logical("a", divisible=True, spec=least(6))
    life.logical("b", parent="a", spec=least(2))
    life.turn()
    assert (vnodes(life, "a"), vnodes(life, "b")) == ([(n[0], 4), (n[1], 2)], [(n[1], 2)])
    life.kill(gone := n[1 if of_child else 0])
    life.turn()
    assert gone not in [*life.members("a"), *life.members("b")]
    assert (total(life, "a"), total(life, "b"), below(life)) == (6, 2, [])
    life.submit("j", cluster="b", argv=("true",), entry=cpu(1))
    life.until(lambda: life.job("j")["status"] == "SUCCEEDED")


def test_what_it_had_borrowed_for_its_children_comes_with_them(life: Life) -> None:
    n = life.nodes(3, "t")
    life.logical("a", divisible=True, spec=least(1))
    life.logical("b", parent="a", spec=fixed(3))
    life.turn()
    (held,) = [node_id for node_id, _ in vnodes(life, "b")]
    life.kill(held)
    life.turn()
    assert (total(life, "a"), total(life, "b")) == (3, 3)  # one of its own now, which the slice of b covers
    assert life.store.column("SELECT amounts FROM leases") == ['{"CPU":20000}']
    assert held in n


def test_four_levels_of_slices_move_together(life: Life) -> None:
    n = life.nodes(3, "t")
    life.logical("a", divisible=True, spec=least(4))
    life.logical("b", divisible=True, parent="a", spec=fixed(2, 1))
    life.logical("c", divisible=True, parent="b", spec=least(2))
    life.logical("d", parent="c", spec=fixed(1))
    life.turn()
    life.kill(n[0])
    life.turn()
    for cluster_id, cpus in (("a", 4), ("b", 3), ("c", 2), ("d", 1)):
        assert (life.members(cluster_id), total(life, cluster_id)) == ([n[1]], cpus)
    life.die()
    assert life.replay() == [[]] * 6
    life.turn()


def test_a_job_in_the_slice_fails_and_then_the_slice_moves(life: Life) -> None:
    n = life.nodes(3, "t")
    life.logical("a", divisible=True, spec=least(4))
    life.logical("b", parent="a", spec=least(1))
    life.run("j", cluster="a", spec=fixed(2))
    life.run("k", cluster="b", spec=None)
    assert life.job("j")["node_ids"] == life.job("k")["node_ids"] == [n[0]]
    life.kill(n[0])
    life.until(lambda: life.job("j")["status"] == life.job("k")["status"] == "FAILED")
    life.turn()
    assert (life.job("j")["state_reason"], life.job("k")["state_reason"]) == ("NodeFailed", "NodeFailed")
    assert (vnodes(life, "a"), vnodes(life, "b")) == ([(n[1], 4)], [(n[1], 1)])


def test_a_whole_node_of_a_job_moves_with_the_slice_in_which_it_lies(life: Life) -> None:
    n = life.nodes(3, "t")
    life.logical("a", divisible=True, spec=least(8))
    life.run("j", cluster="a", spec={"replica_sets": {"t": 2}})
    life.kill(n[1])
    life.turn()
    assert (life.members("a"), life.members("a##j"), life.job("j")["status"]) == (
        [n[0], n[2]],
        [n[0], n[2]],
        "RUNNING",
    )


def test_a_slice_of_a_spread_group_stays_apart_with_its_contents(life: Life) -> None:
    n = life.nodes(4, "t")
    life.logical("a", divisible=True, spec=fixed(3, 3, 3, policy="STRICT_SPREAD"))
    life.logical("b", parent="a", spec=fixed(2, 2, policy="STRICT_SPREAD"))
    life.turn()
    life.kill(n[0])
    life.turn()
    assert life.members("a") == n[1:]
    assert len(life.members("b")) == 2
    life.kill(n[1])
    life.turn()
    assert life.members("a") == n[1:]  # no fourth node
    assert len(set(life.members("b")) - {n[1]}) == 2  # its contents go to the others
    (said,) = below(life)
    assert said == f"a is below its minimum: it has 6 of 9 CPU since node {n[1]} died"
    life.node("late", "t")
    life.turn(maintain=False)
    assert (life.members("a"), below(life)) == (sorted([*n[2:], "late"]), [])


def test_selectors_of_clusters_inside_are_kept(life: Life) -> None:
    n = life.nodes(4, "t")
    for node_id in (n[0], n[3]):
        node_ops.update(life.store, node_id, labels={"disk": "ssd"})
    life.logical("a", divisible=True, spec=least(3))
    life.logical("b", parent="a", spec=fixed(2, label_selector={"disk": "ssd"}))
    life.turn()
    life.kill(n[0])
    life.turn()
    assert life.members("a") == life.members("b") == [n[3]]
    life.kill(n[3])
    life.turn()  # no other disk: a has its minimum, and b waits where it was
    assert (total(life, "a"), total(life, "b")) == (3, 0)
    assert below(life) == [f"b is below its minimum: it has 0 of 2 CPU since node {n[3]} died"]
    node_ops.update(life.store, n[2], labels={"disk": "ssd"})
    life.turn()
    assert (life.members("b"), below(life)) == ([n[2]], [])
    assert n[3] not in life.members("a")


def test_devices_have_other_numbers_on_the_new_node(life: Life) -> None:
    two, three = (dict(parse_resources({"CPU": 4, "GPU": count}, "resources")) for count in (2, 3))
    a = node_ops.add(life.store, resources=two, node_id="a1", template="g")
    node_ops.add(life.store, resources=three, node_id="a2", template="h")
    assert len(a) == 1
    life.logical("first", spec=fixed(1))
    gpus = {
        "fixed_size_nodes": [
            {"nodes": [{"resources": {"GPU": 0.5, "CPU": 1}}, {"resources": {"GPU": 0.5, "CPU": 1}}]}
        ]
    }
    life.logical("other", spec=least(1, GPU=1))
    life.logical("a", divisible=True, spec=least(2, GPU=1))
    life.logical("b", parent="a", spec=gpus)
    life.turn()
    ledger = clusters.load_ledger(life.store)
    assert {index for one in ledger.slots("b") for index in one.allocation.instances["GPU"]} == {1}
    life.kill("a1")
    life.turn()
    ledger = clusters.load_ledger(life.store)
    (slice_,) = ledger.slots("a")
    inside = [one.allocation.instances["GPU"] for one in ledger.slots("b")]
    assert slice_.node_id == "a2"
    assert inside == [{index: 5000} for index in slice_.allocation.instances["GPU"]] * 2


def test_lent_minimums_are_not_taken_for_lost_ones(life: Life) -> None:
    n = life.nodes(3, "t")
    for name, lends in (("a", 4), ("b", 0)):
        wanted = parse_cluster_spec(least(4), logical=True)
        cluster_ops.create(
            life.store, name, ClusterChange(divisible=True, spec=wanted, lending_limit=cpu(lends))
        )
    four = fixed(4)
    life.submit("filler", spec=four)
    jobs = [life.run(name, cluster="b", spec=four) for name in ("own", "lent")]
    assert life.store.column("SELECT lender_id FROM leases") == ["a"]
    life.turn()
    assert below(life) == []
    assert len(jobs) == 2
    held = life.job("own")["node_ids"][0]
    life.kill(held)
    life.until(lambda: life.job("own")["status"] == "FAILED")
    life.turn()
    said = below(life)
    assert [one.split(":")[0] for one in said] in (["a is below its minimum"], ["b is below its minimum"])
    life.end("filler")
    life.turn()
    assert below(life) == []
    assert held in n


@pytest.mark.parametrize("shrunk", [False, True])
def test_a_node_that_shrank_below_its_slices_and_a_dead_one_leave_a_whole_tree(
    life: Life, shrunk: bool
) -> None:
    n = life.nodes(4, "t")
    life.logical("a", divisible=True, spec=least(6))
    life.logical("b", parent="a", spec=least(3))
    life.turn()
    node_ops.update(life.store, n[1 if shrunk else 0], resources=cpu(1))
    life.kill(n[0])
    life.turn()
    assert n[0] not in life.members("b")
    assert (total(life, "a"), total(life, "b"), below(life)) == (6, 3, [])


@spec("3.totals")
def test_a_slice_without_work_leaves_a_node_that_shrank_below_it(life: Life) -> None:
    """A job of all of the slice would use more than the node has."""
    n = life.nodes(2, "t")
    life.logical("team", divisible=True, spec=TEAM)
    life.logical("part", parent="team", spec=fixed(3))
    life.run("j", cluster="part")
    node_ops.update(life.store, n[0], resources=cpu(2))
    life.turn()
    assert vnodes(life, "team") == [(n[0], 4)]  # it is in use
    life.end("j")
    life.turn()
    assert (vnodes(life, "team"), vnodes(life, "part")) == ([(n[1], 4)], [(n[1], 3)])
    assert life.store.value("SELECT max(shrunk) FROM nodes") == 0


@spec("3.totals")
def test_no_more_leaves_a_node_that_shrank_than_must(life: Life) -> None:
    n = life.nodes(2, "t", cpus=6)
    for name, cpus in (("a", 1), ("b", 3), ("c", 2)):
        life.logical(name, spec=least(cpus))
    assert [life.members(name) for name in "abc"] == [[n[0]]] * 3
    node_ops.update(life.store, n[0], resources=cpu(4))
    life.turn()
    assert [life.members(name) for name in "abc"] == [[n[0]], [n[0]], [n[1]]]
    node_ops.update(life.store, n[0], resources=cpu(2))
    life.turn()
    assert [vnodes(life, name) for name in "abc"] == [[(n[0], 1)], [(n[1], 3)], [(n[1], 2)]]


@spec("12.doctor")
def test_a_cluster_that_is_about_to_go_gets_nothing_for_a_dead_node_and_lacks_nothing(life: Life) -> None:
    """``doctor --prove`` called that a broken rule."""
    n = life.nodes(2, "t")
    life.logical("team", spec=least(2))
    life.submit("held", cluster="team", hold=True)
    cluster_ops.delete(life.store, "team", drain=True)
    life.kill(n[0])
    life.turn()
    assert (vnodes(life, "team"), prove(life.store), below(life)) == ([], [], [])


@spec("9.lending", "12.doctor")
def test_what_a_cluster_lent_to_a_job_ends_with_the_node_while_a_detached_task_goes_on(life: Life) -> None:
    """The loan stayed, for a virtual node that was gone."""
    n = life.nodes(2, "t")
    wanted = parse_cluster_spec(least(4), logical=True)
    cluster_ops.create(life.store, "a", ClusterChange(divisible=True, spec=wanted, lending_limit=cpu(4)))
    life.submit("filler", spec=fixed(4))
    life.submit("j", entry=cpu(2))
    life.until(lambda: life.job("j")["status"] == "RUNNING")
    assert life.store.column("SELECT lender_id FROM leases") == ["a"]
    life.end("filler")
    request = TaskRequest(argv=SLEEP, job="j", cwd="/", request=cpu(3), detach=True)
    task_ops.run(life.store, request, environment={"PATH": "/usr/bin:/bin"})
    life.until(lambda: life.store.column("SELECT node_id FROM tasks WHERE state = 'RUNNING'") == [n[1]])
    life.kill(n[0])
    life.until(lambda: life.job("j")["status"] == "FAILED")
    life.turn()
    assert life.store.column("SELECT lender_id FROM leases") == [PRIMARY]
    assert prove(life.store) == []


# ---- clusters below their minimum are named ----


def test_a_cluster_below_its_minimum_is_named_by_status_doctor_and_its_jobs(life: Life) -> None:
    n = life.nodes(2, "t")
    life.logical("a", divisible=True, spec=least(6))
    life.logical("b", parent="a", spec=least(3))
    life.run("filler", spec=fixed(2))
    life.kill(n[0])
    life.turn()
    said = [
        f"a is below its minimum: it has 2 of 6 CPU since node {n[0]} died",
        f"b is below its minimum: it has 0 of 3 CPU since node {n[0]} died",
    ]
    assert below(life) == said
    life.submit("j", cluster="b", entry=cpu(3))
    life.submit("k", cluster="a", spec=fixed(4))
    for _ in range(2):
        life.turn()
        for job, one in (("k", said[0]), ("j", said[1])):
            assert life.job(job)["message"].endswith(f"; {one}"), life.job(job)["message"]
        life.die()
    life.node("late", "t")
    life.turn()
    assert (below(life), total(life, "a"), total(life, "b")) == ([], 6, 3)
    life.until(lambda: life.job("j")["status"] == "RUNNING")


def test_a_cluster_of_whole_nodes_below_its_count_is_named_too(life: Life) -> None:
    n = life.nodes(2, "t")
    life.logical("v", {"t": 2}, divisible=True)
    life.turn()
    life.kill(n[1])
    life.turn()
    assert below(life) == [f"v is below its minimum: it has 4 of 8 CPU since node {n[1]} died"]


def test_a_failed_search_is_not_repeated_while_nothing_came_free(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vctl.scheduler import replacement

    n = life.nodes(2, "t")
    life.logical("a", divisible=True, spec=least(6))
    life.run("filler", spec=fixed(2))
    life.kill(n[0])
    life.turn()
    searches = 0
    search = replacement._search

    def counted(*args: Any) -> Any:
        nonlocal searches
        searches += 1
        return search(*args)

    monkeypatch.setattr(replacement, "_search", counted)
    life.submit("held", cluster="a", entry=cpu(4))
    life.turn(maintain=False)
    assert searches == 0
    life.node("late", "t")
    life.turn(maintain=False)
    assert (searches > 0, total(life, "a")) == (True, 6)


# ---- draining nodes ----

TEAM = {"flexible_resource_min": {"CPU": 4}, "flexible_resource_max": {"CPU": 4}}


@pytest.mark.parametrize("child", [False, True])
def test_a_slice_without_work_moves_off_a_draining_node(life: Life, child: bool) -> None:
    n = life.nodes(3, "t")
    life.logical("team", divisible=True, spec=TEAM)
    if child:
        life.logical("part", parent="team", spec=least(1))
    life.turn()
    assert life.members("team") == [n[0]]
    node_ops.drain(life.store, n[0])
    life.submit("j", cluster="part" if child else "team", entry=cpu(1))
    life.until(lambda: life.job("j")["status"] == "RUNNING")
    assert (vnodes(life, "team"), life.state(n[0]), below(life)) == ([(n[1], 4)], "DRAINED", [])
    node_ops.undrain(life.store, n[0])
    life.turn()
    assert life.members("team") == [n[1]]


def test_a_slice_with_work_follows_when_that_ends(life: Life) -> None:
    n = life.nodes(3, "t")
    life.logical("team", divisible=True, spec=TEAM)
    life.logical("part", parent="team", spec=fixed(2))
    life.run("j", cluster="part")
    node_ops.drain(life.store, n[0])
    life.turn()
    assert (life.members("team"), below(life)) == ([n[0]], [])
    life.end("j")
    life.turn()
    assert (vnodes(life, "team"), life.members("part"), life.state(n[0])) == ([(n[1], 4)], [n[1]], "DRAINED")


def test_an_undrained_node_keeps_what_could_not_move(life: Life) -> None:
    n = life.nodes(2, "t")
    life.run("big", spec=fixed(4))
    life.logical("team", divisible=True, spec=TEAM)
    assert life.members("team") == [n[1]]
    node_ops.drain(life.store, n[1])
    life.submit("j", cluster="team", entry=cpu(1))
    life.turn()
    said = f"team is below its minimum: it has 0 of 4 CPU since node {n[1]} drains"
    assert below(life) == [said]
    assert life.job("j")["message"].endswith(said)
    node_ops.undrain(life.store, n[1])
    life.until(lambda: life.job("j")["status"] == "RUNNING")
    assert (life.members("team"), below(life)) == ([n[1]], [])


def test_whole_nodes_stay_on_a_draining_node_and_slices_in_them_go(life: Life) -> None:
    n = life.nodes(3, "t")
    life.logical("v", {"t": 2}, divisible=True)
    life.logical("s", parent="v", spec=least(2))
    life.turn()
    assert (life.members("v"), life.members("s")) == ([n[0], n[1]], [n[0]])
    node_ops.drain(life.store, n[0])
    life.turn()
    assert (life.members("v"), life.members("s"), life.state(n[0])) == ([n[0], n[1]], [n[1]], "DRAINING")


def test_what_is_borrowed_and_idle_on_a_draining_node_goes_back(life: Life) -> None:
    n = life.nodes(2, "t")
    life.logical("a", divisible=True, spec={"flexible_resource_min": {}})
    life.run("j", cluster="a", spec=fixed(4))
    life.end("j")
    assert life.members("a") == [n[0]]
    node_ops.drain(life.store, n[0])
    life.turn()
    assert (life.members("a"), life.state(n[0])) == ([], "DRAINED")
    assert life.store.value("SELECT count(*) FROM leases") == 0


def test_an_empty_tree_needs_nothing(life: Life) -> None:
    n = life.nodes(1, "t")
    cluster_ops.create(life.store, "none", ClusterChange(spec=ClusterSpec()))
    life.kill(n[0])
    life.turn()
    assert below(life) == []
