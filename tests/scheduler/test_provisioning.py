"""What a node provider is asked for: the fewest nodes of its templates that let what waits start."""

from __future__ import annotations

import copy

import pytest

from tests.scheduler import ground as g
from tests.scheduler import trees
from tests.world import differences
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob
from vctl.scheduler.cycle import decide
from vctl.scheduler.provisioning import MOST_NODES, Template, wanted_nodes
from vctl.scheduler.queueing import Queue
from vctl.scheduler.task_queue import TaskQueue

SMALL, LARGE = ("2c", 4), ("8c", 2)

# nodes, cluster, tasks, templates as (resources, most), present, wanted
TASKS = {
    "a node for what has no room": ("1c", "[1c]: n1~1c", ["1c", "1c"], [SMALL], {}, {"2c": 1}),
    "one node for two that fit on it": ("1c", "[1c]: n1~1c", ["1c", "1c", "1c"], [SMALL], {}, {"2c": 1}),
    "two nodes for three": ("1c", "[1c]: n1~1c", ["1c"] * 4, [SMALL], {}, {"2c": 2}),
    "room that is there is used first": ("4c", "[1c]: n1~1c", ["1c", "1c"], [SMALL], {}, {}),
    "the smallest template that helps": ("1c", "[1c]: n1~1c", ["4c"], [SMALL, LARGE], {}, {"8c": 1}),
    "the smaller of two that help": ("1c", "[1c]: n1~1c", ["2c"], [LARGE, SMALL], {}, {"2c": 1}),
    "nothing helps": ("1c", "[1c]: n1~1c", ["16c"], [SMALL, LARGE], {}, {}),
    "no more than there may be": ("1c", "[1c]: n1~1c", ["2c"] * 6, [SMALL], {}, {"2c": 4}),
    "those that exist or come count": ("1c", "[1c]: n1~1c", ["2c"] * 6, [SMALL], {"2c": 3}, {"2c": 1}),
    "the next template when one is used up": ("1c", "[1c]: n1~1c", ["2c"] * 6, [SMALL, LARGE], {"2c": 4}, {"8c": 2}),
    "a maximum of the cluster holds": ("1c", "[1c..2c]: n1~1c", ["2c"], [SMALL], {}, {}),
    "a task that names its node is helped by none": ("1c", "[1c]: n1~1c", ["2c NODE:n1"], [SMALL], {}, {}),
    "one that would rather be there is": ("1c", "[1c]: n1~1c", ["2c NODE:n1:soft"], [SMALL], {}, {"2c": 1}),
    "a selector that no template has": ("1c", "[1c]: n1~1c", ["2c @zone=x"], [SMALL], {}, {}),
    "GPUs": ("1c", "[1c]: n1~1c", ["1c 1g"], [SMALL, ("2c 2g", 1)], {}, {"2c2g": 1}),
    "no templates": ("1c", "[1c]: n1~1c", ["2c"], [], {}, {}),
}  # fmt: skip


def templates(texts: list[tuple[str, int]]) -> list[Template]:
    return [Template(text.replace(" ", ""), g.amounts(text), most) for text, most in texts]


@pytest.mark.parametrize(
    ("nodes", "cluster", "waiting", "kinds", "present", "want"), TASKS.values(), ids=TASKS
)
def test_nodes_for_tasks(
    nodes: str,
    cluster: str,
    waiting: list[str],
    kinds: list[tuple[str, int]],
    present: dict[str, int],
    want: dict[str, int],
) -> None:
    ledger = trees.tree(nodes, f"job < primary {cluster}")
    queue = TaskQueue("job")
    for number, text in enumerate(waiting):
        queue.put(trees.task(f"job: {text}", number=number))
    before = copy.deepcopy(ledger)
    assert wanted_nodes(ledger, {}, {"job": queue}, templates(kinds), present) == want
    assert differences(ledger, before) == []


JOBS = {
    "a job without room": ("1c", ["PACK: 2c"], [SMALL], {"2c": 1}),
    "a gang that is spread": ("1c", ["STRICT_SPREAD: 2c, 2c, 2c"], [SMALL], {"2c": 3}),
    "a gang on what is there and one more": ("2c,2c", ["STRICT_SPREAD: 2c, 2c, 2c"], [SMALL], {"2c": 1}),
    "a gang that must be on one node": ("2c", ["STRICT_PACK: 2c, 2c"], [SMALL, LARGE], {"8c": 1}),
    "a gang larger than all that could come": ("1c", ["STRICT_SPREAD: 2c, 2c, 2c, 2c, 2c"], [SMALL], {}),
}


@pytest.mark.parametrize(("nodes", "groups", "kinds", "want"), JOBS.values(), ids=JOBS)
def test_nodes_for_jobs(
    nodes: str, groups: list[str], kinds: list[tuple[str, int]], want: dict[str, int]
) -> None:
    ledger = g.ledger(nodes)
    queue = Queue(PRIMARY)
    queue.put(PendingJob(1, "j1", PRIMARY, "shape", g.spec(*groups), {}))
    decide(ledger, {PRIMARY: queue}, now_ns=0)
    before = copy.deepcopy(ledger)
    assert wanted_nodes(ledger, {PRIMARY: queue}, {}, templates(kinds), {}) == want
    assert differences(ledger, before) == []


def test_one_round_asks_for_so_many_at_most() -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    queue = TaskQueue("job")
    for number in range(MOST_NODES + 10):
        queue.put(trees.task("job: 2c", number=number))
    assert wanted_nodes(ledger, {}, {"job": queue}, templates([("2c", 1000)]), {}) == {"2c": MOST_NODES}


def test_levels_above_grow_onto_the_new_node_too() -> None:
    ledger = trees.tree(
        "1c", "org < primary [1c]: n1~1c", "team < org [1c]: n1~1c", "job < team [1c] job: n1~1c"
    )
    queue = TaskQueue("job")
    queue.put(trees.task("job: 2c"))
    before = copy.deepcopy(ledger)
    assert wanted_nodes(ledger, {}, {"job": queue}, templates([SMALL]), {}) == {"2c": 1}
    assert differences(ledger, before) == []
