"""Growing: which virtual node changes, on which node, at which level; what forbids it; nothing else moves."""

from __future__ import annotations

import copy

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.scheduler import candidates as g
from tests.scheduler import trees
from tests.specification import spec
from tests.world import differences, unbalanced
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec, Group
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, DRAINING
from vctl.core.resources import CPU, GPU, SCALE
from vctl.engine.rules.leases import granted, loans_of
from vctl.scheduler.elasticity import apply_growth, growth_fits, revert_growth
from vctl.scheduler.gang_growth import grow, place_with_growth
from vctl.scheduler.leasing import idle_parts, return_of
from vctl.scheduler.placement import Unplaced

pytestmark = spec("9.growth")

A1 = "a < primary [1c]: n1~1c"
ORG, TEAM = "org < primary [1c]: n1~1c", "team < org [1c]: n1~1c"
JOB = "job < team [1c] job: n1~1c"

CASES = {
    "the flexible virtual node is enlarged in place": ("4c,4c", [A1], "a: 2c", {"a": "n1~3c"}),
    "only by what it lacks": ("8c", ["a < primary [2c]: n1~2c"], "a: 3c", {"a": "n1~5c"}),
    "free room of its own counts": ("8c", [A1], "a free: 3c", {"a": "n1~3c"}),
    "without room there a new one is made elsewhere": ("2c,4c", [A1], "a: 2c", {"a": "n1~1c, n2~2c"}),
    "on the first node with room": ("1c,2c,4c", [A1], "a: 2c", {"a": "n1~1c, n2~2c"}),
    "of several flexible ones the first with room is enlarged": (
        "2c,4c", ["a < primary [2c]: n1~1c, n2~1c"], "a: 2c", {"a": "n1~1c, n2~3c"},
    ),
    "an existing one comes before a new one": (
        "4c,2c,4c", ["a < primary [1c]: n2~1c"], "a: 1c", {"a": "n2~2c"},
    ),
    "a cluster with nothing yet makes its first": ("4c", ["a < primary []"], "a: 1c", {"a": "n1~1c"}),
    "a fixed virtual node is never enlarged": (
        "4c", ["a < primary []: n1=1c"], "a: 1c", {"a": "n1=1c, n1~1c"},
    ),
    "a cluster without a flexible part does not grow": ("4c", ["a < primary: n1=1c"], "a: 1c", {"a": None}),
    "a stopped cluster does not grow": ("4c", ["a < primary [1c] stopped: n1~1c"], "a: 1c", {"a": None}),
    "no room anywhere": ("2c", [A1], "a: 3c", {"a": None}),
    "room on two nodes is not room on one": ("2c,2c", [A1], "a: 3c", {"a": None}),
    "up to the maximum": ("8c", ["a < primary [1c..3c]: n1~1c"], "a: 2c", {"a": "n1~3c"}),
    "not beyond it": ("8c", ["a < primary [1c..3c]: n1~1c"], "a: 3c", {"a": None}),
    "a maximum of another resource does not matter": (
        "8c", ["a < primary [1c..1g]: n1~1c"], "a: 3c", {"a": "n1~4c"},
    ),
    "the maximum counts over all nodes": ("2c,8c", ["a < primary [1c..3c]: n1~1c"], "a: 3c", {"a": None}),
    "up to the borrow limit": ("8c", ["a < primary [1c] borrow=2c: n1~1c"], "a: 2c", {"a": "n1~3c"}),
    "not beyond that": ("8c", ["a < primary [1c] borrow=2c: n1~1c"], "a: 3c", {"a": None}),
    "in place, if a new one would be too much": (
        "4c,4c", ["a < primary [1c..3c]: n1~1c"], "a: 2c", {"a": "n1~3c"},
    ),
    "a parent with free room need not grow": (
        "8c", ["org < primary [4c]: n1~4c", TEAM], "team: 2c", {"org": "n1~4c", "team": "n1~3c"},
    ),
    "a parent without room grows first, on the spot": (
        "8c", [ORG, TEAM], "team: 2c", {"org": "n1~3c", "team": "n1~3c"},
    ),
    "by what it lacks, not by all": (
        "8c", ["org < primary [2c]: n1~2c", TEAM], "team: 3c", {"org": "n1~4c", "team": "n1~4c"},
    ),
    "the parent elsewhere, when its node is full": (
        "1c,8c", [ORG, TEAM], "team: 2c", {"org": "n1~1c, n2~2c", "team": "n1~1c, n2~2c"},
    ),
    "three levels at once": (
        "8c", [ORG, TEAM, JOB], "job: 3c", {"org": "n1~4c", "team": "n1~4c", "job": "n1~4c"},
    ),
    "three levels elsewhere": (
        "1c,8c", [ORG, TEAM, JOB], "job: 3c",
        {"org": "n1~1c, n2~3c", "team": "n1~1c, n2~3c", "job": "n1~1c, n2~3c"},
    ),
    "a maximum above stops everything": (
        "8c", ["org < primary [1c..2c]: n1~1c", TEAM, JOB], "job: 2c", {"job": None},
    ),
    "a borrow limit above too": (
        "8c", ["org < primary [1c] borrow=1c: n1~1c", TEAM, JOB], "job: 2c", {"job": None},
    ),
    "a parent of fixed size has only its free room": (
        "8c", ["org < primary: n1=4c", TEAM], "team: 3c", {"org": "n1=4c", "team": "n1~4c"},
    ),
    "and no more": ("8c", ["org < primary: n1=4c", TEAM], "team: 4c", {"team": None}),
    "a sibling's room is not taken": ("4c", [A1, "b < primary [3c]: n1~3c"], "a: 1c", {"a": None}),
    "whole GPUs": ("4c 2g", [A1], "a: 1c 1g", {"a": "n1~2c 1g"}),
    "a share of a GPU": ("4c 2g", [A1], "a: 0.5g", {"a": "n1~1c 0.5g"}),
    "what is left of a shared GPU is no whole one": (
        "4c 1g", [A1, "b < primary [0.5g]: n1~0.5g"], "a: 1g", {"a": None},
    ),
    "another share of it is": ("4c 1g", [A1, "b < primary [0.5g]: n1~0.5g"], "a: 0.5g", {"a": "n1~1c 0.5g"}),
    "a node that fits all of a request": ("4c,4c 1g", [A1], "a: 1c 1g", {"a": "n1~1c, n2~1c 1g"}),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "clusters", "request_", "want"), CASES.values(), ids=CASES)
