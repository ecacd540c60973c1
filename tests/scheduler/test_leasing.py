"""Leases: what of a growth is one, what of it is free to return, and what a return changes."""

from __future__ import annotations

import pytest

from tests.scheduler import candidates as g
from tests.scheduler import trees
from tests.specification import spec
from tests.world import unbalanced
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY, VNode
from vctl.core.leases import CALLED, Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import SCALE, Allocation
from vctl.core.values import replace
from vctl.scheduler.gang_growth import grow
from vctl.scheduler.leasing import above_minimum, extended, idle_parts, newest_first, settle
from vctl.scheduler.recall import recall

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
    "from wherever it is idle": ("[2c]: n1~2c, n2~2c", ["a/1: 2c"], "a/1: 2c", "2c", "n2~2c"),
    "from several nodes": ("[]: n1~2c, n2~2c", ["a/0: 1c"], "a/0: 4c", "3c", "n1~1c"),
    "unused nodes first": ("[3c]: n1~4c, n2~2c", ["a/0: 1c"], "a/0: 3c", "3c", "n1~3c"),
}  # fmt: skip


def idle(ledger: Ledger, lease: Lease) -> dict[str, int]:
    return rs.total(part.amounts for _, part in idle_parts(ledger, lease))


@pytest.mark.parametrize(("cluster", "used", "lease", "free", "after"), RETURNS.values(), ids=RETURNS)
def test_what_returns(cluster: str, used: list[str], lease: str, free: str, after: str) -> None:
    ledger = trees.tree("8c 4g,8c 4g", f"a < primary {cluster}")
    for one in used:
        trees.use(ledger, one)
    lent = trees.lease(ledger, lease)
    assert trees.shown(idle(ledger, lent)) == free
    ledger.put_lease(lent)
    recall(ledger, PRIMARY)
    left = rs.total(one.amounts for one in ledger.leases.values())
    assert rs.total([left, g.amounts(free)]) == lent.amounts
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
    for number, one in enumerate(lent, 1):
        ledger.put_lease(trees.lease(ledger, f"a/0: {one}", number=number, since=number))
    recall(ledger, PRIMARY)
    kept = trees.devices(ledger.vnodes["a/0"].allocation) if "a/0" in ledger.vnodes else {}
    assert kept == {index: round(share * SCALE) for index, share in want.items()}
    assert unbalanced(ledger) == []


def test_the_cores_of_what_returns_are_free_ones() -> None:
    ledger = trees.tree("4c", "a < primary [1c]: n1~4c")
    trees.use(ledger, "a/0: 1c")
    trees.use(ledger, "a/0: 1c")
    ledger.discharge("a/0#0")  # core 0 is free, core 1 is not
    ledger.put_lease(trees.lease(ledger, "a/0: 3c"))
    recall(ledger, PRIMARY)
    assert ledger.vnodes["a/0"].allocation.cores == (1,)
    assert ledger.capacities["n1"].cores == {0, 2, 3}


def test_what_a_child_has_is_not_free() -> None:
    ledger = trees.tree("8c", "org < primary [1c]: n1~4c", "team < org [1c]: n1~3c")
    upper, lower = trees.lease(ledger, "org/0: 3c"), trees.lease(ledger, "team/0: 2c", number=2)
    assert trees.shown(idle(ledger, upper)) == "1c"
    for one in (upper, lower):
        ledger.put_lease(one)
    recall(ledger, PRIMARY, keep=["org"])
    assert trees.shown(idle(ledger, upper)) == "3c"


def test_what_a_job_has_for_its_gang_is_never_idle_but_its_growth_from_others_is() -> None:
    """Both may come from one lender: what is above the minimum, less what the parent lent, is growth."""
    ledger = trees.tree("16c", "a < primary [8c] lend=8c: n1~2c", "primary##j < primary [2c] job: n1~7c")
    loan = trees.lease(ledger, "primary##j/0: 4c", lender="a")
    from_parent = trees.lease(ledger, "primary##j/0: 3c", number=2)
    assert trees.shown(idle(ledger, loan)) == "4c"  # with nothing else known, all of it is growth
    for one in (loan, from_parent):
        ledger.put_lease(one)
    assert (trees.shown(idle(ledger, loan)), trees.shown(idle(ledger, from_parent))) == ("2c", "3c")


def test_a_lease_of_what_is_gone_is_nothing() -> None:
    ledger = trees.tree("8c", "a < primary []: n1~2c")
    lent = trees.lease(ledger, "a/0: 2c")
    ledger.release("a/0")
    assert idle(ledger, lent) == idle(ledger, replace(lent, borrower_id="nobody")) == {}


