"""Which virtual node a task gets: tables per strategy; what waits, and that the ledger is as it was."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Mapping, Set
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tests.scheduler import candidates as g
from tests.scheduler import trees
from tests.specification import spec
from tests.world import differences
from vctl.core import resources as rs
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING
from vctl.core.values import replace
from vctl.scheduler.plan import TaskStart, TaskWait, revert, still_fits
from vctl.scheduler.task_queue import TaskQueue, in_turn, kind_of, note_turn
from vctl.scheduler.task_rounds import TaskRound
from vctl.scheduler.tasking import Circumstances, choose, rank_of, utilisation

pytestmark = spec("10.strategies")

THREE = "a < primary [6c]: n1~4c, n2~4c, n3~4c"
NODES = "4c,4c,4c"

CHOICES = {
    # HYBRID: below half full all are equal and packed in order
    "empty ones are filled in order": ([], "a: 1c", None, "n1"),
    "the local one comes first": ([], "a: 1c", "a/1", "n2"),
    "packed while below the threshold": (["a/0: 0.5c"], "a: 1c", None, "n1"),
    "what the task itself takes does not count": (["a/0: 1c"], "a: 3c", None, "n1"),
    "not once it is at the threshold": (["a/0: 2c"], "a: 1c", None, "n2"),
    "the local one neither": (["a/0: 2c"], "a: 1c", "a/0", "n2"),
    "above it the least utilised wins": (["a/0: 3c", "a/1: 2.5c", "a/2: 2.75c"], "a: 1c", None, "n2"),
    "below it comes before above it": (["a/0: 2c", "a/1: 1c", "a/2: 3c"], "a: 1c", "a/0", "n2"),
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
    "softly pinned where there is no room: it waits": (["a/2: 4c"], "a: 1c NODE:n3:soft", None, None),
    "softly pinned with room": ([], "a: 1c NODE:n3:soft", None, "n3"),
    "softly pinned to a virtual node": (["a/1: 4c"], "a: 1c NODE:a/1:soft", None, None),
    "spilling where there is no room": (["a/2: 4c"], "a: 1c NODE:n3:spill", None, "n1"),
    "spilling with room": ([], "a: 1c NODE:n3:spill", "a/0", "n3"),
    "spilling from a virtual node, to the local one": (["a/2: 4c"], "a: 1c NODE:a/2:spill", "a/1", "n2"),
    "spilling when all are full": (["a/0: 4c", "a/1: 4c", "a/2: 4c"], "a: 1c NODE:n3:spill", None, None),
    "pinned to a node that is not there": ([], "a: 1c NODE:x", None, None),
    "softly pinned to one that is not there": ([], "a: 1c NODE:x:soft", None, "n1"),
    "spilling to one that is not there": ([], "a: 1c NODE:x:spill", None, "n1"),
    # selectors
    "a selector": ([], "a: 1c @zone=b", None, "n2"),
    "a selector that nobody matches": ([], "a: 1c @zone=x", None, None),
    "a selector and a strategy": ([], "a: 1c SPREAD @zone=b", None, "n2"),
    "a selector and full virtual nodes": (["a/1: 4c"], "a: 1c @zone=b", None, None),
    "a selector and a pin that contradict": ([], "a: 1c NODE:n1 @zone=b", None, None),
    "a selector and a soft pin that contradict": ([], "a: 1c NODE:n1:soft @zone=b", None, "n2"),
    # locality
    "where most bytes of its inputs lie": ([], "a: 1c <n1=10 n3=11", None, "n3"),
    "before the local one": ([], "a: 1c <n2=1", "a/0", "n2"),
    "above the threshold too": (["a/1: 3c"], "a: 1c <n2=1", "a/0", "n2"),
    "only among those with room": (["a/2: 4c"], "a: 1c <n1=10 n3=11", None, "n1"),
    "the rest as if there were no inputs": (["a/2: 4c"], "a: 1c <n3=11", "a/1", "n2"),
    "equal bytes: the strategy decides": (["a/1: 3c"], "a: 1c <n2=5 n3=5", None, "n3"),
    "equal bytes: the local one": ([], "a: 1c <n1=5 n2=5", "a/1", "n2"),
    "inputs that are nowhere near": ([], "a: 1c <n9=100", "a/1", "n2"),
    "a selector goes before": ([], "a: 1c @zone=b <n1=100", None, "n2"),
    "SPREAD skips locality": ([], "a: 1c SPREAD <n3=100", None, "n1"),
    "a pin skips locality": ([], "a: 1c NODE:n2 <n3=100", None, "n2"),
    "one that spills, too": (["a/1: 4c"], "a: 1c NODE:n2:spill <n3=100", None, "n1"),
    "a soft pin to one that is not there, too": ([], "a: 1c NODE:x:soft <n3=100", None, "n1"),
    # load: what is queued for a virtual node counts as taken
    "not where others are queued": (["a/0: 1c", "load a/0: 3c"], "a: 1c", "a/0", "n2"),
    "beside what others queue for": (["load a/0: 3c"], "a: 1c", "a/0", "n1"),
    "queued for everywhere": (["load a/0: 4c", "load a/1: 4c", "load a/2: 4c"], "a: 1c", None, None),
    "nothing asked for, whatever the load": (["load a/0: 4c"], "a: 0c", None, "n1"),
}  # fmt: skip
LABELS = {"n1": "zone=a", "n2": "zone=b", "n3": "zone=c"}


@pytest.mark.parametrize(("used", "task", "origin", "want"), CHOICES.values(), ids=CHOICES)
def test_choice(used: list[str], task: str, origin: str | None, want: str | None) -> None:
    ledger = trees.tree(NODES, THREE, labels=LABELS)
    load = {}
    for one in used:
        if one.startswith("load "):
            vnode_id, _, amounts = one.removeprefix("load ").partition(": ")
            load[vnode_id] = g.amounts(amounts)
        else:
            trees.use(ledger, one)
    before = copy.deepcopy(ledger)
    found = choose(ledger, trees.task(task, origin=origin), Circumstances(load))
    assert (None if found is None else found.node_id) == want
    assert differences(ledger, before) == []


def test_only_a_full_node_holds_a_softly_pinned_task() -> None:
    """Spec 10: it waits while the node is alive and could ever hold it, and goes elsewhere when not, as with Ray."""
    ledger = trees.tree("2c,4c,4c", "a < primary [8c..8c]: n1~2c, n2~2c, n3~4c")
    trees.use(ledger, "a/0: 2c")
    trees.use(ledger, "a/1: 2c")

    def chosen(text: str) -> str | None:
        found = choose(ledger, trees.task(f"a: {text}"))
        return None if found is None else found.node_id

    assert chosen("2c NODE:n1:soft") is None
    assert chosen("3c NODE:n1:soft") == "n3", "n1 has 2 CPU"
    assert chosen("3c NODE:n2:soft") is None, "a could grow there"
    assert chosen("5c NODE:n2:soft") is None
    assert chosen("3c NODE:n2") is None
    trees.change_node(ledger, "n1", state=DRAINING)
    assert chosen("2c NODE:n1:soft") == "n3"
    assert chosen("2c NODE:n1") is None
    fixed = trees.tree("4c,4c", "a < primary: n1=2c, n2=4c")
    trees.use(fixed, "a/0: 2c")
    assert choose(fixed, trees.task("a: 2c NODE:n1:soft")) is None
    found = choose(fixed, trees.task("a: 3c NODE:n1:soft"))
    assert found is not None
    assert found.node_id == "n2", "a fixed virtual node does not grow"


WITHOUT_GPUS = {
    "the one without GPUs": ([], "1c", None, "n2"),
    "not the local one with GPUs": ([], "1c", "a/0", "n2"),
    "however used it is": (["a/1: 3c"], "1c", None, "n2"),
    "the less used one of them": (["a/1: 3c"], "1c", "a/0", "n2"),
    "full: then one with GPUs": (["a/1: 4c"], "1c", None, "n1"),
    "too large for it": ([], "6c", None, "n1"),
    "nothing asked for": ([], "0c", None, "n2"),
    "GPUs asked for": ([], "1c 1g", None, "n1"),
    "a share of one": ([], "1c 0.5g", None, "n1"),
    "before its inputs": ([], "1c <n1=100", None, "n2"),
    "its inputs decide among those with GPUs": (["a/1: 4c"], "1c <n3=100", None, "n3"),
    "where labels allow no other": ([], "1c @zone=a", None, "n1"),
    "one that spills from a full one": (["a/0: 8c"], "1c NODE:n1:spill", None, "n2"),
    "one that names it": ([], "1c NODE:n1", None, "n1"),
    "SPREAD goes to all": ([], "1c SPREAD", None, "n1"),
}  # fmt: skip


@pytest.mark.parametrize(("used", "task", "origin", "want"), WITHOUT_GPUS.values(), ids=WITHOUT_GPUS)
def test_work_without_gpus_leaves_those_with_gpus_alone(
    used: list[str], task: str, origin: str | None, want: str
) -> None:
    """Spec 10, as in Ray (``scheduler_avoid_gpu_nodes``)."""
    ledger = trees.tree("8c 2g,4c,8c 2g", "a < primary []: n1~8c 2g, n2~4c, n3~8c 2g", labels=LABELS)
    for one in used:
        trees.use(ledger, one)
    found = choose(ledger, trees.task(f"a: {task}", origin=origin))
    assert found is not None
    assert found.node_id == want


def test_a_node_that_drains_gets_no_task() -> None:
    ledger = trees.tree(NODES, THREE)
    trees.change_node(ledger, "n1", state=DRAINING)
    found = choose(ledger, trees.task("a: 1c", origin="a/0"))
    assert found is not None
    assert found.node_id == "n2"


def test_the_fullest_resource_decides() -> None:
    """Spec 10: of CPU, memory and object_store_memory; GPUs do not count."""
    ledger = trees.tree("4c 4m 2g,4c 4m 2g", "a < primary []: n1~4c 4m 2g, n2~4c 4m 2g")
    trees.use(ledger, "a/0: 1c 2g")
    assert utilisation(ledger, ledger.vnodes["a/0"]) == 0.25
    found = choose(ledger, trees.task("a: 1c"))
    assert found is not None
    assert found.node_id == "n1"
    trees.use(ledger, "a/0: 2m")
    assert utilisation(ledger, ledger.vnodes["a/0"]) == 0.5
    found = choose(ledger, trees.task("a: 1c"))
    assert found is not None
    assert found.node_id == "n2"


def test_on_idle_nodes_the_first_two_of_four_stay_local() -> None:
    """Spec 10: on idle 4-CPU virtual nodes the first two 1-CPU tasks stay local."""
    ledger, nodes = trees.tree("4c,4c", "a < primary []: n1~4c, n2~4c"), []
    for number in range(8):
        found = choose(ledger, trees.task("a: 1c", origin="a/1", number=number))
        assert found is not None
        nodes.append(found.node_id)
        ledger.charge(
            f"t{number}", found.vnode_id, ledger.capacities[found.vnode_id].copy().take(g.amounts("1c"))
        )
    assert nodes == ["n2", "n2", "n1", "n1", "n2", "n1", "n2", "n1"]


@pytest.mark.parametrize("seed", range(200))
def test_hybrid_is_as_the_formula_says(seed: int) -> None:
    """Spec 10, with exact fractions over random loads."""
    dice = random.Random(seed)
    ledger = trees.tree("4c 8m,4c 8m,2c 4m,8c 2m", "a < primary []: n1~4c 8m, n2~4c 8m, n3~2c 4m, n4~8c 2m")
    for vnode in ledger.ranked("a"):
        total = vnode.allocation.amounts
        part = {name: dice.randint(0, 8) * amount // 8 for name, amount in total.items()}
        ledger.charge(f"r{vnode.rank}", vnode.vnode_id, ledger.capacities[vnode.vnode_id].copy().take(part))
    request = {"CPU": dice.randint(0, 4) * 10_000, "memory": dice.randint(0, 4) * 10_000}
    origin = dice.choice([None, "a/0", "a/1", "a/2", "a/3"])
    best: tuple[Any, ...] | None = None
    for vnode in ledger.ranked("a"):
        free, total = ledger.capacities[vnode.vnode_id].free, vnode.allocation.amounts
        if any(free[name] < amount for name, amount in request.items()):
            continue
        used = max(Fraction(total[name] - free[name], total[name]) for name in total)
        score = used if used >= Fraction(1, 2) else Fraction(0)
        key = (score, vnode.vnode_id != origin, vnode.rank, vnode.node_id)
        best = key if best is None else min(best, key)
    task = replace(trees.task("a: 1c", origin=origin), request=request)
    found = choose(ledger, task)
    assert (None if found is None else found.node_id) == (None if best is None else best[3])


SPREADS = {
    "in turn": ([], "n1 n2 n3 n1 n2 n3"),
    "a full one is passed over": (["a/1: 4c"], "n1 n3 n1 n3 n1 n3"),
    "all but one full": (["a/0: 4c", "a/1: 4c"], "n3 n3 n3 n3 n3 n3"),
}


def spread(ledger: Ledger, text: str, count: int) -> str:
    """The nodes that so many tasks get one after the other, without taking anything."""
    found, last = [], None
    for _ in range(count):
        vnode = choose(ledger, trees.task(text), Circumstances(last_spread=last))
        assert vnode is not None
        last = rank_of(vnode)
        found.append(vnode.node_id)
    return " ".join(found)


@pytest.mark.parametrize(("used", "want"), SPREADS.values(), ids=SPREADS)
def test_spread(used: list[str], want: str) -> None:
    ledger = trees.tree(NODES, THREE)
    for one in used:
        trees.use(ledger, one)
    assert spread(ledger, "a: 1c SPREAD", 6) == want


def test_spread_counts_only_what_could_ever_take_it() -> None:
    ledger = trees.tree("1c,4c,4c", "a < primary []: n1~1c, n2~4c, n3~4c")
    assert spread(ledger, "a: 2c SPREAD", 4) == "n2 n3 n2 n3"


def test_spread_goes_on_after_the_last_one_is_gone() -> None:
    ledger = trees.tree(NODES, THREE)
    ledger.release("a/1")
    found = choose(ledger, trees.task("a: 1c SPREAD"), Circumstances(last_spread=(1, "a/1")))
    assert found is not None
    assert found.node_id == "n3"


CHI_SQUARE_99 = {2: 9.21, 9: 21.67}
"""Degrees of freedom -> what the statistic of a uniform draw exceeds once in a hundred times."""


def chi_square(counts: Counter[str], places: int) -> float:
    expected = counts.total() / places
    return sum((count - expected) ** 2 / expected for count in counts.values()) + expected * (
        places - len(counts)
    )


@pytest.mark.parametrize("places", [3, 10])
def test_random_is_uniform_and_repeatable(places: int) -> None:
    parts = ", ".join(f"n{number}~4c" for number in range(1, places + 1))
    ledger = trees.tree(",".join(["4c"] * places), f"a < primary []: {parts}")

    def draw(attempts: int) -> list[str]:
        tasks = [trees.task("a: 1c RANDOM", number=number) for number in range(5000 // attempts)]
        found = [choose(ledger, replace(task, attempt=n)) for task in tasks for n in range(attempts)]
        return [vnode.node_id for vnode in found if vnode]

    for attempts in (1, 5):
        first = draw(attempts)
        assert first == draw(attempts)
        assert chi_square(Counter(first), places) < CHI_SQUARE_99[places - 1]
        assert len(set(pairwise(first))) == places**2  # no pattern from one to the next


def test_random_takes_only_what_is_available() -> None:
    ledger = trees.tree(NODES, THREE)
    trees.use(ledger, "a/1: 4c")
    found = [choose(ledger, trees.task("a: 1c RANDOM", number=number)) for number in range(2000)]
    counts = Counter(vnode.node_id for vnode in found if vnode)
    assert set(counts) == {"n1", "n3"}
    assert (counts["n1"] - 1000) ** 2 / 1000 * 2 < 6.63


# ---- a round ----


def decide_tasks(
    ledger: Ledger,
    queues: Mapping[str, TaskQueue],
    grown: Set[str] = frozenset(),
    most: int = 100,
    joined: Mapping[str, Set[str]] | None = None,
) -> tuple[list[TaskStart], list[TaskWait]]:
    """One round; what starts stays in the ledger."""
    round_ = TaskRound(ledger, most)
    round_.decide(queues, grown, joined or {})
    return round_.starts, round_.waits


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
    "a pinned one makes it grow where it is": (
        "4c,4c", "job < primary [1c]: n2~1c", ["1c", "1c NODE:n2"], "n2 n2", "n2~2c",
    ),
    "or on the node that it names": (
        "4c,4c,4c", "job < primary [1c]: n1~1c", ["1c NODE:n3"], "n3", "n1~1c, n3~1c",
    ),
    "nowhere else": ("4c,1c", "job < primary [1c]: n1~1c", ["2c NODE:n2"], "-", "n1~1c"),
    "up to its maximum": ("4c", "job < primary [1c..1c]: n1~1c", ["1c", "1c NODE:n1"], "n1 -", "n1~1c"),
    "one that names its flexible virtual node, too": (
        "4c,4c", "job < primary [1c]: n2~1c", ["1c", "2c NODE:job/0"], "n2 n2", "n2~3c",
    ),
    "one that names a fixed virtual node does not": (
        "4c", "job < primary [1c]: n1=1c", ["1c", "1c NODE:job/0"], "n1 -", "n1=1c",
    ),
    "a softly pinned one does": (
        "4c", "job < primary [1c]: n1~1c", ["1c", "1c NODE:n1:soft"], "n1 n1", "n1~2c",
    ),
    "spread over what is there": (
        "4c,4c", "job < primary [4c]: n1~2c, n2~2c", ["1c SPREAD"] * 4, "n1 n2 n1 n2", "n1~2c, n2~2c",
    ),
    "one at random has no room: it grows before anybody waits": (
        "2c", "job < primary [1c]: n1~1c", ["1c RANDOM", "1c RANDOM"], "n1 n1", "n1~2c",
    ),
    "inputs pull it over, and the second stays where there is room": (
        "4c,4c", "job < primary [2c..2c]: n1~1c, n2~1c", ["1c <n2=9", "1c <n2=9", "1c"], "n2 n1 -", "n1~1c, n2~1c",
    ),
    "one of each kind before a second one, older kinds first": (
        "3c", "job < primary [3c..3c]: n1~3c", ["1c", "2c", "1c", "2c"], "n1 n1 - -", "n1~3c",
    ),
    "a row of one kind holds back no other": (
        "2c", "job < primary [2c..2c]: n1~2c", [*["1c"] * 6, "0.5c"], "n1 - - - - - n1", "n1~2c",
    ),
    "nor one that cannot start": (
        "2c", "job < primary [2c..2c]: n1~2c", ["4c", "1c", "1c", "1c", "0.5c", "0.5c"],
        "- n1 - - n1 n1", "n1~2c",
    ),
    "kinds are request, selector and strategy": (
        "3c", "job < primary [3c..3c]: n1~3c", ["1c", "1c", "1c", "1c SPREAD", "1c NODE:n1"],
        "n1 - - n1 n1", "n1~3c",
    ),
    "the rest goes round": (
        "4c", "job < primary [4c..4c]: n1~4c", [*["1c"] * 4, *["0.5c"] * 4], "n1 n1 n1 - n1 n1 - -", "n1~4c",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "cluster", "asked", "want", "grown"), ROUNDS.values(), ids=ROUNDS)
def test_a_round(nodes: str, cluster: str, asked: list[str], want: str, grown: str) -> None:
    ledger = trees.tree(nodes, cluster)
    queue = TaskQueue("job")
    for number, text in enumerate(asked):
        queue.put(trees.task(f"job: {text}", number=number))
    before = copy.deepcopy(ledger)
    starts, waits = decide_tasks(ledger, {"job": queue})
    placed = {start.task.number: start.node_id for start in starts}
    assert " ".join(placed.get(number, "-") for number in range(len(asked))) == want
    assert trees.parts(ledger, "job") == grown
    assert len(waits) == want.split().count("-")
    for start in reversed(starts):
        revert(ledger, start)
    assert differences(ledger, before) == []
    assert all(still_fits(ledger, start) for start in starts[:1])
    assert differences(ledger, before) == []


def test_kinds_take_turns_from_round_to_round() -> None:
    """One place: after each end the kind is next that had its last turn before all others, as ``in_turn`` says."""
    ledger = trees.tree("1c", "job < primary [1c..1c]: n1~1c")
    queue = TaskQueue("job")
    queue.put(trees.task("job: 1c", number=0))
    order: list[int] = []
    foreseen: list[int] = []
    for last in range(9):
        starts, _ = decide_tasks(ledger, {"job": queue}, {"job"})
        assert len(starts) == 1
        order.append(starts[0].task.number)
        queue.drop(starts[0].task.task_id)
        note_turn(queue.turns, kind_of(starts[0].task))  # as the state does when it has started
        ledger.discharge(starts[0].run_id)
        if not last:
            for number, text in enumerate([*["1c"] * 5, "0.75c", "1c SPREAD", "1c SPREAD"], 1):
                queue.put(trees.task(f"job: {text}", number=number))
            foreseen = [task.number for task in in_turn(queue.tasks.values(), queue.turns)]
    assert order == [0, 6, 7, 1, 8, 2, 3, 4, 5]
    assert foreseen == order[1:]


def test_a_kind_that_comes_again_and_again_does_not_go_first_each_time() -> None:
    """As from a loop of ``vctl task run``: each task comes when the one before has ended."""
    ledger = trees.tree("1c", "job < primary [1c..1c]: n1~1c")
    queue, order = TaskQueue("job"), []
    for number in range(4):
        queue.put(trees.task("job: 1c", number=number))
    for number in range(10, 14):
        queue.put(trees.task("job: 0.75c", number=number))
        for start in decide_tasks(ledger, {"job": queue}, {"job"})[0]:
            order.append(start.task.number)
            queue.drop(start.task.task_id)
            note_turn(queue.turns, kind_of(start.task))
            ledger.discharge(start.run_id)
    assert order == [0, 10, 1, 11]


@spec("3.states")
def test_a_task_planned_for_a_node_that_drains_meanwhile_does_not_start() -> None:
    ledger = trees.tree("2c", "job < primary [1c]: n1~1c")
    queue = TaskQueue("job")
    queue.put(trees.task("job: 1c"))
    (start,), _ = decide_tasks(ledger, {"job": queue})
    revert(ledger, start)
    assert still_fits(ledger, start)
    trees.change_node(ledger, "n1", state=DRAINING)
    assert not still_fits(ledger, start)


def test_equal_tasks_that_wait_are_judged_once_and_again_when_something_grew() -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    trees.use(ledger, "job/0: 1c")
    queue = TaskQueue("job")
    for number in range(3):
        queue.put(trees.task("job: 1c", number=number))
    _, waits = decide_tasks(ledger, {"job": queue})
    assert (len(waits), len(queue.blocked)) == (3, 1)
    assert decide_tasks(ledger, {"job": queue}) == ([], [])  # told already
    ledger.discharge(next(iter(ledger.charges)))
    assert decide_tasks(ledger, {"job": queue}) == ([], [])  # not looked at again
    starts, _ = decide_tasks(ledger, {"job": queue}, {"job"})
    assert [start.task.number for start in starts] == [0]


def test_a_late_one_is_told_what_its_lane_was_told() -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    trees.use(ledger, "job/0: 1c")
    queue = TaskQueue("job")
    queue.put(trees.task("job: 1c", number=1))
    _, first = decide_tasks(ledger, {"job": queue})
    queue.put(trees.task("job: 1c", number=2))
    _, second = decide_tasks(ledger, {"job": queue})
    assert [(one.task_id, one.message) for one in second] == [("task-2", first[0].message)]


def test_of_a_long_lane_only_the_first_hear_every_number() -> None:
    ledger = trees.tree("2c", "job < primary [2c..2c]: n1~2c")
    trees.use(ledger, "job/0: 0.5c")
    trees.use(ledger, "job/0: 1.5c")
    queue = TaskQueue("job")
    for number in range(100):
        queue.put(trees.task("job: 1c", number=number))
    assert len(decide_tasks(ledger, {"job": queue})[1]) == 100
    ledger.discharge(next(iter(ledger.charges)))
    _, reported = decide_tasks(ledger, {"job": queue}, {"job"})
    assert [one.task_id for one in reported] == [f"task-{number}" for number in range(64)]
    assert "free: job/0 0.5 CPU" in reported[0].message


WORDS = {
    "too large for all": ("9c", "infeasible on the 2 virtual nodes of job"),
    "too large for one": ("3c", "not available on 1 of the 2 virtual nodes of job, infeasible on the others"),
    "in use": ("2c", "feasible but not available on the 2 virtual nodes of job; free: job/0 1 CPU, job/1 1 CPU"),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "words"), WORDS.values(), ids=WORDS)
def test_the_message_says_what_it_is(request_: str, words: str) -> None:
    ledger = trees.tree("4c,2c", "job < primary [6c..6c]: n1~4c, n2~2c")
    for one in ("job/0: 3c", "job/1: 1c"):
        trees.use(ledger, one)
    queue = TaskQueue("job")
    queue.put(trees.task(f"job: {request_}"))
    _, [wait] = decide_tasks(ledger, {"job": queue})
    assert words in wait.message


def test_growth_above_wakes_what_waits_below() -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    trees.use(ledger, "job/0: 1c")
    queue = TaskQueue("job")
    queue.put(trees.task("job: 1c"))
    decide_tasks(ledger, {"job": queue})
    ledger.put_node(g.ledger("4c").nodes["n1"])
    starts, _ = decide_tasks(ledger, {"job": queue}, {"kPrimaryClusterID"})
    assert len(starts) == 1


def test_most_starts_of_a_round() -> None:
    ledger = trees.tree("4c", "job < primary [4c]: n1~4c")
    queue = TaskQueue("job")
    for number in range(4):
        queue.put(trees.task("job: 1c", number=number))
    starts, waits = decide_tasks(ledger, {"job": queue}, most=2)
    assert ([start.task.number for start in starts], waits) == ([0, 1], [])


def test_one_that_is_tried_again_goes_back_to_its_place() -> None:
    ledger = trees.tree("1c", "job < primary [1c..1c]: n1~1c")
    queue = TaskQueue("job")
    for number in (2, 3, 1):
        queue.put(trees.task("job: 1c", number=number))
    starts, _ = decide_tasks(ledger, {"job": queue})
    assert [start.task.number for start in starts] == [1]


# ---- RANDOM waits as load ----


def commit(queue: TaskQueue, starts: list[TaskStart], waits: list[TaskWait]) -> None:
    """What the scheduler does with a round's plan, as far as the queue goes."""
    for start in starts:
        queue.drop(start.task.task_id)
    for wait in waits:
        trees.tell(queue, wait)


