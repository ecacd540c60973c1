"""Idle loans go home, and clusters lend, for the start that needs it. No idle time passes here (spec 9)."""

from __future__ import annotations

import pytest

from tests.daemon.conftest import Life, loans, total
from tests.specification import spec
from vctl.engine.settings import LeaseTerms
from vctl.errors import Conflict
from vctl.ops import cluster_views, clusters, jobs, tree_files
from vctl.ops.minimums import all_below_minimum
from vctl.ops.prove import prove
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.quantities import parse_resources
from vctl.spec.tree_file import parse_tree

pytestmark = spec("9.conserving")

NEVER = LeaseTerms(idle_s=10_000, cooldown_s=10_000, reclaim_grace_s=0.2)
"""With these terms nothing comes home by time."""


@pytest.fixture
def idle(life: Life) -> Life:
    life.start().lease_terms = NEVER
    return life


def cluster(life: Life, name: str, least: int = 0, lends: int = 0, parent: str | None = None) -> None:
    wanted = parse_cluster_spec({"flexible_resource_min": {"CPU": least} if least else {}}, logical=True)
    limit = parse_resources({"CPU": lends}, "limit")
    clusters.create(
        life.store, name, ClusterChange(divisible=True, spec=wanted, lending_limit=limit), parent_id=parent
    )


def run(life: Life, name: str, where: str | None, cpus: int, nodes: int = 1) -> None:
    """Submit a job that needs this on each of so many nodes, and wait until it runs."""
    submit(life, name, where, cpus, nodes)
    life.until(lambda: state(life, name) == "RUNNING")


def submit(life: Life, name: str, where: str | None, cpus: int, nodes: int = 1) -> None:
    group = {"nodes": [{"resources": {"CPU": cpus}}] * nodes, "scheduling_policy": "STRICT_SPREAD"}
    life.submit(name, cluster=where, spec={"fixed_size_nodes": [group]})


def state(life: Life, name: str) -> str:
    return str(life.job(name)["status"])


def end(life: Life, name: str) -> None:
    jobs.stop(life.store, name, grace_s=0)


def test_a_sibling_starts_when_the_other_one_has_ended(idle: Life) -> None:
    idle.nodes(2, "8c", cpus=8)
    cluster(idle, "a")
    cluster(idle, "b")
    run(idle, "first", "a", 8, nodes=2)
    submit(idle, "second", "b", 8, nodes=2)
    idle.turn()
    assert state(idle, "second") == "PENDING"
    end(idle, "first")
    idle.until(lambda: state(idle, "second") == "RUNNING")
    assert loans(idle) == [("b", "kPrimaryClusterID", 16.0)]


def test_what_nobody_needs_stays_where_it_is(idle: Life) -> None:
    """A loan moves only with a start, and only as much as that takes."""
    idle.nodes(2, "8c", cpus=8)
    cluster(idle, "a")
    cluster(idle, "b")
    run(idle, "first", "a", 8, nodes=2)
    end(idle, "first")
    idle.until(lambda: state(idle, "first") == "STOPPED")
    assert loans(idle) == [("a", "kPrimaryClusterID", 16.0)]
    run(idle, "second", "b", 8)
    assert loans(idle) == [("a", "kPrimaryClusterID", 8.0), ("b", "kPrimaryClusterID", 8.0)]
    run(idle, "third", "a", 8)  # in its own place: nothing moves
    assert loans(idle) == [("a", "kPrimaryClusterID", 8.0), ("b", "kPrimaryClusterID", 8.0)]


@pytest.mark.parametrize(
    "where", [None, "x", "y-1"], ids=["in the primary", "beside the team", "in another team"]
)
def test_through_all_levels(idle: Life, where: str | None) -> None:
    idle.node("n1", "8c", cpus=8)
    for name, parent in (("t", None), ("t-1", "t"), ("x", None), ("y", None), ("y-1", "y")):
        cluster(idle, name, parent=parent)
    run(idle, "first", "t-1", 8)
    submit(idle, "second", where, 8)
    idle.turn()
    end(idle, "first")
    idle.until(lambda: state(idle, "second") == "RUNNING")