# what is lent on a/0 (n1: 1 GPU and a half), what is lent more, whether that makes the first one larger
ACCOUNTS: dict[str, tuple[str, str, dict[str, object], bool]] = {
    "growth makes it larger": ("1c", "2c", {}, True),
    "whole units, too": ("1g", "1g", {}, True),
    "a share of a unit stays alone": ("1g", "0.5g", {}, False),
    "also beside another share": ("0.5g", "0.5g", {}, False),
    "but half a CPU is no share": ("1c", "0.5c", {}, True),
    "another lender": ("1c", "1c", {"lender_id": "b"}, False),
    "for another job": ("1c", "1c", {"job_id": 1}, False),
    "until another time": ("1c", "1c", {"expires_at": 9}, False),
    "one that is called in": ("1c", "1c", {"state": CALLED}, False),
}


@pytest.mark.parametrize(("first", "second", "differs", "want"), ACCOUNTS.values(), ids=ACCOUNTS)
def test_which_lease_is_one_account_with_another(
    first: str, second: str, differs: dict[str, object], want: bool
) -> None:
    ledger = trees.tree("8c 4g", "a < primary []: n1~4c 1g, n1=1c 0.5g")
    ledger.put_lease(one := trees.lease(ledger, f"a/0: {first}", number=4, since=3))
    more = replace(trees.lease(ledger, f"a/0: {second}", number=0, since=7), **differs)
    larger = replace(one, amounts=rs.add(one.amounts, more.amounts), since=7)
    assert extended(ledger, more) == (larger if want else None)


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
        replace(trees.lease(ledger, "v/0: 1c", number=6, since=1), state=CALLED),
    ]
    assert [lease.lease_id for lease in newest_first(leases)] == [6, 4, 3, 2, 1, 5]


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
    ledger.put_lease(trees.lease(ledger, f"b/0: {borrowed}", lender="a"))
    recall(ledger, PRIMARY)
    assert trees.parts(ledger, "a") == want
    assert unbalanced(ledger) == []


def test_what_the_parent_lent_stays_there() -> None:
    ledger = trees.tree("8c", LENT + "4c", "b < primary []: n1~2c")
    ledger.put_lease(trees.lease(ledger, "b/0: 2c"))
    recall(ledger, PRIMARY)
    assert (trees.parts(ledger, "a"), trees.parts(ledger, "b")) == ("n1~4c", "")


# ---- after a change of the minimum or of the virtual nodes ----

SETTLED = {
    "nothing changed": ("[1c]: n1~3c", ["2c"], "", ["2c"], ""),
    "a higher minimum makes a lease its own": ("[2c]: n1~3c", ["2c"], "", ["1c"], ""),
    "as high as all it has: no lease": ("[3c]: n1~3c", ["2c"], "", [""], ""),
    "the newest is cut first": ("[1c]: n1~4c", ["2c", "2c"], "", ["2c", "1c"], ""),
    "a lower minimum makes what it has a lease": ("[1c]: n1~3c", [], "", [], "2c"),
    "but for what the entrypoint came with": ("[]: n1~3c", [], "1c", [], "2c"),
    "a virtual node that shrank": ("[]: n1~1c, n2~2c", ["2c", "1c"], "", ["2c", "1c"], ""),
    "virtual nodes that are gone": ("[1c]: n1~2c", ["1c", "2c"], "", ["1c", ""], ""),
    "each resource for itself": ("[]: n1~2c 1g", ["3c"], "", ["2c"], "1g"),
}


@pytest.mark.parametrize(("cluster", "leases", "own", "want", "fresh"), SETTLED.values(), ids=SETTLED)
def test_settling(cluster: str, leases: list[str], own: str, want: list[str], fresh: str) -> None:
    ledger = trees.tree("8c 1g,8c", f"a < primary {cluster}")
    for number, text in enumerate(leases, 1):
        ledger.put_lease(trees.lease(ledger, f"a/0: {text}", number=number, since=number))
    settled = settle(ledger, "a", g.amounts(own))
    left = {number: one.amounts for number, one in ledger.leases.items()}
    left |= {lease.lease_id: amounts for lease, amounts in settled.cut}
    assert ([trees.shown(left[number]) for number in sorted(left)], trees.shown(settled.fresh)) == (
        want,
        fresh,
    )

    for lease, amounts in settled.cut:
        ledger.put_lease(replace(lease, amounts=amounts))
    ledger.put_lease(Lease(9, "a", PRIMARY, settled.fresh, 9))
    again = settle(ledger, "a", g.amounts(own))
    assert (again.cut, again.fresh) == ((), {}), "settled for good"


def test_several_steps_of_one_cluster_are_judged_one_after_the_other() -> None:
    ledger = trees.tree("2c,4c", "a < primary [3c]: n1~1c")
    trees.use(ledger, "a/0: 1c")
    first, second = grow(ledger, "a", g.amounts("1c")) or [], grow(ledger, "a", g.amounts("4c")) or []
    later = second[0].gained
    assert [trees.shown(above_minimum(ledger, step, later)) for step in first] == [""]
    assert [trees.shown(above_minimum(ledger, step)) for step in second] == ["3c"]
