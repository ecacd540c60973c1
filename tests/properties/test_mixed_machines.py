"""Random machines of several kinds of nodes, trees of clusters and jobs of all forms, played to their end."""

from __future__ import annotations

import random

import pytest

from tests import specification
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.queue_policy import SECOND, QueuePolicy
from vctl.core.resources import SCALE, whole_node
from vctl.core.values import replace
from vctl.scheduler.recall import recall
from vctl.simulate.play import Player
from vctl.simulate.workload import Arrival

pytestmark = specification.spec("5.conservation", "6.gang", "8.disciplines", "9.growth")

POLICIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def machine(dice: random.Random) -> Ledger:
    """Nodes with and without GPUs, and up to three elastic clusters, of which some lie in another."""
    ledger = Ledger()
    for number in range(dice.randint(3, 8)):
        template = dice.choice(("plain", "gpus"))
        amounts = {"CPU": 8 * SCALE, "memory": dice.choice((16, 32)) * SCALE}
        if template == "gpus":
            amounts |= {"CPU": 16 * SCALE, "GPU": 4 * SCALE}
        name = f"n{number}"
        ledger.put_node(Node(name, template, whole_node(amounts), name, {"zone": dice.choice("xy")}))
    policy = QueuePolicy(
        dice.choice(("fifo", "priority", "fair")), "backfill", backfill_depth=dice.choice((1, 2))
    )
    ledger.set_primary_queue(policy)
    parents = [PRIMARY]
    for name in ("a", "b", "c")[: dice.randint(1, 3)]:
        queue = replace(policy, order=dice.choice((policy.order, "fair")), weight=dice.choice((1, 2)))
        ledger.put_cluster(Cluster(name, dice.choice(parents), LOGICAL, ClusterSpec(), queue=queue))
        parents.append(name)
    return ledger


def gang(dice: random.Random) -> ClusterSpec:
    """Fixed nodes under some policy, a flexible part, or whole nodes."""
    form = dice.random()
    if form < 0.7:
        size = {"CPU": dice.choice((SCALE // 2, SCALE, 3 * SCALE // 2, 4 * SCALE))}
        if dice.random() < 0.3:
            size["GPU"] = dice.choice((SCALE, 2 * SCALE))
        nodes = (FixedNode(size),) * dice.choice((1, 1, 2, 4))
        return ClusterSpec(flexible=False, groups=(Group(nodes, dice.choice(POLICIES)),))
    if form < 0.85:
        least = {"CPU": dice.choice((1, 3, 10)) * SCALE}
        return ClusterSpec(flexible_min=least, flexible_max=least)
    return ClusterSpec(flexible=False, replica_sets={dice.choice(("plain", "gpus")): dice.choice((1, 2))})


def workload(dice: random.Random, parents: list[str], jobs: int) -> list[Arrival]:
    """Jobs of ten shapes, most of them with a time limit."""
    shapes = [gang(dice) for _ in range(10)]
    arrivals, now = [], 0
    for number in range(1, jobs + 1):
        now += dice.choice((0, 0, 5, 30)) * SECOND
        shape = dice.randrange(len(shapes))
        runs = dice.randint(5, 400)
        limit = None if dice.random() < 0.15 else int(runs * dice.uniform(0.8, 2.5)) * SECOND
        job = PendingJob(
            number, f"j{number}", dice.choice(parents), f"s{shape}", shapes[shape], {},
            priority=dice.choice((0, 0, 5)), user=dice.choice("uv"), submitted_at_ns=now, time_limit_ns=limit,
        )  # fmt: skip
        arrivals.append(Arrival(job, runs * SECOND))
    return arrivals


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 150))]
)
def test_what_starts_ends_and_leaves_nothing_behind(seed: int) -> None:
    dice = random.Random(seed)
    player = Player(machine(dice))
    ledger = player.ledger
    played = player.play(workload(dice, sorted(ledger.clusters), 60))
    assert len(played) == 60
    assert all(one.end_ns is not None for one in played if one.reason is None)
    recall(ledger, PRIMARY)  # nobody wants what is borrowed and idle
    assert ledger.leases == {}
    assert all(capacity.is_untouched() for capacity in ledger.capacities.values())
    for node_id, node in ledger.nodes.items():
        assert ledger.capacities[node_id].all_free() == node.total, node_id
