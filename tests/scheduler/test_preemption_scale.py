"""A preemption for a very large gang among many victims: each round does a bounded amount of the search, the next goes
on (spec 8, 18). Counted, not timed."""

from __future__ import annotations

from random import Random

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.contest import POLICY, Contest
from tests.specification import spec
from vctl.core.clusters import FIXED, FLEXIBLE, JOB, LOGICAL, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.queue_policy import SECOND
from vctl.core.values import replace
from vctl.scheduler import preemption
from vctl.scheduler.plan import Plan
from vctl.scheduler.preemption import MOST_STEPS, SEARCH_STEPS, Search
from vctl.scheduler.preemption_trial import Emptied
from vctl.scheduler.work import finished

pytestmark = spec("8.preemption", "18.budgets")

NODES, CPUS, LEVELS = 256, 8, 5
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
        g.assign(there.ledger, cluster_id, f"{cluster_id}/0", node_id, g.amounts("1c"))
        there.running.put(RunningJob.begun(job, cluster_id, f"run-{number}", rng.randrange(900) * SECOND))
    there.now = 1_000
    return there


@pytest.mark.parametrize(
    ("size", "cpus", "policy"),
    [
        (1, 6, "PACK"),
        (32, 6, "STRICT_SPREAD"),
        (256, 6, "STRICT_SPREAD"),
        (64, 6, "STRICT_SPREAD"),
        (256, 4, "PACK"),
    ],
)
def test_a_large_gang_among_two_thousand(
    crowd: Contest, monkeypatch: pytest.MonkeyPatch, size: int, cpus: int, policy: str
) -> None:
    steps = counted(monkeypatch)
    crowd.submit("w", 99, g.spec(f"{policy}: " + ", ".join([f"{cpus}c"] * size)))
    plan = decided(crowd)
    (one,) = plan.preempts
    assert len(one.victims) == size * cpus, "no more than it takes"
    assert len({vnode_id for vnode_id, _ in one.nomination.pieces}) <= size
    assert max(steps) <= MOST_STEPS, "no round does more than its share"
    assert sum(steps) <= SEARCH_STEPS + 6 * len(crowd.running.jobs)
    top = max(victim.job.priority for victim in one.victims)
    emptied = Emptied(crowd.ledger, crowd.running, PRIMARY, crowd.running.jobs.values())
    finished(emptied.collect())
    lower = frozenset(n for n, job in crowd.running.jobs.items() if job.priority < top)
    assert finished(emptied.claim(one.job, lower)) is None, "no higher level than it takes"


@pytest.mark.parametrize("limited", [False, True], ids=["free to grow", "up to a maximum"])
def test_with_growth_among_a_thousand_nodes(monkeypatch: pytest.MonkeyPatch, *, limited: bool) -> None:
    """The nodes on which a cluster could grow are looked at bit by bit, too."""
    nodes, rng = 1_000, Random(3)
    ledger = g.ledger(["8c"] * nodes)
    most = {"CPU": nodes * 7 * 10_000} if limited else {}
    ledger.put_cluster(Cluster("team", PRIMARY, LOGICAL, ClusterSpec({}, most), divisible=True))
    there = Contest(ledger, POLICY, "team")
    for number in range(1, nodes + 1):
        held, above = ledger.capacities[f"n{number}"].copy().take(g.amounts("6c")), f"n{number}"
        labels = ledger.vnodes[above].labels
        ledger.assign(VNode(f"team/{number}", "team", above, above, FLEXIBLE, held, labels, rank=number))
        name = there.names[f"j{number}"] = number
        job = PendingJob(name, f"j{number}", "team", "one", ONE, {}, rng.randrange(3), submitted_at_ns=number)
        cluster_id = f"team##j{number}"
        ledger.put_cluster(Cluster(cluster_id, "team", JOB, ONE, divisible=True, job=str(number)))
        part = ledger.capacities[f"team/{number}"].copy().take(g.amounts("6c"))
        ledger.assign(VNode(f"{cluster_id}/0", cluster_id, above, f"team/{number}", FIXED, part, labels))
        there.running.put(RunningJob.begun(job, cluster_id, f"run-{number}", rng.randrange(900) * SECOND))
    there.now = 1_000
    steps = counted(monkeypatch)
    there.submit("w", 99, g.spec("STRICT_SPREAD: " + ", ".join(["7c"] * 16)))
    (one,) = decided(there).preempts
    assert len(one.victims) == 16
    assert {victim.job.priority for victim in one.victims} == {0}
    assert max(steps) <= MOST_STEPS, "no round does more than its share"


