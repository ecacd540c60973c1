"""The examples on the pages of theory at the head of placement, recall and preemption, with their numbers."""

from __future__ import annotations

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.contest import Contest
from tests.scheduler.trees import lease, parts, tree
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.resources import SCALE
from vctl.scheduler.gang_growth import grow
from vctl.scheduler.placement import Placed, Unplaced, place

pytestmark = spec("6.complete", "8.preemption", "9.conserving", "9.lending")


def test_a_gang_for_which_the_first_choice_is_wrong() -> None:
    """``placement``: one move is taken back."""
    free, gang = g.ledger("6c, 4c"), g.spec("PACK: 4c, 3c, 3c")
    stopped = place(free, PRIMARY, gang, {}, budget=0)
    assert isinstance(stopped, Unplaced) and stopped.exhausted
    placed = place(free, PRIMARY, gang, {}, budget=1)
    assert isinstance(placed, Placed) and placed.exact
    assert [piece.node_id for piece in placed.pieces] == ["n2", "n1", "n1"]


def test_idle_loans_go_home_and_what_is_not_needed_is_put_back() -> None:
    """``recall``."""
    ledger = tree("8c, 8c", "a < primary []: n1~8c, n2~8c", "b < primary []")
    ledger.put_lease(lease(ledger, "a/0: 16c"))
    steps = grow(ledger, "b", g.amounts("8c"))
    assert steps is not None and [step.after.cluster_id for step in steps] == ["a", "b"]
    assert (parts(ledger, "a"), parts(ledger, "b")) == ("n2~8c", "n1~8c")


@pytest.mark.parametrize(
    ("asked", "withheld", "left"),
    [("4c", "", "n1~4c"), ("7c", "", None), ("4c", "5c", None), ("3c", "5c", "n1~5c")],
)
def test_a_minimum_that_is_not_used_is_lent(asked: str, withheld: str, left: str | None) -> None:
    """``recall``, the example of lending. ``left``: what the lender has then; None: the job waits."""
    ledger = tree("8c", "a < primary [8c] lend=6c: n1~8c", "b < primary []")
    ledger.withheld = {"a": g.amounts(withheld)} if withheld else {}
    assert (grow(ledger, "b", g.amounts(asked)) is None) == (left is None)
    assert parts(ledger, "a") == (left or "n1~8c")


def test_two_small_jobs_end_for_a_larger_one_and_their_place_is_kept() -> None:
    """``preemption``."""
    there = Contest(g.ledger("8c"))
    for name, size, since in (("a", "4c", 0), ("b", "2c", 40), ("c", "2c", 20)):
        there.run(name, 0, g.spec(f"PACK: {size}"), since=since)
    there.now = 100
    there.submit("winner", 5, g.spec("PACK: 4c"))
    (preempt,) = there.round().preempts
    assert there.told_to_go() == ["b", "c"]
    second = 10**9 * 1_000  # a second of the whole node, in the unit of ``loss_of``
    assert [victim.loss / second for victim in preempt.victims] == [15, 20]
    ((vnode_id, kept),) = preempt.nomination.pieces
    assert (vnode_id, kept.amounts) == ("n1", {"CPU": 4 * SCALE})
    assert preempt.nomination.awaited == {there.names["b"], there.names["c"]}
    there.gone(there.names["b"])
    there.submit("small", 4, g.spec("PACK: 1c"))
    there.round()
    assert not there.is_running("small")
    there.gone(there.names["c"])
    there.round()
    assert there.is_running("winner")
