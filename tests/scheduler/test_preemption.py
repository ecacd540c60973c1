"""Whom a job of higher priority may end: a table with the exact victims, and how room reaches the winner."""

from __future__ import annotations

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.contest import POLICY, Contest
from tests.specification import spec
from vctl.core import jobs as jb
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.queue_policy import BACKFILL, FIFO, OFF, SECOND, STRICT
from vctl.core.tasks import PendingTask
from vctl.core.values import replace
from vctl.scheduler import preemption
from vctl.scheduler.cycle import decide
from vctl.scheduler.nominations import Nomination
from vctl.scheduler.queueing import Queue
from vctl.scheduler.task_queue import TaskQueue

pytestmark = spec("8.preemption")

NOW = 1_000


def contest(nodes: str, running: str, **policy: object) -> Contest:
    """'a:2c+1@900 b:1c' run: 2 CPUs, priority 1, since 900; by default priority 0 since 0. It is second 1000."""
    there = Contest(g.ledger(nodes), replace(POLICY, **policy))  # type: ignore[arg-type]
    for word in running.split():
        name, _, rest = word.partition(":")
        rest, _, since = rest.partition("@")
        size, _, priority = rest.partition("+")
        there.run(name, int(priority or 0), g.spec(f"PACK: {size.replace('/', ' ')}"), since=int(since or 0))
    there.now = NOW
    return there


CASES = {
    "nobody when it fits beside them": ("4c", "a:2c", "PACK: 2c", ""),
    "one that is enough, not two": ("4c", "a:2c b:2c@500", "PACK: 2c", "b"),
    "both when it takes both": ("4c", "a:2c b:2c", "PACK: 3c", "a b"),
    "the lower priority, whatever it loses": ("4c", "a:2c+2@999 b:2c+1@0", "PACK: 2c", "b"),
    "several of low priority before one of higher": ("4c", "a:1c b:1c c:2c+1@999", "PACK: 2c", "a b"),
    "no more of the higher than is needed": ("4c", "a:1c c:2c+1 d:1c+1@999", "PACK: 2c", "a d"),
    "the least work lost: by time": ("4c", "a:2c@100 b:2c@200", "PACK: 2c", "b"),
    "the least work lost: by share": ("8c", "a:4c@500 b:1c@0 c:3c@500", "PACK: 3c", "c"),
    "one large beside two small: what is lost counts, not how many": (
        "4c", "a:1c@990 b:1c@990 c:2c@900", "PACK: 2c", "a b"),
    "the same loss: the fewest": ("4c", "a:1c@800 b:1c@800 c:2c@800", "PACK: 2c", "c"),
    "the same in all: the first": ("4c", "a:2c@800 b:2c@800", "PACK: 2c", "a"),
    "together on one node, not the cheapest of each": (
        "2c, 2c", "a:1c@999 b:1c@100 c:1c@600 d:1c@600", "PACK: 2c", "c d"),
    "nobody of the same priority": ("2c", "a:2c+5", "PACK: 2c", ""),
    "nobody of a higher one": ("2c", "a:2c+6", "PACK: 2c", ""),
    "nobody when it would not help": ("2c, 2c", "a:1c b:2c+9", "STRICT_SPREAD: 2c, 2c", ""),
    "nobody for what could never run": ("2c", "a:1c", "PACK: 3c", ""),
    "a gang of three in one go": ("2c, 2c, 2c", "a:1c b:2c c:2c@900", "STRICT_SPREAD: 2c, 2c, 2c", "a b c"),
    "a gang: only where it does not fit yet": ("2c, 2c, 2c", "a:2c b:2c@900", "STRICT_SPREAD: 2c, 2c", "b"),
    "two halves of two devices are no device": ("4c 2g", "a:1c/0.5g@900 b:1c/0.5g@0 c:1c/1g@500", "PACK: 1g", "c"),
    "a share makes room for a share": ("4c 1g", "a:1c/0.6g@0 b:1c/0.4g@900", "PACK: 0.4g", "b"),
    "two shares of one device for the whole": ("4c 1g", "a:1c/0.5g b:1c/0.5g", "PACK: 1g", "a b"),
    "labels: elsewhere does not help": ("2c, 2c", "a:2c@0 b:2c@900", "PACK: 2c @ray.io/vnode_id=n1", "a"),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "running", "wanted", "victims"), CASES.values(), ids=list(CASES))
def test_the_victims(nodes: str, running: str, wanted: str, victims: str) -> None:
    there = contest(nodes, running)
    there.submit("w", 5, g.spec(wanted))
    there.round()
    assert " ".join(there.told_to_go()) == victims
    there.victims_leave()
    there.round()
    assert there.is_running("w") == (bool(victims) or (wanted == "PACK: 2c" and running == "a:2c"))


