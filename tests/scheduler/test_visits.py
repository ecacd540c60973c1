"""Which queues a round looks at: those in which something has happened, or for which something came free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.scheduler import candidates, trees
from tests.specification import spec
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import DRAINING
from vctl.core.queue_policy import BACKFILL, FAIR, FIFO, QueuePolicy
from vctl.core.values import replace
from vctl.scheduler import cycle, queueing
from vctl.scheduler.cycle import decide
from vctl.scheduler.gang_growth import one_piece
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running
from vctl.scheduler.work import GROWTH, Budget

pytestmark = spec("8.reasons")

S = 10**9


class Rounds:
    """Three queues with a job each that has too little, and which of them the last round has looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *clusters: str) -> None:
        self.ledger = trees.tree("4c, 4c, 4c", *clusters)
        self.running = Running()
        self.queues = {name: Queue(name) for name in "abc"}
        self.now_ns, self.number = S, 0
        for name in "abc":
            self.submit(name)
        scan, self.scans = cycle.QueueScan, list[cycle.QueueScan]()

        def noted(ledger: Ledger, queue: Queue, *args: object, **more: object) -> cycle.QueueScan:
            self.scans.append(scan(ledger, queue, *args, **more))  # type: ignore[arg-type]
            return self.scans[-1]

        monkeypatch.setattr(cycle, "QueueScan", noted)

    def submit(self, name: str, *, begin_at_ns: int | None = None, size: str = "4c") -> None:
        self.number += 1
        gang = candidates.spec(f"PACK: {size}")
        self.queues[name].put(
            PendingJob(
                self.number,
                f"j{self.number}",
                name,
                f"{size} {begin_at_ns}",
                gang,
                {},
                begin_at_ns=begin_at_ns,
                submitted_at_ns=self.now_ns,
                time_limit_ns=100 * S,
            )
        )

    def looked_at(self) -> str:
        self.scans.clear()
        plan = decide(self.ledger, self.queues, now_ns=self.now_ns, running=self.running)
        assert not plan.starts
        return self.seen

    @property
    def seen(self) -> str:
        """The queues of which a job was looked at."""
        return "".join(scan.queue.parent_id for scan in self.scans if not scan.is_skipped)

    def policy(self, name: str, **values: object) -> None:
        cluster = self.ledger.clusters[name]
        self.ledger.put_cluster(replace(cluster, queue=replace(cluster.queue, **values)))

    def use(self, run_id: str, vnode_id: str, text: str) -> None:
        self.ledger.charge(
            run_id, vnode_id, self.ledger.capacities[vnode_id].choice(candidates.amounts(text))
        )

    def end_and_use(self, name: str) -> None:
        """Something comes free and is taken again, so that the same is free as before."""
        self.ledger.discharge(f"old-{name}")
        self.use("new", next(iter(self.ledger.members[name])), "1c")


FIXED = ("a < primary: n1=4c", "b < primary: n2=4c", "c < primary: n3=4c")
ELASTIC = ("a < primary [1c]: n1~1c", "b < primary [1c]: n2~1c", "c < primary: n3=4c")


def part_of(rounds: Rounds, cluster_id: str) -> str:
    return next(iter(rounds.ledger.members[cluster_id]))


def full(rounds: Rounds) -> Rounds:
    for name in "abc":
        rounds.use(f"old-{name}", part_of(rounds, name), "1c")
    if rounds.ledger.clusters["a"].spec.flexible:
        for node in ("n1", "n2"):
            rounds.use(f"beside-{node}", node, "1c")
    assert rounds.looked_at() == "abc"
    return rounds


