"""A preemption for a very large gang among many victims costs a bounded search (spec 8, 18); counted, not timed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.scheduler import ground as g
from tests.scheduler.contest import POLICY, Contest
from tests.specification import spec
from vctl.core.clusters import JOB, PRIMARY, Cluster
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.queue_policy import SECOND
from vctl.scheduler.preemption import MOST_STEPS, Emptied
from vctl.scheduler.running import returned_by

pytestmark = spec("8.preemption", "18.budgets")

NODES, CPUS, LEVELS, MOST_PLACES = 256, 8, 5, 10
ONE = g.spec("PACK: 1c")


@pytest.fixture
def crowd() -> Contest:
    """2,048 jobs of one CPU fill 256 nodes of eight; five levels of priority, at random."""
    rng = Random(7)
    there = Contest(g.ledger([f"{CPUS}c"] * NODES), POLICY)
    for number in range(1, NODES * CPUS + 1):
        name = f"j{number}"
        job = PendingJob(number, name, PRIMARY, "one", ONE, {}, rng.randrange(LEVELS), submitted_at_ns=number)
        cluster_id = f"{PRIMARY}##{name}"
        there.names[name] = number
        there.ledger.put_cluster(Cluster(cluster_id, PRIMARY, JOB, ONE, divisible=True, job=str(number)))
        node_id = f"n{(number - 1) // CPUS + 1}"
        g.carve(there.ledger, cluster_id, f"{cluster_id}/0", node_id, g.amounts("1c"))
        there.running.put(RunningJob.begun(job, cluster_id, f"run-{number}", rng.randrange(900) * SECOND))
    there.now = 1_000
    return there


@pytest.mark.parametrize(
    ("size", "cpus", "policy"), [(256, 6, "STRICT_SPREAD"), (64, 6, "STRICT_SPREAD"), (256, 4, "PACK")]
)
def test_a_large_gang_among_two_thousand(
    crowd: Contest, monkeypatch: pytest.MonkeyPatch, size: int, cpus: int, policy: str
) -> None:
    asked = counted(monkeypatch)
    crowd.submit("w", 99, g.spec(f"{policy}: " + ", ".join([f"{cpus}c"] * size)))
    plan = crowd.round()
    (one,) = plan.preempts
    assert len(one.victims) == size * cpus, "no more than it takes"
    assert len({vnode_id for vnode_id, _ in one.earmark.pieces}) <= size
    assert len(asked) <= MOST_PLACES
    dearest = max(asked)
    assert sum(asked) <= MOST_STEPS + (MOST_PLACES - 2) * dearest
    top = max(victim.job.priority for victim in one.victims)
    parts = {n: returned_by(crowd.ledger, crowd.running, job) for n, job in crowd.running.jobs.items()}
    lower = frozenset(n for n, job in crowd.running.jobs.items() if job.priority < top)
    assert Emptied(crowd.ledger, PRIMARY, parts).place(one.job, lower) is None, (
        "no higher level than it takes"
    )


def test_it_is_found_once_more_the_same(crowd: Contest) -> None:
    crowd.submit("w", 99, g.spec("STRICT_SPREAD: " + ", ".join(["6c"] * 64)))
    first = crowd.round(preempts=True).preempts[0]
    for victim in first.victims:
        crowd.running.leave(victim.job.job_id, leaves=False)
    crowd.queue.set_earmark(first.job.job_id, None)
    crowd.ledger.note_growth(["n1"])
    assert [one.victims for one in crowd.round().preempts] == [first.victims]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each question that is asked from now on."""
    asked: list[int] = []
    real: Callable[..., object] = Emptied.place

    def place(self: Emptied, job: PendingJob, gone: frozenset[int]) -> object:
        before = self.steps
        found = real(self, job, gone)
        asked.append(self.steps - before)
        return found

    monkeypatch.setattr(Emptied, "place", place)
    return asked