def test_off_by_default() -> None:
    there = contest("2c", "a:2c", preemption=OFF)
    there.submit("w", 5, g.spec("PACK: 2c"))
    assert there.round().preempts == ()


def test_nobody_before_his_minimum_runtime_and_then_at_once() -> None:
    there = contest("4c", "old:2c+1@600 young:2c@700", min_runtime_ns=400 * SECOND)
    there.submit("w", 5, g.spec("PACK: 2c"))
    there.round()
    assert there.told_to_go() == ["old"]
    there = contest("2c", "young:2c@700", min_runtime_ns=400 * SECOND)
    there.submit("w", 5, g.spec("PACK: 2c"))
    there.round()
    assert there.told_to_go() == []
    assert there.queue.again_ns == 1_100 * SECOND
    there.now = 1_099
    there.round()
    assert there.told_to_go() == []
    there.now = 1_100
    there.round()
    assert there.told_to_go() == ["young"]


def test_what_comes_free_is_kept_for_the_winner() -> None:
    there = contest("4c", "a:2c b:2c")
    there.submit("w", 5, g.spec("PACK: 4c"))
    there.round()
    there.gone(there.names["a"])
    for name, priority in (("small", 4), ("equal", 5)):
        there.submit(name, priority, g.spec("PACK: 1c"))
    there.round()
    assert not there.is_running("small")
    assert not there.is_running("equal")
    there.gone(there.names["b"])
    there.round()
    assert there.is_running("w")
    assert there.log[-1] == "start w"


def test_a_higher_priority_may_use_it_and_the_winner_looks_again() -> None:
    there = contest("4c", "a:2c b:2c@900")
    there.submit("w", 5, g.spec("PACK: 2c"))
    there.round()
    assert there.told_to_go() == ["b"]
    there.submit("above", 9, g.spec("PACK: 2c"))
    there.round()
    assert there.told_to_go() == ["b"], "what comes free is enough for the one above"
    there.victims_leave()
    there.round()
    assert there.is_running("above")
    there.round()
    assert there.told_to_go() == ["a"]
    there.victims_leave()
    there.round()
    assert there.is_running("w")


def test_other_queues_and_tasks_keep_off() -> None:
    there = contest("4c", "a:4c")
    there.submit("w", 5, g.spec("PACK: 4c"))
    there.round()
    there.victims_leave()
    there.ledger.put_cluster(Cluster("team", PRIMARY, LOGICAL, ClusterSpec()))
    task = PendingTask("t-task-1", 1, 1, "team", g.amounts("1c"), (), "HYBRID", None)
    tasks = TaskQueue("team")
    tasks.put(task)
    queues = {PRIMARY: there.queue}
    there.queue.jobs[there.names["w"]]
    held = replace(there.queue.jobs[there.names["w"]], begin_at_ns=10**18)
    there.queue.put(held)  # it cannot start now, so nothing but the nomination is in the way
    plan = decide(there.ledger, queues, {"team": tasks}, now_ns=NOW * SECOND, running=there.running)
    assert plan.task_starts == ()
    there.queue.set_nomination(held.job_id, None)
    there.ledger.note_growth(["n1"])
    plan = decide(there.ledger, queues, {"team": tasks}, now_ns=NOW * SECOND, running=there.running)
    assert len(plan.task_starts) == 1


def test_two_winners_of_one_shape_get_their_own_victims() -> None:
    there = contest("4c", "a:2c b:2c@900")
    there.submit("w", 5, g.spec("PACK: 2c"))
    there.submit("x", 5, g.spec("PACK: 2c"))
    there.submit("y", 5, g.spec("PACK: 2c"))
    plan = there.round()
    assert [(one.job.submission_id, [v.job.submission_id for v in one.victims]) for one in plan.preempts] == [
        ("w", ["b"]),
        ("x", ["a"]),
    ]
    there.gone(there.names["a"])
    there.round()
    assert there.is_running("w") != there.is_running("x")
    there.gone(there.names["b"])
    there.round()
    assert there.is_running("w")
    assert there.is_running("x")


def test_first_come_first_served_a_winner_behind_others_of_its_shape() -> None:
    there = contest("2c", "a:2c", order=FIFO)
    there.submit("low", 0, g.spec("PACK: 2c"))
    there.submit("w", 5, g.spec("PACK: 2c"))
    there.round()
    assert there.told_to_go() == ["a"]
    there.victims_leave()
    there.round()
    assert there.is_running("w")
    assert not there.is_running("low")


