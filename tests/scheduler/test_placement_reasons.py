"""The reason that counting gives is that of the model, word for word, wherever counting is enough."""

from __future__ import annotations

import random

import pytest

from tests.scheduler import candidates
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.placement_reasons import plain_reason
from vctl.scheduler.upper_bound import UpperBound

pytestmark = spec("6.complete", "8.reasons")


@pytest.mark.parametrize("seed", range(300))
def test_a_counted_reason_is_that_of_the_model(seed: int) -> None:
    dice = random.Random(seed)
    nodes = [f"{dice.choice([1, 2, 4])}c {dice.choice([1, 2, 8])}m" for _ in range(dice.randint(1, 5))]
    ledger = candidates.ledger(nodes)
    for vnode_id in list(ledger.vnodes):
        used = candidates.amounts(f"{dice.choice([0, 0.5, 1])}c {dice.choice([0, 1])}m")
        if ledger.capacities[vnode_id].fits(used):
            ledger.charge(vnode_id, vnode_id, ledger.capacities[vnode_id].choice(used))
    piece = dice.choice(["1c", "2c", "5c", "1c 2m", "2c 1m", "4c 4m", "0.5c 9m"])
    gang = candidates.spec(
        f"{dice.choice(['PACK', 'SPREAD'])}: {', '.join([piece] * dice.choice([1, 1, 2, 7]))}"
    )
    entry = candidates.amounts(dice.choice(["", piece]))
    count = UpperBound(gang)
    assert count.is_exact(entry)
    found, reason = place(ledger, PRIMARY, gang, entry), plain_reason(ledger.index(PRIMARY), count)
    if reason is not None:
        assert reason == found
    elif sum(count.requested) == 1:
        assert isinstance(found, Placed)


def test_without_a_node_in_service() -> None:
    ledger = candidates.ledger("1c")
    ledger.remove_node("n1")
    gang = candidates.spec("PACK: 1c")
    assert plain_reason(ledger.index(PRIMARY), UpperBound(gang)) == place(ledger, PRIMARY, gang, {})
