"""Clusters inside jobs may have whole nodes beside slices: they are made so and resized live (spec 4 and 9)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.daemon.conftest import Life
from tests.specification import spec
from vctl.errors import Conflict
from vctl.ops import clusters as cluster_ops
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec

pytestmark = spec("9.resize", "4.fields")

ONE, TWO = {"resources": {"CPU": 1}}, {"resources": {"CPU": 2}}


@pytest.fixture
def job(life: Life) -> str:
    """A job with a fixed node, a whole node of template ``t`` and a flexible minimum, on nodes with 4 CPUs."""
    life.nodes(4, "t")
    life.nodes(2, "u")
    life.run(
        "j", spec={"fixed_size_nodes": [ONE], "replica_sets": {"u": 1}, "flexible_resource_min": {"CPU": 1}}
    )
    return "kPrimaryClusterID##j"


def update(life: Life, cluster: str, document: dict[str, Any]) -> None:
    cluster_ops.update(life.store, cluster, ClusterChange(spec=parse_cluster_spec(document)))
    life.turn()


def parts(life: Life, cluster: str) -> list[tuple[str, str, float]]:
    """Kind, template of the node and CPUs of each virtual node, by rank."""
    sql = (
        "SELECT CASE WHEN whole THEN 'whole' ELSE kind END, template_id, v.amounts ->> 'CPU' FROM vnodes v"
        " JOIN nodes USING (node_id) WHERE cluster_id = ? ORDER BY v.rank"
    )
    return [(row[0], row[1], row[2] / 10_000) for row in life.store.rows(sql, cluster)]


@pytest.mark.parametrize("is_ruled", [True, False], ids=["with a scheduler", "without one"])
def test_each_part_of_the_cluster_of_a_job_changes_alone(life: Life, job: str, *, is_ruled: bool) -> None:
    before = [("fixed", "t", 1), ("whole", "u", 4), ("flexible", "t", 1)]
    assert parts(life, job) == before
    if not is_ruled:
        life.die()
    more = {"fixed_size_nodes": [ONE], "replica_sets": {"u": 2}, "flexible_resource_min": {"CPU": 1}}
    update(life, job, more)
    assert parts(life, job) == [*before, ("whole", "u", 4)]
    update(life, job, {**more, "replica_sets": {"u": 1, "t": 1}})
    assert sorted(parts(life, job)) == sorted([*before, ("whole", "t", 4)])
    update(life, job, {**more, "replica_sets": {"u": 1}, "flexible_resource_min": {"CPU": 3}})
    assert sorted(parts(life, job)) == [("fixed", "t", 1), ("flexible", "t", 3), ("whole", "u", 4)]
    update(life, job, {"fixed_size_nodes": [ONE], "flexible_resource_min": {"CPU": 1}})
    assert sorted(parts(life, job)) == [("fixed", "t", 1), ("flexible", "t", 1)]
    update(
        life,
        job,
        {"fixed_size_nodes": [{"nodes": [ONE]}, {"nodes": [TWO]}], "flexible_resource_min": {"CPU": 1}},
    )
    assert sorted(parts(life, job)) == [("fixed", "t", 1), ("fixed", "t", 2), ("flexible", "t", 1)]
    assert life.job("j")["status"] == "RUNNING"
    life.die()
    assert life.replay() == [[]] * 6
    life.turn()


def test_whole_nodes_of_a_job_get_slices_beside_them(life: Life) -> None:
    life.nodes(3, "t")
    life.run("j", spec={"replica_sets": {"t": 1}})
    update(life, "kPrimaryClusterID##j", {"replica_sets": {"t": 1}, "flexible_resource_min": {"CPU": 2}})
    assert parts(life, "kPrimaryClusterID##j") == [("whole", "t", 4), ("flexible", "t", 2)]


def test_nothing_changes_where_a_part_cannot_be_had_or_is_used(life: Life, job: str) -> None:
    before = parts(life, job)
    for document in (
        {"fixed_size_nodes": [ONE], "replica_sets": {"u": 3}, "flexible_resource_min": {"CPU": 1}},
        {"replica_sets": {"u": 1}, "flexible_resource_min": {"CPU": 1}},  # the command runs in the fixed node
    ):
        with pytest.raises(Conflict if "fixed_size_nodes" not in document else Exception):
            cluster_ops.update(life.store, job, ClusterChange(spec=parse_cluster_spec(document)))
        assert parts(life, job) == before
    life.turn()


def test_a_whole_node_that_died_is_given_up_first(life: Life, job: str) -> None:
    more = {"fixed_size_nodes": [ONE], "replica_sets": {"u": 2}, "flexible_resource_min": {"CPU": 1}}
    update(life, job, more)
    first, second = life.store.column(
        "SELECT node_id FROM vnodes WHERE cluster_id = ? AND whole ORDER BY 1", job
    )
    node_ops.kill(life.store, second)
    life.turn()
    update(life, job, {**more, "replica_sets": {"u": 1}})
    assert life.store.column("SELECT node_id FROM vnodes WHERE cluster_id = ? AND whole", job) == [first]


def test_a_sub_cluster_may_have_both(life: Life) -> None:
    life.nodes(3, "t")
    life.run("j", spec={"replica_sets": {"t": 2}})
    cluster_ops.create(
        life.store,
        "sub",
        ClusterChange(
            spec=parse_cluster_spec({"replica_sets": {"t": 1}, "flexible_resource_min": {"CPU": 1}})
        ),
        parent_id="kPrimaryClusterID##j",
    )
    assert sorted(parts(life, "kPrimaryClusterID##j##sub")) == [("flexible", "t", 1), ("whole", "t", 4)]
    life.turn()