def test_growth(nodes: str, clusters: list[str], request_: str, want: dict[str, str | None]) -> None:
    ledger = trees.tree(nodes, *clusters)
    who, _, amounts = request_.partition(": ")
    cluster_id = who.removesuffix(" free")
    if who == cluster_id:  # all that it has is in use
        fill(ledger, cluster_id)
    before = copy.deepcopy(ledger)
    steps = grow(ledger, cluster_id, g.amounts(amounts))
    if None in want.values():
        assert steps is None
        assert differences(ledger, before) == []
        return
    assert steps is not None
    assert {cluster: trees.parts(ledger, cluster) for cluster in want} == want
    assert unbalanced(ledger) == []
    assert any(ledger.capacities[v].fits(g.amounts(amounts)) for v in ledger.members[cluster_id])
    for step in reversed(steps):
        revert_growth(ledger, step)
    assert differences(ledger, before) == []
    for step in steps:  # as a commit does
        assert growth_fits(ledger, step)
        apply_growth(ledger, step)
    assert {cluster: trees.parts(ledger, cluster) for cluster in want} == want


def fill(ledger: Ledger, cluster_id: str) -> None:
    """Processes take all that is free in a cluster."""
    for vnode_id in sorted(ledger.members[cluster_id]):
        free = {name: amount for name, amount in ledger.capacities[vnode_id].free.items() if amount > 0}
        ledger.charge(f"fill:{vnode_id}", vnode_id, ledger.capacities[vnode_id].copy().take(free))


LABELS = {"n1": "zone=a", "n2": "zone=b"}
WHERE = {
    "a selector chooses the node": ("4c,4c", "@zone=b", "", "n1~1c, n2~1c"),
    "the enlarged one must match too": ("4c,4c", "@zone=a", "", "n1~2c"),
    "nobody matches": ("4c,4c", "@zone=c", "", None),
    "a node to be avoided": ("4c,4c", "", "n1", "n1~1c, n2~1c"),
    "all are to be avoided": ("4c,4c", "", "n1 n2", None),
}


