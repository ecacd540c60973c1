"""What waiting and running work asks of nodes, and how scarce nodes are by it."""

from __future__ import annotations

import random

import pytest

from tests.scheduler import candidates as g
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.demand import Demand
from vctl.core.node_kinds import NodeKind

pytestmark = spec("6.scarce")


def kind(number: int, text: str) -> NodeKind:
    """'4c 64m zone=a'; the template is the amounts."""
    words = text.split()
    amounts = " ".join(word for word in words if "=" not in word)
    labels = dict(word.split("=") for word in words if "=" in word)
    return NodeKind(number, labels, amounts.replace(" ", ""), g.amounts(amounts))


# kinds of nodes with their numbers, requests, the ranks (None: all alike)
RANKS = {
    "nobody asks": (["4c: 1", "4c zone=a: 1"], [], None),
    "all hold it": (["4c: 1", "8c: 1"], ["4c"], None),
    "none holds it": (["4c: 1", "8c: 1"], ["9c"], None),
    "one kind": (["4c zone=a: 2"], ["4c @zone=a"], None),
    "a label": (["4c: 1", "4c zone=a: 1"], ["1c @zone=a"], [0, 1]),
    "an amount": (["4c: 1", "8c: 1"], ["6c"], [0, 1]),
    "a label and an amount": (["8c: 1", "4c zone=a: 1", "8c zone=a: 1"], ["6c @zone=a"], [0, 0, 1]),
    "the rarer one": (["4c zone=a: 1", "4c zone=b: 2", "4c: 1"], ["1c @zone=a", "1c @zone=b"], [2, 1, 0]),
    "as many of each": (["4c zone=a: 2", "4c zone=b: 2"], ["1c @zone=a", "1c @zone=b"], None),
    "more sorts of work": (["8c: 1", "4c zone=a: 1", "8c zone=a: 1"], ["6c", "1c @zone=a"], [0, 0, 1]),
    "the same nodes asked for in two ways count once": (
        ["4c zone=a: 1", "8c: 1", "2c: 1"], ["1c @zone=a", "2c @zone=a", "3c @zone", "5c"], [1, 1, 0],
    ),
    "labels that nobody selects do not matter": (
        ["4c zone=a: 1", "4c zone=a x=1: 1", "4c x=1: 1"], ["1c @zone=a"], [1, 1, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "asked", "want"), RANKS.values(), ids=RANKS)
def test_scarcity(nodes: list[str], asked: list[str], want: list[int] | None) -> None:
    demand, kinds = Demand(), []
    for number, text in enumerate(nodes):
        name, _, count = text.partition(": ")
        kinds.append((kind(number, name), int(count)))
    for number, text in enumerate(asked):
        demand.ask(number, g.spec(f"PACK: {text}"))
    found = demand.scarcity(kinds)
    assert (None if found is None else [found.of(one) for one, _ in kinds]) == want


def test_a_minimum_an_entrypoint_and_whole_nodes_ask_too() -> None:
    small, large = kind(0, "1c"), kind(1, "4c 1g")

    def rank(demand: Demand) -> int | None:
        found = demand.scarcity([(small, 1), (large, 1)])
        return None if found is None else found.of(large)

    for of, entry, whole in (
        (g.spec(flexible="1g"), "", False),
        (g.spec(flexible=""), "2c", False),
        (g.spec(whole={"4c1g": 1}), "", True),
    ):
        demand = Demand()
        demand.ask("x", of, g.amounts(entry), whole=whole)
        assert rank(demand) == 1
        demand.put("x")
        assert rank(demand) is None
    demand = Demand()
    demand.ask("x", g.spec(flexible="8c"))  # it may be split
    demand.ask("y", g.spec(whole={"4c1g": 1}))
    assert rank(demand) is None


def test_what_came_and_left_leaves_no_trace() -> None:
    """After any sequence, the same ranks as a fresh demand with what is left; also in a copy."""
    pick = random.Random(5)
    kinds = [
        (kind(n, f"{cpus}c {memory}m {label}".strip()), pick.randint(1, 3))
        for n, (cpus, memory, label) in enumerate(
            (c, m, one) for c in (2, 8) for m in (4, 64) for one in ("", "zone=a", "zone=b", "disk=ssd")
        )
    ]
    texts = [
        f"PACK: {cpus}c {memory}m {condition}".strip()
        for cpus in (1, 4)
        for memory in (1, 32)
        for condition in ("", "@zone=a", "@zone=b", "@zone", "@!zone", "@disk=ssd", "@zone!=a")
    ]
    specs: dict[str, ClusterSpec] = {text: g.spec(text) for text in texts}
    demand, left = Demand(), dict[int, str]()
    by_edition = dict[object, list[int] | None]()
    for step in range(400):
        source = pick.randrange(12)
        if source in left and pick.random() < 0.6:
            del left[source]
            demand.put(source)
        else:
            left[source] = pick.choice(texts)
            demand.ask(source, specs[left[source]])
        some = pick.sample(kinds, pick.randint(2, len(kinds)))
        fresh = Demand()
        for number, text in left.items():
            fresh.ask(number, specs[text])
        ranks = []
        for one in (fresh, demand, demand.copy()):
            found = one.scarcity(some)
            ranks.append(None if found is None else [found.of(which) for which, _ in some])
        assert ranks[0] == ranks[1] == ranks[2], step
        assert by_edition.setdefault((demand.edition, tuple(some)), ranks[0]) == ranks[0], step
        if pick.random() < 0.1:
            demand = demand.copy()


def test_the_edition_stays_while_nothing_changes_for_the_nodes() -> None:
    """What is remembered for an edition holds: jobs of shapes that the same, all or no nodes hold come and go."""
    kinds = [(kind(0, "4c"), 1), (kind(1, "4c zone=a"), 1)]
    demand = Demand()
    demand.ask("a", g.spec("PACK: 1c @zone=a"))
    demand.ask("b", g.spec("PACK: 1c"))
    assert demand.scarcity(kinds) is not None
    edition = demand.edition
    for number in range(5):
        demand.ask(number, g.spec(f"PACK: {1 + number / 2}c @zone=a"))
    demand.put(3)
    assert demand.scarcity(kinds) is not None
    assert demand.edition == edition
    demand.put("b")
    demand.ask("c", g.spec("PACK: 9c"))
    assert demand.edition == edition
    demand.ask("d", g.spec("PACK: 2c @zone=b"))
    demand.scarcity([*kinds, (kind(2, "4c zone=b"), 1)])
    assert demand.edition != edition
    demand.put("d")
    assert demand.edition == edition
