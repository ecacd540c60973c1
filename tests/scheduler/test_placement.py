"""Placement, one sentence per case: nodes, what is used of them, the gang, and where it goes or why not."""

from __future__ import annotations

import pytest

from tests import specification
from tests.scheduler import candidates
from vctl.core.clusters import FLEXIBLE, LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.core.nodes import DRAINING
from vctl.core.resources import SCALE
from vctl.core.values import replace
from vctl.scheduler.explain.nodes import explain
from vctl.scheduler.feasibility import could_help, ever
from vctl.scheduler.placement import Piece, Placed, Unplaced, place

pytestmark = specification.spec("6.policies", "6.gang", "6.deterministic")

spec = candidates.spec

# sentence: (nodes, used "n1:1c", labels, spec, entry, want). In want, "n1 n2" are the nodes of the pieces by
# rank and "| 0" the entrypoint's rank; a text starting with "no:" is the start of the message instead.
CASES: dict[str, tuple[str, str, dict[str, str], ClusterSpec, str, str]] = {
    "STRICT_SPREAD puts two bundles on two nodes": (
        "4c, 4c",
        "",
        {},
        spec("STRICT_SPREAD: 1c, 1c"),
        "",
        "n1 n2",
    ),
    "STRICT_SPREAD on one node is refused by naming nodes": (
        "4c",
        "",
        {},
        spec("STRICT_SPREAD: 1c, 1c"),
        "",
        "no: needs 2 distinct nodes (STRICT_SPREAD), have 1",
    ),
    "STRICT_SPREAD counts only nodes where a bundle fits": (
        "4c, 4c",
        "n2:4c",
        {},
        spec("STRICT_SPREAD: 1c, 1c"),
        "",
        "no: needs 2 distinct nodes",
    ),
    "STRICT_PACK keeps a group on one node": (
        "2c, 4c",
        "",
        {},
        spec("STRICT_PACK: 1c, 1c, 1c"),
        "",
        "n2 n2 n2",
    ),
    "STRICT_PACK never takes a second node": (
        "4c, 4c",
        "",
        {},
        spec("STRICT_PACK: 3c, 3c"),
        "",
        "no: needs 6 CPU on one node (STRICT_PACK), the most free on one node is 4 CPU",
    ),
    "PACK takes the fewest nodes": ("2c, 2c, 4c", "", {}, spec("PACK: 1c, 1c, 1c, 1c"), "", "n3 n3 n3 n3"),
    "PACK takes the tightest node that holds all": ("8c, 2c, 4c", "", {}, spec("PACK: 1c, 1c"), "", "n2 n2"),
    "PACK takes more nodes rather than none": ("2c, 2c", "", {}, spec("PACK: 1.5c, 1.5c"), "", "n1 n2"),
    "SPREAD takes distinct nodes": ("4c, 4c, 4c", "", {}, spec("SPREAD: 1c, 1c, 1c"), "", "n1 n2 n3"),
    "SPREAD shares a node rather than wait": ("4c", "", {}, spec("SPREAD: 1c, 1c"), "", "n1 n1"),
    "two groups keep their own policies": (
        "4c, 4c",
        "",
        {},
        spec("STRICT_SPREAD: 2c, 2c", "STRICT_PACK: 1c, 1c"),
        "",
        "n1 n2 n1 n1",
    ),
    "a bundle lies inside one node": (
        "4c, 4c",
        "",
        {},
        spec("PACK: 5c"),
        "",
        "no: needs 5 CPU on one node, the most free on one node is 4 CPU",
    ),
    "the sum of a gang counts": (
        "4c, 4c",
        "",
        {},
        spec("PACK: 3c, 3c, 3c"),
        "",
        "no: needs 9 CPU in total, 8 CPU free",
    ),
    "bundles that fit in sum but not in pieces are refused": (
        "4c, 4c",
        "",
        {},
        spec("PACK: 3c, 3c, 2c"),
        "",
        "no: does not fit as a whole",
    ),
    "ties go to the lowest node id": ("4c, 4c, 4c", "n1:1c", {}, spec("SPREAD: 1c"), "", "n2"),
    "a node with GPUs is left to those who ask for them": (
        "4c 2g, 4c",
        "",
        {},
        spec("PACK: 1c"),
        "",
        "n2",
    ),
    "a selector is obeyed": ("4c, 4c", "", {"n2": "zone=b"}, spec("PACK: 1c @zone=b"), "", "n2"),
    "a negative selector also matches nodes without the label": (
        "4c, 4c",
        "",
        {"n1": "zone=a"},
        spec("PACK: 1c @zone!=a"),
        "",
        "n2",
    ),
    "a selector may name a virtual node": (
        "4c, 4c, 4c",
        "",
        {},
        spec("PACK: 1c @ray.io/vnode_id=n3"),
        "",
        "n3",
    ),
    "a selector may exclude a virtual node": (
        "4c, 4c",
        "",
        {},
        spec("PACK: 1c @ray.io/vnode_id!=n1"),
        "",
        "n2",
    ),
    "a selector that matches nothing is named": (
        "4c",
        "",
        {},
        spec("PACK: 1c @zone=b"),
        "",
        "no: needs a node with zone: b, 0 nodes match",
    ),
    "the picky bundle gets its node before the easy one": (
        "1c, 1c",
        "",
        {"n1": "zone=a"},
        spec("PACK: 1c, 1c @zone=a"),
        "",
        "n2 n1",
    ),
    "whole nodes come by template": ("4c, 8c, 4c", "", {}, spec(whole={"4c": 2}), "", "n1 n3"),
    "a touched node is not whole": (
        "4c, 4c",
        "n1:1c",
        {},
        spec(whole={"4c": 2}),
        "",
        "no: needs 2 whole nodes of template 4c, 1 untouched",
    ),
    "a whole node and a bundle do not share it": (
        "4c, 8c",
        "",
        {},
        spec("PACK: 2c", whole={"4c": 1}),
        "",
        "n2 n1",
    ),
    "a flexible minimum lies on one node if one fits": ("2c, 4c", "", {}, spec(flexible="3c"), "", "n2"),
    "a flexible minimum is cut in whole units": ("2.5c, 2.5c", "", {}, spec(flexible="4c"), "", "n1 n2"),
    "a flexible minimum is not cut in halves": (
        "2.5c, 2.5c",
        "",
        {},
        spec(flexible="5c"),
        "",
        "no: does not fit as a whole",
    ),
    "the fraction of a flexible minimum lies in one piece": (
        "1c, 2.5c",
        "",
        {},
        spec(flexible="3.5c"),
        "",
        "n1 n2",
    ),
    "half a GPU of a flexible minimum is one share": (
        "1c 1g, 1c 1g",
        "n1:0.75g, n2:0.75g",
        {},
        spec(flexible="0.5g"),
        "",
        "no: the flexible minimum needs 0.5 GPU, 0 GPU can be had",
    ),
    "the entrypoint runs in the first piece that can hold it": (
        "8c",
        "",
        {},
        spec("PACK: 1c, 2c, 3c"),
        "2c",
        "n1 n1 n1 | 1",
    ),
    "an entrypoint no bundle holds goes to the flexible part": (
        "4c, 4c",
        "",
        {},
        spec("PACK: 1c", flexible=""),
        "4c",
        "n1 n2 | 1",
    ),
    "an entrypoint no bundle holds is refused without a flexible part": (
        "4c",
        "",
        {},
        spec("PACK: 1c"),
        "2c",
        "no: the entrypoint needs 2 CPU in one virtual node, the largest has 1 CPU",
    ),
    "the entrypoint lies in one piece of a split minimum": (
        "2c, 3c",
        "",
        {},
        spec(flexible="5c"),
        "3c",
        "n1 n2 | 1",
    ),
    "the entrypoint may not exceed the flexible maximum": (
        "4c",
        "",
        {},
        spec(flexible="", most="1c"),
        "2c",
        "no: the entrypoint needs 2 CPU, flexible_resource_max allows 1 CPU",
    ),
    "the entrypoint runs on a whole node": (
        "4c, 8c",
        "",
        {},
        spec(whole={"4c": 1, "8c": 1}),
        "6c",
        "n1 n2 | 1",
    ),
    "an empty gang asks for one CPU as its entrypoint": (
        "1c, 1c",
        "n1:1c",
        {},
        spec(flexible=""),
        "1c",
        "n2 | 0",
    ),
    "an empty gang without an entrypoint request still needs a place": (
        "4c, 4c",
        "n1:4c",
        {},
        spec(flexible=""),
        "",
        "n1 | 0",
    ),
    "two shares on two devices do not make one": (
        "1c 2g",
        "n1:0.5g, n1:0.75g",
        {},
        spec("PACK: 0.75g"),
        "",
        "no: needs 0.75 GPU on one node, the most free on one node is 0.5 GPU",
    ),
    "shares are packed so that all fit": (
        "1c 2g",
        "",
        {},
        spec("PACK: 0.5g, 0.4g, 0.4g, 0.3g, 0.2g, 0.2g"),
        "",
        "n1 n1 n1 n1 n1 n1",
    ),
    "shares that do not pack are refused": (
        "1c 2g",
        "",
        {},
        spec("PACK: 0.6g, 0.6g, 0.6g"),
        "",
        "no: needs 3 times 0.6 GPU, 2 fit",
    ),
    "a GPU entrypoint runs inside a GPU bundle": ("2c 2g", "", {}, spec("PACK: 1g, 1c"), "0.5g", "n1 n1 | 0"),
    "nothing fits where there are no nodes": ("", "", {}, spec("PACK: 1c"), "", "no: no node takes work"),
}


