"""What gives leases back: a state and the leases that are due on the one side, changes on the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tests.scheduler import trees
from tests.specification import spec
from vctl.core.leases import CALLED, Lease
from vctl.core.ledger import Ledger
from vctl.engine.apply import apply
from vctl.engine.changes import Change, LeaseReturned, VNodesChanged
from vctl.engine.rules.leases import called_in, give_back
from vctl.engine.state import SchedulerState

pytestmark = spec("9.return", "9.lending")


def state_of(ledger: Ledger, leases: Iterable[Lease]) -> SchedulerState:
    state = SchedulerState(ledger, {}, 0)
    state.leases = {lease.lease_id: lease for lease in leases}
    return state


def changes(state: SchedulerState, due: list[Lease]) -> list[Change]:
    """Each is applied before the next one is asked for."""
    found = []
    for change in give_back(state, due):
        apply(state, change)
        found.append(change)
    return found


def test_a_lease_returns_through_every_level_and_each_step_is_possible() -> None:
    ledger = trees.tree("8c", "team < primary []: n1~3c", "inner < team []: n1~3c")
    upper, lower = trees.lease(ledger, "team/0: 3c"), trees.lease(ledger, "inner/0: 3c", number=2)
    state = state_of(ledger, [upper, lower])
    assert changes(state, [lower]) == [
        VNodesChanged(("inner/0",)),
        LeaseReturned(replace(lower, amounts={})),
        VNodesChanged(("team/0",)),
        LeaseReturned(replace(upper, amounts={})),
    ]
    assert not state.leases
    assert not ledger.members["team"]


def test_the_part_that_is_in_use_stays_borrowed_and_the_lender_has_the_rest_again() -> None:
    ledger = trees.tree("8c", "a < primary [6c] lend=4c: n1~2c", "b < primary []: n1~4c")
    trees.use(ledger, "b/0: 1c")
    lease = trees.lease(ledger, "b/0: 4c", lender="a")
    state = state_of(ledger, [lease])
    shrunk, returned, back = changes(state, [lease])
    assert isinstance(shrunk, VNodesChanged)
    assert returned == LeaseReturned(replace(lease, amounts={"CPU": 10000}))
    assert isinstance(back, VNodesChanged)
    assert back.for_start
    assert (trees.parts(ledger, "a"), trees.parts(ledger, "b")) == ("n1~5c", "n1~1c")
    assert changes(state, [lease]) == []  # it is another lease by now


def test_what_lies_in_a_lease_that_was_called_in_is_called_in_too() -> None:
    ledger = trees.tree(
        "8c", "team < primary []: n1~3c", "inner < team []: n1~3c", "other < primary []: n1~1c"
    )
    leases = [
        replace(trees.lease(ledger, "team/0: 3c"), state=CALLED),
        trees.lease(ledger, "inner/0: 3c", number=2),
        trees.lease(ledger, "other/0: 1c", number=3),
    ]
    assert called_in(state_of(ledger, leases)) == {1, 2}
    assert called_in(state_of(ledger, leases[1:])) == set()
