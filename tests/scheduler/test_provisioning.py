"""What a node provider is asked for: the fewest nodes of its templates that let what waits start."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.scheduler import candidates as g
from tests.scheduler import trees
from tests.specification import spec
from tests.world import differences
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.leases import Lease
from vctl.core.nodes import Template
from vctl.core.queue_policy import QueuePolicy
from vctl.scheduler.cycle import decide
from vctl.scheduler.provisioning import MOST_NODES, wanted_nodes
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running
from vctl.scheduler.task_queue import TaskQueue

pytestmark = spec("9.provider")

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
    assert wanted_nodes(ledger, {}, {"job": queue}, templates(kinds), present).nodes == want
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
    assert wanted_nodes(ledger, {PRIMARY: queue}, {}, templates(kinds), {}).nodes == want
    assert differences(ledger, before) == []


SPARE = {
    "all where nothing waits": ([], {"2c": 2}, {"2c": 2}),
    "none where each is needed": (["2c", "2c"], {"2c": 2}, {}),
    "what a node that is there serves": (["1c", "2c"], {"2c": 2}, {"2c": 1}),
    "those that are too small": (["8c"], {"2c": 1, "8c": 1}, {"2c": 1}),
}


@pytest.mark.parametrize(("waiting", "coming", "spare"), SPARE.values(), ids=SPARE)
def test_nodes_on_their_way_that_nothing_needs_are_spare(
    waiting: list[str], coming: dict[str, int], spare: dict[str, int]
) -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    queue = TaskQueue("job")
    for number, text in enumerate(waiting):
        queue.put(trees.task(f"job: {text}", number=number))
    found = wanted_nodes(ledger, {}, {"job": queue}, templates([SMALL, LARGE]), {}, coming=coming)
    assert (found.nodes, found.spare) == ({}, spare)


def test_one_round_asks_for_so_many_at_most() -> None:
    ledger = trees.tree("1c", "job < primary [1c]: n1~1c")
    queue = TaskQueue("job")
    for number in range(MOST_NODES + 10):
        queue.put(trees.task("job: 2c", number=number))
    assert wanted_nodes(ledger, {}, {"job": queue}, templates([("2c", 1000)]), {}).nodes == {"2c": MOST_NODES}


def test_levels_above_grow_onto_the_new_node_too() -> None:
    ledger = trees.tree(
        "1c", "org < primary [1c]: n1~1c", "team < org [1c]: n1~1c", "job < team [1c] job: n1~1c"
    )
    queue = TaskQueue("job")
    queue.put(trees.task("job: 2c"))
    before = copy.deepcopy(ledger)
    assert wanted_nodes(ledger, {}, {"job": queue}, templates([SMALL]), {}).nodes == {"2c": 1}
    assert differences(ledger, before) == []


GPU, MIXED = ("8c 4g", 4), ("4c 1g", 4)

# nodes, gang, templates as (resources, most), wanted: which template wastes least (spec 9)
WASTE = {
    "no GPUs for who asks for none": ("1c", ["PACK: 2c"], [("2c 1g", 4), ("64c", 4)], {"64c": 1}),
    "not even where bytes would weigh more": ("1c", ["PACK: 2c"], [("2c 1g", 4), ("8c 64m", 4)], {"8c64m": 1}),
    "GPUs where nothing else helps": ("1c", ["PACK: 16c"], [SMALL, ("16c 1g", 4)], {"16c1g": 1}),
    "GPUs where the rest is used up": ("1c", ["STRICT_SPREAD: 2c, 2c, 2c"], [("2c", 2), MIXED], {"2c": 2, "4c1g": 1}),
    "few GPUs for who asks for one": ("1c", ["PACK: 1g"], [GPU, MIXED], {"4c1g": 1}),
    "the least dominant share": ("1c", ["PACK: 2c"], [("2c 64m", 4), ("4c 8m", 4), ("16c", 1)], {"4c8m": 1}),
    "GPU nodes for pieces that ask for GPUs": (
        "1c", ["PACK: 1g, 2c, 2c, 2c, 2c"], [MIXED, SMALL], {"4c1g": 1, "2c": 2},
    ),
    "a gang that no single template holds": ("1c", ["PACK: 4g, 64m"], [GPU, ("1c 64m", 2)], {"8c4g": 1, "1c64m": 1}),
    "a gang larger than what a round asks for": (
        "1c", ["STRICT_SPREAD: " + ", ".join(["2c"] * 100)], [("2c", 200)], {"2c": 100},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "groups", "kinds", "want"), WASTE.values(), ids=WASTE)
def test_the_template_that_wastes_least(
    nodes: str, groups: list[str], kinds: list[tuple[str, int]], want: dict[str, int]
) -> None:
    test_nodes_for_jobs(nodes, groups, kinds, want)


def waiting_job(number: int, text: str, **more: Any) -> PendingJob:
    return PendingJob(number, f"j{number}", PRIMARY, text, g.spec(text), {}, **more)


def test_nothing_is_asked_for_what_may_not_start_anyway() -> None:
    """Spec 8: held jobs, those whose time has not come, and those above a limit of the queue."""
    ledger = g.ledger("1c")
    queue = Queue(PRIMARY, QueuePolicy(max_running_jobs=2))
    ledger.set_primary_queue(queue.policy)
    for number in range(1, 6):
        queue.put(waiting_job(number, "PACK: 2c", held=number == 1, begin_at_ns=100 if number == 2 else None))
    decide(ledger, {PRIMARY: queue}, now_ns=10)
    found = wanted_nodes(ledger, {PRIMARY: queue}, {}, templates([("2c", 9)]), {}, now_ns=10)
    assert found.nodes == {"2c": 2}
    running = Running([RunningJob(9, PRIMARY, "r", "r", "u", None)])
    found = wanted_nodes(ledger, {PRIMARY: queue}, {}, templates([("2c", 9)]), {}, running=running, now_ns=10)
    assert found.nodes == {"2c": 1}


def test_nodes_on_their_way_are_not_asked_for_again() -> None:
    """Spec 9."""
    ledger = g.ledger("1c")
    queue = Queue(PRIMARY)
    for number in range(1, 4):
        queue.put(waiting_job(number, "PACK: 2c"))
    decide(ledger, {PRIMARY: queue}, now_ns=0)
    before = copy.deepcopy(ledger)
    kinds = templates([("2c", 3)])
    assert wanted_nodes(ledger, {PRIMARY: queue}, {}, kinds, {}, coming={"2c": 2}).nodes == {"2c": 1}
    assert wanted_nodes(ledger, {PRIMARY: queue}, {}, kinds, {"2c": 1}, coming={"2c": 2}).nodes == {}
    assert differences(ledger, before) == []


def test_what_idle_leases_give_back_comes_before_a_machine() -> None:
    """Spec 9: what comes back within the cool-down is no demand; the rest is. Two levels borrowed the same."""
    ledger = trees.tree("4c,1c", "org < primary [1c]: n1~4c", "team < org [1c]: n1~4c")
    leases = [
        Lease(1, "org", PRIMARY, next(iter(ledger.members["org"])), "n1", g.amounts("3c"), since=1),
        Lease(2, "team", "org", next(iter(ledger.members["team"])), "n1", g.amounts("3c"), since=1),
    ]
    for lease in leases:
        ledger.put_lease(lease)
    queue = Queue(PRIMARY)
    queue.put(waiting_job(1, "STRICT_SPREAD: 2c, 2c"))
    decide(ledger, {PRIMARY: queue}, now_ns=0)
    before = copy.deepcopy(ledger)
    kinds = templates([("2c", 9)])
    assert wanted_nodes(ledger, {PRIMARY: queue}, {}, kinds, {}).nodes == {"2c": 1}
    assert differences(ledger, before) == []
    queue.drop(1)
    queue.put(waiting_job(4, "PACK: 4c"))  # not even all of it is enough
    decide(ledger, {PRIMARY: queue}, now_ns=0)
    assert wanted_nodes(ledger, {PRIMARY: queue}, {}, templates([("4c", 9)]), {}).nodes == {"4c": 1}
