"""Leases: what of a growth is one, what of it is free to return, and what a return changes."""

from __future__ import annotations

import pytest

from tests.scheduler import candidates as g
from tests.scheduler import trees
from tests.specification import spec
from tests.world import unbalanced
from vctl.core.clusters import FLEXIBLE, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import EMPTY, SCALE, Allocation
from vctl.core.values import replace
from vctl.scheduler.gang_growth import grow
from vctl.scheduler.leasing import (
    above_minimum,
    free_part,
    give_back,
    newest_first,
    restore,
    restored,
    settle,
)

pytestmark = spec("9.return")

ABOVE = {
    "all that lies above the minimum": ("a < primary [1c]: n1~1c", ["1c"], "2c", ["2c"]),
    "nothing while the minimum is not reached": ("a < primary [4c]: n1~1c", ["1c"], "2c", [""]),
    "only the part above it": ("a < primary [2c]: n1~1c", ["1c"], "3c", ["2c"]),
    "each resource for itself": ("a < primary [1c 1g]: n1~1c", ["1c"], "1c 2g", ["1c 1g"]),
    "without a minimum everything": ("a < primary []", [], "1c 1g", ["1c 1g"]),
}


@pytest.mark.parametrize(("cluster", "used", "wanted", "want"), ABOVE.values(), ids=ABOVE)
def test_what_of_a_growth_is_a_lease(cluster: str, used: list[str], wanted: str, want: list[str]) -> None:
    ledger = trees.tree("8c 4g", cluster)
    for one in used:
        trees.use(ledger, f"a/0: {one}")
    steps = grow(ledger, "a", g.amounts(wanted))
    assert steps is not None
    assert [trees.shown(above_minimum(ledger, step)) for step in steps] == want


# cluster, what is used, the lease, what of it is free, what the cluster has after giving that back
RETURNS = {
    "all of it": ("[1c]: n1~3c", ["a/0: 1c"], "a/0: 2c", "2c", "n1~1c"),
    "what nobody uses": ("[1c]: n1~3c", ["a/0: 2c"], "a/0: 2c", "1c", "n1~2c"),
    "nothing while all is used": ("[1c]: n1~3c", ["a/0: 3c"], "a/0: 2c", "", "n1~3c"),
    "never below the minimum": ("[2c]: n1~3c", [], "a/0: 3c", "1c", "n1~2c"),
    "the minimum may lie elsewhere": ("[1c]: n1~1c, n2~2c", [], "a/1: 2c", "2c", "n1~1c"),
    "an empty virtual node goes": ("[]: n1~1c, n2~2c", [], "a/1: 2c", "2c", "n1~1c"),
    "but not from under a process that holds nothing": ("[]: n1~2c", ["a/0: 0c"], "a/0: 2c", "2c", "n1~"),
    "by resource": ("[]: n1~2c 1g", ["a/0: 2c"], "a/0: 2c 1g", "1g", "n1~2c"),
    "half a CPU": ("[]: n1~2c", ["a/0: 1c"], "a/0: 0.5c", "0.5c", "n1~1.5c"),
    "whole GPUs that nobody uses": ("[]: n1~3g", ["a/0: 1g"], "a/0: 3g", "2g", "n1~1g"),
    "a GPU of which a share is used stays": ("[]: n1~2g", ["a/0: 0.5g"], "a/0: 2g", "1g", "n1~1g"),
    "a share of a GPU": ("[]: n1~0.5g", [], "a/0: 0.5g", "0.5g", ""),
    "half of a GPU beside half of one as minimum": ("[0.5g]: n1~1g", [], "a/0: 0.5g", "0.5g", "n1~0.5g"),
    "a GPU of the minimum stays": ("[1g]: n1~2g", [], "a/0: 2g", "1g", "n1~1g"),
}  # fmt: skip


@pytest.mark.parametrize(("cluster", "used", "lease", "free", "after"), RETURNS.values(), ids=RETURNS)
def test_what_returns(cluster: str, used: list[str], lease: str, free: str, after: str) -> None:
    ledger = trees.tree("8c 4g,8c 4g", f"a < primary {cluster}")
    for one in used:
        trees.use(ledger, one)
    lent = trees.lease(ledger, lease)
    part = free_part(ledger, lent, [lent])
    assert trees.shown(part.amounts) == free
    if free:
        done, back = give_back(ledger, lent, part), part.amounts
        assert {n: a + done.left.get(n, 0) for n, a in back.items()} == {n: lent.amounts[n] for n in back}
    assert trees.parts(ledger, "a") == after
    assert unbalanced(ledger) == []


