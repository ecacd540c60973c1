"""spec 6, 7: a command that makes a cluster leaves the nodes that jobs and clusters select to them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ops.conftest import Ground
from tests.specification import spec
from vctl.ops import clusters, nodes, tree_files
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.tree_file import parse_tree
from vctl.store import clusters as table

pytestmark = spec("6.scarce", "7.create")

PIECE = {"resources": {"CPU": 1}, "label_selector": {"zone": "a"}}
SELECTS: dict[str, Any] = {"fixed_size_nodes": [{"nodes": [PIECE]}]}
SLICE: dict[str, Any] = {"flexible_resource_min": {"CPU": 1}}


def whole(count: int = 1) -> dict[str, Any]:
    return {"replica_sets": {"4c8g": count}}


@pytest.fixture
def zones(ground: Ground) -> Ground:
    """Four nodes of one template; n-00 and n-01 have a label."""
    ground.nodes(2)
    for name in ("n-00", "n-01"):
        nodes.update(ground.store, name, labels={"zone": "a"})
    return ground


def create(ground: Ground, name: str, what: dict[str, Any], parent_id: str = "primary") -> list[str]:
    """The nodes of a new cluster."""
    parsed = parse_cluster_spec(what, logical=True)
    clusters.create(ground.store, name, ClusterChange(divisible=True, spec=parsed), parent_id=parent_id)
    return table.node_ids_of(ground.store, name)


@pytest.mark.parametrize("made", [SLICE, whole()], ids=["a slice", "a whole node"])
def test_what_a_waiting_job_selects_comes_last(zones: Ground, made: dict[str, Any]) -> None:
    assert create(zones, "before", made) == ["n-00"]
    clusters.delete(zones.store, "before")
    zones.submit("s", spec=parse_cluster_spec(SELECTS))
    assert create(zones, "after", made) == ["n-02"]


@pytest.mark.parametrize("made", [SLICE, whole()], ids=["a slice", "a whole node"])
def test_what_a_cluster_selects_comes_last(zones: Ground, made: dict[str, Any]) -> None:
    assert create(zones, "asks", SELECTS) == ["n-00"]
    assert create(zones, "after", made) == ["n-02"]


def test_it_is_taken_when_there_is_nothing_else(zones: Ground) -> None:
    zones.submit("s", spec=parse_cluster_spec(SELECTS))
    assert create(zones, "three", whole(3)) == ["n-00", "n-02", "n-03"]


def test_a_parent_gives_in_the_same_order(zones: Ground) -> None:
    """One level down: of the whole nodes of a divisible cluster."""
    create(zones, "team", whole(4))
    create(zones, "asks", SELECTS, "team")
    assert create(zones, "whole", whole(2), "team") == ["n-02", "n-03"]


def test_a_cluster_that_gets_more_gets_what_others_need_least(zones: Ground) -> None:
    assert create(zones, "more", whole(1)) == ["n-00"]
    zones.submit("s", spec=parse_cluster_spec(SELECTS))
    clusters.update(zones.store, "more", ClusterChange(spec=parse_cluster_spec(whole(2), logical=True)))
    assert table.node_ids_of(zones.store, "more") == ["n-00", "n-02"]


def test_a_tree_file_leaves_it_too(zones: Ground) -> None:
    zones.submit("s", spec=parse_cluster_spec(SELECTS))
    tree = {"clusters": [{"id": "whole", "replica_sets": {"4c8g": 1}}, {"id": "slice", "spec": SLICE}]}
    tree_files.apply(zones.store, parse_tree(tree))
    assert [table.node_ids_of(zones.store, one) for one in ("whole", "slice")] == [["n-02"], ["n-03"]]