def test_a_minimum_that_is_covered_elsewhere_is_not_kept_twice(idle: Life) -> None:
    """Two siblings with a minimum of 2 on 24 CPU, a job of 7 in one: the other one may have 17, and had 15."""
    idle.nodes(3, "8c", cpus=8)
    cluster(idle, "a", 2)
    cluster(idle, "b", 2)
    run(idle, "seven", "a", 7)
    idle.submit("rest", cluster="b", spec={"flexible_resource_min": {"CPU": 17}})
    idle.until(lambda: state(idle, "rest") == "RUNNING")


def test_an_idle_minimum_goes_while_the_borrowed_part_is_in_use(idle: Life) -> None:
    """The loan was tied to the virtual node in use: both jobs waited beside 8 idle CPUs, and a machine was bought."""
    idle.nodes(2, "8c", cpus=8)
    cluster(idle, "d", 8, lends=8)
    cluster(idle, "e")
    run(idle, "short", "d", 8)
    run(idle, "long", "d", 8)
    end(idle, "short")
    idle.until(lambda: state(idle, "short") == "STOPPED")
    run(idle, "in-e", "e", 1)
    run(idle, "in-primary", None, 1)
    assert cluster_views.get_cluster(idle.store, "d")["total_resources"]["CPU"] >= 8


def test_a_job_of_the_parent_gets_a_lent_minimum_and_the_lender_reclaims_it(idle: Life) -> None:
    """A lent minimum served siblings only: a job of the parent waited for two minutes beside it."""
    idle.node("n1", "8c", cpus=8)
    cluster(idle, "a", 8, lends=8)
    run(idle, "big", None, 8)
    assert loans(idle) == [("kPrimaryClusterID##big", "a", 8.0)]
    run(idle, "own", "a", 8)
    assert (state(idle, "big"), idle.job("big")["state_reason"]) == ("STOPPED", "Preempted")
    assert loans(idle) == []
    end(idle, "own")
    idle.until(lambda: state(idle, "own") == "STOPPED")
    assert cluster_views.get_cluster(idle.store, "a")["total_resources"]["CPU"] == 8


def test_the_lender_takes_back_what_a_job_had_when_that_ends(idle: Life) -> None:
    idle.node("n1", "8c", cpus=8)
    cluster(idle, "t", 8, lends=8)
    cluster(idle, "t-1", 4, lends=4, parent="t")
    run(idle, "big", None, 8)
    assert {lender for _, lender, _ in loans(idle)} == {"t", "t-1"}
    assert all_below_minimum(idle.store) == {}  # what is lent is not lost
    end(idle, "big")
    idle.until(lambda: state(idle, "big") == "STOPPED")
    idle.turn()
    has = {
        one: cluster_views.get_cluster(idle.store, one)["total_resources"].get("CPU", 0)
        for one in ("t", "t-1")
    }
    assert has == {"t": 8, "t-1": 4}


def test_a_lender_whose_own_work_cannot_start_with_it_lends(idle: Life) -> None:
    """Two nodes, each the minimum of a cluster that lends it; the jobs of both need both nodes, and waited for ever."""
    idle.nodes(2, "8c", cpus=8)
    for name in "ab":
        cluster(idle, name, 8, lends=8)
    submit(idle, "of-b", "b", 8, nodes=2)
    submit(idle, "of-a", "a", 8, nodes=2)
    idle.until(lambda: state(idle, "of-b") == "RUNNING")
    assert state(idle, "of-a") == "PENDING"
    end(idle, "of-b")
    idle.until(lambda: state(idle, "of-a") == "RUNNING")


