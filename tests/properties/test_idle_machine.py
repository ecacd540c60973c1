"""With an idle machine something that fits starts, whatever reservations the queues keep.

Elastic siblings at several levels, time limits, and jobs that end some milliseconds before or after the moment for
which others have a reserved start.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.specification import spec
from vctl.core import jobs as jb
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import (
    BACKFILL,
    BEST_EFFORT,
    DEFAULT,
    FAIR,
    FIFO,
    LONGEST,
    SECOND,
    STRICT,
    QueuePolicy,
)
from vctl.core.resources import CPU, SCALE
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Start
from vctl.scheduler.queueing import Queue
from vctl.simulate.machine import equal_nodes
from vctl.simulate.play import Played, Player
from vctl.simulate.workload import Arrival, rigid

pytestmark = spec("8.disciplines")

MS = 1_000_000
BACK = QueuePolicy(discipline=BACKFILL)


class Watched(Player):
    """Plays jobs, and finds moments in which nothing runs although a scheduler without a past starts something."""

    def round(self) -> list[Start]:
        started = super().round()
        if not self.running.jobs and any(queue.jobs for queue in self.queues.values()):
            assert (fits := self.fitting()) == [], (self.now_ns / SECOND, fits)
        return started

    def fitting(self) -> list[str]:
        """The jobs that start on the same machine if no queue has a verdict or a reservation."""
        queues = {name: Queue(name) for name in self.queues}
        for name, queue in queues.items():
            queue.put_all(dict(self.queues[name].jobs))
        plan = decide(self.ledger, queues, now_ns=self.now_ns)
        return [start.job.submission_id for start in plan.starts]


def any_policy(dice: random.Random) -> QueuePolicy:
    return QueuePolicy(
        order=dice.choice([FIFO, FIFO, FAIR, LONGEST, DEFAULT.order]),
        discipline=dice.choice([BACKFILL, BACKFILL, BEST_EFFORT, STRICT]),
        starvation_after_ns=dice.choice([1, 5, 600]) * SECOND,
        backfill_depth=dice.choice([1, 2, 8]),
    )


def tree(dice: random.Random, ledger: Ledger, *, mixed: bool) -> list[str]:
    """Elastic clusters without a minimum up to three levels deep; returns those that get jobs."""
    names: list[str] = []

    def add(name: str, parent_id: str, levels: int) -> None:
        policy = any_policy(dice) if mixed else BACK
        ledger.put_cluster(Cluster(name, parent_id, LOGICAL, ClusterSpec(), True, queue=policy))
        names.append(name)
        if levels and dice.random() < 0.4:
            for number in range(dice.randint(1, 2)):
                add(f"{name}{number}", name, levels - 1)

    ledger.set_primary_queue(any_policy(dice) if mixed else dice.choice([BACK, DEFAULT]))
    for name in "abcd"[: dice.randint(2, 4)]:
        add(name, PRIMARY, 2 if mixed else 1)
    return names + [PRIMARY] * dice.randint(0, 1)


def workload(dice: random.Random, names: Sequence[str], nodes: int, count: int) -> list[Arrival]:
    found, at = [], 0
    for number in range(1, count + 1):
        size, wide = dice.choice([1, 2, 4, 8, 8]), dice.randint(1, nodes)
        limit = dice.choice([1, 2, 3, 6, 12]) * SECOND + dice.choice([0, 0, 100]) * MS
        runs = dice.choice(
            [limit - dice.choice([0, 20, 120]) * MS, limit + 100 * MS, limit // 3, dice.randint(1, limit)]
        )
        at += dice.choice([0, 0, 0, 0, 0, 10, 700, 3000]) * MS
        job = PendingJob(
            number, f"j{number}", dice.choice(names), f"{size}x{wide}", rigid(wide, {CPU: size * SCALE}), {},
            dice.choice([0, 0, 0, 1]), user=dice.choice("uv"), submitted_at_ns=at,
            time_limit_ns=None if dice.random() < 0.1 else limit,
        )  # fmt: skip
        found.append(Arrival(job, max(runs, 1)))
    return found


def play(seed: int, *, mixed: bool) -> None:
    dice = random.Random(seed)
    nodes = dice.randint(1, 3)
    ledger = equal_nodes(nodes, {CPU: 8 * SCALE})
    names = tree(dice, ledger, mixed=mixed)
    player = Watched(ledger)
    played = player.play(workload(dice, names, nodes, dice.randint(5, 40)))
    assert [one.arrival.job.submission_id for one in played if one.start_ns is None] == []


@pytest.mark.parametrize(
    ("seed", "mixed"),
    [*((seed, False) for seed in range(12)), *((seed, True) for seed in (2, 28, 59, 85, 86, 92, 97, 103))],
)
def test_on_an_idle_machine_something_that_fits_starts(seed: int, mixed: bool) -> None:
    play(seed, mixed=mixed)


@pytest.mark.soak
@pytest.mark.parametrize("mixed", [False, True], ids=["backfill", "mixed"])
@pytest.mark.parametrize("seed", range(300))
def test_on_an_idle_machine_something_that_fits_starts_in_many_trees(seed: int, mixed: bool) -> None:
    play(seed, mixed=mixed)


@pytest.mark.parametrize("seed", range(3))
def test_a_backlog_of_four_siblings_with_backfill_never_lets_the_machine_stand_still(seed: int) -> None:
    """120 mixed jobs with time limits wait from the first moment on; all of them fit on an idle machine."""
    dice = random.Random(seed)
    ledger = equal_nodes(4, {CPU: 8 * SCALE})
    for name in "abcd":
        ledger.put_cluster(Cluster(name, PRIMARY, LOGICAL, ClusterSpec(), True, queue=BACK))
    player = Watched(ledger)
    jobs = workload(dice, "abcd", 4, 120)
    played = player.play(jobs)
    assert all(one.reason != jb.INFEASIBLE for one in played)
    assert all(one.start_ns is not None for one in played)
    assert standstill(played) == 0


def standstill(played: Sequence[Played]) -> int:
    """How long nothing ran while a job waited, in ns."""
    idle, over = 0, 0
    for start, end in sorted((one.start_ns or 0, one.end_ns or 0) for one in played):
        waiting = [one.arrival.job.submitted_at_ns for one in played if (one.start_ns or 0) >= start]
        idle += max(0, start - max(over, min(waiting)))
        over = max(over, end)
    return idle
