"""Conservative backfill keeps its word: on random machines and jobs nobody starts after the first reserved start."""

from __future__ import annotations

from random import Random

import pytest

from tests.scheduler import candidates as g
from tests.scheduler.trace import Given, Trace
from tests.specification import spec
from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import INFEASIBLE, PendingJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.queue_policy import BACKFILL, BEST_EFFORT, FIFO, PRIORITY, SECOND, QueuePolicy
from vctl.core.resources import CPU, GPU, SCALE
from vctl.core.values import replace
from vctl.scheduler.availability import parts_of
from vctl.scheduler.cycle import decide
from vctl.scheduler.placement import Placed, place
from vctl.scheduler.queueing import Queue
from vctl.scheduler.reservations import FOR_EVER, Reservation
from vctl.scheduler.running import allocations_of
from vctl.simulate.play import Played, Player
from vctl.simulate.workload import Arrival, in_order, rigid, shape_name

pytestmark = spec("8.disciplines")

NEVER = 10**9 * SECOND


def machine(random: Random, policy: QueuePolicy) -> Ledger:
    """One to four nodes with 2 or 4 CPUs, some with GPUs, of two templates."""
    ledger = Ledger()
    for number in range(random.randint(1, 4)):
        have = {CPU: random.choice([2, 4]) * SCALE}
        if random.random() < 0.6:
            have[GPU] = random.choice([1, 2]) * SCALE
        template = "b" if random.random() < 0.15 else "a"
        ledger.put_node(Node(f"n{number}", template, rs.whole_node(have), f"n{number}", {}))
    ledger.set_primary_queue(policy)
    return ledger


