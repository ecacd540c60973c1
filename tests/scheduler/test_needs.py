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
        free: Amounts = candidates.amounts(dice.choice(["", "1c", "2c", "1g", "3.5c 1g", "8c 4g"]))
        found = needs.within(free)
        assert len(set(found)) == len(found)
        assert {name for name, count in counts.items() if within(count.largest, free)} <= set(found)
        refused += len(counts) - len(found)
    assert refused
    for name in counts:
        needs.drop(name)
    assert not needs.within({})
