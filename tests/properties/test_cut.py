"""A round that ends at its budget and goes on in the next one: nothing is lost by the cut.

Where clusters share nothing, the same jobs start at the same moments as in rounds that are not cut. Two things may
differ, because a round that is cut is two rounds: where clusters can grow, what others have idle depends on what has
started before; and in the orders ``fair`` and ``longest``, in which a job that comes later may be ahead of one with a
reservation, that reservation may fall in the second of the two. But no round leaves anything that would start.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests import users
from tests.properties import test_idle_machine
from tests.scheduler import trees
from tests.specification import spec
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
from vctl.core.values import replace
from vctl.daemon import turn
from vctl.scheduler import cycle
from vctl.scheduler.plan import Plan
from vctl.scheduler.work import Budget
from vctl.simulate import play
from vctl.simulate.play import Player
from vctl.simulate.workload import Arrival, rigid

pytestmark = spec("6.complete", "8.disciplines")

STEPS = 120
decide = cycle.decide


class Cut:
    """Rounds with a budget of a few steps, which is doubled as long as nothing comes of it, as the scheduler does.

    ``waits``: only a round that has a start ends there.
    """

    def __init__(self, steps: int, *, waits: bool = False) -> None:
        self.steps = self.left = steps
        self.waits, self.cuts = waits, 0

    def decide(self, *args: Any, **more: Any) -> Plan:
        budget = Budget(10_000, 10_000 - self.steps) if self.waits else Budget(self.left)
        plan = decide(*args, **{**more, "budget": budget})
        self.left = 2 * self.left if plan.stalled else self.steps
        self.cuts += plan.unsearched
        return plan


def exact_policy(dice: random.Random) -> QueuePolicy:
    discipline = dice.choice([BACKFILL, BACKFILL, BEST_EFFORT, STRICT])
    return QueuePolicy(
        order=dice.choice([FIFO, DEFAULT.order, *([] if discipline == BACKFILL else [FAIR, LONGEST])]),
        discipline=discipline,
        starvation_after_ns=dice.choice([1, 600]) * SECOND if discipline == BACKFILL else 600 * SECOND,
        backfill_depth=dice.choice([1, 2, 8]),
    )


def fixed_tree(dice: random.Random) -> Ledger:
    """Three clusters that cannot grow, on the same nodes."""
    parts = [", ".join(f"n{node}={dice.choice([1, 2, 3])}c" for node in range(1, 4)) for _ in "abc"]
    ledger = trees.tree(
        "9c, 9c, 9c", *(f"{name} < primary: {some}" for name, some in zip("abc", parts, strict=True))
    )
    for name in "abc":
        policy = exact_policy(dice)
        ledger.put_cluster(replace(ledger.clusters[name], queue=policy))
    return ledger


def workload(dice: random.Random, count: int) -> list[Arrival]:
    found, at = [], 0
    for number in range(1, count + 1):
        size, wide = dice.choice([1, 1, 2, 3]), dice.randint(1, 3)
        limit = dice.randint(1, 12) * SECOND
        at += dice.choice([0, 0, 0, 0, 300_000_000, 3 * SECOND])
        job = PendingJob(
            number, f"j{number}", dice.choice("abc"), f"{size}x{wide}", rigid(wide, {CPU: size * SCALE}), {},
            dice.choice([0, 0, 1]), user=dice.choice("uv"), submitted_at_ns=at, time_limit_ns=limit,
        )  # fmt: skip
        found.append(Arrival(job, dice.choice([limit, limit // 2, limit // 3])))
    return found


def moments(seed: int) -> dict[int, int | None]:
    """When each job starts."""
    dice = random.Random(seed)
    player = Player(fixed_tree(dice))
    return {one.arrival.job.job_id: one.start_ns for one in player.play(workload(dice, dice.randint(20, 60)))}


@pytest.mark.parametrize("seed", range(12))
def test_cut_rounds_start_the_same_jobs_at_the_same_moments(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    uncut = moments(seed)
    for cut in (*map(Cut, (1, 7, 40, 150)), Cut(1, waits=True), Cut(60, waits=True)):
        monkeypatch.setattr(play, "decide", cut.decide)
        assert moments(seed) == uncut, (cut.steps, cut.waits)
        monkeypatch.setattr(play, "decide", decide)
        assert cut.cuts or cut.steps >= 60


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12, 400))
def test_cut_rounds_start_the_same_jobs_in_many_cases(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    test_cut_rounds_start_the_same_jobs_at_the_same_moments(monkeypatch, seed)


@pytest.mark.parametrize("seed", range(6))
def test_cut_rounds_of_elastic_clusters_leave_nothing_that_fits(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    cut = Cut(1 + seed * 20, waits=seed % 3 == 2)
    monkeypatch.setattr(play, "decide", cut.decide)
    test_idle_machine.play(seed, mixed=seed % 2 == 0)
    assert cut.cuts


@pytest.mark.parametrize("seed", range(4))
def test_a_scheduler_that_cuts_its_rounds_overlooks_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    monkeypatch.setattr(turn, *(("SOON", 1) if seed == 3 else ("PIECE", 5 + 5 * seed)))
    cut = Cut(0)

    def counted(*args: Any, **more: Any) -> Plan:
        plan = decide(*args, **more)
        cut.cuts += plan.unsearched
        return plan

    monkeypatch.setattr(turn, "decide", counted)
    users.play(tmp_path / "state", seed, STEPS, end=False)
    assert cut.cuts


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3, 60))
def test_a_scheduler_that_cuts_its_rounds_overlooks_nothing_in_many_sequences(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    monkeypatch.setattr(turn, "SOON", seed % 20)
    monkeypatch.setattr(turn, "PIECE", 2_500 if seed % 3 == 0 else 1 + seed)
    users.play(tmp_path / "state", seed, STEPS, end=False)