def test_it_is_found_once_more_the_same(crowd: Contest) -> None:
    crowd.submit("w", 99, g.spec("STRICT_SPREAD: " + ", ".join(["6c"] * 64)))
    first = decided(crowd).preempts[0]
    for victim in first.victims:
        crowd.running.leave(victim.job.job_id, leaves=False)
    crowd.queue.set_nomination(first.job.job_id, None)
    crowd.ledger.note_growth(["n1"])
    assert [one.victims for one in decided(crowd).preempts] == [first.victims]


@pytest.mark.parametrize("steps", [40, MOST_STEPS, 1_000_000])
def test_however_often_it_is_put_off_it_finds_the_same(
    crowd: Contest, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    crowd.submit("w", 99, g.spec("STRICT_SPREAD: " + ", ".join(["6c"] * 8)))
    whole = crowd.queue.jobs[crowd.names["w"]]
    wanted = decided(crowd).preempts[0].victims
    crowd.queue.set_nomination(whole.job_id, None)
    for victim in wanted:
        crowd.running.leave(victim.job.job_id, leaves=False)
    crowd.queue.snapshot = None
    monkeypatch.setattr(preemption, "MOST_STEPS", steps)
    crowd.queue.forget_verdicts()
    assert decided(crowd).preempts[0].victims == wanted


def test_what_starts_and_ends_meanwhile_is_seen_at_its_end(
    crowd: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it goes on bit by bit, jobs end and others take their place: whom it ends runs, and the gang then fits."""
    monkeypatch.setattr(preemption, "MOST_STEPS", 40)
    crowd.submit("w", 99, g.spec("STRICT_SPREAD: " + ", ".join(["6c"] * 8)))
    plan, number = crowd.round(), 0
    while plan.unsearched:
        number += 1
        ended = f"j{number * 7 % len(crowd.running.jobs) + 1}"
        if number % 5 == 0 and crowd.names[ended] in crowd.running.jobs:
            job = crowd.running.jobs[crowd.names[ended]]
            crowd.ledger.remove_cluster(job.cluster_id)
            crowd.running.drop(job.job_id)
            crowd.submit(f"n{number}", 0, ONE)
        plan = crowd.round()
        assert number < 5_000
    (one,) = plan.preempts
    assert all(crowd.running.jobs[victim.job.job_id] == victim.job for victim in one.victims)
    for victim in one.victims:
        crowd.ledger.remove_cluster(victim.job.cluster_id)
        crowd.running.drop(victim.job.job_id)
        crowd.ending.pop(victim.job.job_id)
    crowd.queue.set_nomination(one.job.job_id, replace(one.nomination, awaited=frozenset()))
    crowd.round()
    assert crowd.is_running("w")


def decided(there: Contest) -> Plan:
    """Rounds until nothing is left to search."""
    plan = there.round()
    while plan.unsearched:
        plan = there.round()
    return plan


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each round from now on: there is one search."""
    steps: list[int] = []
    real = Search.go_on

    def go_on(self: Search, most: int, *, alone: bool) -> tuple[bool, int]:
        answer = real(self, most, alone=alone)
        steps.append(answer[1])
        return answer

    monkeypatch.setattr(Search, "go_on", go_on)
    return steps
