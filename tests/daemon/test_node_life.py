"""Nodes die, fall silent, drain and come: who ends, what is replaced from where, and that a crash changes nothing."""

from __future__ import annotations

import sqlite3

import pytest

from tests.daemon.conftest import SLEEP, Life, cpu
from tests.specification import spec
from vctl.ops import cluster_views, views
from vctl.ops import clusters as cluster_ops
from vctl.ops import nodes as node_ops
from vctl.store.store import Store

pytestmark = spec("12.node-death", "3.states")

WHOLE_2 = {"replica_sets": {"t": 2}}


def test_an_undivided_node_of_the_primary_that_dies_is_just_dead(life: Life) -> None:
    a, b = life.nodes(2, "t")
    life.turn()
    life.kill(a)
    life.turn()
    assert (life.state(a), life.state(b)) == ("DEAD", "ALIVE")
    assert life.members("primary") == [a, b]
    assert life.events("cluster.node_replaced") == []


def test_a_divisible_cluster_gets_another_node_of_the_template_and_nobody_is_told(life: Life) -> None:
    dead, other, spare = life.nodes(3, "t")
    life.node("u", "other")
    life.logical("v", {"t": 2}, divisible=True)
    revision = life.revision("v")
    life.turn()
    life.kill(dead)
    life.turn()
    assert life.members("v") == [other, spare]
    assert life.state(dead) == "DEAD"
    assert life.revision("v") == revision
    assert life.events("cluster.node_replaced") == ["v"]
    assert life.events("cluster.nodes_published") == []


def test_an_indivisible_cluster_gets_another_node_and_it_is_published(life: Life) -> None:
    dead, other, spare = life.nodes(3, "t")
    life.logical("v", {"t": 2})
    life.run("j", cluster="v")  # on the first node
    life.kill(dead)
    life.until(lambda: life.members("v") == [other, spare])
    job = life.job("j")
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("FAILED", "NodeFailed", None)
    assert job["message"] == f"node {dead} died"
    assert life.events("cluster.nodes_published") == ["v"]


def test_work_on_the_other_nodes_of_an_indivisible_cluster_goes_on(life: Life) -> None:
    _, dead, spare = life.nodes(3, "t")
    life.logical("v", {"t": 2})
    life.run("j", cluster="v")
    life.kill(dead)
    life.turn()
    assert spare in life.members("v")
    assert life.job("j")["status"] == "RUNNING"


def test_a_job_clusters_whole_node_is_replaced_in_place_and_the_job_goes_on(life: Life) -> None:
    first, dead, spare = life.nodes(3, "t")
    job = life.run("j", spec=WHOLE_2)
    life.kill(dead)
    life.turn()
    assert life.members(f"kPrimaryClusterID##{job}") == [first, spare]
    assert life.job("j")["status"] == "RUNNING"
    assert life.job("j")["node_ids"] == [first, spare]
    assert life.events("cluster.nodes_published") == [f"kPrimaryClusterID##{job}"]
    life.end("j")
    assert life.members("primary") == [first, dead, spare]


def test_without_a_spare_the_dead_node_stays_listed_until_one_joins(life: Life) -> None:
    first, dead = life.nodes(2, "t")
    cluster = f"kPrimaryClusterID##{life.run('j', spec=WHOLE_2)}"
    life.kill(dead)
    life.turn()
    assert life.members(cluster) == [first, dead]
    life.node("wrong", "other")
    life.turn(maintain=False)
    assert life.members(cluster) == [first, dead]
    life.node("right", "t")
    life.turn(maintain=False)  # the join itself asks for it
    assert life.members(cluster) == ["right", first]
    assert life.job("j")["status"] == "RUNNING"


def test_a_job_in_a_divisible_cluster_gets_its_node_from_the_primary_and_so_does_the_cluster(
    life: Life,
) -> None:
    nodes = life.nodes(4, "t")
    life.logical("v", {"t": 3}, divisible=True)
    life.run("j", cluster="v", spec=WHOLE_2)
    life.kill(nodes[1])
    life.turn()
    assert life.members("v") == [nodes[0], nodes[2], nodes[3]]
    assert life.members("v##j") == [nodes[0], nodes[3]]
    assert life.members("primary") == [nodes[1]]
    assert life.events("cluster.nodes_published") == ["v##j"]


