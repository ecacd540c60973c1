"""Every kind of gang where capacity is short at every place growth can bring it from (specification, sections 6 and 9).

After each turn ``Life`` proves the conservation rules from the raw tables.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.daemon.conftest import Life
from tests.daemon.test_elastic import Elastic
from tests.specification import spec
from vctl.daemon.commit import commit
from vctl.engine.settings import LeaseTerms
from vctl.errors import Infeasible
from vctl.ops import clusters, leases, nodes, views
from vctl.ops.views import cluster_resources
from vctl.scheduler.cycle import decide
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.quantities import parse_resources

pytestmark = spec("6.complete", "9.growth")

NODE = {"CPU": 8, "GPU": 2}
ALL = {"CPU": 16, "GPU": 4}


def group(policy: str, *sizes: dict[str, float]) -> dict[str, Any]:
    nodes_ = [{"resources": size} for size in sizes]
    return {"fixed_size_nodes": [{"nodes": nodes_, "scheduling_policy": policy}]}


SHAPES: dict[str, dict[str, Any]] = {
    "PACK": group("PACK", {"CPU": 6}, {"CPU": 6}),
    "SPREAD": group("SPREAD", {"CPU": 3}, {"CPU": 3}, {"CPU": 3}),
    "STRICT_PACK": group("STRICT_PACK", {"CPU": 4}, {"CPU": 4}),
    "STRICT_SPREAD": group("STRICT_SPREAD", {"CPU": 5}, {"CPU": 5}),
    "a flexible minimum over two nodes": {"flexible_resource_min": {"CPU": 12}},
    "a fraction beside whole units": {"flexible_resource_min": {"CPU": 12.5}},
    "devices over two nodes": {"flexible_resource_min": {"GPU": 3}},
    "a share of a device": group("PACK", {"GPU": 0.5}, {"GPU": 0.75}),
    "whole nodes": {"replica_sets": {"box": 2}},
    "a group beside a flexible part": {
        **group("STRICT_PACK", {"CPU": 4, "GPU": 1}, {"CPU": 4}),
        "flexible_resource_min": {"CPU": 6, "GPU": 2},
    },
}
SHORTAGES = ("own", "parent", "two levels up", "lent")


def cluster(life: Life, name: str, least: dict[str, float], parent: str | None = None, **more: Any) -> None:
    spec = parse_cluster_spec({"flexible_resource_min": least}, logical=True)
    limits = {key: parse_resources(value, key) for key, value in more.items()}
    clusters.create(life.store, name, ClusterChange(divisible=True, spec=spec, **limits), parent_id=parent)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shortage", SHORTAGES)
def test_a_gang_starts_wherever_the_capacity_is_and_all_of_it_goes_back(
    life: Life, shape: str, shortage: str
) -> None:
    for node_id in ("n1", "n2"):
        nodes.add(life.store, resources=parse_resources(NODE, "r"), node_id=node_id, template="box")
    levels = ["team"]
    match shortage:
        case "own":
            cluster(life, "team", ALL)
        case "parent":
            cluster(life, "team", {"CPU": 1})
        case "two levels up":
            cluster(life, "org", {"CPU": 2})
            cluster(life, "team", {"CPU": 1}, "org")
            levels = ["org", "team"]
        case _:
            cluster(life, "rich", ALL, lending_limit=ALL)
            cluster(life, "team", {})
            levels = ["rich", "team"]
    before = [cluster_resources(life.store, one) for one in levels]
    life.start().lease_terms = LeaseTerms(idle_s=0.1, cooldown_s=0.0)
    life.run("train", cluster="team", spec=SHAPES[shape])
    found = leases.list_leases(life.store)
    assert bool(found) == (shortage != "own")
    if shortage == "lent":
        assert {one["lender_id"] for one in found} == {"rich"}
    life.end("train")
    life.until(lambda: not leases.list_leases(life.store))
    assert [kept(cluster_resources(life.store, one)) for one in levels] == [kept(one) for one in before]


def kept(amounts: dict[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount}


def test_a_whole_node_that_a_cluster_grew_over_follows_the_totals_of_its_node(life: Life) -> None:
    """Specification, sections 3 and 9: totals may change; what lies above a minimum is a lease, and goes back."""
    nodes.add(life.store, resources=parse_resources(NODE, "r"), node_id="n1", template="box")
    cluster(life, "team", {})
    life.start().lease_terms = LeaseTerms(idle_s=0.1, cooldown_s=0.0)
    life.run("train", cluster="team", spec={"replica_sets": {"box": 1}})
    for cpus in (12, 6):
        nodes.update(life.store, "n1", resources=parse_resources({"CPU": cpus}, "r"))
        life.until(lambda cpus=cpus: cluster_resources(life.store, "team##train")["CPU"] == cpus)
        assert cluster_resources(life.store, "team")["CPU"] == cpus
        assert sum(one["resources"]["CPU"] for one in leases.list_leases(life.store)) == cpus
    life.end("train")
    life.until(lambda: not leases.list_leases(life.store))
    assert kept(cluster_resources(life.store, "team")) == {}


@pytest.mark.parametrize("limit", ["maximum", "borrow limit", "lending limit"])
def test_a_limit_lowered_between_decision_and_commit_is_kept(life: Life, limit: str) -> None:
    """Specification, section 4: the maximum caps flexible use at every allocation."""
    nodes.add(life.store, resources=parse_resources(NODE, "r"), node_id="n1", template="box")
    lends = limit == "lending limit"
    if lends:
        cluster(life, "rich", NODE, lending_limit=NODE)
    cluster(life, "team", {})
    scheduler = life.start()
    life.turn()
    life.submit("train", cluster="team", spec={"flexible_resource_min": {"CPU": 4}})
    scheduler.state.follow(scheduler.store)
    plan = decide(scheduler.state.ledger, scheduler.state.queues, now_ns=life.now())
    assert len(plan.starts) == 1
    two = parse_resources({"CPU": 2}, "limit")
    if limit == "maximum":
        spec = parse_cluster_spec({"flexible_resource_max": {"CPU": 2}}, logical=True)
        clusters.update(life.store, "team", ClusterChange(spec=spec))
    elif lends:
        clusters.update(life.store, "rich", ClusterChange(lending_limit=two))
    else:
        clusters.update(life.store, "team", ClusterChange(borrow_limit=two))
    with scheduler.store.transaction():
        scheduler.state.follow(scheduler.store)
        assert commit(scheduler.store, scheduler.state, plan, scheduler.now()) == 0
    life.turn()
    assert life.job("train")["status"] == "PENDING"


def test_a_job_starts_when_a_lender_has_something_free_again(life: Life) -> None:
    """Specification, section 9: what a sibling does not use of its minimum is lent up to its limit."""
    nodes.add(life.store, resources=parse_resources(NODE, "r"), node_id="n1", template="box")
    cluster(life, "rich", NODE, lending_limit=NODE)
    cluster(life, "team", {})
    life.run("busy", cluster="rich", spec={"flexible_resource_min": {"CPU": 8}})
    life.submit("train", cluster="team", spec={"flexible_resource_min": {"CPU": 4}})
    life.turn()
    assert life.job("train")["status"] == "PENDING"
    life.end("busy")
    life.until(lambda: life.job("train")["status"] == "RUNNING")


def test_a_virtual_node_made_for_work_without_a_request_goes_when_the_work_is_over(life: Life) -> None:
    nodes.add(life.store, resources=parse_resources(NODE, "r"), node_id="n1", template="box")
    cluster(life, "team", {})
    life.start()
    life.submit("nothing", cluster="team", entry={})
    life.until(lambda: life.job("nothing")["status"] == "RUNNING")
    life.end("nothing")
    life.turn(maintain=True)
    assert life.store.value("SELECT count(*) FROM vnodes WHERE cluster_id = 'team'") == 0


SLICE = {"resources": {"CPU": 1, "GPU": 1}}
SLICES = parse_cluster_spec(
    {"fixed_size_nodes": [{"nodes": [SLICE, SLICE], "scheduling_policy": "STRICT_PACK"}]}, logical=True
)


def job_of_a_minimum(work: Elastic, cluster_id: str) -> None:
    work.life.run("j", cluster=cluster_id, spec={"flexible_resource_min": {"CPU": 2, "GPU": 2}})


def job_without_a_spec(work: Elastic, cluster_id: str) -> None:
    work.life.run("j", cluster=cluster_id)
    work.task("j", 1)


def tasks_beyond_a_minimum(work: Elastic, cluster_id: str) -> None:
    work.life.run("j", cluster=cluster_id, spec={"flexible_resource_min": {"CPU": 1}})
    work.task("j", 1)
    work.task("j", 1)


def larger_job(work: Elastic, cluster_id: str) -> None:
    work.life.run("j", cluster=cluster_id, spec={"flexible_resource_min": {"CPU": 1}})
    more = parse_cluster_spec({"flexible_resource_min": {"CPU": 2}}, logical=True)
    clusters.update(work.store, f"{cluster_id}##j", ClusterChange(spec=more))


def fixed_and_flexible(work: Elastic, cluster_id: str) -> None:
    wanted = {**group("PACK", {"CPU": 1}), "flexible_resource_min": {"CPU": 1, "GPU": 1}}
    work.life.run("j", cluster=cluster_id, spec=wanted)


def logical_cluster(work: Elastic, cluster_id: str) -> None:
    cluster(work.life, "j", {"CPU": 2}, cluster_id)


def larger_logical_cluster(work: Elastic, cluster_id: str) -> None:
    cluster(work.life, "j", {"CPU": 1}, cluster_id)
    more = parse_cluster_spec({"flexible_resource_min": {"CPU": 2}}, logical=True)
    clusters.update(work.store, "j", ClusterChange(spec=more))


USES = (
    job_of_a_minimum, job_without_a_spec, tasks_beyond_a_minimum, larger_job, fixed_and_flexible,
    logical_cluster, larger_logical_cluster,
)  # fmt: skip


@spec("9.resize", "10.confined")
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("use", USES)
def test_a_cluster_of_two_slices_of_one_node_can_use_both(
    life: Life, use: Callable[[Elastic, str], None], depth: int
) -> None:
    """Spec 1: at most one flexible virtual node per cluster and parent virtual node. It was one per physical node.

    The clusters below the slices are elastic: they grow in both. What they borrowed goes back at the end.
    """
    work = Elastic(life)
    for node_id, amount in (("n1", 4), ("n2", 1)):
        has = parse_resources({"CPU": amount, "GPU": amount}, "r")
        nodes.add(life.store, resources=has, node_id=node_id)
    clusters.create(life.store, "outer", ClusterChange(divisible=True, spec=SLICES))
    path = ["outer", "inner", "core"][: depth + 1]
    for above, below in pairwise(path):
        cluster(life, below, {}, above)
    life.turn()
    use(work, path[-1])
    life.turn()
    own = "j" if "logical" in use.__name__ else f"{path[-1]}##j"
    assert [work.cluster(one)[0] for one in (*path, own)] == [2] * (depth + 2)
    assert [work.cluster(one)[1] for one in path] == [0] * (depth + 1)
    assert [one["cluster_id"] for one in views.vnodes(life.store)].count(own) == 2
    clusters.delete(life.store, "j") if own == "j" else life.end("j")
    for one in path[1:]:
        life.until(lambda one=one: work.cluster(one) == (0, 0))


@spec("6.never")
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_slices_of_one_node_say_how_much_can_be_had(life: Life, depth: int) -> None:
    nodes.add(life.store, resources=parse_resources({"CPU": 4, "GPU": 4}, "r"), node_id="n1")
    clusters.create(life.store, "outer", ClusterChange(divisible=True, spec=SLICES))
    path = ["outer", "inner", "core"][: depth + 1]
    for above, below in pairwise(path):
        cluster(life, below, {}, above)
    with pytest.raises(Infeasible, match="3 CPU asked, 2 "):
        life.submit("large", cluster=path[-1], spec={"flexible_resource_min": {"CPU": 3}})
    with pytest.raises(Infeasible, match="2 CPU asked on one node, the largest node has 1"):
        life.submit("wide", cluster=path[-1], spec=group("PACK", {"CPU": 2}))
    life.run("j", cluster=path[-1], spec={"flexible_resource_min": {"CPU": 2}})
    life.submit("waits", cluster=path[-1], spec={"flexible_resource_min": {"CPU": 2}})
    life.turn()
    text = life.job("waits")["message"]
    assert text.startswith("needs 2 CPU in total; free: ")
    assert "n1 0" in text or "nothing" in text
