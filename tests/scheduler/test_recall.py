"""Moves of idle loans within one search: only what a place needs stays, and what stays can be reverted (spec 9)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.trees import lease, parts, tree, use
from tests.specification import spec
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, FreeCapacity, whole_node
from vctl.core.values import replace
from vctl.scheduler.cycle import decide
from vctl.scheduler.elasticity import Grow, apply_growth, enlarged, growth_fits, revert_growth
from vctl.scheduler.gang_growth import grow, one_piece
from vctl.scheduler.plan import still_fits
from vctl.scheduler.queueing import Queue
from vctl.scheduler.recall import put_back

pytestmark = spec("9.conserving", "9.lending")


def resized(ledger: Ledger, vnode_id: str, amounts: str, lends: str | None = None) -> Grow:
    """Resize a virtual node in the ledger to these CPUs; returns the step."""
    before = ledger.vnodes[vnode_id]
    step = Grow(before, replace(before, allocation=Allocation(g.amounts(amounts), {}, ())), lends=lends)
    apply_growth(ledger, step)
    return step


def test_a_move_stays_if_a_later_step_begins_with_what_it_left() -> None:
    """A lender lent twice, and growth brought the second loan back: the first loan is as it was left, but it stays.

    Else the second step, which is written after it, would begin with amounts that are not there.
    """
    ledger = tree("8c", "a < primary [2c] lend=2c: n1~2c")
    moves = [(resized(ledger, "a/0", amounts, lends="a"),) for amounts in ("1c", "")]
    growth = [resized(ledger, "a/0", "1c")]
    kept = [*put_back(ledger, moves, growth), *growth]
    assert parts(ledger, "a") == "n1~1c"
    assert all(one.after == two.before for one, two in pairwise(kept))
    for step in reversed(kept):
        revert_growth(ledger, step)
    assert parts(ledger, "a") == "n1~2c"
    assert ledger.capacities["n1"].free == g.amounts("6c")


def test_a_cluster_gets_no_second_virtual_node_back_in_one_slot() -> None:
    """Its only one there went home, and it got another one by growth: the search of growth knows one in each slot."""
    ledger = tree("8c", "a < primary []: n1~2c")
    before = ledger.vnodes["a/0"]
    gone = Grow(
        before,
        replace(before, allocation=Allocation({}, {}, ())),
        returns=lease(ledger, "a/0: 2c"),
        is_removal=True,
    )
    apply_growth(ledger, gone)
    growth = Grow(None, enlarged(ledger, "a", "n1", Allocation(g.amounts("1c"), {}, ())))
    growth = replace(growth, after=replace(growth.after, vnode_id="a/1", rank=1))
    assert growth_fits(ledger, growth)
    apply_growth(ledger, growth)
    assert put_back(ledger, [(gone,)], [growth]) == [gone]
    assert parts(ledger, "a") == "n1~1c"
    another = Grow(None, replace(growth.after, vnode_id="a/2", rank=2))
    assert not growth_fits(ledger, another)


def test_a_move_that_nobody_needs_goes_back() -> None:
    ledger = tree("8c", "a < primary [2c] lend=2c: n1~2c", "b < primary []: n1~1c")
    moves = [(resized(ledger, "a/0", amounts, lends="a"),) for amounts in ("1c", "")]
    assert put_back(ledger, moves, [resized(ledger, "b/0", "2c")]) == []
    assert parts(ledger, "a") == "n1~2c"


def test_what_is_left_of_a_capacity_names_no_resource_of_which_nothing_is_left() -> None:
    """A part without any GPU has no entry for GPUs: a virtual node of it would otherwise not fit into its parent's."""
    capacity = FreeCapacity(whole_node(g.amounts("8c 2g")))
    taken = capacity.take(g.amounts("2g"))
    assert capacity.take_most(replace(taken, amounts=g.amounts("1c 2g"))) == Allocation(
        g.amounts("1c"), {}, (0,)
    )


@pytest.mark.parametrize("state", ["DRAINING", "DEAD"])
def test_nothing_moves_on_a_node_that_takes_no_work(state: str) -> None:
    """A cluster at its maximum gave what it had idle on a draining node: the search took that, and the commit never."""
    ledger = tree("8c, 8c", "a < primary [..4c]: n1~4c")
    ledger.put_lease(lease(ledger, "a/0: 4c"))
    ledger.put_node(replace(ledger.nodes["n1"], state=state))
    found = grow(ledger, "a", g.amounts("2c"))
    assert found is None or all(growth_fits(ledger, step) for step in found)
    assert found is None
    assert parts(ledger, "a") == "n1~4c"


def test_what_is_idle_elsewhere_makes_room_below_a_maximum() -> None:
    ledger = tree("8c, 8c", "a < primary [..4c]: n1~4c")
    ledger.put_lease(lease(ledger, "a/0: 4c"))
    use(ledger, "a/0: 1c")
    assert grow(ledger, "a", g.amounts("4c")) is None
    assert grow(ledger, "a", g.amounts("3c"), avoid=frozenset({"n1"})) is not None
    assert parts(ledger, "a") == "n1~1c, n2~3c"


def test_a_lender_that_admits_no_jobs_gets_back_what_it_lent_in_the_commit_too() -> None:
    """Search and commit judged it differently: the start of the job was planned and refused in every turn."""
    ledger = tree("1c", "lender < primary [1c] lend=1c stopped", "a < primary []: n1~1c", "b < primary []")
    ledger.put_lease(lease(ledger, "a/0: 1c", lender="lender"))
    queue = Queue("b")
    queue.put(PendingJob(1, "j1", "b", "s", one_piece(g.amounts("1c")), {}))
    (start,) = decide(ledger, {"b": queue}, now_ns=1).starts
    assert [step.after.cluster_id for step in start.growth] == ["a", "lender", "lender", "b"]
    assert still_fits(ledger, start)
    ledger.put_cluster(replace(ledger.clusters["b"], state="STOPPED"))
    assert not still_fits(ledger, start)


def test_a_refusal_counts_what_is_idle_elsewhere_and_what_lenders_may_give() -> None:
    """Spec 8: a job needs 9 CPUs. 1 is free above, 5 of a loan are idle, 1 of a minimum may be lent: it can have 7."""
    ledger = tree("12c", "a < primary []: n1~9c", "c < primary [2c] lend=1c: n1~2c", "b < primary []")
    ledger.put_lease(lease(ledger, "a/0: 9c"))
    use(ledger, "a/0: 4c")
    queue = Queue("b")
    queue.put(PendingJob(1, "j1", "b", "9c", g.spec("PACK: 9c"), {}))
    (wait,) = decide(ledger, {"b": queue}, now_ns=0).waits
    assert wait.message == "needs 9 CPU in total, 7 can be had with growth"
    assert parts(ledger, "a") == "n1~9c"
