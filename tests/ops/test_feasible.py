"""What could ever run is judged once per shape, and anew whenever there is something else to run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.nodes import MADE_BY
from vctl.errors import Infeasible
from vctl.ops import clusters, nodes, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest, shortcut_spec
from vctl.store.store import Store

pytestmark = spec("6.never")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        nodes.add(opened, node_id="big", resources={"CPU": 80_000})
        nodes.add(opened, node_id="small", resources={"CPU": 20_000})
        yield opened


def submit(store: Store, cpus: int) -> None:
    submitting.submit(store, JobRequest(argv=("true",), spec=shortcut_spec(cpus)), environment={})


def test_a_known_shape_is_not_judged_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(store, 8)
    monkeypatch.setattr(submitting, "check_feasible", lambda *_: pytest.fail("judged again"))
    submit(store, 8)


CHANGES = {
    "the node that had room dies": lambda store: nodes.kill(store, "big"),
    "the node that had room shrinks": lambda store: nodes.update(store, "big", resources={"CPU": 40_000}),
    "the node that had room is removed": lambda store: nodes.remove(store, "big"),
    "a cluster made by name takes it": lambda store: clusters.create(
        store, "team", ClusterChange(replica_sets={"8c": 1})
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_known_shape_is_judged_anew_when(store: Store, change: object) -> None:
    submit(store, 8) if change is not CHANGES["the node that had room is removed"] else None
    assert callable(change)
    change(store)
    with pytest.raises(Infeasible):
        submit(store, 8)


def test_what_was_impossible_becomes_possible_with_a_larger_node(store: Store) -> None:
    with pytest.raises(Infeasible):
        submit(store, 16)
    nodes.add(store, node_id="huge", resources={"CPU": 160_000})
    submit(store, 16)


def test_the_details_of_a_cluster_that_can_never_be_say_what_its_message_says(store: Store) -> None:
    clusters.create(store, "team", ClusterChange(replica_sets={"8c": 1}))
    wanted = parse_cluster_spec({"flexible_resource_min": {"CPU": 99}})
    with pytest.raises(Infeasible, match="99 CPU asked, 10 exist") as refused:
        clusters.create(store, "large", ClusterChange(spec=wanted))
    assert refused.value.details == {"resource": "CPU", "need": 99.0, "largest": 10.0}


MADE = {
    "none has been made": lambda _: None,
    "one works": lambda store: made(store, "4c-p1"),
    "both work": lambda store: [made(store, "4c-p1"), made(store, "4c-p2")],
    "one is being drained": lambda store: [
        made(store, "4c-p1"), clusters.create(store, "in-use",
            ClusterChange(spec=one_of("4c-p1"))), nodes.drain(store, "4c-p1")
    ],
    "one has died and will be replaced": lambda store: [made(store, "4c-p1"), nodes.kill(store, "4c-p1")],
}  # fmt: skip


def made(store: Store, node_id: str) -> None:
    """A machine of the provider."""
    labels = {MADE_BY: "simulated"}
    nodes.add(store, node_id=node_id, template="4c", resources={"CPU": 40_000}, labels=labels)


def one_of(node_id: str) -> ClusterSpec:
    """One CPU on this node."""
    node = {"resources": {"CPU": 1}, "label_selector": {"ray.io/node-id": node_id}}
    return parse_cluster_spec({"fixed_size_nodes": [{"nodes": [node]}]})


@pytest.mark.parametrize("change", MADE.values(), ids=MADE)
def test_machines_that_the_provider_has_made_count_in_its_maximum_when(store: Store, change: object) -> None:
    store.could_make = lambda _: [{"name": "4c", "resources": {"CPU": 40_000}, "labels": {}, "most": 2}]
    assert callable(change)
    change(store)
    wanted = parse_cluster_spec({"flexible_resource_min": {"CPU": 19}})
    with pytest.raises(Infeasible, match="19 CPU asked, 18 exist"):
        submitting.submit(store, JobRequest(argv=("true",), spec=wanted), environment={})
    with pytest.raises(Infeasible, match="19 CPU asked, 18 exist"):
        clusters.create(store, "large", ClusterChange(spec=wanted))


REFUSALS = {
    "whole nodes count in what is asked": (
        {"replica_sets": {"8c": 1, "2c": 1}, "flexible_resource_min": {"CPU": 1}},
        "1 CPU and 1 whole node of template 2c and 1 whole node of template 8c asked, 10 CPU exist",
    ),
    "nodes that are too small do not count": (
        {
            "fixed_size_nodes": [
                {"nodes": [{"resources": {"CPU": 4}}] * 2, "scheduling_policy": "STRICT_SPREAD"}
            ]
        },
        r"2 distinct nodes \(STRICT_SPREAD\) asked, 1 could hold a part of it",
    ),
    "there are too few nodes": (
        {
            "fixed_size_nodes": [
                {"nodes": [{"resources": {"CPU": 1}}] * 3, "scheduling_policy": "STRICT_SPREAD"}
            ]
        },
        r"3 distinct nodes \(STRICT_SPREAD\) asked, 2 exist",
    ),
}


@pytest.mark.parametrize(("document", "words"), REFUSALS.values(), ids=REFUSALS)
def test_the_refusal_of_what_can_never_run_says_what_is_missing(
    store: Store, document: object, words: str
) -> None:
    with pytest.raises(Infeasible, match=words):
        submitting.submit(
            store, JobRequest(argv=("true",), spec=parse_cluster_spec(document)), environment={}
        )


@pytest.mark.parametrize("parent", [None, "outer"])
def test_the_largest_amount_is_that_which_the_maximum_of_a_cluster_on_the_way_leaves(
    store: Store, parent: str | None
) -> None:
    """Who asks for the number that the refusal names is not refused again."""
    if parent:
        clusters.create(store, parent, ClusterChange(spec=ClusterSpec(), divisible=True))
    half = parse_cluster_spec({"flexible_resource_max": {"CPU": 4}})
    clusters.create(store, "half", ClusterChange(spec=half, divisible=True), parent_id=parent)
    wanted = parse_cluster_spec({"replica_sets": {"8c": 2}})
    with pytest.raises(
        Infeasible, match="capacity of half: 2 whole nodes of template 8c asked, 0 exist"
    ) as no:
        submitting.submit(store, JobRequest(argv=("true",), spec=wanted, cluster="half"), environment={})
    assert (no.value.details["need"], no.value.details["largest"]) == (2.0, 0.0)
    assert "vctl vc update half" in no.value.fix


def test_a_cluster_that_can_never_be_is_refused_with_the_fix_of_a_job(store: Store, tmp_path: Path) -> None:
    wanted = parse_cluster_spec({"flexible_resource_min": {"CPU": 99}})
    clusters.create(store, "team", ClusterChange(replica_sets={"8c": 1}, divisible=True))
    clusters.create(store, "elastic", ClusterChange(spec=ClusterSpec(), divisible=True))
    with Store.open(tmp_path / "empty") as empty:
        fixes = (
            (store, None, "ask for less, or add a node with `vctl node add`"),
            (store, "elastic", "ask for less, or add a node with `vctl node add`"),
            (
                store,
                "team",
                "ask for less, or give team more nodes with `vctl vc update team --replica-sets JSON`",
            ),
            (empty, None, "add a node with `vctl node add`, or let this machine be one: VCTL_LOCAL_NODE=1"),
        )
        for where, parent, fix in fixes:
            request = JobRequest(argv=("true",), spec=wanted, cluster=parent)
            with pytest.raises(Infeasible) as of_job:
                submitting.submit(where, request, environment={})
            with pytest.raises(Infeasible) as of_cluster:
                clusters.create(where, "large", ClusterChange(spec=wanted), parent_id=parent)
            assert of_job.value.fix == of_cluster.value.fix == fix
