"""What may fit is found among few classes: none of those that may fit is missing."""

from __future__ import annotations

import random

from tests.scheduler import candidates
from tests.specification import spec
from vctl.core.resources import Amounts, within
from vctl.scheduler.needs import Needs
from vctl.scheduler.upper_bound import UpperBound

pytestmark = spec("6.complete")


def gang(dice: random.Random) -> UpperBound:
    """A gang of one to three pieces; some ask for nothing."""
    sizes = ["0.5c", "1c", "2c 1g", "3c", "4c 2g", "1g", "0c"]
    return UpperBound(candidates.spec(*[f"PACK: {dice.choice(sizes)}" for _ in range(dice.randint(1, 3))]))


def may_fit(count: UpperBound, nodes: list[Amounts]) -> bool:
    """Whether each piece of a gang fits on one of the nodes, if no other one is there."""
    return all(any(within(dict(kind), free) for free in nodes) for kind in count.kinds)


def test_no_class_that_may_fit_is_missing() -> None:
    dice, needs, counts = random.Random(3), Needs(), dict[str, UpperBound]()
    refused = 0
    for number in range(600):
        if counts and dice.random() < 0.4:
            name = dice.choice(sorted(counts))
            needs.drop(name)
            del counts[name]
        else:
            name = f"shape {number}"
            counts[name] = gang(dice)
            needs.put(name, counts[name])
        sizes = ["", "1c", "2c", "1g", "3.5c 1g", "8c 4g"]
        nodes: list[Amounts] = [
            candidates.amounts(dice.choice(sizes)) for _ in range(dice.choice((1, 1, 2, 3)))
        ]
        found = needs.within(nodes)
        assert len(set(found)) == len(found)
        assert {name for name, count in counts.items() if may_fit(count, nodes)} <= set(found)
        refused += len(counts) - len(found)
    assert refused
    for name in counts:
        needs.drop(name)
    assert not needs.within([{}])


def test_what_no_node_has_together_is_not_looked_at() -> None:
    needs = Needs()
    for name, size in {"cpu": "2c", "gpu": "1g", "both": "1c 1g", "nothing": "0c"}.items():
        needs.put(name, UpperBound(candidates.spec(f"PACK: {size}")))
    apart = [candidates.amounts("3c"), candidates.amounts("2g")]
    assert set(needs.within(apart)) == {"cpu", "gpu", "nothing"}
    assert "both" in needs.within([*apart, candidates.amounts("1c 1g")])


def test_a_gang_whose_pieces_fit_on_different_nodes_is_looked_at() -> None:
    needs = Needs()
    needs.put("pair", UpperBound(candidates.spec("PACK: 4c, 1c 2g")))
    assert "pair" in needs.within([candidates.amounts("4c"), candidates.amounts("1c 2g")])