# minimum, GPUs, what is used, the leases from the oldest on, GPUs when all that can was given back
AGAIN = {
    "half a GPU twice": ("", {0: 1.0}, [], ["0.5g", "0.5g"], {}),
    "one of the halves is used": ("", {0: 1.0}, ["0.5g"], ["0.5g", "0.5g"], {0: 0.5}),
    "beside half a GPU of its own": ("0.5g", {0: 1.0}, [], ["0.5g"], {0: 0.5}),
    "shares of several sizes": ("", {0: 0.8}, [], ["0.5g", "0.3g"], {}),
    "down to what is used": ("", {0: 0.8}, ["0.4g"], ["0.5g", "0.3g"], {0: 0.4}),
    "a part of a share": ("", {0: 0.5}, ["0.3g"], ["0.5g"], {0: 0.3}),
    "on several GPUs": (
        "", {0: 1.0, 1: 1.0, 2: 1.0}, ["1g", "0.5g"], ["1g", "0.5g", "0.5g", "0.5g", "0.5g"], {0: 1.0, 1: 0.5}
    ),
    "a GPU that another lease returns is not split": ("", {0: 1.0, 1: 0.5}, ["0.5g"], ["1g", "0.5g"], {1: 0.5}),
    "a GPU of the minimum is not split": ("1g", {0: 1.0, 1: 0.5}, ["0.5g"], ["0.5g"], {0: 1.0, 1: 0.5}),
    "nor given away for two halves": (
        "1g", {0: 1.0, 1: 0.5, 2: 0.5}, ["0.5g", "0.5g"], ["1g"], {0: 1.0, 1: 0.5, 2: 0.5}
    ),
    "but halves for a whole one": ("1g", {0: 1.0, 1: 0.5, 2: 0.5}, ["0.5g"], ["1g"], {0: 1.0, 1: 0.5}),
    "nor two halves kept for it": ("1g", {0: 1.0, 1: 1.0}, ["0.5g"] * 3, ["0.5g"] * 2, {0: 1.0, 1: 0.5}),
}  # fmt: skip


@pytest.mark.parametrize(("least", "gpus", "used", "lent", "want"), AGAIN.values(), ids=AGAIN)
def test_what_was_lent_in_shares_returns(
    least: str, gpus: dict[int, float], used: list[str], lent: list[str], want: dict[int, float]
) -> None:
    """Spec 9 and 2: a share of a unit goes back as soon as nothing uses it, whatever else is lent of that unit."""
    ledger = trees.tree("1c 4g", f"a < primary [{least}]")
    shares = {index: round(share * SCALE) for index, share in gpus.items()}
    has = Allocation({"GPU": sum(shares.values())}, {"GPU": shares})
    ledger.assign(VNode("a/0", "a", "n1", "n1", FLEXIBLE, has))
    for one in used:
        trees.use(ledger, f"a/0: {one}")
    leases = [trees.lease(ledger, f"a/0: {one}", number=n, since=n) for n, one in enumerate(lent, 1)]
    for lease in newest_first(leases):
        part = free_part(ledger, lease, leases)
        leases.remove(lease)
        if part.amounts and (left := give_back(ledger, lease, part).left):
            leases.append(replace(lease, amounts=left))
    kept = trees.devices(ledger.vnodes["a/0"].allocation) if "a/0" in ledger.vnodes else {}
    assert kept == {index: round(share * SCALE) for index, share in want.items()}
    assert unbalanced(ledger) == []


def test_the_cores_of_what_returns_are_free_ones() -> None:
    ledger = trees.tree("4c", "a < primary [1c]: n1~4c")
    trees.use(ledger, "a/0: 1c")
    trees.use(ledger, "a/0: 1c")
    ledger.discharge("a/0#0")  # core 0 is free, core 1 is not
    lent = trees.lease(ledger, "a/0: 3c")
    give_back(ledger, lent, free_part(ledger, lent, [lent]))
    assert ledger.vnodes["a/0"].allocation.cores == (1,)
    assert ledger.capacities["n1"].cores == {0, 2, 3}


def test_what_a_child_has_is_not_free() -> None:
    ledger = trees.tree("8c", "org < primary [1c]: n1~4c", "team < org [1c]: n1~3c")
    upper = trees.lease(ledger, "org/0: 3c")
    assert trees.shown(free_part(ledger, upper, [upper]).amounts) == "1c"
    below = trees.lease(ledger, "team/0: 2c")
    give_back(ledger, below, free_part(ledger, below, [upper, below]))
    assert trees.shown(free_part(ledger, upper, [upper]).amounts) == "3c"


def test_a_lease_on_what_is_gone_is_nothing() -> None:
    ledger = trees.tree("8c", "a < primary []: n1~2c")
    lent = trees.lease(ledger, "a/0: 2c")
    ledger.release("a/0")
    assert free_part(ledger, lent, [lent]) == EMPTY


def test_newest_first_and_deepest_among_equals() -> None:
    ledger = trees.tree(
        "8c", "v < primary []: n1~4c", "v##j < v [] job: n1~4c", "v##j##s < v##j [] job: n1~4c"
    )
    leases = [
        trees.lease(ledger, "v/0: 1c", number=1, since=5),
        trees.lease(ledger, "v##j/0: 1c", number=2, since=5),
        trees.lease(ledger, "v##j##s/0: 1c", number=3, since=5),
        trees.lease(ledger, "v/0: 1c", number=4, since=7),
        trees.lease(ledger, "v##j##s/0: 1c", number=5, since=3),
    ]
    assert [lease.lease_id for lease in newest_first(leases)] == [4, 3, 2, 1, 5]


