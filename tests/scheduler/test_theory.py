"""The examples on the pages of theory at the head of placement, recall, preemption and cycle, with their numbers."""

from __future__ import annotations

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.contest import Contest
from tests.scheduler.trees import lease, parts, tree
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import PendingJob
from vctl.core.resources import SCALE, Allocation
from vctl.scheduler import queue_scan
from vctl.scheduler.cycle import decide
from vctl.scheduler.gang_growth import grow, one_piece
from vctl.scheduler.placement import Placed, Unplaced, place
from vctl.scheduler.plan import Plan
from vctl.scheduler.queueing import Queue
from vctl.scheduler.work import Budget

pytestmark = spec("6.complete", "8.preemption", "8.reasons", "9.conserving", "9.lending")


def test_a_gang_for_which_the_first_choice_is_wrong() -> None:
    """``placement``: one move is taken back."""
    free, gang = g.ledger("6c, 4c"), g.spec("PACK: 4c, 3c, 3c")
    stopped = place(free, PRIMARY, gang, {}, budget=0)
    assert isinstance(stopped, Unplaced) and stopped.exhausted
    placed = place(free, PRIMARY, gang, {}, budget=1)
    assert isinstance(placed, Placed) and placed.exact
    assert [piece.node_id for piece in placed.pieces] == ["n2", "n1", "n1"]


def test_idle_loans_go_home_and_what_is_not_needed_is_put_back() -> None:
    """``recall``."""
    ledger = tree("8c, 8c", "a < primary []: n1~8c, n2~8c", "b < primary []")
    ledger.put_lease(lease(ledger, "a/0: 16c"))
    steps = grow(ledger, "b", g.amounts("8c"))
    assert steps is not None and [step.after.cluster_id for step in steps] == ["a", "b"]
    assert (parts(ledger, "a"), parts(ledger, "b")) == ("n2~8c", "n1~8c")


@pytest.mark.parametrize(
    ("asked", "withheld", "left"),
    [("4c", "", "n1~4c"), ("7c", "", None), ("4c", "5c", None), ("3c", "5c", "n1~5c")],
)
def test_a_minimum_that_is_not_used_is_lent(asked: str, withheld: str, left: str | None) -> None:
    """``recall``, the example of lending. ``left``: what the lender has then; None: the job waits."""
    ledger = tree("8c", "a < primary [8c] lend=6c: n1~8c", "b < primary []")
    ledger.withheld = {"a": g.amounts(withheld)} if withheld else {}
    assert (grow(ledger, "b", g.amounts(asked)) is None) == (left is None)
    assert parts(ledger, "a") == (left or "n1~8c")


def test_two_small_jobs_end_for_a_larger_one_and_their_place_is_kept() -> None:
    """``preemption``."""
    there = Contest(g.ledger("8c"))
    for name, size, since in (("a", "4c", 0), ("b", "2c", 40), ("c", "2c", 20)):
        there.run(name, 0, g.spec(f"PACK: {size}"), since=since)
    there.now = 100
    there.submit("winner", 5, g.spec("PACK: 4c"))
    (preempt,) = there.round().preempts
    assert there.told_to_go() == ["b", "c"]
    second = 10**9 * 1_000  # a second of the whole node, in the unit of ``loss_of``
    assert [victim.loss / second for victim in preempt.victims] == [15, 20]
    ((vnode_id, kept),) = preempt.nomination.pieces
    assert (vnode_id, kept.amounts) == ("n1", {"CPU": 4 * SCALE})
    assert preempt.nomination.awaited == {there.names["b"], there.names["c"]}
    there.gone(there.names["b"])
    there.submit("small", 4, g.spec("PACK: 1c"))
    there.round()
    assert not there.is_running("small")
    there.gone(there.names["c"])
    there.round()
    assert there.is_running("winner")


def test_one_node_comes_free_for_200_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cycle``."""
    names = [f"q{number:02}" for number in range(20)]
    ledger, queues = tree("8c, 8c, 8c", *(f"{name} < primary []" for name in names)), {}
    for node_id in ("n1", "n2", "n3"):
        ledger.charge(f"run on {node_id}", node_id, Allocation({"CPU": 8 * SCALE}))
    for number in range(1, 201):
        size = 75_000 if number == 1 else 60_000 + 95 * number
        gang = one_piece({"CPU": size})
        name = names[number % 20]
        job = PendingJob(number, f"j{number}", name, str(size), gang, {}, submitted_at_ns=number)
        queues.setdefault(name, Queue(name)).put(job)
    done = {"search": 0, "step": 0}

    def counted(owner: object, name: str, what: str) -> None:
        original = getattr(owner, name)

        def count(*args: object, **more: object) -> object:
            done[what] += 1
            return original(*args, **more)

        monkeypatch.setattr(owner, name, count)

    def round_(steps: int | None = None) -> Plan:
        done.update(search=0, step=0)
        return decide(ledger, queues, now_ns=10**9, budget=Budget(steps))

    counted(queue_scan, "place_with_growth", "search")
    counted(queue_scan.QueueScan, "step", "step")
    searches, reported, rounds, more = 0, 0, 0, True
    while more:
        plan = round_(250)
        searches, reported, rounds, more = (
            searches + done["search"],
            reported + len(plan.waits),
            rounds + 1,
            plan.unsearched,
        )
        memos = [queue.memo for queue in queues.values() if queue.memo is not None]
        rests = [memo.rest for memo in memos if memo.rest is not None]
        assert bool(rests) == more and not any(rest.heads.lined_up for rest in rests)  # handed on as they are
    assert (searches, reported, rounds) == (200, 200, 8)
    assert round_().is_empty and done == {"search": 0, "step": 0}

    ledger.discharge("run on n1")
    plan = round_()
    assert [start.job.job_id for start in plan.starts] == [1]
    assert done == {"search": 1, "step": 22}
