"""The virtual nodes that a start changes: all its steps lead to them at once (spec 9)."""

from __future__ import annotations

from tests.scheduler import trees
from tests.specification import spec
from vctl.core.clusters import VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.core.values import replace
from vctl.engine.rules.starts import rearranged
from vctl.scheduler.elasticity import Grow, apply_growth, revert_growth

pytestmark = spec("9.growth", "9.return")


def with_cores(vnode: VNode, *cores: int) -> VNode:
    """The virtual node with these cores, and as many CPUs."""
    return replace(vnode, allocation=Allocation({"CPU": 10_000 * len(cores)}, cores=cores))


def final(ledger: Ledger, growth: list[Grow]) -> dict[str, Allocation]:
    """What the steps lead to, one by one; the ledger stays as it was."""
    for step in growth:
        apply_growth(ledger, step)
    found = {vnode.vnode_id: vnode.allocation for vnode in ledger.vnodes.values()}
    for step in reversed(growth):
        revert_growth(ledger, step)
    return found


def at_once(ledger: Ledger, growth: list[Grow]) -> dict[str, Allocation]:
    """What their change leads to, in a ledger of its own."""
    ledger, change = ledger.copy(), rearranged(growth)
    ledger.rearrange(change.removed, change.placed, for_start=True)
    return {vnode.vnode_id: vnode.allocation for vnode in ledger.vnodes.values()}


def test_a_child_that_shrinks_and_then_grows_more_comes_after_its_parent() -> None:
    """The scheduler stopped with an assertion: the child was larger before its parent had grown."""
    ledger = trees.tree("8c", "team < primary []: n1~3c", "inner < team []: n1~3c")
    lease = trees.lease(ledger, "inner/0: 3c")
    ledger.put_lease(lease)
    inner, team = ledger.vnodes["inner/0"], ledger.vnodes["team/0"]
    less, more = with_cores(inner, 0), with_cores(inner, 0, 1, 2, 3, 4)
    larger = with_cores(team, 0, 1, 2, 3, 4)
    growth = [Grow(inner, less, returns=lease), Grow(team, larger), Grow(less, more)]
    assert at_once(ledger, growth) == final(ledger, growth)


def test_what_goes_home_and_comes_again_with_other_cores() -> None:
    """The scheduler stopped with an assertion: the child had as much as before, so it came before its parent."""
    ledger = trees.tree("8c", "team < primary []: n1~3c", "inner < team []: n1~3c")
    inner, team = ledger.vnodes["inner/0"], ledger.vnodes["team/0"]
    growth = [
        Grow(inner, with_cores(inner, 0)), Grow(team, with_cores(team, 0)),
        Grow(with_cores(team, 0), with_cores(team, 0, 6, 7)),
        Grow(with_cores(inner, 0), with_cores(inner, 0, 6, 7)),
    ]  # fmt: skip
    assert at_once(ledger, growth) == final(ledger, growth)


def test_what_shrinks_and_then_goes_is_removed() -> None:
    ledger = trees.tree("8c", "a < primary []: n1~3c")
    lease = trees.lease(ledger, "a/0: 3c")
    ledger.put_lease(lease)
    vnode = ledger.vnodes["a/0"]
    less = with_cores(vnode, 0)
    gone = replace(less, allocation=Allocation({}))
    growth = [Grow(vnode, less, returns=lease), Grow(less, gone, returns=lease, is_removal=True)]
    change = rearranged(growth)
    assert (change.removed, change.placed) == (("a/0",), ())
