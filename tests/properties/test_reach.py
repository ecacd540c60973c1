"""A bound on what a cluster could have never says no where a search finds a place."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests import users
from tests.properties import test_idle_machine
from tests.specification import spec
from vctl.core.clusters import ClusterSpec
from vctl.core.ledger import Ledger
from vctl.scheduler import gang_growth, queue_scan, reach, tasking
from vctl.scheduler.placement import Placed
from vctl.scheduler.upper_bound import UpperBound

pytestmark = spec("6.complete", "9.conserving")

STEPS = 150


class Anything:
    """A bound that never says no: all of the search is done."""

    def may_hold(self, count: UpperBound) -> bool:
        return True


class Searches:
    """Compares each search with the bound, and the bound with one that is found anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = self.placed = 0
        grow, loosely = gang_growth.place_with_growth, gang_growth.place_loosely
        monkeypatch.setattr(gang_growth, "reach_of", lambda ledger, cluster_id: Anything())
        for module in (gang_growth, queue_scan, tasking):
            for name, search in (("place_with_growth", grow), ("place_loosely", loosely)):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, self._compared(search))

    def _compared(self, search: Any) -> Any:
        def compared(ledger: Ledger, parent_id: str, spec: ClusterSpec, *more: Any, **options: Any) -> Any:
            bound = self.bound(ledger, parent_id, spec)
            found = search(ledger, parent_id, spec, *more, **options)
            if isinstance(found, (tuple, Placed)):
                assert bound, (parent_id, spec, found)
                self.placed += 1
            self.refused += not bound
            return found

        return compared

    def bound(self, ledger: Ledger, parent_id: str, spec: ClusterSpec) -> bool:
        count = UpperBound(spec)
        bound = reach.reach_of(ledger, parent_id)
        known, ledger.derived = ledger.derived, {}
        anew = reach.reach_of(ledger, parent_id)
        ledger.derived = known
        assert (bound.total, bound.supply.total) == (anew.total, anew.supply.total)
        assert set(map(str, bound.supply.nodes)) == set(map(str, anew.supply.nodes))
        return bound.may_hold(count)


@pytest.mark.parametrize("seed", range(6))
def test_no_place_is_refused_in_the_simulator(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    searches = Searches(monkeypatch)
    test_idle_machine.play(seed, mixed=random.Random(seed).random() < 0.7)
    assert searches.placed
    assert searches.refused


@pytest.mark.parametrize("seed", range(3))
def test_no_place_is_refused_in_random_sequences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    searches = Searches(monkeypatch)
    users.play(tmp_path / "state", seed, STEPS, end=False)
    assert searches.placed


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 100))
def test_no_place_is_refused_in_many_sequences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    Searches(monkeypatch)
    users.play(tmp_path / "state", seed, STEPS, end=False)