def world_of(nodes: str, used: str, labels: dict[str, str]) -> Ledger:
    world = candidates.ledger([text for text in nodes.split(",") if text], labels)
    for use in filter(None, used.split(",")):
        node_id, _, want = use.strip().partition(":")
        candidates.use(world, node_id, want)
    return world


@pytest.mark.parametrize(("nodes", "used", "labels", "want_spec", "entry", "want"), CASES.values(), ids=CASES)
def test_placement(
    nodes: str, used: str, labels: dict[str, str], want_spec: ClusterSpec, entry: str, want: str
) -> None:
    world = world_of(nodes, used, labels)
    plan = place(world, PRIMARY, want_spec, candidates.amounts(entry))
    if want.startswith("no:"):
        assert isinstance(plan, Unplaced), plan
        assert plan.message.startswith(want[4:]), plan.message
        assert not plan.exhausted
        return
    assert isinstance(plan, Placed), plan
    nodes_wanted, _, rank = want.partition(" | ")
    assert " ".join(piece.node_id for piece in plan.pieces) == nodes_wanted
    if rank:
        assert plan.entry_rank == int(rank)


@specification.spec("5.labels", "2.environment")
def test_a_piece_carries_instances_cores_and_its_own_labels() -> None:
    world = candidates.ledger("4c 2g")
    candidates.use(world, "n1", "1c 1g")
    bundle = replace(candidates.group("PACK: 2c 1g").nodes[0], labels={"bundle_index": "0"})
    plan = place(
        world, PRIMARY, ClusterSpec(groups=(replace(candidates.group("PACK: 2c"), nodes=(bundle,)),)), {}
    )
    assert isinstance(plan, Placed)
    (piece,) = plan.pieces
    assert piece.allocation.instances == {"GPU": {1: SCALE}}
    assert piece.allocation.cores == (1, 2)
    assert piece.labels == {"bundle_index": "0"}
    assert world.capacities["n1"].free["CPU"] == 3 * SCALE, "placing changes nothing"


