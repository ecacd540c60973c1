"""Scarce nodes come last: those that the selectors and amounts of waiting and running work ask for."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import pytest

from tests.scheduler import candidates as g
from tests.scheduler import trees
from tests.specification import spec
from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import JOB, LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, Node
from vctl.core.values import replace
from vctl.scheduler.candidate_nodes import candidates_now
from vctl.scheduler.cycle import decide
from vctl.scheduler.membership import Exchange, exchange, join
from vctl.scheduler.placement import Placed, _phases, place
from vctl.scheduler.placement_model import Problem
from vctl.scheduler.placement_reasons import quick_reason
from vctl.scheduler.placement_search import search
from vctl.scheduler.queueing import Queue
from vctl.scheduler.replacement import replace_dead
from vctl.scheduler.task_queue import TaskQueue

pytestmark = spec("6.scarce")


def world(nodes: str) -> Ledger:
    """Nodes n1, n2, … from '4c zone=a, 4c 64m'; their template is their amounts."""
    ledger = Ledger()
    for number, text in enumerate(nodes.split(","), 1):
        words = text.split()
        labels = dict(word.split("=") for word in words if "=" in word)
        amounts = " ".join(word for word in words if "=" not in word)
        total = rs.whole_node(g.amounts(amounts))
        ledger.put_node(Node(f"n{number}", amounts.replace(" ", ""), total, labels=labels))
    return ledger


def job(number: int, text: str, parent_id: str = PRIMARY) -> PendingJob:
    """'PACK: 1c @zone=a', 'min 2c' or 'whole 4c'; a plain amount is one piece."""
    kind, _, rest = text.partition(" ")
    if kind == "min":
        return PendingJob(number, f"j{number}", parent_id, text, g.spec(flexible=rest), {})
    if kind == "whole":
        return PendingJob(number, f"j{number}", parent_id, text, g.spec(whole={rest: 1}), {})
    gang = text if ":" in text else f"PACK: {text}"
    return PendingJob(number, f"j{number}", parent_id, text, g.spec(gang), {})


def queue_of(texts: Sequence[str], parent_id: str = PRIMARY, first: int = 1) -> Queue:
    queue = Queue(parent_id)
    for number, text in enumerate(texts, first):
        queue.put(job(number, text, parent_id))
    return queue


def started(ledger: Ledger, queue: Queue) -> dict[str, list[str]]:
    """The nodes of each job that starts in a round, by its text and number."""
    plan = decide(ledger, {queue.parent_id: queue}, now_ns=0)
    return {
        f"{start.job.shape} #{start.job.job_id}": sorted(vnode.node_id for vnode in start.vnodes)
        for start in plan.starts
    }


# nodes, the queue, where each job starts (those without a place are left out)
ORDER = {
    "nobody selects: the lowest id": ("4c zone=a, 4c", ["1c"], ["n1"]),
    "a waiting job selects": ("4c zone=a, 4c", ["1c", "1c @zone=a"], ["n2", "n1"]),
    "one that fits nowhere selects": ("4c zone=a, 4c", ["1c", "8c @zone=a"], ["n1", ""]),
    "one piece of a gang could be there": (
        "4c zone=a, 4c", ["1c", "STRICT_SPREAD: 4c @zone=a, 4c @zone=a"], ["n2", ""],
    ),
    "the plain ones use it when nothing else is left": ("1c zone=a, 1c", ["1c", "1c", "1c @zone=a"], ["n2", "n1", ""]),
    "a selector of two values": ("4c zone=a, 4c zone=b, 4c", ["1c", "4c", "1c @zone=a|b"], ["n3", "n1", "n2"]),
    "what is not selected": ("4c, 4c zone=a", ["1c", "1c @zone!=a"], ["n2", "n1"]),
    "what must not exist": ("4c, 4c zone=a", ["1c", "1c @!zone"], ["n2", "n1"]),
    "a value that no node has": ("4c zone=a, 4c", ["1c", "1c @zone=x"], ["n1", ""]),
    "another label": ("4c zone=a, 4c disk=ssd", ["1c", "1c @disk=ssd"], ["n1", "n2"]),
    "the rarer one last": ("1c zone=a, 1c zone=b, 1c zone=b", ["1c", "1c @zone=a", "1c @zone=b"], ["n2", "n1", "n3"]),
    "large memory that is asked for": ("4c 64m, 4c 8m", ["1c", "1c 32m"], ["n2", "n1"]),
    "large memory that nobody needs": ("4c 64m, 4c 8m", ["1c", "1c 8m"], ["n1", "n2"]),
    "many CPUs that are asked for, of which few are free": ("16c 8m, 4c 8m", ["12c", "1c"], ["n1", "n2"]),
    "GPUs that are asked for": ("4c 1g, 4c", ["1c", "1g"], ["n2", "n1"]),
    "GPUs that nobody asks for are spared too": ("4c 1g, 4c", ["1c"], ["n2"]),
    "a label asked for counts before GPUs that are not": ("4c zone=a, 4c 1g", ["1c", "1c @zone=a"], ["n2", "n1"]),
    "a gang that is spread": ("1c zone=a, 1c, 1c", ["STRICT_SPREAD: 1c, 1c", "1c @zone=a"], ["n2 n3", "n1"]),
    "SPREAD": ("4c zone=a, 4c, 4c", ["SPREAD: 1c, 1c", "4c @zone=a"], ["n2 n3", "n1"]),
    "PACK takes the fewest nodes all the same": ("4c zone=a, 2c, 2c", ["PACK: 2c, 2c", "1c @zone=a"], ["n1 n1", ""]),
    "STRICT_PACK": ("4c zone=a, 4c", ["STRICT_PACK: 2c, 2c", "1c @zone=a"], ["n2 n2", "n1"]),
    "one piece of a gang selects, the others keep away": ("1c zone=a, 1c", ["SPREAD: 1c, 1c @zone=a"], ["n1 n2"]),
    "a minimum": ("4c zone=a, 4c", ["min 2c", "4c @zone=a"], ["n2", "n1"]),
    "a minimum in two pieces": ("2c zone=a, 2c, 2c", ["min 4c", "1c @zone=a"], ["n2 n3", "n1"]),
    "a minimum of GPUs is wanted": ("4c 2g, 4c", ["1c", "min 1g"], ["n2", "n1"]),
    "a whole node": ("4c zone=a, 4c", ["whole 4c", "4c @zone=a"], ["n2", "n1"]),
    "whole nodes of a template that are asked for": ("4c 8m, 4c", ["1c", "whole 4c8m"], ["n2", "n1"]),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "texts", "want"), ORDER.values(), ids=ORDER)
def test_plain_work_keeps_away_from_what_others_ask_for(
    nodes: str, texts: list[str], want: list[str]
) -> None:
    found = started(world(nodes), queue_of(texts))
    assert [" ".join(found.get(f"{text} #{n}", [])) for n, text in enumerate(texts, 1)] == want


def test_what_runs_asks_too() -> None:
    """A job that selects has started; the next of its kind will come to the same nodes."""
    ledger = world("4c zone=a, 4c")
    ledger.put_cluster(Cluster("primary##r", PRIMARY, JOB, g.spec("PACK: 1c @zone=a"), job="9"))
    assert started(ledger, queue_of(["1c"])) == {"1c #1": ["n2"]}
    ledger.remove_cluster("primary##r")
    assert started(ledger, queue_of(["1c"])) == {"1c #1": ["n1"]}


def test_what_clusters_of_slices_select_counts_and_their_whole_nodes_do_not() -> None:
    ledger = world("4c zone=a, 4c")
    ledger.put_cluster(Cluster("c", PRIMARY, LOGICAL, g.spec("PACK: 1c @zone=a")))
    assert started(ledger, queue_of(["1c"])) == {"1c #1": ["n2"]}
    ledger = world("4c 8m, 4c")
    ledger.put_cluster(Cluster("c", PRIMARY, LOGICAL, g.spec(whole={"4c8m": 1})))
    assert started(ledger, queue_of(["1c"])) == {"1c #1": ["n1"]}


def test_tasks_ask_too() -> None:
    ledger = trees.tree("4c,4c", "job < primary [0c] job:", labels={"n1": "zone=a"})
    trees.use(ledger, "n1: 1c")  # so that the task waits, and that n1 is the tighter node
    tasks, queue = TaskQueue("job"), queue_of(["1c"])
    tasks.put(trees.task("job: 4c @zone=a"))
    plan = decide(ledger, {PRIMARY: queue}, {"job": tasks}, now_ns=0)
    assert [vnode.node_id for vnode in plan.starts[0].vnodes] == ["n2"]
    plan = decide(ledger, {PRIMARY: queue}, {}, now_ns=0)
    assert [vnode.node_id for vnode in plan.starts[0].vnodes] == ["n1"]


def test_what_waits_in_another_queue_asks_too() -> None:
    """Also where that queue can only have the nodes by growth."""
    ledger = trees.tree("4c,4c", "team < primary [0c]:", labels={"n1": "zone=a"})
    mine, theirs = queue_of(["4c"]), queue_of(["4c @zone=a"], "team", first=2)
    starts = decide(ledger, {PRIMARY: mine, "team": theirs}, now_ns=0).starts
    found = {start.job.parent_id: [v.node_id for v in start.vnodes] for start in starts}
    assert found == {PRIMARY: ["n2"], "team": ["n1"]}


def test_growth_keeps_away_too() -> None:
    ledger = trees.tree("4c,4c", "team < primary [0c]:", labels={"n1": "zone=a"})
    mine, theirs = queue_of(["4c @zone=a"], first=2), queue_of(["4c"], "team")
    starts = decide(ledger, {"team": theirs, PRIMARY: mine}, now_ns=0).starts
    found = {start.job.parent_id: [v.node_id for v in start.vnodes] for start in starts}
    assert found == {PRIMARY: ["n1"], "team": ["n2"]}


def test_a_place_that_is_remembered_is_not_used_when_others_have_begun_to_ask() -> None:
    ledger = world("4c zone=a, 4c")
    queue = queue_of(["1c"])
    assert started(ledger, queue) == {"1c #1": ["n1"]}
    queue.put(job(2, "4c @zone=a"))
    assert started(ledger, queue) == {"1c #1": ["n2"], "4c @zone=a #2": ["n1"]}
    queue.drop(2)
    assert started(ledger, queue) == {"1c #1": ["n1"]}


def test_slices_of_a_cluster_are_scarce_by_their_own_size_and_labels() -> None:
    """One level further down: a job of a logical cluster keeps away from its only large slice."""
    ledger = world("8c 64m, 8c 64m")
    g.slice_cluster(ledger, "c", "n1=2c 32m, n2=2c 4m")
    assert started(ledger, queue_of(["1c", "1c 16m"], "c")) == {"1c #1": ["n2"], "1c 16m #2": ["n1"]}


def test_the_whole_nodes_of_a_cluster_are_those_that_others_need_least() -> None:
    ledger = world("4c zone=a, 4c, 4c")
    ledger.put_cluster(Cluster("c", PRIMARY, LOGICAL, g.spec("PACK: 1c @zone=a")))
    found = exchange(ledger, PRIMARY, None, {"4c": 2})
    assert isinstance(found, Exchange)
    assert [vnode.node_id for vnode in found.join] == ["n2", "n3"]
    found = exchange(ledger, PRIMARY, None, {"4c": 3})
    assert isinstance(found, Exchange)
    assert [vnode.node_id for vnode in found.join] == ["n2", "n3", "n1"]


def test_what_moves_off_a_dead_node_keeps_away_too() -> None:
    """Spec 12: whole nodes and slices."""
    for what, text in (("w", "n4=4c"), ("s", "n4=1c")):
        ledger = world("4c zone=a, 4c, 4c, 4c")
        ledger.put_cluster(Cluster("asks", PRIMARY, LOGICAL, g.spec("PACK: 1c @zone=a")))
        if what == "w":
            ledger.put_cluster(Cluster("w", PRIMARY, LOGICAL, g.spec(whole={"4c": 1})))
            join(ledger, "w", [ledger.vnodes["n4"]])
        else:
            g.slice_cluster(ledger, "s", text)
        ledger.put_node(replace(ledger.nodes["n4"], state=DEAD))
        replace_dead(ledger)
        assert [vnode.node_id for vnode in ledger.slots(what)] == ["n2"]


def test_a_copy_of_a_ledger_asks_for_itself() -> None:
    ledger = world("4c zone=a, 4c")
    ledger.put_cluster(Cluster("c", PRIMARY, LOGICAL, g.spec("PACK: 1c @zone=a")))
    duplicate = ledger.copy()
    duplicate.remove_cluster("c")
    for one, want in ((ledger, "n2"), (duplicate, "n1"), (copy.deepcopy(ledger), "n2")):
        placed = place(one, PRIMARY, g.spec("PACK: 1c"), {})
        assert isinstance(placed, Placed)
        assert placed.pieces[0].node_id == want


def test_a_copy_knows_the_kinds_of_nodes_that_were_not_looked_at_before() -> None:
    """Two nodes with one number would be of one class, whatever their labels."""
    ledger = world("4c, 4c")
    ledger.index(PRIMARY)
    ledger.put_node(replace(ledger.nodes["n1"], labels={"zone": "a"}))
    for duplicate in (ledger.copy(), ledger.part([PRIMARY])):
        duplicate.put_node(replace(duplicate.nodes["n2"], labels={"zone": "b"}))
        assert [group.ids for group in duplicate.index(PRIMARY).classes.values()] == [["n1"], ["n2"]]
        placed = place(duplicate, PRIMARY, g.spec("STRICT_SPREAD: 1c @zone=a, 1c @zone=b"), {})
        assert isinstance(placed, Placed)


def test_nodes_that_come_change_and_leave() -> None:
    ledger = world("4c, 4c")
    queue = queue_of(["4c", "4c @zone=a"])
    assert started(ledger, queue) == {"4c #1": ["n1"]}
    ledger.put_node(replace(ledger.nodes["n1"], labels={"zone": "a"}))
    assert started(ledger, queue) == {"4c #1": ["n2"], "4c @zone=a #2": ["n1"]}
    ledger.put_node(replace(ledger.nodes["n2"], labels={"zone": "a"}))
    assert started(ledger, queue) == {"4c #1": ["n1"], "4c @zone=a #2": ["n2"]}  # all alike: by id
    ledger.put_node(replace(ledger.nodes["n2"], state=DEAD))
    assert started(ledger, queue) == {"4c #1": ["n1"]}


# ---- against all ways ----


def _random_case(seed: int) -> tuple[str, list[str]]:
    pick = random.Random(seed)
    nodes = [
        f"{pick.choice([1, 2, 4])}c {pick.choice([2, 2, 8, 16])}m {pick.choice(['', '', '', '1g'])} "
        f"{pick.choice(['', '', 'zone=a', 'zone=b'])}"
        for _ in range(pick.randint(2, 4))
    ]
    asked = [
        f"{pick.choice([1, 1, 2])}c {pick.choice(['', '', '1m', '2m', '6m'])} "
        f"{pick.choice(['', '', '', '', '1g'])}{pick.choice(['', '', '', '@zone=a', '@zone=b', '@zone'])}"
        for _ in range(pick.randint(2, 7))
    ]
    return ", ".join(" ".join(one.split()) for one in nodes), [" ".join(one.split()) for one in asked]


def _most(ledger: Ledger, texts: list[str]) -> int:
    """The most jobs that start if each in turn starts, wherever it fits, and waits only where it fits nowhere."""
    nodes = list(ledger.nodes.values())

    def go(i: int, free: list[dict[str, int]]) -> int:
        if i == len(texts):
            return 0
        wanted, _, condition = texts[i].partition("@")
        amounts, selector = g.amounts(wanted), g.selector(condition)
        best = None
        for k, node in enumerate(nodes):
            if lb.matches(selector, node.labels) and rs.within(amounts, free[k]):
                left = [rs.subtract(one, amounts) if n == k else one for n, one in enumerate(free)]
                best = max(best or 0, 1 + go(i + 1, left))
        return go(i + 1, free) if best is None else best

    return go(0, [dict(node.total.amounts) for node in nodes])


def test_hardly_a_job_waits_for_what_others_could_have_spared() -> None:
    """Beside all ways to place the same jobs in the same order, on 250 random cases; by node id alone 24 waited."""
    started_, possible = 0, 0
    for seed in range(250):
        nodes, texts = _random_case(seed)
        ledger = world(nodes)
        started_ += len(decide(ledger, {PRIMARY: queue_of(texts)}, now_ns=0).starts)
        possible += _most(ledger, texts)
    assert possible > 600
    assert possible - started_ <= 9


def test_equal_states_give_equal_plans_whatever_came_before() -> None:
    """The same queue and the same nodes, once as they came and once after others had asked and left."""
    for seed in range(40):
        nodes, texts = _random_case(seed)
        fresh = started(world(nodes), queue_of(texts))
        ledger, queue = world(nodes), queue_of(texts)
        other, more = _random_case(seed + 1000)
        for number, text in enumerate(more, 100):
            queue.put(job(number, text))
        for number, node in enumerate(world(other).nodes.values()):
            ledger.put_node(replace(node, node_id=f"x{number}"))
        started(ledger, queue)
        for number in range(100, 100 + len(more)):
            queue.drop(number)
        for number in range(len(world(other).nodes)):
            ledger.remove_node(f"x{number}")
        queue.forget_verdicts()
        assert started(ledger, queue) == fresh, (seed, nodes, texts)


def test_the_search_costs_no_more_steps_and_finds_the_same() -> None:
    """Spec 6: complete. Nodes that differ only in what others ask for are one candidate to an exact search."""
    pick = random.Random(11)
    tried = 0
    for _ in range(300):
        nodes = ", ".join(
            f"{pick.choice([2, 3, 4])}c {pick.choice(['', '1g', '2g'])} {pick.choice(['', 'zone=a', 'zone=b'])}"
            for _ in range(pick.randint(3, 6))
        )
        groups = g.random_groups(
            pick,
            pick.randint(3, 6),
            lambda p: f"{p.choice([1, 2, 2, 3])}c {p.choice(['', '', '0.5g', '1g'])}".strip(),
        )
        wanted = g.spec(*groups)
        plain, asked = world(nodes), world(nodes)
        for number, text in enumerate(("1c @zone=a", "2c @zone=b", "4c", "3c @zone", "1g")):
            asked.put_cluster(Cluster(f"c{number}", PRIMARY, LOGICAL, g.spec(f"PACK: {text}")))
        found = [tried_ for one in (plain, asked) if (tried_ := _search(one, wanted)) is not None]
        assert len(found) != 1
        if len(found) == 2:
            tried += found[0][1] > 0
            assert found[0][0] == found[1][0], (nodes, groups)
            if not found[0][0]:
                assert found[1][1] <= found[0][1], (nodes, groups)
    assert tried > 10


def _search(ledger: Ledger, wanted: ClusterSpec) -> tuple[bool, int] | None:
    """Whether a search finds a place, and its steps; None: it is not needed."""
    phases = tuple(_phases(wanted, ""))
    problem = Problem(candidates_now(ledger, PRIMARY), phases, {}, {}, {})
    if quick_reason(problem) is not None:
        return None
    found = search(problem, 300)
    return found.solution is not None, found.steps