def test_without_spares_in_the_primary_the_divisible_parent_helps_and_waits_itself(life: Life) -> None:
    nodes = life.nodes(3, "t")
    life.logical("v", {"t": 3}, divisible=True)
    life.run("j", cluster="v", spec=WHOLE_2)
    life.kill(nodes[1])
    life.turn()
    assert life.members("v##j") == [nodes[0], nodes[2]]
    assert life.members("v") == nodes
    fresh = life.node("fresh", "t")
    life.turn(maintain=False)
    assert life.members("v") == sorted([nodes[0], nodes[2], fresh])


def test_nested_clusters_take_replacements_through_every_parent(life: Life) -> None:
    nodes = life.nodes(4, "t")
    life.logical("org", {"t": 3}, divisible=True)
    life.logical("team", {"t": 2}, divisible=True, parent="org")
    life.run("j", cluster="team", spec=WHOLE_2)
    life.kill(nodes[1])
    life.turn()
    for cluster in ("org", "team", "team##j"):
        assert nodes[1] not in life.members(cluster)
        assert nodes[3] in life.members(cluster)
    life.kill(nodes[3])
    life.turn()  # the primary has none: org's own third node
    assert life.members("team") == life.members("team##j") == [nodes[0], nodes[2]]
    assert life.members("org") == [nodes[0], nodes[2], nodes[3]]


def test_a_dead_entrypoint_ends_the_job_and_frees_all(life: Life) -> None:
    first, other, _ = life.nodes(3, "t")
    life.run("j", spec=WHOLE_2)
    life.kill(first)
    life.until(lambda: life.job("j")["status"] == "FAILED")
    assert (life.job("j")["state_reason"], life.job("j")["exit_code"]) == ("NodeFailed", None)
    assert life.members("kPrimaryClusterID##j") == []
    assert node_ops.get_node(life.store, other)["available"]["CPU"] == 4


def test_a_gang_that_lost_a_slice_ends_whole(life: Life) -> None:
    life.nodes(3, "t")
    bundles = [{"resources": {"CPU": 1}}] * 2
    life.run("j", spec={"fixed_size_nodes": [{"nodes": bundles, "scheduling_policy": "STRICT_SPREAD"}]})
    first, second = life.job("j")["node_ids"]
    life.kill(second)
    life.until(lambda: life.job("j")["status"] == "FAILED")
    assert (life.job("j")["state_reason"], life.job("j")["message"]) == ("NodeFailed", f"node {second} died")
    assert life.state(first) == "ALIVE"


def test_slices_of_a_logical_cluster_find_another_place(life: Life) -> None:
    a, b, c, d = life.nodes(4, "t")
    bundles = [{"resources": {"CPU": 1}}] * 2
    life.logical("v", spec={"fixed_size_nodes": [{"nodes": bundles, "scheduling_policy": "STRICT_SPREAD"}]})
    life.logical("w", spec={"flexible_resource_min": {"CPU": 6}})
    assert (life.members("v"), life.members("w")) == ([a, b], [c, d])
    life.turn()
    life.kill(a)
    life.turn()
    assert life.members("v") == [b, d]
    life.kill(c)  # 4 of w's 6 CPUs: 3 are left on b, 1 on d
    life.turn()
    assert life.members("w") == [b, d]
    assert cluster_views.get_cluster(life.store, "w")["total_resources"]["CPU"] == 6
    life.kill(d)  # no room any more: both wait
    life.turn()
    assert (life.members("v"), life.members("w")) == ([b, d], [b, d])
    e = life.node("x", "t")
    life.turn(maintain=False)
    assert (life.members("v"), life.members("w")) == ([b, e], [b, e])


# ---- crashes ----