def test_the_entrypoint_sees_what_it_asked_for() -> None:
    plan = place(candidates.ledger("4c 2g"), PRIMARY, spec("PACK: 2c 2g"), candidates.amounts("1c 1g"))
    assert isinstance(plan, Placed)
    assert plan.entry.instances == {"GPU": {0: SCALE}}
    assert plan.entry.cores == (0,)


def test_what_asks_for_nothing_does_not_run_on_a_node_that_left_the_view() -> None:
    world = candidates.ledger("4c, 4c, 4c")
    nothing = ClusterSpec()
    for number, cluster_id in enumerate(("team", "other"), 1):
        world.put_cluster(Cluster(cluster_id, PRIMARY, LOGICAL, ClusterSpec(replica_sets={"4c": 1})))
        node = world.vnodes[f"n{number}"]
        world.assign(
            replace(node, vnode_id=f"{cluster_id}/0", cluster_id=cluster_id, parent_id=node.vnode_id)
        )
    candidates.use(world, "n3", "4c")
    plan = place(world, PRIMARY, nothing, {})
    assert isinstance(plan, Placed)
    assert [piece.node_id for piece in plan.pieces] == ["n3"], "full, but in the view"
    world.remove_cluster("team")
    plan = place(world, PRIMARY, nothing, {})
    assert isinstance(plan, Placed)
    assert [piece.node_id for piece in plan.pieces] == ["n1"]


