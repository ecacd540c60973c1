"""What a round remembers changes nothing: it starts and refuses the same as a round that judges everything.

Every round of random sequences is played a second time on a copy in which no queue is known to be as it was. A turn
that searches nothing is compared with a search.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import users
from tests.properties import test_idle_machine
from tests.specification import spec
from tests.users import Users
from tests.world import World
from vctl.daemon import turn
from vctl.engine.state import SchedulerState
from vctl.ops import clusters as cluster_ops
from vctl.scheduler import cycle
from vctl.scheduler.plan import Plan
from vctl.simulate import play
from vctl.spec.cluster_change import ClusterChange

pytestmark = spec("8.disciplines", "9.conserving")

STEPS = 150
decide = cycle.decide


class Rounds:
    """Counts the rounds, and compares each with one without a memory."""

    def __init__(self) -> None:
        self.rounds = self.compared = self.skipped = 0

    def decide(self, ledger: Any, queues: Any, tasks: Any = None, **more: Any) -> Plan:
        self.rounds += 1
        if any(queue.search is not None for queue in queues.values()):
            return decide(ledger, queues, tasks, **more)  # a search that pauses cannot be copied
        again = without_memory(ledger, queues, tasks, more)
        plan = decide(ledger, queues, tasks, **more)
        assert shown(plan) == shown(again[0])
        assert reservations(queues) == reservations(again[1])
        self.compared += 1
        return plan

    def search(self, of: turn.Turn, state: SchedulerState, **more: Any) -> Plan:
        before = self.rounds
        plan = SEARCH(of, state, **more)
        if self.rounds == before and not any(queue.search is not None for queue in state.queues.values()):
            assert plan.is_empty
            at = {"now_ns": of.store.clock(), "running": state.running, "usage": state.usage}
            found, _ = without_memory(state.ledger, state.queues, state.tasks.queues, at)
            assert found.is_empty, shown(found)
            self.skipped += 1
        return plan


SEARCH = turn.Turn._search


def without_memory(ledger: Any, queues: Any, tasks: Any, more: Any) -> tuple[Plan, Any]:
    """A round on a copy in which every queue is visited, and all sums are added up; and its queues."""
    ledger, queues, tasks, more = copy.deepcopy((ledger, queues, tasks, more))
    ledger.derived.clear()
    more["running"]._sums.clear()
    for queue in queues.values():
        queue.memo = None
        queue.doubts.unreported.update(dict.fromkeys(queue.shapes))  # all of them are looked at
        queue.users = Counter(job.user for job in queue.jobs.values())
    return decide(ledger, queues, tasks, **more), queues


def shown(plan: Plan) -> tuple[object, ...]:
    """A plan, comparable."""
    return (
        plan.starts, sorted(plan.waits, key=repr), plan.cleared, plan.task_starts, plan.task_waits,
        [(one.job, [victim.job for victim in one.victims], one.nomination) for one in plan.preempts],
        plan.lapsed, plan.unsearched, plan.tasks_deferred,
    )  # fmt: skip


def reservations(queues: Any) -> dict[str, object]:
    """What the queues keep for their jobs until the next round."""
    return {name: (queue.kept, queue.shared, queue.reported) for name, queue in queues.items() if queue.jobs}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """All rounds of the scheduler and of the simulator are compared."""
    found = Rounds()
    monkeypatch.setattr(turn, "decide", found.decide)
    monkeypatch.setattr(play, "decide", found.decide)

    def search(of: turn.Turn, state: SchedulerState, **more: Any) -> Plan:
        return found.search(of, state, **more)

    monkeypatch.setattr(turn.Turn, "_search", search)
    monkeypatch.setattr(turn, "SOON", 10_000)  # what is remembered costs no steps, so the cuts would differ
    return found


class Managers(Users):
    """Users who change the policies of queues more than others do."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.actions += [(6, self.arrange), (8, self.submit), (6, self.exit_process), (2, self.rest)]

    def rest(self) -> None:
        self.world.sleep(self.dice.choice([10, 30, 100]))

    def arrange(self) -> None:
        draw, target = self.dice, self.one("SELECT cluster_id FROM clusters WHERE kind = 'logical'")
        queue = {
            "order": draw.choice(["priority", "fifo", "fair", "shortest", "longest"]),
            "discipline": draw.choice(["best-effort", "strict", "backfill"]),
            "weight": draw.choice([1, 3]),
            "backfill_depth": draw.choice([1, 2, 4]),
            "starvation_after_s": draw.choice([2, 10, 600]),
        }
        limits: dict[str, object] = {"max_running_jobs": 2, "max_running_per_user": 1}
        chosen = {name: queue[name] for name in draw.sample(sorted(queue), draw.choice([1, 2]))}
        chosen |= {name: draw.choice([value, None]) for name, value in limits.items() if draw.random() < 0.15}
        cluster_ops.update(
            self.store, target if draw.random() < 0.8 and target else "primary", ClusterChange(queue=chosen)
        )


@pytest.mark.parametrize("seed", range(4))
def test_a_round_that_remembers_decides_the_same(tmp_path: Path, rounds: Rounds, seed: int) -> None:
    users.play(tmp_path / "state", seed, STEPS, Managers, end=False)
    assert rounds.compared > STEPS / 2
    assert rounds.skipped > STEPS / 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4, 100))
def test_many_rounds_that_remember_decide_the_same(tmp_path: Path, rounds: Rounds, seed: int) -> None:
    users.play(tmp_path / "state", seed, STEPS, Managers, end=False)


@pytest.mark.parametrize("seed", range(6))
def test_a_simulated_round_that_remembers_decides_the_same(rounds: Rounds, seed: int) -> None:
    test_idle_machine.play(seed, mixed=random.Random(seed).random() < 0.7)
    assert rounds.compared
