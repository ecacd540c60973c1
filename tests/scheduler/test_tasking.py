"""Which virtual node a task gets: tables per strategy; what waits, and that the ledger is as it was."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import pairwise

import pytest

from tests.scheduler import ground as g
from tests.scheduler import trees
from tests.world import differences
from vctl.core.nodes import DRAINING
from vctl.scheduler.plan_tasks import decide_tasks, revert_task, task_still_fits
from vctl.scheduler.tasking import TaskQueue, choose, may_grow, utilisation

THREE = "a < primary [6c]: n1~4c, n2~4c, n3~4c"
NODES = "4c,4c,4c"

CHOICES = {
    # HYBRID: below half full all are equal and packed in order
    "empty ones are filled in order": ([], "a: 1c", None, "n1"),
    "the local one comes first": ([], "a: 1c", "a/1", "n2"),
    "packed while below the threshold": (["a/0: 0.5c"], "a: 1c", None, "n1"),
    "not once it would reach the threshold": (["a/0: 1c"], "a: 1c", None, "n2"),
    "the local one neither": (["a/0: 1c"], "a: 1c", "a/0", "n2"),
    "above it the least utilised wins": (["a/0: 2c", "a/1: 1c", "a/2: 3c"], "a: 1c", None, "n2"),
    "equally full ones: the local one": (["a/0: 2c", "a/1: 2c", "a/2: 2c"], "a: 1c", "a/2", "n3"),
    "equally full ones: the first": (["a/0: 2c", "a/1: 2c", "a/2: 2c"], "a: 1c", None, "n1"),
    "what does not fit does not count": (["a/0: 4c"], "a: 2c", "a/0", "n2"),
    "a large request goes where it fits": (["a/0: 1c", "a/1: 1c"], "a: 4c", None, "n3"),
    "nowhere": (["a/0: 1c", "a/1: 1c", "a/2: 1c"], "a: 4c", None, None),
    "nothing asked for": (["a/0: 4c", "a/1: 4c", "a/2: 4c"], "a: 0c", None, "n1"),
    # NODE
    "pinned to a node": ([], "a: 1c NODE:n3", None, "n3"),
    "pinned to a virtual node": ([], "a: 1c NODE:a/1", None, "n2"),
    "pinned where there is no room": (["a/2: 4c"], "a: 1c NODE:n3", None, None),
    "softly pinned there": (["a/2: 4c"], "a: 1c NODE:n3:soft", None, "n1"),
    "softly pinned with room": ([], "a: 1c NODE:n3:soft", None, "n3"),
    "pinned to a node that is not there": ([], "a: 1c NODE:x", None, None),
    "softly pinned to one that is not there": ([], "a: 1c NODE:x:soft", None, "n1"),
    # selectors
    "a selector": ([], "a: 1c @zone=b", None, "n2"),
    "a selector that nobody matches": ([], "a: 1c @zone=x", None, None),
    "a selector and a strategy": ([], "a: 1c SPREAD @zone=b", None, "n2"),
}  # fmt: skip
LABELS = {"n1": "zone=a", "n2": "zone=b", "n3": "zone=c"}


@pytest.mark.parametrize(("used", "task", "origin", "want"), CHOICES.values(), ids=CHOICES)
def test_choice(used: list[str], task: str, origin: str | None, want: str | None) -> None:
    ledger = trees.tree(NODES, THREE, labels=LABELS)
    for one in used:
        trees.use(ledger, one)
    before = copy.deepcopy(ledger)
    found = choose(ledger, trees.task(task, origin=origin))
    assert (None if found is None else found.node_id) == want
    assert differences(ledger, before) == []


def test_a_node_that_drains_gets_no_task() -> None:
    ledger = trees.tree(NODES, THREE)
    trees.change_node(ledger, "n1", state=DRAINING)
    found = choose(ledger, trees.task("a: 1c", origin="a/0"))
    assert found is not None
    assert found.node_id == "n2"


def test_the_fullest_resource_decides() -> None:
    ledger = trees.tree("4c 2g,4c 2g", "a < primary []: n1~4c 2g, n2~4c 2g")
    trees.use(ledger, "a/0: 1g")
    assert utilisation(ledger, ledger.vnodes["a/0"], g.amounts("1c")) == 0.5
    found = choose(ledger, trees.task("a: 1c"))
    assert found is not None
    assert found.node_id == "n2"


SPREADS = {
    "in turn": ([], "n1 n2 n3 n1 n2 n3"),
    "a full one is passed over": (["a/1: 4c"], "n1 n3 n3 n1 n3 n3"),
    "all but one full": (["a/0: 4c", "a/1: 4c"], "n3 n3 n3 n3 n3 n3"),
}


@pytest.mark.parametrize(("used", "want"), SPREADS.values(), ids=SPREADS)
def test_spread(used: list[str], want: str) -> None:
    ledger = trees.tree(NODES, THREE)
    for one in used:
        trees.use(ledger, one)
    found = [choose(ledger, trees.task("a: 1c SPREAD"), turn) for turn in range(6)]
    assert " ".join(vnode.node_id for vnode in found if vnode) == want


def test_spread_counts_only_what_could_ever_take_it() -> None:
    ledger = trees.tree("1c,4c,4c", "a < primary []: n1~1c, n2~4c, n3~4c")
    found = [choose(ledger, trees.task("a: 2c SPREAD"), turn) for turn in range(4)]
    assert [vnode.node_id for vnode in found if vnode] == ["n2", "n3", "n2", "n3"]


def test_random_is_uniform_and_repeatable() -> None:
    ledger = trees.tree(NODES, THREE)

    def draw() -> list[str]:
        found = [choose(ledger, trees.task("a: 1c RANDOM", number=number)) for number in range(3000)]
        return [vnode.node_id for vnode in found if vnode]

    first = draw()
    assert first == draw()
    assert all(900 < count < 1100 for count in Counter(first).values())
    assert len(set(pairwise(first))) == 9  # no pattern from one to the next


def test_random_takes_only_what_is_available() -> None:
    ledger = trees.tree(NODES, THREE)
    trees.use(ledger, "a/1: 4c")
    found = [choose(ledger, trees.task("a: 1c RANDOM", number=number)) for number in range(100)]
    assert {vnode.node_id for vnode in found if vnode} == {"n1", "n3"}


def test_only_tasks_that_name_no_node_make_a_cluster_grow() -> None:
    tasks = {
        text: may_grow(trees.task(f"a: 1c {text}".strip()))
        for text in ("", "SPREAD", "NODE:n1", "NODE:n1:soft")
    }
    assert tasks == {"": True, "SPREAD": True, "NODE:n1": False, "NODE:n1:soft": True}


# ---- a round ----

ROUNDS = {
    "the walk-through: local, spilled over, waiting": (
        "4c,4c", "job < primary [2c..2c]: n1~1c, n2~1c", ["1c", "1c", "1c"], "n1 n2 -", "n1~1c, n2~1c",
    ),
    "what has no room makes its cluster grow": (
        "2c", "job < primary [1c]: n1~1c", ["1c", "1c"], "n1 n1", "n1~2c",
    ),
    "in place first, then elsewhere, then it waits": (
        "2c,1c", "job < primary [1c]: n1~1c", ["1c", "1c", "1c", "1c"], "n1 n1 n2 -", "n1~2c, n2~1c",
    ),
    "a later, smaller one passes": ("2c", "job < primary [1c]: n1~1c", ["4c", "1c"], "- n1", "n1~1c"),
    "a pinned one does not make it grow": (
        "4c", "job < primary [1c]: n1~1c", ["1c", "1c NODE:n1"], "n1 -", "n1~1c",
    ),
    "a softly pinned one does": (
        "4c", "job < primary [1c]: n1~1c", ["1c", "1c NODE:n1:soft"], "n1 n1", "n1~2c",
    ),
    "spread over what is there": (
        "4c,4c", "job < primary [4c]: n1~2c, n2~2c", ["1c SPREAD"] * 4, "n1 n2 n1 n2", "n1~2c, n2~2c",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "cluster", "asked", "want", "grown"), ROUNDS.values(), ids=ROUNDS)
def test_a_round(nodes: str, cluster: str, asked: list[str], want: str, grown: str) -> None:
    ledger = trees.tree(nodes, cluster)
    queue = TaskQueue("job")
    for number, text in enumerate(asked):
        queue.put(trees.task(f"job: {text}", number=number))
    before = copy.deepcopy(ledger)
    starts, waits = decide_tasks(ledger, {"job": queue}, set(), 100)
    placed = {start.task.number: start.node_id for start in starts}
    assert " ".join(placed.get(number, "-") for number in range(len(asked))) == want
    assert trees.parts(ledger, "job") == grown
    assert len(waits) == want.split().count("-")
    for start in reversed(starts):
        revert_task(ledger, start)
    assert differences(ledger, before) == []
    assert all(task_still_fits(ledger, start) for start in starts[:1])
    assert differences(ledger, before) == []


def test_equal_tasks_that_wait_are_judged_once_and_again_when_something_grew() -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    trees.use(ledger, "job/0: 1c")
    queue = TaskQueue("job")
    for number in range(3):
        queue.put(trees.task("job: 1c", number=number))
    _, waits = decide_tasks(ledger, {"job": queue}, set(), 100)
    assert (len(waits), len(queue.blocked)) == (3, 1)
    assert decide_tasks(ledger, {"job": queue}, set(), 100) == ([], [])  # told already
    ledger.discharge(next(iter(ledger.charges)))
    assert decide_tasks(ledger, {"job": queue}, set(), 100) == ([], [])  # not looked at again
    starts, _ = decide_tasks(ledger, {"job": queue}, {"job"}, 100)
    assert [start.task.number for start in starts] == [0]


def test_growth_above_wakes_what_waits_below() -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    trees.use(ledger, "job/0: 1c")
    queue = TaskQueue("job")
    queue.put(trees.task("job: 1c"))
    decide_tasks(ledger, {"job": queue}, set(), 100)
    ledger.put_node(g.ledger("4c").nodes["n1"])
    starts, _ = decide_tasks(ledger, {"job": queue}, {"kPrimaryClusterID"}, 100)
    assert len(starts) == 1


def test_most_starts_of_a_round() -> None:
    ledger = trees.tree("4c", "job < primary [4c]: n1~4c")
    queue = TaskQueue("job")
    for number in range(4):
        queue.put(trees.task("job: 1c", number=number))
    starts, waits = decide_tasks(ledger, {"job": queue}, set(), 2)
    assert ([start.task.number for start in starts], waits) == ([0, 1], [])
