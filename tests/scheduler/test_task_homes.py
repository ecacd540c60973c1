"""A task never leaves its cluster: random trees, random tasks of every strategy, growth, nodes that come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.scheduler import trees
from tests.specification import spec
from tests.world import differences, unbalanced
from vctl.core import resources as rs
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.plan import TaskStart, apply, revert, still_fits
from vctl.scheduler.task_queue import TaskQueue
from vctl.scheduler.task_rounds import TaskRound

pytestmark = spec("10.confined")

PLACEMENTS = 10_000
SEEDS = range(20)


def world(dice: random.Random) -> Ledger:
    """Up to four nodes; two teams below the primary, jobs in them, a sub-cluster in a job."""
    count = dice.randint(2, 4)
    nodes = ",".join(f"{dice.randint(4, 8)}c {dice.choice([0, 2])}g" for _ in range(count))
    labels = {f"n{number}": f"zone={dice.choice('ab')}" for number in range(1, count + 1)}

    def parts(most: int) -> str:
        ids = dice.sample(range(1, count + 1), dice.randint(1, count))
        return ", ".join(f"n{number}~{dice.randint(1, most)}c" for number in sorted(ids))

    for _ in range(100):
        clusters = [
            "one < primary [1c..20c]: " + parts(4),
            f"two < primary [1c] borrow=3c lend=1c: {parts(2)}",
        ]
        clusters += ["one##a < one [0c] job: " + parts(2), "one##b < one [0c..4c] job: " + parts(1)]
        clusters += ["two##c < two [0c] job:", "one##a##s < one##a [0c] job: " + parts(1)]
        try:
            return trees.tree(nodes, *clusters, labels=labels)
        except (StopIteration, AssertionError):
            continue  # more than there is
    raise AssertionError("no tree fits")


def asked(dice: random.Random, ledger: Ledger, cluster_id: str) -> str:
    """One task in writing."""
    want = dice.choice(["0c", "0.5c", "1c", "1c", "2c", "3c", "9c", "1c 0.5g", "0c 1g"])
    pins = [*(f"n{number}" for number in range(1, 5)), *sorted(ledger.vnodes)]
    strategies = [
        "",
        "SPREAD",
        "RANDOM",
        f"NODE:{dice.choice(pins)}",
        f"NODE:{dice.choice(pins)}:soft",
        f"NODE:{dice.choice(pins)}:spill",
    ]
    selector = dice.choice(["", "", "", " @zone=a", " @zone=b"])
    inputs = dice.choice(["", "", f" <n1={dice.randint(0, 9)} n2={dice.randint(0, 9)}"])
    return f"{cluster_id}: {want} {dice.choice(strategies)}".rstrip() + selector + inputs


def history(seed: int, placements: int) -> Iterator[tuple[Ledger, TaskStart]]:
    """Rounds that are carried out as the scheduler does; tasks end, nodes drain and come back."""
    dice = random.Random(seed)
    ledger = world(dice)
    queues = {
        cluster_id: TaskQueue(cluster_id) for cluster_id in sorted(ledger.clusters) if "##" in cluster_id
    }
    running: list[str] = []
    number = placed = 0
    while placed < placements:
        for _ in range(dice.randint(1, 6)):
            cluster_id = dice.choice(sorted(queues))
            text = asked(dice, ledger, cluster_id)
            origin = dice.choice([None, *sorted(ledger.members[cluster_id])])
            queues[cluster_id].put(trees.task(text, number=(number := number + 1), origin=origin))
        before = ledger.copy()
        round_ = TaskRound(ledger, 8)
        joined = {cluster_id: set(ids) for cluster_id, ids in ledger.joined.items()}
        round_.decide(queues, set(ledger.grown), joined)
        for start in reversed(round_.starts):
            revert(ledger, start)
        assert differences(ledger, before) == []
        ledger.grown.clear()
        ledger.joined.clear()
        for start in round_.starts:
            assert still_fits(ledger, start)
            apply(ledger, start)
            queues[start.task.cluster_id].drop(start.task.task_id)
            running.append(start.run_id)
            placed += 1
            yield ledger, start
        for wait in round_.waits:
            for queue in queues.values():
                trees.tell(queue, wait)
                bound = queue.tasks.get(wait.task_id)
                home = ledger.vnodes.get(wait.vnode_id or "")
                assert bound is None or home is None or home.cluster_id == bound.cluster_id
        assert unbalanced(ledger) == []
        for queue in queues.values():
            for task_id in [one for one in queue.tasks if dice.random() < 0.2]:
                queue.drop(task_id)
        for _ in range(min(len(running), dice.randint(0, 8))):
            ledger.discharge(running.pop(dice.randrange(len(running))))
        if dice.random() < 0.2:
            node_id = dice.choice(sorted(ledger.nodes))
            trees.change_node(ledger, node_id, state=dice.choice([ALIVE, ALIVE, DRAINING]))


def _shrinks(step: Grow) -> bool:
    return any(amount < 0 for amount in step.gained.values())


def check(seed: int, placements: int) -> None:
    for ledger, start in history(seed, placements):
        vnode, task = ledger.vnodes[start.vnode_id], start.task
        assert vnode.cluster_id == task.cluster_id
        assert vnode.node_id == start.node_id
        assert ledger.nodes[start.node_id].state == ALIVE
        assert all(start.allocation.amounts.get(name, 0) == amount for name, amount in task.request.items())
        assert (
            task.bound_vnode_id in (None, start.vnode_id)
            or task.bound_vnode_id not in ledger.vnodes
            or (ledger.nodes[ledger.vnodes[task.bound_vnode_id].node_id].state != ALIVE)
        )
        grown = [step.after.cluster_id for step in start.growth if not _shrinks(step)]
        assert all(f"{task.cluster_id}##".startswith(f"{one}##") for one in grown)  # a sibling only lends
        if "one##b" in grown:
            held = rs.total(vnode.allocation.amounts for vnode in ledger.slots("one##b"))
            assert held["CPU"] <= 4 * rs.SCALE  # its maximum


@pytest.mark.not_fast("takes seconds")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_never_leaves_its_cluster(seed: int) -> None:
    check(seed, PLACEMENTS // len(SEEDS))