# ---- what a sibling lent ----

LENT = "a < primary [6c] lend=4c: n1~"
RESTORES = {
    "goes back to it": ("4c", "2c", "n1~6c"),
    "up to its minimum": ("5c", "2c", "n1~6c"),
    "not when it lacks nothing": ("6c", "1c", "n1~6c"),
}


@pytest.mark.parametrize(("has", "borrowed", "want"), RESTORES.values(), ids=RESTORES)
def test_what_a_sibling_lent(has: str, borrowed: str, want: str) -> None:
    ledger = trees.tree("8c", LENT + has, f"b < primary []: n1~{borrowed}")
    lease = trees.lease(ledger, f"b/0: {borrowed}", lender="a")
    restore(ledger, lease, give_back(ledger, lease, free_part(ledger, lease, [lease])))
    assert trees.parts(ledger, "a") == want
    assert unbalanced(ledger) == []


def test_what_the_parent_lent_stays_there() -> None:
    ledger = trees.tree("8c", LENT + "4c", "b < primary []: n1~2c")
    lease = trees.lease(ledger, "b/0: 2c")
    done = give_back(ledger, lease, free_part(ledger, lease, [lease]))
    assert list(restored(ledger, lease, done.before, done.after)) == []


# ---- after a change of the minimum or of the virtual nodes ----

SETTLED = {
    "nothing changed": ("[1c]: n1~3c", ["a/0: 2c"], "", ["a/0: 2c"]),
    "a higher minimum makes a lease its own": ("[2c]: n1~3c", ["a/0: 2c"], "", ["a/0: 1c"]),
    "as high as all it has: no lease": ("[3c]: n1~3c", ["a/0: 2c"], "", []),
    "the newest is cut first": ("[1c]: n1~4c", ["a/0: 2c", "a/0: 2c"], "", ["a/0: 2c", "a/0: 1c"]),
    "a lower minimum makes what it has a lease": ("[1c]: n1~3c", [], "", ["a/0: 2c"]),
    "but for what the entrypoint came with": ("[]: n1~3c", [], "1c", ["a/0: 2c"]),
    "a virtual node that shrank": ("[]: n1~1c, n2~2c", ["a/0: 2c", "a/1: 1c"], "", ["a/0: 1c", "a/1: 1c", "a/1: 1c"]),
}  # fmt: skip


@pytest.mark.parametrize(("cluster", "leases", "own", "want"), SETTLED.values(), ids=SETTLED)
def test_settling(cluster: str, leases: list[str], own: str, want: list[str]) -> None:
    ledger = trees.tree("8c,8c", f"a < primary {cluster}")
    found = [trees.lease(ledger, text, number=number, since=number) for number, text in enumerate(leases, 1)]
    settled = settle(ledger, "a", found, g.amounts(own))
    left = {lease.lease_id: lease.amounts for lease in found} | {
        lease.lease_id: amounts for lease, amounts in settled.cut
    }
    after = [
        f"{lease.vnode_id}: {trees.shown(left[lease.lease_id])}" for lease in found if left[lease.lease_id]
    ]
    after += [f"{vnode.vnode_id}: {trees.shown(amounts)}" for vnode, amounts in settled.fresh]
    assert after == want
    assert settled_for_good(ledger, after, own)


def settled_for_good(ledger: Ledger, after: list[str], own: str) -> bool:
    again = [trees.lease(ledger, text, number=number, since=number) for number, text in enumerate(after, 1)]
    settled = settle(ledger, "a", again, g.amounts(own))
    return (settled.cut, settled.fresh) == ((), ())


def test_leases_on_virtual_nodes_that_are_gone_are_over() -> None:
    ledger = trees.tree("8c,8c", "a < primary [1c]: n1~2c, n2~2c")
    leases = [trees.lease(ledger, "a/0: 1c"), trees.lease(ledger, "a/1: 2c", number=2)]
    ledger.release("a/1")
    settled = settle(ledger, "a", leases, {})
    assert [(lease.lease_id, dict(left)) for lease, left in settled.cut] == [(2, {})]
    assert settled.fresh == ()


def test_several_steps_of_one_cluster_are_judged_one_after_the_other() -> None:
    ledger = trees.tree("2c,4c", "a < primary [3c]: n1~1c")
    trees.use(ledger, "a/0: 1c")
    first, second = grow(ledger, "a", g.amounts("1c")) or [], grow(ledger, "a", g.amounts("4c")) or []
    later = second[0].gained
    assert [trees.shown(above_minimum(ledger, step, later)) for step in first] == [""]
    assert [trees.shown(above_minimum(ledger, step)) for step in second] == ["3c"]