@pytest.mark.parametrize(("nodes", "selector", "avoid", "want"), WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_where_to_grow(levels: int, nodes: str, selector: str, avoid: str, want: str | None) -> None:
    """At every level the same: what the request names holds for the node below all of them."""
    chain = [ORG, TEAM, JOB][:levels]
    ledger = trees.tree(nodes, *chain, labels=LABELS)
    bottom = ("org", "team", "job")[levels - 1]
    fill(ledger, bottom)
    before = copy.deepcopy(ledger)
    steps = grow(
        ledger, bottom, g.amounts("1c"), g.selector(selector.removeprefix("@")), frozenset(avoid.split())
    )
    if want is None:
        assert steps is None
        assert differences(ledger, before) == []
    else:
        assert [trees.parts(ledger, one) for one in ("org", "team", "job")[:levels]] == [want] * levels


@pytest.mark.parametrize("state", [DRAINING, DEAD])
def test_a_node_that_takes_no_work_is_not_grown_on(state: str) -> None:
    ledger = trees.tree("4c,4c", A1)
    fill(ledger, "a")
    trees.change_node(ledger, "n1", state=state)
    assert grow(ledger, "a", g.amounts("1c")) is not None
    assert trees.parts(ledger, "a") == "n1~1c, n2~1c"
    trees.change_node(ledger, "n2", state=state)
    assert grow(ledger, "a", g.amounts("2c")) is None


def test_growth_planned_for_a_node_that_drains_meanwhile_does_not_fit() -> None:
    ledger = trees.tree("4c", A1)
    steps = grow(ledger, "a", g.amounts("3c"))
    assert steps is not None
    for step in reversed(steps):
        revert_growth(ledger, step)
    trees.change_node(ledger, "n1", state=DRAINING)
    assert not growth_fits(ledger, steps[0])


def test_growth_planned_before_somebody_else_grew_does_not_fit() -> None:
    ledger = trees.tree("4c", A1)
    fill(ledger, "a")
    (stale,) = grow(ledger, "a", g.amounts("1c")) or []
    assert not growth_fits(ledger, stale)


def test_cores_follow_whole_cpus() -> None:
    ledger = trees.tree("4c", A1)
    fill(ledger, "a")
    grow(ledger, "a", g.amounts("2c"))
    (vnode,) = ledger.slots("a")
    assert vnode.allocation.cores == (0, 1, 2)
    assert ledger.capacities["n1"].cores == {3}


@spec("5.labels")
def test_a_new_virtual_node_has_the_labels_and_the_next_rank() -> None:
    ledger = trees.tree("1c,4c", A1, labels=LABELS)
    fill(ledger, "a")
    (step,) = grow(ledger, "a", g.amounts("1c")) or []
    assert (step.before, step.after.vnode_id, step.after.rank) == (None, "a/1", 1)
    assert step.after.labels == {
        "zone": "b", "ray.io/vnode_id": "a/1", "ray.io/vcluster_id": "a", "ray.io/node-id": "n2",
    }  # fmt: skip


# ---- siblings that lend ----

LENDER = "a < primary [6c] lend=4c: n1~6c"
LOANS = {
    "an unused minimum is lent when there is nothing else": (
        "8c", [LENDER, "b < primary [2c]: n1~2c"], "b: 2c", "n1~4c", "n1~4c",
    ),
    "up to the lending limit": ("8c", [LENDER, "b < primary [2c]: n1~2c"], "b: 4c", "n1~2c", "n1~6c"),
    "not beyond it": ("8c", [LENDER, "b < primary [2c]: n1~2c"], "b: 5c", None, None),
    "what the parent has free comes first": (
        "10c", [LENDER, "b < primary [2c]: n1~2c"], "b: 3c", "n1~5c", "n1~5c",
    ),
    "never by default": (
        "8c", ["a < primary [6c]: n1~6c", "b < primary [2c]: n1~2c"], "b: 1c", None, None,
    ),
    "within the borrower's maximum": (
        "8c", [LENDER, "b < primary [2c..3c]: n1~2c"], "b: 2c", None, None,
    ),
    "to one that has nothing on that node yet": (
        "6c,2c", [LENDER, "b < primary [2c]: n2~2c"], "b: 3c", "n1~3c", "n1~3c, n2~2c",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "clusters", "request_", "lender", "borrower"), LOANS.values(), ids=LOANS)
def test_loans(
    nodes: str, clusters: list[str], request_: str, lender: str | None, borrower: str | None
) -> None:
    ledger = trees.tree(nodes, *clusters)
    fill(ledger, "b")
    before = copy.deepcopy(ledger)
    steps = grow(ledger, "b", g.amounts(request_.removeprefix("b: ")))
    if lender is None:
        assert steps is None
        assert differences(ledger, before) == []
        return
    assert steps is not None
    assert (trees.parts(ledger, "a"), trees.parts(ledger, "b")) == (lender, borrower)
    gained, lost = steps[-1], steps[0]
    assert (lost.after.cluster_id, lost.lends, gained.lends) == ("a", "a", None)
    assert loans_of(steps) == {gained.after.parent_id: [("a", {"CPU": -lost.gained["CPU"]})]}
    for step in reversed(steps):
        revert_growth(ledger, step)
    assert differences(ledger, before) == []


def test_nothing_is_lent_on_a_node_that_has_shrunk_below_what_is_held_there() -> None:
    """What a sibling leaves there only makes up for what is missing: it was planned, refused and planned for ever."""
    ledger = trees.tree("8c", LENDER, "b < primary [2c]: n1~2c")
    fill(ledger, "b")
    trees.change_node(ledger, "n1", total=g.ledger("7c").nodes["n1"].total)
    before = copy.deepcopy(ledger)
    assert grow(ledger, "b", g.amounts("1c")) is None
    assert differences(ledger, before) == []
    trees.change_node(ledger, "n1", total=g.ledger("8c").nodes["n1"].total)
    assert grow(ledger, "b", g.amounts("1c")) is not None


def test_who_borrows_does_not_lend_and_who_has_lent_does_not_borrow_from_siblings() -> None:
    ledger = trees.tree("8c", "a < primary [4c] lend=4c: n1~5c", "b < primary [3c]: n1~3c")
    fill(ledger, "b")
    assert (
        grow(ledger, "b", g.amounts("1c")) is None
    )  # a has 1 CPU more than its minimum: that is borrowed itself
    ledger = trees.tree("8c", "a < primary [4c] lend=4c: n1~4c", "b < primary [5c] lend=5c: n1~4c")
    fill(ledger, "b")
    assert grow(
        ledger, "b", g.amounts("1c")
    )  # b lacks 1 CPU of its own: a lends it, in place of b, to who has that


# ---- gangs ----

GANGS = {
    "each part that has no room makes the parent grow": (
        "2c,2c", "a < primary []", ["STRICT_SPREAD: 1c, 1c"], None, "n1~1c, n2~1c",
    ),
    "parts that may be together are put together": (
        "4c", "a < primary []", ["PACK: 1c, 1c"], None, "n1~2c",
    ),
    "room that is there is used first": (
        "2c,2c", "a < primary [1c]: n1~1c", ["STRICT_SPREAD: 1c, 1c"], None, "n1~1c, n2~1c",
    ),
    "a flexible minimum": ("4c", "a < primary []", [], "2c", "n1~2c"),
    "all or nothing": ("2c", "a < primary []", ["STRICT_SPREAD: 1c, 1c"], None, None),
    "within the maximum": ("4c", "a < primary [..1c]", ["PACK: 1c, 1c"], None, None),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "cluster", "groups", "flexible", "want"), GANGS.values(), ids=GANGS)
