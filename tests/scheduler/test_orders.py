"""Whose turn it is: the orders as a table, and fair shares under permanent backlog."""

from __future__ import annotations

import random

import pytest

from tests.scheduler.trace import Given, Trace, used
from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.queue_policy import FAIR, FIFO, LONGEST, OFF, PRIORITY, SECOND, SHORTEST, QueuePolicy
from vctl.core.resources import CPU, SCALE
from vctl.core.values import replace
from vctl.scheduler.fairness import Shares, order_of_starts
from vctl.scheduler.orders import ORDERS, order_key
from vctl.scheduler.queueing import Queue

pytestmark = spec("8.orders")

CASES = {
    "fifo: by arrival, whatever the priority": (FIFO, None, "a+0@0 b+5@1 c+1@2", "abc"),
    "priority: higher first": (PRIORITY, None, "a+0@0 b+5@1 c+1@2", "bca"),
    "priority: equals by arrival": (PRIORITY, None, "a+1@0 b+1@1 c+1@2", "abc"),
    "priority: negative ones last": (PRIORITY, None, "a-1@0 b+0@1", "ba"),
    "ageing: who waited two steps passes one that is one step higher": (PRIORITY, 60, "a+0@0 b+1@120", "ab"),
    "ageing: who waited less than the step does not": (PRIORITY, 60, "a+0@0 b+1@59", "ba"),
    "ageing: equal after exactly one step, then by arrival": (PRIORITY, 60, "a+0@0 b+1@60", "ab"),
    "fair: among the jobs of one user as by priority": (FAIR, None, "a+0@0 b+5@1 c+1@2", "bca"),
    "longest: the longest time limit first": (LONGEST, None, "a+0@0<60 b+0@1<3600 c+0@2<600", "bca"),
    "longest: no time limit is longer than any": (LONGEST, None, "a+0@0<999999999 b+0@1", "ba"),
    "longest: equals by arrival": (LONGEST, None, "a+0@0<60 b+0@1<60 c+0@2 d+0@3", "cdab"),
    "longest: priority before length": (LONGEST, None, "a+0@0 b+1@1<1 c-1@2", "bac"),
    "shortest: the shortest time limit first": (SHORTEST, None, "a+0@0<60 b+0@1<3600 c+0@2<6", "cab"),
    "shortest: without a time limit last": (SHORTEST, None, "a+0@0 b+0@1<999999999", "ba"),
    "shortest: priority before length": (SHORTEST, None, "a+0@0<1 b+1@1 c-1@2<1", "bac"),
}


def job(number: int, text: str) -> PendingJob:
    """'b+5@1<60' is job b of priority 5, submitted at second 1, with a time limit of 60 seconds."""
    rest, _, limit = text[1:].partition("<")
    priority, _, at = rest.partition("@")
    return PendingJob(
        number, text[0], PRIMARY, "shape", ClusterSpec(), {}, int(priority), submitted_at_ns=int(at) * SECOND,
        time_limit_ns=int(limit) * SECOND if limit else None,
    )  # fmt: skip


@pytest.mark.parametrize(("order", "ageing", "given", "want"), CASES.values(), ids=CASES)
def test_who_goes_first(order: str, ageing: int | None, given: str, want: str) -> None:
    policy = QueuePolicy(order, ageing_ns=None if ageing is None else ageing * SECOND)
    found = [job(number, text) for number, text in enumerate(given.split())]
    assert "".join(one.submission_id for one in sorted(found, key=lambda j: order_key(j, policy))) == want


def test_every_order_is_in_the_table() -> None:
    assert {order for order, *_ in CASES.values()} == set(ORDERS)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("by_user", [None, 2])
@pytest.mark.parametrize("preempts", [False, True])
def test_a_queue_filed_at_once_is_the_queue_filed_one_by_one(
    order: str, by_user: int | None, preempts: bool
) -> None:
    """A scheduler files what waits at its start in one go, and after new settings (spec 10)."""
    chance = random.Random(7)
    policy = QueuePolicy(order, max_running_per_user=by_user, preemption="requeue" if preempts else OFF)
    jobs = [
        PendingJob(
            number, f"j{number}", PRIMARY, chance.choice("xyz"), ClusterSpec(), {}, chance.randrange(-2, 3),
            begin_at_ns=chance.choice((None, None, 5)), user=chance.choice("uv"),
            submitted_at_ns=chance.randrange(99), time_limit_ns=chance.choice((None, 60, 3600)),
        )
        for number in range(200)
    ]  # fmt: skip
    chance.shuffle(jobs)
    one_by_one, at_once, anew = Queue(PRIMARY, policy), Queue(PRIMARY, policy), Queue(PRIMARY)
    for job in jobs:
        one_by_one.put(job)
    at_once.put_all({job.job_id: job for job in jobs[:150]})
    at_once.put_all({job.job_id: job for job in jobs[150:]})
    anew.put_all({job.job_id: job for job in jobs})
    anew.arrange(policy)
    want = filed(one_by_one)
    assert sum(len(sub_queue) for sub_queue in want.values()) == 200
    assert filed(at_once) == filed(anew) == want
    assert at_once.timed == anew.timed == one_by_one.timed != set()


def filed(queue: Queue) -> dict[tuple[str, object], list[tuple[int, int]]]:
    """The sub-queues of a queue, in order."""
    return {
        (name, key): sub_queue.order
        for name, shape in queue.shapes.items()
        for key, sub_queue in shape.sub_queues.items()
    }


