"""What may fit is found among few classes: none of those that may fit is missing."""

from __future__ import annotations

import random

from tests.scheduler import candidates
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.resources import Amounts, within
from vctl.scheduler.needs import Needs
from vctl.scheduler.upper_bound import UpperBound

pytestmark = spec("6.complete")


def gang(dice: random.Random) -> ClusterSpec:
    """A gang of one to three pieces; some ask for nothing."""
    sizes = ["0.5c", "1c", "2c 1g", "3c", "4c 2g", "1g", "0c"]
    return candidates.spec(*[f"PACK: {dice.choice(sizes)}" for _ in range(dice.randint(1, 3))])


def may_fit(count: UpperBound, nodes: list[Amounts]) -> bool:
    """Whether each piece of a gang fits on one of the nodes, if no other one is there."""
    return all(any(within(dict(kind), free) for free in nodes) for kind in count.kinds)


def may_help(gang: ClusterSpec, nodes: list[Amounts]) -> bool:
    """Whether some piece of a gang fits on one of the nodes."""
    return any(within(piece.resources, free) for piece in gang.fixed for free in nodes)


def test_no_class_that_may_fit_is_missing() -> None:
    dice, needs, parts, gangs = random.Random(3), Needs(), Needs(), dict[str, ClusterSpec]()
    refused = refused_parts = 0
    for number in range(600):
        if gangs and dice.random() < 0.4:
            name = dice.choice(sorted(gangs))
            needs.drop(name)
            parts.drop(name)
            del gangs[name]
        else:
            name = f"shape {number}"
            gangs[name] = gang(dice)
            needs.put(name, UpperBound(gangs[name]).largest)
            parts.put(name, UpperBound(gangs[name]).least)
        sizes = ["", "1c", "2c", "1g", "3.5c 1g", "8c 4g"]
        nodes: list[Amounts] = [
            candidates.amounts(dice.choice(sizes)) for _ in range(dice.choice((1, 1, 2, 3)))
        ]
        found = needs.within(nodes)
        assert len(set(found)) == len(found)
        assert {name for name, one in gangs.items() if may_fit(UpperBound(one), nodes)} <= set(found)
        some = parts.within(nodes)
        assert {name for name, one in gangs.items() if may_help(one, nodes)} <= set(some)
        refused += len(gangs) - len(found)
        refused_parts += len(gangs) - len(some)
    assert refused and refused_parts
    for name in gangs:
        needs.drop(name)
    assert not needs.within([{}])


def test_what_no_node_has_together_is_not_looked_at() -> None:
    needs = Needs()
    for name, size in {"cpu": "2c", "gpu": "1g", "both": "1c 1g", "nothing": "0c"}.items():
        needs.put(name, UpperBound(candidates.spec(f"PACK: {size}")).largest)
    apart = [candidates.amounts("3c"), candidates.amounts("2g")]
    assert set(needs.within(apart)) == {"cpu", "gpu", "nothing"}
    assert "both" in needs.within([*apart, candidates.amounts("1c 1g")])


def test_a_gang_whose_pieces_fit_on_different_nodes_is_looked_at() -> None:
    needs = Needs()
    needs.put("pair", UpperBound(candidates.spec("PACK: 4c, 1c 2g")).largest)
    assert "pair" in needs.within([candidates.amounts("4c"), candidates.amounts("1c 2g")])