class TestTwoVirtualNodesOnOnePhysicalNode:
    def world(self) -> Ledger:
        world = candidates.ledger("4c, 4c")
        candidates.slice_cluster(world, "part", "n1=1c, n1=2c, n2=1c")
        return world

    def test_strict_spread_means_physical_nodes(self) -> None:
        plan = place(self.world(), "part", spec("STRICT_SPREAD: 1c, 1c, 1c"), {})
        assert isinstance(plan, Unplaced)
        assert plan.message == "needs 3 distinct nodes (STRICT_SPREAD), have 2"

    def test_strict_pack_uses_both_slots(self) -> None:
        plan = place(self.world(), "part", spec("STRICT_PACK: 1c, 2c"), {})
        assert isinstance(plan, Placed)
        assert [p.parent_vnode_id for p in plan.pieces] == ["part-v1", "part-v2"]

    def test_a_bundle_lies_in_one_slot(self) -> None:
        plan = place(self.world(), "part", spec("PACK: 3c"), {})
        assert isinstance(plan, Unplaced)
        assert (plan.refusal.subject, plan.refusal.requested, plan.refusal.have) == (
            "CPU",
            3 * SCALE,
            2 * SCALE,
        )

    def test_a_cluster_only_uses_its_own_nodes(self) -> None:
        plan = place(self.world(), PRIMARY, spec("PACK: 4c"), {})
        assert isinstance(plan, Unplaced)
        assert plan.refusal.have == 3 * SCALE