def test_users_take_turns_by_what_they_hold() -> None:
    trace = Trace(1, 6, QueuePolicy(FAIR))
    trace.submit(Given("a1", 2, 100, user="a"))
    for name in ("a2", "a3", "b1", "b2"):
        trace.submit(Given(name, 1, 100, user=name[0]))
    assert trace.round() == ["a1", "b1", "b2", "a2", "a3"]


def test_users_take_turns_also_where_an_elastic_cluster_has_nothing_yet() -> None:
    """Nobody's share of nothing is 0: shares count as parts of what the cluster above has, at every level."""
    trace = Trace(1, 4, QueuePolicy())
    for name, parent in (("outer", PRIMARY), ("inner", "outer")):
        trace.share(name, 1, parent)
        cluster = trace.ledger.clusters[name]
        trace.ledger.put_cluster(replace(cluster, queue=QueuePolicy(FAIR)))
    for user in "ab":
        for number in range(4):
            trace.submit(Given(f"{user}{number}", 1, 100, user=user, cluster="inner"))
    assert trace.round() == ["a0", "b0", "a1", "b1"]


def test_who_waits_for_a_time_earns_no_credit() -> None:
    """Only who competes gets lag: a job that begins later does not compete until then."""
    trace = Trace(1, 2, QueuePolicy(FAIR))
    trace.submit(Given("a", 2, 500, user="a"))
    for user, begin_at in (("a", None), ("b", 200), ("c", None)):
        trace.submit(Given(f"{user}-next", 1, 1, user=user), begin_at=begin_at)
    trace.round()
    competing = {user for *_, user in trace.player.usage.waiting}
    assert competing == {"a", "c"}
    trace.player.now_ns = 200 * SECOND
    trace.round()
    assert {user for *_, user in trace.player.usage.waiting} == {"a", "b", "c"}
    assert (PRIMARY, "", "b") not in trace.player.usage.lag


@pytest.mark.parametrize("seed", range(20))
def test_turns_told_ahead_are_the_turns_of_a_round(seed: int) -> None:
    """In any past, with jobs of any size: a round that has room for all starts the jobs in this order."""
    dice = random.Random(seed)
    trace = Trace(60, 16, QueuePolicy(FAIR, half_life_ns=dice.choice((None, 100 * SECOND))))
    users = "abcd"
    for number in range(dice.randrange(8)):
        trace.submit(Given(f"past{number}", dice.choice((1, 5)), 10, user=dice.choice(users)))
        trace.player.now_ns += dice.choice((0, 3, 40)) * SECOND
        trace.round()
    usage = trace.player.usage
    usage.lag |= {(PRIMARY, "", user): dice.uniform(-0.05, 0.05) for user in users if dice.random() < 0.5}
    for number in range(40):
        trace.submit(
            Given(
                f"j{number}",
                dice.choice((1, 2, 7)),
                10,
                user=dice.choice(users),
                priority=dice.choice((0, 0, 1)),
            )
        )
    usage.advance(trace.ledger, trace.player.now_ns)
    waiting = trace.queues[PRIMARY].jobs.values()
    asked = {job.job_id: {CPU: int(job.shape.partition("x")[0]) * SCALE} for job in waiting}
    reported = order_of_starts(
        Shares(trace.ledger, trace.player.running, usage),
        PRIMARY,
        [(job, asked[job.job_id]) for job in waiting],
    )
    assert trace.round() == [job.submission_id for job, _ in reported]


def test_new_settings_reorder_a_queue_at_once() -> None:
    trace = Trace(1, 1, QueuePolicy(FIFO))
    for name, priority in (("now", 0), ("low", 0), ("high", 9)):
        trace.submit(Given(name, 1, 10, priority=priority))
    assert trace.round() == ["now"]
    trace.ledger.set_primary_queue(QueuePolicy(PRIORITY))
    trace.end(1)
    assert trace.round() == ["high"]


def test_half_life_remembers_who_used_the_cluster() -> None:
    """Without it only the present counts, and who arrived first would go first."""
    firsts = {}
    for half_life in (None, 600):
        trace = Trace(1, 4, QueuePolicy(FAIR, half_life_ns=None if half_life is None else half_life * SECOND))
        trace.play([Given("past", 4, 600, user="heavy")])
        trace.play([Given("h", 4, 5, user="heavy", at=700), Given("l", 4, 5, user="light", at=700)])
        firsts[half_life] = min(("h", "l"), key=trace.started.__getitem__)
    assert firsts == {None: "h", 600: "l"}


@pytest.mark.not_fast("takes seconds")
def test_siblings_keep_to_their_weights() -> None:
    """Four clusters of weights 1:2:3:4, always backlogged: each within 5 % of its share over every hour."""
    trace = Trace(5, 8, QueuePolicy(FAIR))
    weights = {f"w{weight}": weight for weight in (1, 2, 3, 4)}
    for name, weight in weights.items():
        trace.share(name, weight)
    held: dict[int, dict[str, int]] = {}
    last = 0
    number = 0

    def each() -> None:
        nonlocal last, number
        hour, now = last // 3600, used(trace)
        for name, amount in now.items():
            spent = held.setdefault(hour, {})
            spent[name] = spent.get(name, 0) + amount * (trace.now - last)
        last = trace.now
        for name in weights:
            while len(trace.queues[name].jobs if name in trace.queues else ()) < 40:
                number += 1
                trace.submit(Given(f"{name}-{number}", 1, 60 + number * 37 % 240, cluster=name))

    trace.play([Given("first", 1, 1)], until=2 * 3600 + 600, each=each)
    for hour in (0, 1):
        spent = held[hour]
        everything = sum(spent.values())
        for name, weight in weights.items():
            assert abs(spent[name] / everything - weight / 10) <= 0.05 * weight / 10, (hour, spent)