@pytest.mark.parametrize("discipline", [STRICT, BACKFILL])
def test_under_every_discipline(discipline: str) -> None:
    there = contest("4c", "a:2c b:2c@900", discipline=discipline)
    there.submit("w", 5, g.spec("PACK: 3c"))
    there.submit("small", 1, g.spec("PACK: 1c"))
    there.round()
    assert there.told_to_go() == ["a", "b"]
    there.victims_leave()
    there.round()
    assert there.is_running("w")


def test_jobs_that_share_a_cluster_leave_with_their_tasks() -> None:
    world = g.ledger("4c")
    g.slice_cluster(world, "svc", "n1=4c")
    there = Contest(world, POLICY, "svc")
    there.run("a", 0, ClusterSpec(), shares=True, entry="1c")
    there.run("b", 0, ClusterSpec(), shares=True, entry="2c", since=900)
    world.charge("a-task-1", "svc-v1", world.capacities["svc-v1"].copy().take(g.amounts("1c")))
    there.running.put_task(there.names["a"], "a-task-1")
    there.now = NOW
    there.submit("w", 5, ClusterSpec(), shares=True, entry="4c")
    plan = there.round()
    assert there.told_to_go() == ["a", "b"]
    losses = {one.job.submission_id: one.loss for one in plan.preempts[0].victims}
    assert losses == {"a": 1_000_000 * 500_000_000, "b": 100_000 * 500_000_000}


def test_nothing_is_searched_twice_for_the_same_state() -> None:
    there = contest("2c, 2c", "a:1c b:2c+9")
    there.submit("w", 5, g.spec("STRICT_SPREAD: 2c, 2c"))
    there.round()
    sub_queue = next(iter(there.queue.shapes[next(iter(there.queue.shapes))].sub_queues.values()))
    assert sub_queue.no_victims is not None
    before = sub_queue.no_victims
    there.round()
    assert sub_queue.no_victims is before
    there.gone(there.names["b"], requeue=False)
    there.round()
    assert there.told_to_go() == ["a"]


def test_a_round_looks_at_a_bounded_number_of_nodes_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemption, "MOST_STEPS", 30)
    there = contest(", ".join(["1c"] * 20), " ".join(f"j{n}:1c" for n in range(20)))
    for number in range(20):
        there.submit(f"w{number}", 5, g.spec(f"PACK: 1c @ray.io/vnode_id=n{number + 1}"))
    counts = []
    unsearched = True
    while unsearched:
        plan = there.round()
        counts.append(len(plan.preempts))
        unsearched = plan.unsearched
        assert unsearched == (sum(counts) < 20)
    assert sum(counts) == 20
    assert len(counts) > 2
    assert max(counts) < 10


def test_what_not_even_all_could_help_is_looked_at_again_when_a_job_of_its_own_priority_ends() -> None:
    there = contest("4c", "a:1c b:1c+5 c:1c d:1c+5")
    there.submit("w", 5, g.spec("PACK: 3c"))
    there.round()
    sub_queue = next(iter(there.queue.shapes[next(iter(there.queue.shapes))].sub_queues.values()))
    before = sub_queue.no_victims
    there.gone(there.names["c"], requeue=False)
    there.round()
    assert sub_queue.no_victims is before, "what it returns was counted on"
    there.gone(there.names["d"], requeue=False)
    there.round()
    assert there.told_to_go() == ["a"]


def test_a_gang_that_waits_is_told_as_before() -> None:
    there = contest("2c", "a:2c")
    there.submit("w", 5, g.spec("PACK: 2c"))
    plan = there.round()
    assert [wait.reason for wait in plan.waits] == [jb.INSUFFICIENT]


def test_what_is_kept_in_another_cluster_is_no_room_of_this_one() -> None:
    """A nomination in another queue: its virtual node is none on which this gang could go (spec 5, 8)."""
    world = g.ledger("4c, 4c, 4c")
    g.slice_cluster(world, "a", "n1=4c, n3=4c")
    g.slice_cluster(world, "b", "n2=4c")
    there = Contest(world, POLICY, "a")
    there.run("high", 9, g.spec("PACK: 3c"))
    there.run("low", 0, g.spec("PACK: 2c"))
    there.now = NOW
    other = Queue("b")
    part = ("b-v1", world.capacities["b-v1"].copy().take(g.amounts("1c")))
    other.set_nomination(99, Nomination(99, "other", 3, "b", (part,), frozenset({77})))
    there.submit("w", 5, g.spec("STRICT_SPREAD: 3c, 3c"))
    plan = decide(world, {"a": there.queue, "b": other}, now_ns=NOW * SECOND, running=there.running)
    assert plan.preempts == ()