FLEXIBLE_IN_SLICES = {
    "all slices of a node": ("n1=1c, n1=1c", "2c", "", "v1:1c v2:1c"),
    "one slice, if one has all of it": ("n1=1c, n1=2c", "2c", "", "v2:2c"),
    "one node, if one has all of it": ("n1=1c, n2=1c, n2=1c", "2c", "", "v2:1c v3:1c"),
    "unequal slices of one node before other nodes": (
        "n1=2c, n2=2c, n3=1c 1g, n3=2c", "3c", "", "v3:1c v4:2c",
    ),
    "two slices of each of two nodes": ("n1=1c, n1=1c, n2=1c, n2=1c", "4c", "", "v1:1c v2:1c v3:1c v4:1c"),
    "more than there is": ("n1=1c, n1=1c", "3c", "", "no: needs 3 CPU in total, 2 CPU free"),
    "the remainder in one slice": ("n1=1c, n1=1.5c", "2.5c", "", "v1:1c v2:1.5c"),
    "no two fractions": ("n1=1.5c, n1=1.5c", "3c", "", "no: does not fit as a whole"),
    "whole devices of two slices": ("n1=1g, n1=1g", "2g", "", "v1:1g v2:1g"),
    "a share of a device lies in one slice": ("n1=0.5g, n1=0.75g", "0.6g", "", "v2:0.6g"),
    "two halves are no device": (
        "n1=0.5g, n1=0.5g", "1g", "", "no: the flexible minimum needs 1 GPU, 0 GPU can be had",
    ),
    "each resource from another slice": ("n1=1c, n1=1g", "1c 1g", "", "v1:1c v2:1g"),
    "the entrypoint in one of them": ("n1=1c, n1=2c", "3c", "2c", "v1:1c v2:2c"),
    "an entrypoint larger than each": (
        "n1=1c, n1=1c", "2c", "2c",
        "no: the entrypoint needs 2 CPU on one node, the most free on one node is 1 CPU",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("slices", "least", "entry", "want"), FLEXIBLE_IN_SLICES.values(), ids=FLEXIBLE_IN_SLICES
)
def test_a_flexible_minimum_in_a_cluster_of_slices(slices: str, least: str, entry: str, want: str) -> None:
    """Spec 1: at most one flexible virtual node per cluster and parent virtual node. It was per physical node."""
    world = candidates.ledger("4c 2g, 4c 2g, 4c 2g")
    candidates.slice_cluster(world, "part", slices)
    plan = place(world, "part", spec(flexible=least), candidates.amounts(entry))
    hopeless = ever(world, "part", spec(flexible=least), candidates.amounts(entry))
    if isinstance(plan, Placed):
        assert hopeless is None
        assert " ".join(sorted(in_words(p) for p in plan.pieces)) == want
    else:
        assert hopeless is not None
        assert f"no: {plan.message}".startswith(want)


def in_words(piece: Piece) -> str:
    """'v1:1c 0.5g': the slice of a piece and its amounts."""
    amounts = sorted((n, a) for n, a in piece.allocation.amounts.items() if a)
    return f"{piece.parent_vnode_id.removeprefix('part-')}:" + " ".join(
        f"{a / SCALE:g}{name[0].lower()}" for name, a in amounts
    )


class TestEver:
    def test_what_is_only_busy_is_possible(self) -> None:
        world = world_of("4c", "n1:4c", {})
        assert ever(world, PRIMARY, spec("PACK: 4c"), {}) is None

    def test_a_draining_node_counts(self) -> None:
        world = candidates.ledger("4c")
        world.put_node(replace(world.nodes["n1"], state=DRAINING))
        assert isinstance(place(world, PRIMARY, spec("PACK: 4c"), {}), Unplaced)
        assert ever(world, PRIMARY, spec("PACK: 4c"), {}) is None

    @pytest.mark.parametrize(
        ("want_spec", "resource", "need", "have", "message"),
        [
            (spec("PACK: 8c"), "CPU", 8, 4, "needs 8 CPU on one node, the most free on one node is 4 CPU"),
            (spec("PACK: 1g, 1g, 1g, 1g"), "GPU", 4, 2, "needs 4 GPU in total, 2 GPU free"),
            (spec("STRICT_SPREAD: 1c, 1c, 1c"), "", 3, 2, "needs 3 distinct nodes (STRICT_SPREAD), have 2"),
            (spec(whole={"x": 1}), "", 1, 0, "needs 1 whole node of template x, 0 untouched"),
            (spec(flexible="9c"), "CPU", 9, 8, "needs 9 CPU in total, 8 CPU free"),
        ],
    )
    def test_the_limit_is_named(
        self, want_spec: ClusterSpec, resource: str, need: int, have: int, message: str
    ) -> None:
        limit = ever(world_of("4c 1g, 4c 1g", "n1:4c", {}), PRIMARY, want_spec, {})
        assert limit is not None
        assert (limit.refusal.subject, limit.refusal.requested, limit.refusal.have) == (
            resource,
            need * SCALE,
            have * SCALE,
        )
        assert limit.message == message


def test_explain_says_the_documented_words() -> None:
    world = world_of("2c, 4c, 4c, 4c", "n2:3c", {"n4": "zone=b"})
    verdicts = explain(world, PRIMARY, spec("STRICT_SPREAD: 3c @zone!=b, 1c"), {})
    assert [(v.node_id, v.verdict) for v in verdicts] == [
        ("n1", "infeasible"),
        ("n2", "feasible but not available"),
        ("n3", "available"),
        ("n4", "infeasible"),
    ]
    assert verdicts[1].need == candidates.amounts("3c")
    assert verdicts[1].have == candidates.amounts("1c")
    assert "zone" in verdicts[3].note


def test_could_help_looks_at_the_changed_slots_only() -> None:
    world = world_of("2c, 4c", "n1:2c", {})
    wanted = spec("STRICT_PACK: 3c, 3c")
    assert could_help(world, PRIMARY, wanted, {}, ["n2"])
    assert not could_help(world, PRIMARY, wanted, {}, ["n1"])
    assert could_help(world, PRIMARY, spec(flexible="9c"), {}, ["n2"])
    assert not could_help(world, PRIMARY, spec(flexible="9c"), {}, ["n1", "gone"])


def test_a_spent_budget_says_so() -> None:
    world = candidates.ledger(["10c"] * 6)
    wanted = spec("PACK: " + ", ".join(["6c", "5.5c", "5.1c", "5c", "4.7c", "4.6c", "4.2c", "4.1c", "3.9c"]))
    wanted = replace(
        wanted, groups=(*wanted.groups, candidates.group("PACK: 3.6c, 3.3c, 3.3c, 2.3c, 2.2c, 1.1c, 1.1c"))
    )
    plan = place(world, PRIMARY, wanted, {}, budget=1)
    full = place(world, PRIMARY, wanted, {})
    assert isinstance(full, Unplaced) or full.exact
    assert isinstance(plan, Unplaced)
    assert plan.exhausted
    assert "search budget" in plan.message


def test_the_same_state_gives_the_same_plan_whatever_came_before() -> None:
    wanted = spec("PACK: 1c, 2c", "SPREAD: 1c, 1c", flexible="3c")
    calm = world_of("4c, 4c, 4c", "n2:1c", {})
    busy = world_of("4c, 4c, 4c", "", {})
    busy.index(PRIMARY)
    for node_id in ("n3", "n1", "n2"):
        candidates.use(busy, node_id, "1c")
    for run_id in ("run-0", "run-1"):
        busy.discharge(run_id)
    first = place(calm, PRIMARY, wanted, {})
    assert isinstance(first, Placed)
    assert [p.node_id for p in first.pieces] == [p.node_id for p in place(busy, PRIMARY, wanted, {}).pieces]  # type: ignore[union-attr]
    assert any(piece.kind == FLEXIBLE for piece in first.pieces)