def test_growth_for_a_gang(
    nodes: str, cluster: str, groups: list[str], flexible: str | None, want: str | None
) -> None:
    ledger = trees.tree(nodes, cluster)
    before = copy.deepcopy(ledger)
    found = place_with_growth(ledger, "a", g.spec(*groups, flexible=flexible), {})
    if want is None:
        assert isinstance(found, Unplaced)
        assert differences(ledger, before) == []
        return
    assert isinstance(found, tuple)
    steps, placed = found
    assert steps
    assert trees.parts(ledger, "a") == want
    assert len(placed.pieces) == sum(len(part.nodes) for part in map(g.group, groups)) + (
        flexible is not None
    )
    for step in reversed(steps):
        revert_growth(ledger, step)
    assert differences(ledger, before) == []


def test_a_gang_that_needs_no_growth_is_not_grown_for() -> None:
    ledger = trees.tree("4c", "a < primary [2c]: n1~2c")
    spec = ClusterSpec(groups=(Group(g.group("PACK: 1c").nodes),), flexible=False)
    found = place_with_growth(ledger, "a", spec, {})
    assert isinstance(found, tuple)
    assert found[0] == []


# ---- any tree ----

request = st.fixed_dictionaries(
    {},
    optional={
        CPU: st.sampled_from([SCALE // 2, SCALE, 2 * SCALE, 3 * SCALE]),
        GPU: st.sampled_from([SCALE // 4, SCALE // 2, SCALE, 2 * SCALE]),
    },
).filter(bool)


@st.composite
def random_trees(draw: st.DrawFn) -> Ledger:
    """Two or three nodes, and a chain of three to five levels with siblings here and there."""
    ledger = g.ledger(draw(st.lists(st.sampled_from(["4c 2g", "8c 2g", "3c"]), min_size=2, max_size=3)))
    level = [PRIMARY]
    for depth in range(draw(st.integers(3, 5))):
        below = []
        for parent in level:
            for number in range(draw(st.integers(1, 2))):
                most = draw(st.sampled_from([None, None, {CPU: 4 * SCALE}]))
                least = draw(st.sampled_from([{}, {CPU: SCALE}]))
                limit = draw(st.sampled_from([None, None, {CPU: 2 * SCALE}]))
                lends = draw(st.sampled_from([{}, {CPU: 2 * SCALE}]))
                cluster_id = f"{'' if parent == PRIMARY else parent}{'abcde'[depth]}{number}"
                ledger.put_cluster(
                    Cluster(
                        cluster_id, parent, LOGICAL, ClusterSpec(least, most), borrow_limit=limit, lending_limit=lends
                    )
                )  # fmt: skip
                below.append(cluster_id)
        level = below[:3]
    return ledger


class Story:
    """Random growth, use, end of use and return; and the leases that come of it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.made = 0

    def number(self) -> int:
        self.made += 1
        return self.made

    def grow(self, cluster_id: str, wanted: dict[str, int]) -> None:
        before = copy.deepcopy(self.ledger)
        steps = grow(self.ledger, cluster_id, wanted)
        if steps is None:
            assert differences(self.ledger, before) == []
            return
        grown = copy.deepcopy(self.ledger)
        for step in reversed(steps):
            revert_growth(self.ledger, step)
        assert differences(self.ledger, before) == []
        for step in steps:
            assert growth_fits(self.ledger, step)
            apply_growth(self.ledger, step)
        assert differences(self.ledger, grown) == []
        for change in granted(self.ledger, steps, loans_of(steps), 0, self.number):
            self.ledger.put_lease(change.lease)
        vnode_id = next(
            v for v in sorted(self.ledger.members[cluster_id]) if self.ledger.capacities[v].fits(wanted)
        )
        self.ledger.charge(
            f"run{self.number()}", vnode_id, self.ledger.capacities[vnode_id].copy().take(wanted)
        )

    def end(self, data: st.DataObject) -> None:
        if self.ledger.charges:
            self.ledger.discharge(data.draw(st.sampled_from(sorted(self.ledger.charges))))

    def give_back(self, data: st.DataObject) -> None:
        if not self.ledger.leases:
            return
        lease = self.ledger.leases[data.draw(st.sampled_from(sorted(self.ledger.leases)))]
        for vnode, part in list(idle_parts(self.ledger, lease)):
            step = return_of(self.ledger, lease, part, vnode)
            assert growth_fits(self.ledger, step)
            apply_growth(self.ledger, step)

    def limits_hold(self) -> None:
        for cluster in self.ledger.clusters.values():
            has = self.ledger.total(cluster.cluster_id)
            if cluster.cluster_id == PRIMARY:
                continue
            for name, most in (cluster.spec.flexible_max or {}).items():
                assert has.get(name, 0) <= most
            for name, most in (cluster.borrow_limit or {}).items():
                assert has.get(name, 0) <= most + cluster.spec.flexible_min.get(name, 0)


@hypothesis.settings(max_examples=150, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(ledger=random_trees(), data=st.data())
def test_any_story_of_growth_and_return_keeps_the_tree_balanced(ledger: Ledger, data: st.DataObject) -> None:
    story = Story(ledger)
    clusters = sorted(one for one in ledger.clusters if one != PRIMARY)
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["grow", "grow", "end", "give back"])):
            case "grow":
                story.grow(data.draw(st.sampled_from(clusters)), data.draw(request))
            case "end":
                story.end(data)
            case _:
                story.give_back(data)
        assert unbalanced(ledger) == []
        story.limits_hold()