def arrival(random: Random, number: int, *, all_limited: bool) -> Arrival:
    """A gang, a share of a device, or whole nodes; it may end long before its limit, or have none."""
    if random.random() < 0.15:
        count = random.randint(1, 2)
        spec, shape = ClusterSpec(replica_sets={"a": count}, flexible=False), f"whole{count}"
    else:
        each = {}
        if random.random() < 0.8:
            each[CPU] = random.choice([1, 1, 2, 3, 4]) * SCALE
        if random.random() < 0.5 or not each:
            each[GPU] = random.choice([SCALE // 4, SCALE // 2, SCALE // 2, 3000, SCALE, SCALE, 2 * SCALE])
        count = random.choice([1, 1, 2, 3])
        policy = random.choice(["PACK", "SPREAD", "STRICT_SPREAD", "STRICT_PACK"])
        spec, shape = rigid(count, each, policy), shape_name(count, each, policy)
    runs = random.randint(1, 30)
    limit = runs + random.choice([0, 0, 3, 10, 20, 40])
    if not all_limited and random.random() < 0.15:
        limit = None
    job = PendingJob(
        number, f"j{number}", PRIMARY, shape, spec, {}, submitted_at_ns=random.randint(0, 40) * SECOND,
        time_limit_ns=None if limit is None else limit * SECOND,
    )  # fmt: skip
    return Arrival(job, runs * SECOND)


def check_room(player: Player) -> None:
    """Running jobs until their limits and all reservations with a start fit together at every moment.

    Counted anew from the allocations, amount by amount and instance by instance.
    """
    ledger, now = player.ledger, player.now_ns
    spans: list[tuple[int, int, str, dict[object, int]]] = []
    for job in player.running.jobs.values():
        end = FOR_EVER if job.ends_at_ns is None else max(job.ends_at_ns, now + 1)
        spans += [(now, end, vnode, parts_of(held)) for vnode, held in allocations_of(ledger, job)]
    for one in player.queues[PRIMARY].kept.values() if PRIMARY in player.queues else ():
        if one.start_ns is not None:
            for piece in one.placed.pieces:
                end = one.end_ns or FOR_EVER
                spans.append((max(one.start_ns, now), end, piece.parent_vnode_id, parts_of(piece.allocation)))
    for moment in {span[0] for span in spans}:
        used: dict[tuple[str, object], int] = {}
        for start, end, vnode, parts in spans:
            if start <= moment < end:
                for part, amount in parts.items():
                    used[vnode, part] = used.get((vnode, part), 0) + amount
        for (vnode, part), amount in used.items():
            assert amount <= parts_of(ledger.vnodes[vnode].allocation).get(part, 0), (vnode, part, moment)


def late(played: list[Played]) -> list[tuple[str, int, int]]:
    return [
        (one.arrival.job.submission_id, one.start_ns, one.reserved_ns)
        for one in played
        if one.reserved_ns is not None and one.start_ns is not None and one.start_ns > one.reserved_ns
    ]


@pytest.mark.not_fast("takes seconds")
@pytest.mark.parametrize("block", range(12))
@pytest.mark.parametrize("order", [FIFO, PRIORITY])
def test_nobody_starts_after_the_first_reserved_start(block: int, order: str) -> None:
    """600 random traces (300 an order), one to five reservations, half of them with jobs that have no limit."""
    reserved = 0
    for seed in range(25 * block, 25 * (block + 1)):
        random = Random(f"{order}-{seed}")
        policy = QueuePolicy(
            order, BACKFILL, backfill_depth=random.randint(1, 5),
            starvation_after_ns=random.choice([20 * SECOND, NEVER]),
        )  # fmt: skip
        player = Player(machine(random, policy))
        arrivals = [arrival(random, n, all_limited=seed % 2 == 0) for n in range(1, random.randint(4, 25))]
        played = player.play(in_order(arrivals), each=lambda player=player: check_room(player))
        assert late(played) == [], seed
        assert {one.reason for one in played if one.start_ns is None} <= {INFEASIBLE}, seed
        reserved += sum(one.reserved_ns is not None for one in played)
    assert reserved > 20


def test_an_earlier_head_does_not_move_onto_a_later_one() -> None:
    """``a`` ends at 10, long before its limit: ``g`` could start when ``b`` ends, but that was promised to ``h``."""
    trace = Trace(1, 4, QueuePolicy(FIFO, BACKFILL, backfill_depth=2))
    trace.play(
        [
            Given("a", 2, 10, limit=100), Given("b", 2, 20, limit=20), Given("g", 4, 30, limit=30),
            Given("h", 2, 60, limit=60),
        ]
    )  # fmt: skip
    assert trace.first_reserved == {"g": 100, "h": 20}
    assert trace.started == {"a": 0, "b": 0, "h": 10, "g": 70}


def test_a_higher_priority_voids_what_was_reserved_for_a_lower_one() -> None:
    trace = Trace(1, 4, QueuePolicy(PRIORITY, BACKFILL))
    trace.play(
        [
            Given("now", 4, 10, limit=10),
            Given("low", 4, 10, limit=10, at=1),
            Given("high", 4, 10, limit=10, at=2, priority=5),
        ]
    )
    assert trace.first_reserved == {"low": 10, "high": 10}
    assert trace.started == {"now": 0, "high": 10, "low": 20}


def test_arrivals_of_the_same_priority_void_nothing() -> None:
    trace = Trace(1, 4, QueuePolicy(PRIORITY, BACKFILL))
    late_ones = [Given(f"s{n}", 1, 8, limit=8, at=n) for n in range(1, 40)]
    trace.play([Given("now", 3, 10, limit=10), Given("head", 4, 10, limit=10), *late_ones])
    assert trace.first_reserved["head"] == 10
    assert trace.started["head"] == 10


def test_what_a_fallen_reservation_has_kept_off_starts_in_the_same_turn() -> None:
    """It was tried before that fell, since it is ahead; the next event may come much later."""
    trace = Trace(1, 8, QueuePolicy(discipline=BACKFILL, backfill_depth=1))
    trace.submit(Given("x", 4, 20, limit=20))
    trace.submit(Given("narrow", 2, 30, limit=30), begin_at=1)
    trace.submit(Given("wide", 8, 10, limit=10))
    assert trace.round() == ["x"]
    trace.play([Given("first", 5, 10, limit=10, at=2, priority=5)], until=2)
    assert trace.first_reserved == {"wide": 20, "narrow": 30, "first": 20}
    assert trace.started == {"x": 0, "narrow": 2}


@pytest.mark.parametrize("seed", range(40))
def test_a_starved_head_starts_under_an_endless_stream(seed: int) -> None:
    """Best-effort, no limits: once it starves, only what runs then comes before it."""
    random = Random(seed)
    nodes, cpus, starve, longest = random.randint(1, 4), random.choice([2, 4]), 30, 25
    policy = QueuePolicy(random.choice([FIFO, PRIORITY]), BEST_EFFORT, starvation_after_ns=starve * SECOND)
    trace = Trace(nodes, cpus, policy)
    first, head = Given("first", 1, longest), Given("head", cpus, 5, nodes)
    stream = [
        Given(f"s{n}", random.randint(1, cpus), random.randint(5, longest), at=1 + n // 2) for n in range(300)
    ]
    trace.play([first, head, *stream], until=120)
    assert trace.started["head"] <= starve + longest
    overtook = [name for name, at in trace.started.items() if name[0] == "s" and at < trace.started["head"]]
    assert overtook


def test_of_two_heads_that_starved_only_the_first_keeps_its_reservation() -> None:
    """Spec 8: each kept the other one from starting, for ever, on an idle machine; a kill of the scheduler helped."""
    ledger, queue = g.ledger("2c"), Queue(PRIMARY)
    for number in (1, 2):
        job = PendingJob(number, f"j{number}", PRIMARY, "PACK: 2c", g.spec("PACK: 2c"), {})
        queue.put(job)
        placed = place(ledger, PRIMARY, job.spec, job.entry)
        assert isinstance(placed, Placed)
        queue.kept[number] = replace(Reservation.of(job, None, placed), start_ns=None, end_ns=None)
    plan = decide(ledger, {PRIMARY: queue}, now_ns=0)
    assert [start.job.job_id for start in plan.starts] == [1]
