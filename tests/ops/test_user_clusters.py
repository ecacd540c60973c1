"""A cluster for each user, made from a template by the first submit."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.identity import Identity
from vctl.core.resources import CPU, SCALE
from vctl.errors import Conflict, Infeasible, NotPermitted, VctlError
from vctl.ops import batches, clusters, jobs, tree_files, why
from vctl.ops.cluster_views import get_cluster, list_clusters
from vctl.ops.nodes import own_name
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.tree_file import parse_tree
from vctl.store.store import Store

pytestmark = spec("19.users")

ANA, BEN, ROOT = Identity(20001, "daemon"), Identity(20002, "bin"), Identity(0, "root", is_admin=True)
"""Names that every machine has: a cluster takes no others."""
ONE = ClusterSpec(flexible_max={CPU: SCALE})
MINE = f"lab.{own_name()}"


def four(cpus: int) -> ClusterSpec:
    return ClusterSpec(groups=(Group((FixedNode({CPU: cpus * SCALE}),)),), flexible=False)


@pytest.fixture
def lab(ground: Ground) -> Store:
    change = ClusterChange(divisible=True, spec=ClusterSpec(), user_template=(ONE,))
    clusters.create(ground.store, "lab", change)
    return ground.store


def names(store: Store) -> list[str]:
    found: list[Any] = list_clusters(store, filters=["kind=logical"], all_kinds=True)
    return sorted(one["cluster_id"] for one in found)


def test_the_first_job_makes_the_cluster_and_the_next_one_finds_it(lab: Store, ground: Ground) -> None:
    assert ground.submit("a", cluster="lab")["parent_cluster_id"] == MINE
    made = get_cluster(lab, MINE)
    assert (made["parent_id"], made["of_user"], made["divisible"]) == ("lab", own_name(), True)
    assert made["max_resources"] == {"CPU": 1}
    assert get_cluster(lab, "lab")["user_template"] == {
        "flexible_resource_min": {}, "flexible_resource_max": {"CPU": 1.0}
    }  # fmt: skip
    revision = made["revision"]
    assert ground.submit("b", cluster="lab")["parent_cluster_id"] == MINE
    assert ground.submit("c", cluster=MINE)["parent_cluster_id"] == MINE
    assert get_cluster(lab, MINE)["revision"] == revision


def test_a_refused_job_leaves_no_cluster(lab: Store, ground: Ground) -> None:
    with pytest.raises(Infeasible):
        ground.submit("a", cluster="lab", spec=four(2))
    assert names(lab) == ["lab"]


def test_a_dry_run_judges_with_the_cluster_and_makes_none(lab: Store) -> None:
    request = JobRequest(argv=("true",), cluster="lab", cwd="/")
    assert why.dry_run(lab, request, environment={"PATH": "/bin"})["verdict"] == "starts now"
    with pytest.raises(Infeasible):
        why.dry_run(lab, JobRequest(argv=("true",), cluster="lab", spec=four(2), cwd="/"), environment={})
    assert names(lab) == ["lab"]


def test_a_batch_makes_each_cluster_that_it_needs(lab: Store, ground: Ground) -> None:
    clusters.create(lab, "other", ClusterChange(divisible=True, spec=ClusterSpec(), user_template=(ONE,)))
    requests = [JobRequest(argv=("true",), cluster=name, cwd="/") for name in ("lab", "other", "lab")]
    batches.queue(lab, [(request, {"PATH": "/bin"}) for request in requests])
    assert names(lab) == ["lab", MINE, "other", f"other.{own_name()}"]


def test_without_the_template_it_takes_jobs_itself_again(lab: Store, ground: Ground) -> None:
    ground.submit("a", cluster="lab")
    clusters.update(lab, "lab", ClusterChange(user_template=()))
    assert get_cluster(lab, "lab")["user_template"] is None
    assert ground.submit("b", cluster="lab")["parent_cluster_id"] == "lab"
    assert names(lab) == ["lab", MINE]


def test_a_cluster_that_has_the_name_is_not_taken(lab: Store, ground: Ground) -> None:
    clusters.create(lab, MINE, ClusterChange(divisible=True, spec=ClusterSpec()))
    with pytest.raises(Conflict, match="has its name"):
        ground.submit("a", cluster="lab")


def test_only_a_divisible_cluster_has_a_template(lab: Store) -> None:
    with pytest.raises(VctlError, match="holds no clusters of users"):
        clusters.create(lab, "flat", ClusterChange(user_template=(ONE,)))


def test_prune_deletes_those_without_jobs(lab: Store, ground: Ground) -> None:
    ground.submit("a", cluster="lab")
    ground.end("a")
    ground.now += 10**9
    assert jobs.prune(lab, 60)["clusters"] == []
    assert jobs.prune(lab, 0)["clusters"] == [MINE]
    assert names(lab) == ["lab"]


def test_a_tree_file_has_the_template_and_not_what_was_made(lab: Store, ground: Ground) -> None:
    ground.submit("a", cluster="lab")
    document = tree_files.export(lab)
    (entry,) = document["clusters"]  # type: ignore[misc]
    assert entry["user_template"] == {"flexible_resource_min": {}, "flexible_resource_max": {"CPU": 1.0}}
    assert "children" not in entry
    assert tree_files.plan(lab, parse_tree(document), prune=True)["changes"] == []


@spec("19.rights")
def test_users_have_clusters_of_their_own(lab: Store, ground: Ground) -> None:
    """Each submits to his own, and the limits are those of the template, not his."""
    lab.identity = ROOT
    clusters.update(lab, "lab", ClusterChange(submitters=(ANA.name, BEN.name)))
    for who in (ANA, BEN):
        lab.identity = who
        assert ground.submit(f"of-{who.name}", cluster="lab")["parent_cluster_id"] == f"lab.{who.name}"
    own = get_cluster(lab, "lab.bin")
    assert (own["submitters"], own["admins"]) == (["bin"], ["bin"])
    with pytest.raises(NotPermitted):
        ground.submit("x", cluster="lab.daemon")
    with pytest.raises(NotPermitted):
        clusters.update(lab, "lab.bin", ClusterChange(spec=ClusterSpec()))
    clusters.create(lab, "inner", ClusterChange(divisible=True, spec=ClusterSpec()), parent_id="lab.bin")
    lab.identity = Identity(20003, "eve")
    with pytest.raises(NotPermitted):
        ground.submit("x", cluster="lab")
    assert "lab.eve" not in names(lab)
    lab.identity = ROOT
    clusters.update(lab, "lab", ClusterChange(submitters=(ANA.name,)))
    lab.identity = BEN
    for name in ("lab", "lab.bin"):
        with pytest.raises(NotPermitted):
            ground.submit("y", cluster=name)