@pytest.mark.parametrize("change", ["slices", "whole nodes", "a larger minimum", "a file of the tree"])
def test_a_change_of_a_cluster_takes_what_others_borrowed_and_do_not_use(idle: Life, change: str) -> None:
    """It was refused with "free some resources first" while nothing ran."""
    idle.nodes(2, "8c", cpus=8)
    cluster(idle, "a")
    cluster(idle, "b")
    run(idle, "first", "a", 8, nodes=2)
    end(idle, "first")
    idle.until(lambda: state(idle, "first") == "STOPPED")
    assert loans(idle) == [("a", "kPrimaryClusterID", 16.0)]
    if change == "slices":
        cluster(idle, "c", least=4)
    elif change == "whole nodes":
        clusters.create(idle.store, "c", ClusterChange(divisible=True, replica_sets={"8c": 1}))
    elif change == "a larger minimum":
        least = parse_cluster_spec({"flexible_resource_min": {"CPU": 4}}, logical=True)
        clusters.update(idle.store, "b", ClusterChange(spec=least))
    else:
        wanted = {"id": "b", "divisible": True, "spec": {"flexible_resource_min": {"CPU": 4}}}
        tree_files.apply(idle.store, parse_tree({"clusters": [wanted]}))
    assert loans(idle) == [("a", "kPrimaryClusterID", 8.0)]
    assert prove(idle.store) == []
    run(idle, "second", "a", 8)


def test_a_change_that_still_has_too_little_leaves_all_loans_where_they_are(idle: Life) -> None:
    idle.nodes(2, "8c", cpus=8)
    cluster(idle, "a")
    run(idle, "first", "a", 8, nodes=2)
    run_on = loans(idle)
    end(idle, "first")
    idle.until(lambda: state(idle, "first") == "STOPPED")
    run(idle, "second", "a", 8)
    with pytest.raises(Conflict, match="not enough free resources for cluster c now"):
        cluster(idle, "c", least=9)
    assert loans(idle) == run_on


@pytest.mark.parametrize("where", ["t-2", "t"], ids=["a sibling has borrowed", "a job of the team has"])
def test_a_minimum_goes_out_of_a_team_that_has_borrowed_what_the_lender_then_gives_it(
    idle: Life, where: str
) -> None:
    """A team above its minimum lends nothing: the minimum of its project lay idle while everybody waited."""
    idle.nodes(2, "8c", cpus=8)
    cluster(idle, "t", 8, lends=8)
    cluster(idle, "t-1", 4, lends=4, parent="t")
    for name, parent in (("t-2", "t"), ("u", None)):
        cluster(idle, name, parent=parent)
    for number in range(3):
        run(idle, f"of-t-{number}", where, 4)
    assert total(idle, "t") == 16
    run(idle, "of-u", "u", 4)
    assert (total(idle, "t"), total(idle, "t-1")) == (12, 0)
    assert [(lender, cpus) for _, lender, cpus in loans(idle) if lender == "t-1"] == [("t-1", 4.0)]
    assert all_below_minimum(idle.store) == {}
    run(idle, "own", "t-1", 4)
    assert [one for one in loans(idle) if one[1] == "t-1"] == []
    assert sorted(state(idle, f"of-t-{number}") for number in range(3)) == ["RUNNING", "RUNNING", "STOPPED"]
    assert state(idle, "of-u") == "RUNNING"


@pytest.mark.parametrize(
    "least", [0, 1, 3, 5], ids=["lower", "a little lower", "higher", "as high as it has"]
)
def test_a_change_of_the_minimum_changes_the_one_account_with_the_parent(idle: Life, least: int) -> None:
    idle.node("n1", "8c", cpus=8)
    cluster(idle, "a", 2)
    run(idle, "first", "a", 4)
    run(idle, "second", "a", 1)
    assert loans(idle) == [("a", "kPrimaryClusterID", 3.0)]
    wanted = parse_cluster_spec({"flexible_resource_min": {"CPU": least} if least else {}}, logical=True)
    clusters.update(idle.store, "a", ClusterChange(spec=wanted))
    assert loans(idle) == ([("a", "kPrimaryClusterID", 5.0 - least)] if least < 5 else [])
    assert prove(idle.store) == []


def test_the_proof_adds_up_what_a_cluster_has_borrowed(idle: Life) -> None:
    idle.nodes(2, "8c", cpus=8)
    cluster(idle, "a", 2)
    run(idle, "first", "a", 8, nodes=2)
    assert (loans(idle), prove(idle.store)) == ([("a", "kPrimaryClusterID", 14.0)], [])
    idle.store.db.execute("""UPDATE leases SET amounts = '{"CPU":130000}'""")
    assert prove(idle.store) == ["cluster a: it has 14 CPU above its minimum, and 13 borrowed"]
    idle.store.db.execute("""UPDATE leases SET amounts = '{"CPU":140000}'""")
