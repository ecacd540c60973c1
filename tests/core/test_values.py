"""Values: compared, hashed and used as keys like frozen dataclasses."""

from __future__ import annotations

import dataclasses

from tests.specification import spec
from vctl.core.resources import Allocation
from vctl.core.values import value

pytestmark = spec("18.budgets")


@value(frozen=True, slots=True)
class Named:
    """Without a hash of its own."""

    name: str
    count: int = 0


def test_values_are_equal_and_hash_by_their_fields() -> None:
    """They are made by the dozen for each job, so nothing checks at run time that nobody changes one."""
    assert Named("a", 1) == Named("a", 1) != Named("a", 2)
    assert len({Named("a"), Named("a"), Named("b")}) == 2
    assert dataclasses.replace(Named("a"), count=3) == Named("a", 3)


def test_a_hash_of_its_own_stays() -> None:
    """Amounts are mappings, which have none."""
    one, other = Allocation({"CPU": 1}), Allocation({"CPU": 1})
    assert (one == other, hash(one) == hash(other)) == (True, True)