EVENTS: dict[str, tuple[Callable[[Rounds], object], str]] = {
    "nothing": (lambda rounds: None, ""),
    "time": (lambda rounds: setattr(rounds, "now_ns", 599 * S), ""),
    "a job came": (lambda rounds: rounds.submit("b"), "b"),
    "a job left": (lambda rounds: rounds.queues["b"].drop(2), ""),
    "something came free and is in use again": (lambda rounds: rounds.end_and_use("a"), ""),
    "order": (lambda rounds: rounds.policy("b", order=FIFO), "b"),
    "weight": (lambda rounds: rounds.policy("b", weight=3), "b"),
    "a node drains": (lambda rounds: trees.change_node(rounds.ledger, "n1", state=DRAINING), "abc"),
    "limits": (lambda rounds: rounds.queues["c"].forget_verdicts(), "c"),
    "starvation": (lambda rounds: setattr(rounds, "now_ns", 700 * S), "abc"),
    "a running job": (
        lambda rounds: rounds.running.put(RunningJob(9, "a", "a", "r", "u", None)), "a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("event", EVENTS)
def test_only_where_something_has_happened(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    rounds = full(Rounds(monkeypatch, *FIXED))
    assert rounds.looked_at() == ""
    happens, seen = EVENTS[event]
    happens(rounds)
    assert rounds.looked_at() == seen
    if event != "starvation":
        assert rounds.looked_at() == ""


def test_where_something_came_free_for_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = full(Rounds(monkeypatch, *FIXED))
    rounds.ledger.discharge("old-a")
    rounds.scans.clear()
    plan = decide(rounds.ledger, rounds.queues, now_ns=rounds.now_ns, running=rounds.running)
    assert [start.job.parent_id for start in plan.starts] == ["a"]
    assert rounds.seen == "a"


def test_what_comes_free_above_concerns_all_that_can_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = full(Rounds(monkeypatch, *ELASTIC))
    assert rounds.looked_at() == ""
    rounds.ledger.discharge("beside-n2")
    assert rounds.looked_at() == "", "there are 2 free, and the jobs need 4"
    rounds.submit("a", size="3.5c")
    rounds.submit("b", size="3.5c")
    assert rounds.looked_at() == "ab"
    rounds.ledger.discharge("old-b")
    rounds.scans.clear()
    plan = decide(rounds.ledger, rounds.queues, now_ns=rounds.now_ns, running=rounds.running)
    assert rounds.seen == "b", "what came free is a part of its minimum"
    assert [start.job.parent_id for start in plan.starts] == ["b"]


def test_a_begin_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = full(Rounds(monkeypatch, *FIXED))
    rounds.submit("b", begin_at_ns=50 * S)
    assert rounds.looked_at() == "b"
    rounds.now_ns = 49 * S
    assert rounds.looked_at() == ""
    rounds.now_ns = 50 * S
    assert rounds.looked_at() == "b"


@pytest.mark.parametrize(
    "policy", [QueuePolicy(order=FAIR), QueuePolicy(preemption="requeue"), QueuePolicy(discipline=BACKFILL)]
)
def test_where_others_decide_about_the_turn_every_round_looks(
    monkeypatch: pytest.MonkeyPatch, policy: QueuePolicy
) -> None:
    """Shares, victims and reserved starts depend on more than a queue knows of itself."""
    rounds = Rounds(monkeypatch, *FIXED)
    cluster = rounds.ledger.clusters["b"]
    rounds.ledger.put_cluster(replace(cluster, queue=policy))
    rounds.running.put(RunningJob(9, "b", "b", "old-b", "u", 50 * S))
    full(rounds)
    assert rounds.looked_at() == "b"


def test_what_came_free_in_a_cluster_is_compared_with_few_of_many_shapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 60 shapes in a cluster that cannot grow, the first one takes what came free: the others need no look."""
    ledger, queue, asked = trees.tree("8c, 8c", "a < primary: n1=8c, n2=8c"), Queue("a"), []
    for node, vnode_id in (("n1", "a/0"), ("n2", "a/1")):
        ledger.charge(f"run on {node}", vnode_id, ledger.capacities[vnode_id].choice({"CPU": 80_000}))
    for number in range(1, 61):
        size = 75_000 if number == 1 else 60_000 + 300 * number
        job = PendingJob(
            number, f"j{number}", "a", str(size), one_piece({"CPU": size}), {}, submitted_at_ns=number
        )
        queue.put(job)
    help_ = queueing.could_help

    def counted(*args: Any) -> bool:
        asked.append(args)
        return help_(*args)

    monkeypatch.setattr(queueing, "could_help", counted)
    assert decide(ledger, {"a": queue}, now_ns=S).starts == () and not asked
    ledger.discharge("run on n1")
    (start,) = decide(ledger, {"a": queue}, now_ns=S, keeps=True).starts
    assert start.job.job_id == 1 and len(asked) <= 4
    queue.drop(1)
    assert decide(ledger, {"a": queue}, now_ns=S).is_empty and len(asked) <= 4
    ledger.discharge("run on n2")
    assert [start.job.job_id for start in decide(ledger, {"a": queue}, now_ns=S).starts] == [2]


def test_a_start_goes_ahead_of_the_rest_of_a_round_that_has_spent_enough() -> None:
    """Without a start the round goes on; what it has not come to is found by the next one."""
    clusters = [f"{name} < primary []" for name in "abc"]
    ledger, queues = trees.tree("4c, 4c", *clusters), {name: Queue(name) for name in "abc"}
    for number, (name, size) in enumerate([("a", "5c"), ("b", "4c"), ("c", "4c")], 1):
        gang = candidates.spec(f"PACK: {size}")
        queues[name].put(PendingJob(number, f"j{number}", name, size, gang, {}, submitted_at_ns=number))
    plan = decide(ledger, queues, now_ns=S, budget=Budget(2_500, 2_499), keeps=True)
    assert [start.job.job_id for start in plan.starts] == [2] and plan.unsearched and not plan.stalled
    queues["b"].drop(2)
    plan = decide(ledger, queues, now_ns=S, budget=Budget(2_500))
    assert [start.job.job_id for start in plan.starts] == [3] and not plan.unsearched


def test_what_grows_for_a_start_counts_in_the_budget_of_the_round() -> None:
    """A step that starts gangs in elastic clusters writes twice as much as another one with as many virtual nodes."""
    spent = []
    for cluster in ("a < primary: n1~4c, n2~4c, n3~4c", "a < primary []"):
        ledger, queue, budget = trees.tree("4c, 4c, 4c", cluster), Queue("a"), Budget(1_000)
        queue.put(PendingJob(1, "j1", "a", "gang", candidates.spec("SPREAD: 4c, 4c, 4c"), {}))
        (start,) = decide(ledger, {"a": queue}, now_ns=S, budget=budget).starts
        assert len(start.growth) == (3 if cluster.endswith("[]") else 0) and budget.remaining is not None
        spent.append(1_000 - budget.remaining)
    assert spent[1] - spent[0] >= 2 * GROWTH
