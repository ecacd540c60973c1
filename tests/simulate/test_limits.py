"""Random loads under random limits in the simulator: none is exceeded at any instant, and none keeps back too much."""

from __future__ import annotations

import random

import pytest

from tests import limited
from tests.specification import spec
from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY, Cluster, ClusterSpec, FixedNode, Group, VNode
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.limits import Limit, LimitTable
from vctl.core.queue_policy import FAIR, QUEUE_DISCIPLINES, QueuePolicy
from vctl.scheduler.plan import Start
from vctl.simulate.machine import equal_nodes
from vctl.simulate.play import Player
from vctl.simulate.workload import Arrival

pytestmark = spec("19.accounting")

CPU, S = 10_000, 10**9
USERS = [f"u{n}" for n in range(20)]


class Watched(Player):
    """Checks the limits after each start and each round."""

    starts = 0
    kept_back = 0

    def round(self) -> list[Start]:
        started = super().round()
        self.starts += len(started)
        running = list(self.running.jobs.values())
        assert list(limited.exceeded(self.ledger, running)) == []
        for queue in self.queues.values():
            for job in queue.jobs.values():
                reason, message = self._why(queue, job)
                if reason in (jb.USER_LIMIT, jb.CAP_REACHED):
                    self.kept_back += 1
                    assert limited.may_keep_back(self.ledger, running, job) is not None, (job, message)
        return started


def team(ledger: Ledger, name: str, node_id: str, policy: QueuePolicy) -> None:
    """A cluster with the whole of one node."""
    ledger.put_cluster(Cluster(name, PRIMARY, "logical", ClusterSpec(flexible=False), queue=policy))
    whole = ledger.nodes[node_id].total
    ledger.assign(VNode(f"{name}/0", name, node_id, node_id, "fixed", whole, whole=True))


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.soak) for n in range(12, 200))]
)
def test_limits_hold_and_keep_back_no_more_than_they_have_to(seed: int) -> None:
    dice = random.Random(seed)
    ledger = equal_nodes(5, {"CPU": 8 * CPU, "GPU": 2 * CPU})
    for number, name in enumerate(("red", "blue"), 1):
        policy = QueuePolicy(dice.choice((FAIR, "priority", "fifo")), dice.choice(QUEUE_DISCIPLINES))
        team(ledger, name, f"n{number:05}", policy)
    subjects = [("user", "*"), *(("user", user) for user in dice.sample(USERS, 4))]
    subjects.append(("cluster", dice.choice(("red", PRIMARY))))
    limits = []
    for subject, name in subjects:
        jobs, cpus, gpus = dice.randint(1, 5), dice.randint(4, 12) * CPU, dice.randint(1, 3) * CPU
        resource, amount = dice.choice((("running_jobs", jobs), ("CPU", cpus), ("GPU", gpus)))
        limits.append(Limit(subject, name, resource, amount))
    ledger.limits = LimitTable(limits)
    arrivals = []
    for number in range(1, 201):
        cpus, gpus, many = dice.choice((1, 1, 2, 4)), dice.choice((0, 0, 1)), dice.choice((1, 1, 1, 2))
        node = FixedNode({"CPU": cpus * CPU, "GPU": gpus * CPU})
        spec_ = ClusterSpec(flexible=False, groups=(Group((node,) * many, "PACK"),))
        job = PendingJob(
            number, f"j{number}", dice.choice((PRIMARY, "red", "blue")), f"{cpus} {gpus} {many}", spec_, {},
            priority=dice.choice((0, 0, 5)), user=dice.choice(USERS), submitted_at_ns=dice.randrange(600) * S,
            time_limit_ns=dice.choice((None, 90 * S)),
        )  # fmt: skip
        arrivals.append(Arrival(job, dice.randint(5, 120) * S))
    player = Watched(ledger)
    player.play(arrivals)
    assert player.starts > 20
    assert player.kept_back > 0