def drawn(ledger: Ledger, count: int, others: tuple[str, ...] = ()) -> tuple[TaskQueue, list[TaskWait]]:
    """A full cluster of three, and RANDOM tasks that found no room."""
    for one in ("a/0: 4c", "a/1: 4c", "a/2: 4c"):
        trees.use(ledger, one)
    queue = TaskQueue("a")
    for number in range(count):
        queue.put(trees.task("a: 1c RANDOM", number=number))
    for number, text in enumerate(others, count):
        queue.put(trees.task(f"a: {text}", number=number))
    starts, waits = decide_tasks(ledger, {"a": queue})
    assert starts == []
    commit(queue, starts, waits)
    return queue, waits


FULL = "a < primary: n1=4c, n2=4c, n3=4c"


def test_one_without_room_is_bound_where_it_was_drawn_to() -> None:
    ledger = trees.tree(NODES, FULL)
    queue, waits = drawn(ledger, 3000)
    counts = Counter(wait.vnode_id or "" for wait in waits)
    assert chi_square(counts, 3) < CHI_SQUARE_99[2]
    assert {vnode_id: load["CPU"] // 10_000 for vnode_id, load in queue.load.items()} == dict(counts)
    assert "feasible but not available on a/" in waits[0].message
    assert decide_tasks(ledger, {"a": queue}) == ([], [])  # nothing new to say


def test_it_starts_there_when_there_is_room_and_nowhere_else() -> None:
    ledger = trees.tree(NODES, FULL)
    queue, waits = drawn(ledger, 20)
    at = {wait.task_id: wait.vnode_id for wait in waits}
    ledger.discharge("a/1#1")
    starts, _ = decide_tasks(ledger, {"a": queue}, {"a"})
    assert [start.vnode_id for start in starts] == ["a/1"] * 4
    assert [start.task.task_id for start in starts] == [one for one in at if at[one] == "a/1"][:4]


def test_what_is_queued_for_a_virtual_node_is_not_given_to_others() -> None:
    ledger = trees.tree(NODES, FULL)
    queue, waits = drawn(ledger, 1, ("4c", "3c"))
    place = waits[0].vnode_id
    assert place is not None
    ledger.discharge(next(run for run, (vnode_id, _) in ledger.charges.items() if vnode_id == place))
    starts, _ = decide_tasks(ledger, {"a": queue}, {"a"})
    assert [(start.task.task_id, start.vnode_id) for start in starts] == [
        ("task-0", place),
        ("task-2", place),
    ]
    assert len(queue.load) == 1  # until it is committed


def test_an_older_large_one_goes_before_a_younger_small_one() -> None:
    ledger = trees.tree("4c", "a < primary [4c..4c]: n1~4c")
    for one in ("a/0: 2c", "a/0: 2c"):
        trees.use(ledger, one)
    queue = TaskQueue("a")
    for number, size in enumerate(("3c", "1c")):
        queue.put(trees.task(f"a: {size} RANDOM", number=number, bound="a/0"))
    ledger.discharge("a/0#0")
    assert decide_tasks(ledger, {"a": queue})[0] == []
    ledger.discharge("a/0#1")
    starts, _ = decide_tasks(ledger, {"a": queue}, {"a"})
    assert [start.task.number for start in starts] == [0, 1]


GONE = {
    "the virtual node is gone": lambda ledger: (ledger.discharge("a/1#1"), ledger.release("a/1")),
    "its node drains": lambda ledger: trees.change_node(ledger, "n2", state=DRAINING),
}


@pytest.mark.parametrize("change", GONE.values(), ids=GONE)
def test_it_is_drawn_anew_when_its_place_goes_away(change: Callable[[Ledger], object]) -> None:
    ledger = trees.tree(NODES, FULL)
    queue, waits = drawn(ledger, 30)
    lost = {wait.task_id for wait in waits if wait.vnode_id == "a/1"}
    change(ledger)
    starts, again = decide_tasks(ledger, {"a": queue}, {"a"})
    commit(queue, starts, again)
    assert {wait.task_id for wait in again} == lost
    assert {wait.vnode_id for wait in again} == {"a/0", "a/2"}
    assert set(queue.load) == {"a/0", "a/2"}


def test_it_is_bound_to_nothing_when_no_place_is_left() -> None:
    ledger = trees.tree("4c", "a < primary [4c..4c]: n1~4c")
    trees.use(ledger, "a/0: 4c")
    queue = TaskQueue("a")
    queue.put(trees.task("a: 1c RANDOM", bound="a/0"))
    trees.change_node(ledger, "n1", state=DRAINING)
    starts, waits = decide_tasks(ledger, {"a": queue}, {"a"})
    commit(queue, starts, waits)
    assert [(wait.vnode_id, "infeasible on the 1 virtual node" in wait.message) for wait in waits] == [
        (None, True)
    ]
    assert queue.load == {}


# ---- nodes that join or grow ----

JOINS = {
    "the one that was too large goes first, then one that was not": (
        "2c,8c", "job < primary [1c..20c]: n1~2c", ["1c", "1c", "6c"], ["n2 - n2", "n2"],
    ),
    "all that were too large go before": (
        "2c,8c", "job < primary [1c..20c]: n1~2c", ["1c", "4c", "1c", "3c"], ["n2 n2 - n2", "-"],
    ),
    "then at most one a round": ("2c,8c", "job < primary [1c..20c]: n1~2c", ["1c"] * 4, ["n2 - - -", "n2 n2 n2"]),
    "on each node that joined": (
        "2c,8c,8c", "job < primary [1c..20c]: n1~2c", ["1c"] * 4, ["n2 n3 - -", "n2 n2"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "cluster", "asked", "rounds"), JOINS.values(), ids=JOINS)
def test_a_node_that_joins(nodes: str, cluster: str, asked: list[str], rounds: list[str]) -> None:
    """The first node is full and the queue has been judged; then the other nodes join the primary."""
    first, *others = nodes.split(",")
    ledger = trees.tree(first, cluster)
    trees.use(ledger, "job/0: 2c")
    queue = TaskQueue("job")
    for number, text in enumerate(asked):
        queue.put(trees.task(f"job: {text}", number=number))
    starts, waits = decide_tasks(ledger, {"job": queue})
    assert starts == []
    commit(queue, starts, waits)
    ledger.grown.clear()
    ledger.joined.clear()
    for number, text in enumerate(others, 2):
        ledger.put_node(replace(g.ledger(text).nodes["n1"], node_id=f"n{number}", hostname=f"n{number}"))
    grown, joined = set(ledger.grown), dict(ledger.joined)
    for want in rounds:
        waiting = list(queue.tasks)
        round_ = TaskRound(ledger, 100)
        round_.decide({"job": queue}, grown, joined)
        placed = {start.task.task_id: start.node_id for start in round_.starts}
        commit(queue, round_.starts, round_.waits)
        assert " ".join(placed.get(task_id, "-") for task_id in waiting) == want
        grown, joined = set(), {}
        if not round_.deferred:
            assert not queue.tasks or all(shape in queue.blocked for shape in queue.sub_queues)
    assert not round_.deferred


def test_a_virtual_node_that_grows_takes_one_that_was_not_too_large() -> None:
    ledger = trees.tree("8c", "job < primary [2c..2c]: n1~2c")
    trees.use(ledger, "job/0: 2c")
    queue = TaskQueue("job")
    for number, text in enumerate(("1c", "1c", "4c")):
        queue.put(trees.task(f"job: {text}", number=number))
    commit(queue, *decide_tasks(ledger, {"job": queue}))
    ledger.joined.clear()
    vnode = ledger.vnodes["job/0"]
    ledger.resize(replace(vnode, allocation=rs.Allocation(g.amounts("8c"), {}, ())))
    assert ledger.joined == {"job": {"n1"}}
    starts, _ = decide_tasks(ledger, {"job": queue}, {"job"}, joined=ledger.joined)
    assert [start.task.number for start in starts] == [2, 0]


def test_growth_for_one_task_is_no_joining_node() -> None:
    ledger = trees.tree("8c", "job < primary [1c]: n1~1c")
    ledger.joined.clear()
    queue = TaskQueue("job")
    for number in range(4):
        queue.put(trees.task("job: 1c", number=number))
    starts, _ = decide_tasks(ledger, {"job": queue})
    assert len(starts) == 4
    assert not any(ledger.joined.values())


def test_a_node_that_is_back_in_service_has_joined() -> None:
    ledger = trees.tree("8c", "job < primary [1c]: n1~1c")
    for state, joined in ((DRAINING, set()), (ALIVE, {"n1"})):
        ledger.joined.clear()
        trees.change_node(ledger, "n1", state=state)
        assert ledger.joined.get("kPrimaryClusterID", set()) == joined
