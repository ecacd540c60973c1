"""What is remembered of a scheduling class: it holds as long as it may, and never longer."""

from __future__ import annotations

import pytest

from tests.scheduler import candidates, trees
from tests.specification import spec
from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD
from vctl.scheduler import feasibility
from vctl.scheduler.cycle import decide
from vctl.scheduler.feasibility import FeasibilityJudge, emptied, ever
from vctl.scheduler.plan import Plan, apply
from vctl.scheduler.queueing import Queue

pytestmark = spec("6.complete", "8.reasons")


def waiting(world: Ledger, *sizes: str) -> Queue:
    """A queue of jobs of these sizes."""
    queue = Queue(PRIMARY)
    for number, size in enumerate(sizes, 1):
        gang = candidates.spec(f"PACK: {size}")
        queue.put(PendingJob(number, f"j{number}", PRIMARY, size, gang, candidates.amounts(size)))
    return queue


def turn(world: Ledger, queue: Queue) -> Plan:
    """A round, and what it starts."""
    plan = decide(world, {PRIMARY: queue}, now_ns=0)
    for start in plan.starts:
        apply(world, start)
        queue.drop(start.job.job_id)
    return plan


def test_a_verdict_stands_where_the_same_is_free_again() -> None:
    """Spec 6: a job ends, the next takes its place, and those behind it are known to wait without another look."""
    world = candidates.ledger("2c")
    world.charge("old", "n1", world.capacities["n1"].choice(candidates.amounts("1c")))
    queue = waiting(world, "1c", "1c", "1c")
    assert [start.job.job_id for start in turn(world, queue).starts] == [1]
    verdict = queue.blocked(world, queue.shapes["1c"])
    assert verdict is not None
    assert verdict.reason == jb.INSUFFICIENT
    assert verdict.valid_for == world.index(PRIMARY).stamp
    world.discharge("old")
    assert [start.job.job_id for start in turn(world, queue).starts] == [2]
    assert queue.blocked(world, queue.shapes["1c"]) is verdict


def test_a_verdict_falls_when_something_comes_free_that_may_help() -> None:
    """Spec 8: two jobs of different size wait; what comes free is enough for the small one alone."""
    world = candidates.ledger("2c")
    for name in ("a", "b"):
        world.charge(name, "n1", world.capacities["n1"].choice(candidates.amounts("1c")))
    queue = waiting(world, "2c", "1c")
    assert turn(world, queue).starts == ()
    before = queue.blocked(world, queue.shapes["2c"])
    assert before is not None
    world.discharge("a")
    assert [start.job.job_id for start in turn(world, queue).starts] == [2]
    assert queue.blocked(world, queue.shapes["2c"]) is before, "it cannot be enough for it"
    world.discharge("b")
    world.discharge("trial:2")
    world.remove_cluster(f"{PRIMARY}##j2")
    assert [start.job.job_id for start in turn(world, queue).starts] == [1]


def test_a_verdict_of_nodes_that_were_is_no_verdict() -> None:
    """Spec 6: a node comes, with the free capacity that there was before."""
    world = candidates.ledger("1c")
    world.charge("a", "n1", world.capacities["n1"].choice(candidates.amounts("1c")))
    queue = waiting(world, "1c", "1c")
    assert turn(world, queue).starts == ()
    assert queue.blocked(world, queue.shapes["1c"]) is not None
    world.put_node(candidates.ledger("1c,1c").nodes["n2"])
    assert [start.job.job_id for start in turn(world, queue).starts] == [1]


def test_who_judges_many_shapes_empties_the_cluster_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An elastic cluster: of each shape it is asked whether it can ever run; what is empty then is the same for all."""
    world = trees.tree("4c 1g, 4c", "a < primary [1c]: n1~1c")
    judge, made = FeasibilityJudge("a"), 0

    def counted(ledger: Ledger, cluster_id: str) -> Ledger:
        nonlocal made
        made += 1
        return emptied(ledger, cluster_id)

    jobs = []
    for number in range(1, 41):
        cpus, gpus = number // 4, number % 4
        gang = candidates.spec(
            *[f"{['PACK', 'STRICT_PACK'][number % 2]}: {cpus}c {gpus}g"] * (1 + number % 3)
        )
        jobs.append(PendingJob(number, f"j{number}", "a", f"s{number}", gang, {}))
    alone = [ever(world, "a", job.spec, {}) for job in jobs]
    monkeypatch.setattr(feasibility, "emptied", counted)
    for number, (job, never) in enumerate(zip(jobs, alone, strict=True)):
        assert (judge.why_never(world, job) is None) == (never is None), (number, never)
        assert never is None or never.capacity in (judge.why_never(world, job) or "")
    assert made == 1
    trees.change_node(world, "n1", state=DEAD)
    assert judge.why_never(world, jobs[-1]) is not None
    assert made == 2