@pytest.mark.parametrize("after", [False, True], ids=["just before the commit", "just after the commit"])
def test_a_daemon_that_dies_around_the_commit_of_a_replacement_changes_nothing(
    life: Life, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = life.nodes(4, "t")
    life.logical("v", {"t": 3}, divisible=True)
    life.run("j", cluster="v", spec=WHOLE_2)
    life.die()

    class Dying(Store):
        def transaction(self):  # type: ignore[no-untyped-def]
            return dying(super().transaction(), self)

    from contextlib import contextmanager

    class Killed(BaseException):
        pass

    @contextmanager
    def dying(real, store):  # type: ignore[no-untyped-def]
        with real:
            yield
            replaced = store.value("SELECT count(*) FROM events WHERE kind = 'cluster.node_replaced'")
            if replaced and not after:
                raise Killed
        if replaced:
            raise Killed

    life.kill(nodes[1])
    scheduler = life.start(Dying.open(life.home))
    with pytest.raises(Killed):
        scheduler.turn()
    life.die()
    assert len(life.events("cluster.node_replaced")) == (2 if after else 0)
    life.turn()
    assert life.members("v") == [nodes[0], nodes[2], nodes[3]]
    assert life.members("v##j") == [nodes[0], nodes[3]]
    assert len(life.events("cluster.node_replaced")) == 2
    assert life.job("j")["status"] == "RUNNING"
    assert life.replay(dry_run=True) == [[]] * 6


def test_a_node_killed_while_no_daemon_ran_ends_the_same(life: Life) -> None:
    first, dead, spare = life.nodes(3, "t")
    life.run("j", spec=WHOLE_2)
    life.submit("k", argv=("true",))
    life.die()
    life.kill(dead)
    life.turn()
    assert life.members("kPrimaryClusterID##j") == [first, spare]
    life.die()
    life.kill(first)
    life.start()
    life.until(lambda: life.job("j")["status"] == "FAILED")
    assert life.job("j")["state_reason"] == "NodeFailed"


def test_after_a_restart_of_the_machine_its_node_is_dead_and_its_jobs_failed_with_it(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_ops.ensure_local(life.store)
    (old,) = life.members("primary")
    life.run("j")
    life.die()
    for table in ("nodes", "runs"):
        life.store.db.execute(f"UPDATE {table} SET boot_id = 'earlier'")
    life.scheduler = None
    scheduler = life.start()
    assert life.state(old) == "DEAD"
    life.until(lambda: life.job("j")["status"] == "FAILED")
    assert life.job("j")["state_reason"] == "NodeFailed"
    assert scheduler.state is not None


# ---- heartbeats, drain, totals ----


def test_a_node_that_opted_into_a_lease_dies_when_it_falls_silent(life: Life) -> None:
    quiet, loud, plain = life.nodes(3, "t")
    life.turn()
    for node_id in (quiet, loud):
        node_ops.heartbeat(life.store, node_id, timeout_s=10)
    life.turn(maintain=False)
    assert life.scheduler is not None
    assert life.scheduler.sleep_s() <= 10
    life.skew_ns = 8 * 10**9
    life.store.clock = life.now
    node_ops.heartbeat(life.store, loud)
    life.skew_ns = 11 * 10**9
    life.turn(maintain=False)
    assert [life.state(node_id) for node_id in (quiet, loud, plain)] == ["DEAD", "ALIVE", "ALIVE"]
    assert node_ops.get_node(life.store, quiet)["reason"] == "no heartbeat for 10 s"
    life.skew_ns = 60 * 10**9
    life.turn(maintain=False)
    assert life.state(loud) == "DEAD"


def test_drain_says_who_why_and_when_and_ends_when_the_node_is_empty(life: Life) -> None:
    a, b = life.nodes(2, "t")
    life.run("j")
    form = node_ops.drain(life.store, a, reason="disk")
    assert (form["state"], form["reason"], form["author"]) == ("DRAINING", "disk", node_ops.own_name())
    assert form["state_since"]
    life.run("k")  # goes elsewhere
    assert life.job("k")["node_ids"] == [b]
    life.turn()
    assert life.state(a) == "DRAINING"
    life.end("j")
    life.turn(maintain=False)
    assert (life.state(a), node_ops.get_node(life.store, a)["reason"]) == ("DRAINED", "disk")
    node_ops.undrain(life.store, a)
    life.turn(maintain=False)
    assert life.state(a) == "ALIVE"


def test_a_draining_node_that_a_deleted_cluster_had_is_drained(life: Life) -> None:
    a, _ = life.nodes(2, "t")
    life.logical("v", {"t": 1})
    life.turn()
    node_ops.drain(life.store, a)
    life.turn()
    assert life.state(a) == "DRAINING"
    cluster_ops.delete(life.store, "v")
    life.turn(maintain=False)
    assert life.state(a) == "DRAINED"


def test_a_cluster_that_is_to_go_goes_when_its_last_job_ends(life: Life) -> None:
    life.nodes(2, "t")
    life.logical("v", {"t": 2}, divisible=True)
    life.run("j", cluster="v")
    cluster_ops.delete(life.store, "v", drain=True)
    life.turn()
    assert life.members("v")
    life.end("j")
    life.turn(maintain=False)
    assert life.store.value("SELECT count(*) FROM clusters") == 0


@spec("2.feasible", "3.totals")
def test_a_node_that_grows_lets_infeasible_work_start(life: Life) -> None:
    (a,) = life.nodes(1, "t", cpus=4)
    life.submit("j", spec={"flexible_resource_min": {"CPU": 4}})
    node_ops.update(life.store, a, resources=cpu(2))
    life.turn()
    assert life.job("j")["state_reason"] == "Infeasible"
    node_ops.update(life.store, a, resources=cpu(6))
    life.until(lambda: life.job("j")["status"] == "RUNNING")


def labels_of(life: Life, cluster: str) -> list[dict[str, str]]:
    """The labels of the virtual nodes of a cluster, without those of the system."""
    found = views.nodes(life.store, cluster)
    return [
        {name: value for name, value in one["Labels"].items() if not name.startswith("ray.io/")}
        for one in found
    ]


@spec("5.labels")
def test_clusters_inherit_the_new_labels_of_a_node_and_keep_their_own(life: Life) -> None:
    """Work may ask for them. A label of its own stays, also one that was equal to the label of the node."""
    a, _ = life.nodes(2, "t", cpus=4)
    node_ops.update(life.store, a, labels={"rack": "r1", "disk": "ssd"})
    life.logical("whole", {"t": 1}, divisible=True)
    named = {"resources": {"CPU": 1}, "labels": {"rack": "r1", "role": "head"}}
    life.run("j", cluster="whole", spec={"fixed_size_nodes": [named], "flexible_resource_min": {"CPU": 1}})
    assert (life.members("whole"), life.members("whole##j")) == ([a], [a])
    old, both = {"rack": "r1", "disk": "ssd"}, {"rack": "r1", "disk": "ssd", "role": "head"}
    assert (labels_of(life, "whole"), labels_of(life, "whole##j")) == ([old], [both, old])
    life.turn()
    node_ops.update(life.store, a, labels={"rack": "r2", "zone": "z", "disk": None}, resources=cpu(6))
    new = {"rack": "r2", "zone": "z"}
    assert labels_of(life, "whole") == [new]
    assert labels_of(life, "whole##j") == [{"rack": "r1", "role": "head", "zone": "z"}, new]
    wanted = {"resources": {"CPU": 1}, "label_selector": {"zone": "z", "rack": "!r1"}}
    life.run("zoned", cluster="whole", spec={"fixed_size_nodes": [wanted]})
    assert life.job("zoned")["node_ids"] == [a]
    life.die()
    assert life.replay() == [[]] * 6
    life.turn()


@spec("5.labels", "9.growth")
def test_a_growing_cluster_has_the_new_labels_too(life: Life) -> None:
    (a,) = life.nodes(1, "t", cpus=4)
    life.logical("slices", divisible=True, spec={"flexible_resource_min": {"CPU": 1}})
    wanted = {"resources": {"CPU": 3}, "label_selector": {"rack": "r2"}}
    life.turn()
    node_ops.update(life.store, a, labels={"rack": "r2"})
    life.run("j", cluster="slices", spec={"fixed_size_nodes": [wanted]})
    assert labels_of(life, "slices") == [{"rack": "r2"}]


def test_a_node_may_shrink_below_its_use_and_takes_nothing_until_that_fits(life: Life) -> None:
    (a,) = life.nodes(1, "t", cpus=4)
    life.run("j", spec={"flexible_resource_min": {"CPU": 3}})
    node_ops.update(life.store, a, resources=cpu(2))
    life.turn()
    life.submit("k", spec={"flexible_resource_min": {"CPU": 1}})
    life.turn()
    assert life.job("k")["state_reason"] == "InsufficientResources"
    assert node_ops.get_node(life.store, a)["available"]["CPU"] == 0
    life.die()
    assert life.replay() == [[]] * 6
    life.turn()
    node_ops.update(life.store, a, resources=cpu(4))  # one is free again, and not one that j holds
    life.until(lambda: life.job("k")["status"] == "RUNNING")
    life.turn()
    assert life.store.value("SELECT shrunk FROM nodes") == 0
    node_ops.update(life.store, a, resources=cpu(1))
    life.end("j")
    assert life.job("k")["status"] == "RUNNING"
    life.turn(maintain=False)
    assert life.store.value("SELECT shrunk FROM nodes") == 1  # k has a core that is not there any more
    life.end("k")
    life.turn(maintain=False)
    assert life.store.value("SELECT shrunk FROM nodes") == 0


@spec("5.whole-nodes", "9.resize")
def test_who_has_a_node_whole_has_it_as_it_grows_and_shrinks(life: Life) -> None:
    nodes = life.nodes(2, "t", cpus=4)
    life.logical("v", {"t": 2}, divisible=True)
    life.run("j", cluster="v", spec=WHOLE_2)
    life.logical("w", parent="v")
    for total in (8, 2, 4):
        for node_id in nodes:
            node_ops.update(life.store, node_id, resources=cpu(total))
        life.turn()
        for cluster in ("v", "v##j"):
            assert cluster_views.get_cluster(life.store, cluster)["total_resources"]["CPU"] == 2 * total
        assert node_ops.get_node(life.store, nodes[0])["available"]["CPU"] == 0
    life.die()
    assert life.replay() == [[]] * 6
    life.turn()


@spec("5.whole-nodes", "9.resize")
def test_a_part_of_a_node_that_shrank_is_no_whole_node(life: Life) -> None:
    """A flexible virtual node beside another one has more than all of the node then; a whole one grew with the node."""
    (a,) = life.nodes(1, "t", cpus=4)
    one, three = {"resources": {"CPU": 1}}, {"CPU": 3}
    life.logical("v", divisible=True, spec={"fixed_size_nodes": [one], "flexible_resource_min": three})
    life.run("fixed", cluster="v", spec={"fixed_size_nodes": [one]})
    node_ops.update(life.store, a, resources=cpu(2))
    life.turn()
    life.submit("j", cluster="v", spec={"replica_sets": {"t": 1}})
    life.turn()
    assert life.job("j")["status"] == "PENDING"
    node_ops.update(life.store, a, resources=cpu(3))
    life.turn()  # after each turn no core is held twice
    assert life.job("j")["status"] == "PENDING"


@spec("5.whole-nodes", "9.resize")
def test_all_of_a_node_that_shrank_is_a_whole_node_when_its_use_fits_again(life: Life) -> None:
    (a,) = life.nodes(1, "t", cpus=4)
    life.logical("v", divisible=True, spec={"flexible_resource_min": {}})
    life.run("first", cluster="v", spec={"flexible_resource_min": {"CPU": 4}})
    node_ops.update(life.store, a, resources=cpu(2))
    life.turn()
    life.submit("j", cluster="v", spec={"replica_sets": {"t": 1}})
    life.turn()
    assert (life.job("j")["status"], life.job("j")["state_reason"]) == ("PENDING", "InsufficientResources")
    life.end("first")
    life.until(lambda: life.job("j")["status"] == "RUNNING", maintain=True)


def test_a_shrunk_node_of_an_indivisible_cluster_keeps_its_job(life: Life) -> None:
    (a,) = life.nodes(1, "t", cpus=4)
    life.logical("v", {"t": 1})
    life.submit("j", cluster="v", argv=SLEEP, entry=cpu(3))
    life.until(lambda: life.job("j")["status"] == "RUNNING")
    node_ops.update(life.store, a, resources=cpu(2))
    life.turn()
    life.submit("k", cluster="v")
    life.die()
    assert life.replay() == [[]] * 6
    life.turn()
    assert (life.job("j")["status"], life.job("k")["status"]) == ("RUNNING", "PENDING")
    life.end("j")
    life.until(lambda: life.job("k")["status"] == "RUNNING")


@spec("12.maintenance")
def test_a_round_with_nothing_to_do_writes_nothing(life: Life) -> None:
    a, _ = life.nodes(2, "t")
    life.logical("v", {"t": 2}, divisible=True)
    life.turn()
    life.kill(a)
    life.turn()
    before = life.store.value("SELECT max(seq) FROM events"), (life.home / "changes").stat().st_mtime_ns
    for _ in range(3):
        life.turn()
    assert (
        life.store.value("SELECT max(seq) FROM events"),
        (life.home / "changes").stat().st_mtime_ns,
    ) == before
    assert life.members("v")[0] == a
    with pytest.raises(sqlite3.IntegrityError):
        life.store.db.execute("INSERT INTO nodes (node_id) VALUES (NULL)")
