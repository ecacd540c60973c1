"""Where tasks wait and who goes first, with the real scheduler and tables."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_elastic import Elastic
from tests.specification import spec
from vctl.ops import nodes, tasks, views

pytestmark = spec("10.confined")

TWO = {
    "fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}] * 2, "scheduling_policy": "STRICT_SPREAD"}],
}


@pytest.fixture
def work(life: Life) -> Elastic:
    elastic = Elastic(life)
    for node_id in ("n1", "n2"):
        life.node(node_id, "2c", cpus=2)
    life.run("j", spec=TWO)
    return elastic


def test_a_random_task_waits_for_the_virtual_node_it_drew(work: Elastic) -> None:
    full = {
        tasks.get_task(work.store, one)["vnode_id"]: one
        for one in [work.task("j", 2, strategy=f"NODE:{node_id}") for node_id in ("n1", "n2")]
    }
    waiting = work.task("j", 2, strategy="RANDOM", running=False)
    work.life.turn()
    form = tasks.get_task(work.store, waiting)
    assert (form["state"], form["state_reason"]) == ("PENDING_NODE_ASSIGNMENT", "InsufficientResources")
    drawn = form["vnode_id"]
    assert drawn in full
    assert f"feasible but not available on {drawn}, which it drew" in form["message"]
    load = {one["vnode_id"]: one["load"] for one in views.vnodes(work.store)}
    assert load == {vnode_id: {"CPU": 2.0} if vnode_id == drawn else {} for vnode_id in full}

    other = next(vnode_id for vnode_id in full if vnode_id != drawn)
    work.cancel(full[other])
    work.die_and_start()
    work.life.turn()
    assert tasks.get_task(work.store, waiting)["vnode_id"] == drawn  # though there is room beside it
    assert work.state(waiting) == "PENDING_NODE_ASSIGNMENT"

    younger = work.task("j", 1, strategy=f"NODE:{drawn}", running=False)
    work.cancel(full[drawn])
    work.life.until(lambda: work.has_started(waiting))
    assert tasks.get_task(work.store, waiting)["vnode_id"] == drawn
    work.life.turn()
    assert work.state(younger) == "PENDING_NODE_ASSIGNMENT"  # it is full again
    assert {one["vnode_id"]: one["load"] for one in views.vnodes(work.store)} == {key: {} for key in full}


def test_spread_goes_on_where_it_was_though_no_task_waited_meanwhile(work: Elastic) -> None:
    """Started one by one, each when the one before has started, as from a loop of `vctl task run`."""
    started = [work.task("j", 0, strategy="SPREAD") for _ in range(4)]
    places = [tasks.get_task(work.store, one)["node_id"] for one in started]
    assert places[:2] in (["n1", "n2"], ["n2", "n1"])
    assert places[2:] == places[:2]
    cluster_id = views.vnodes(work.store)[0]["cluster_id"]
    state = work.life.scheduler.state
    assert state is not None
    assert list(state.tasks.last_spread) == [cluster_id]
    work.cancel(*started)
    work.life.end("j")
    work.life.until(lambda: not state.tasks.last_spread)


def test_a_node_that_joins_takes_first_what_was_too_large(life: Life) -> None:
    work = Elastic(life)
    life.node("n1", "1c", cpus=1)
    life.run("j", spec={"flexible_resource_min": {"CPU": 1}})
    work.task("j", 1)
    small = [work.task("j", 1, running=False) for _ in range(3)]
    large = work.task("j", 4, running=False)
    life.until(lambda: work.reason(large) == "Infeasible")  # spec 10: no virtual node could ever hold it
    assert tasks.get_task(work.store, large)["message"] == (
        "exceeds the capacity of primary##j: 4 CPU asked on one virtual node, the largest virtual node has 1 CPU"
    )
    life.node("n2", "7c", cpus=7)
    life.until(lambda: all(work.has_started(one) for one in [*small, large]))
    started = [one for one in life.events("task.started") if one in (*small, large)]
    assert started == [large, *small]


def test_a_task_starts_when_the_node_of_its_cluster_takes_work_again(life: Life) -> None:
    """Spec 3 and 10: nothing but this task was ever placed in the job's cluster; undraining its node lets it start."""
    work = Elastic(life)
    node_id = life.node("n1", "2c", cpus=2)
    life.run("j", spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 2}}]}]})
    nodes.drain(life.store, node_id)
    life.turn()
    waiting = work.task("j", 1, running=False)
    life.until(lambda: work.reason(waiting) == "Infeasible")
    nodes.undrain(life.store, node_id)
    life.until(lambda: work.has_started(waiting))
