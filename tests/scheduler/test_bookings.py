"""What a booking means for jobs that wait: a table, and 500 random bookings beside random loads."""

from __future__ import annotations

import random

import pytest

from tests.scheduler.test_disciplines import jobs, policy
from tests.scheduler.trace import Given, Trace
from tests.specification import spec
from vctl.core import jobs as jb
from vctl.core.clusters import (
    ACTIVE,
    BOOKED,
    LOGICAL,
    MARGIN_NS,
    PRIMARY,
    Booking,
    Cluster,
    ClusterSpec,
    FixedNode,
    Group,
)
from vctl.core.queue_policy import SECOND
from vctl.core.resources import CPU, SCALE
from vctl.core.values import replace
from vctl.scheduler.bookings import place_of_booking
from vctl.scheduler.placement import Unplaced

pytestmark = spec("19.booking")
MARGIN = MARGIN_NS // SECOND
NONE = Cluster("none", PRIMARY, LOGICAL, ClusterSpec(), state=BOOKED)


def cpus(count: int) -> ClusterSpec:
    """One virtual node with so many CPUs."""
    return ClusterSpec(groups=(Group((FixedNode({CPU: count * SCALE}),)),), flexible=False)


def book(trace: Trace, name: str, wanted: ClusterSpec, begin: int, end: int) -> bool:
    """Book on the primary from second to second; False: these resources cannot be had then."""
    ledger, span = trace.ledger, (begin * SECOND, end * SECOND)
    parts = place_of_booking(ledger, trace.player.running, PRIMARY, wanted, span, trace.player.now_ns)
    if isinstance(parts, Unplaced):
        return False
    ledger.put_cluster(
        Cluster(name, PRIMARY, LOGICAL, wanted, divisible=True, state=BOOKED, booking=Booking(*span, parts))
    )
    return True


CASES = {
    "a job that ends before it uses its place": (
        "fifo best-effort", 4, (2, 100, 200), "a:4c80s", {"a": 0}),
    "a job that could overlap it waits, though it would not": (
        "fifo best-effort", 4, (2, 100, 200), "a:4c10s/-", {"a": 200}),
    "a limit up to the begin is too long: its end takes a moment": (
        "fifo best-effort", 4, (2, 100, 200), f"a:4c100s b:4c{100 - MARGIN}s", {"b": 0, "a": 200}),
    "what is not booked is free to everybody": (
        "fifo best-effort", 4, (2, 100, 200), "a:2c300s/- b:2c300s/-", {"a": 0, "b": 200}),
    "what short jobs return in time need not be kept free": (
        "fifo best-effort", 8, (4, 100, 200), "a:4c50s b:4c300s/-", {"a": 0, "b": 0}),
    "strict: a head that would overlap it blocks": (
        "fifo strict", 4, (4, 100, 200), "a:4c10s/- b:1c10s", {"a": 200, "b": 210}),
    "backfill: the reserved start of a head is after it": (
        "fifo backfill", 4, (4, 100, 200), "a:3c90s h:4c90s b:1c80s c:1c95s", {"a": 0, "b": 0, "h": 200, "c": 290}),
    "backfill: a head beside it starts in what is not booked": (
        "fifo backfill", 4, (2, 100, 200), "a:3c50s h:2c900s b:1c90s", {"a": 0, "b": 0, "h": 50}),
    "a starved head beside it": (
        "fifo best-effort starve=60", 4, (2, 100, 200), "a:3c70s h:2c90s/- b:1c10s", {"a": 0, "b": 0, "h": 70}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_jobs_beside_a_booking(case: str) -> None:
    order, size, (count, begin, end), text, expected = CASES[case]
    trace = Trace(1, size, policy(order))
    assert book(trace, "demo", cpus(count), begin, end)
    opened: list[int] = []
    trace.play(
        jobs(text),
        each=lambda: opened.extend([trace.now] * (trace.ledger.clusters.get("demo", NONE).state == ACTIVE)),
    )
    assert trace.started == expected
    assert opened[0] == begin
    assert "demo" not in trace.ledger.clusters


def test_a_job_in_the_booked_cluster_starts_at_its_begin_and_ends_with_it() -> None:
    trace = Trace(1, 4, policy("fifo best-effort"))
    assert book(trace, "demo", cpus(2), 100, 200)
    inside = [Given("in", 2, 500, cluster="demo"), Given("late", 2, 10, at=150, cluster="demo")]
    trace.play(inside, until=99)
    assert trace.waits == {"2x1": (jb.BEGIN_TIME, "demo is booked from 1970-01-01T00:01:40.000000Z on")}
    trace.play([])
    ends = {one.arrival.job.submission_id: (one.end_ns or 0) // SECOND for one in trace.player.jobs.values()}
    assert (trace.started, ends["in"]) == ({"in": 100}, 200)


def test_two_bookings_of_the_same_resources_follow_each_other() -> None:
    trace = Trace(1, 4, policy("fifo best-effort"))
    assert book(trace, "noon", cpus(3), 100, 200)
    assert not book(trace, "too-much", cpus(2), 150, 250)
    assert book(trace, "beside", cpus(1), 150, 250)
    assert book(trace, "after", cpus(3), 200, 300)
    trace.play(jobs("short:4c90s long:3c90s/-@10 last:1c10s/-@10"))
    assert trace.started == {"short": 0, "long": 300, "last": 250}


def test_a_running_job_without_a_limit_keeps_its_place() -> None:
    trace = Trace(1, 4, policy("fifo best-effort"))
    trace.play(jobs("ever:2c9999s/- soon:1c50s"), until=1)
    assert not book(trace, "now", cpus(2), 30, 60)
    assert not book(trace, "more", cpus(3), 100, 200)
    assert book(trace, "then", cpus(2), 100, 200)


@pytest.mark.parametrize("seed", range(25))
def test_random_bookings_beside_random_loads(seed: int) -> None:
    """Each booking opens at its begin, nobody is in its way, and nobody waits for ever."""
    Load(seed).check()


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_many_random_bookings_beside_random_loads(first: int) -> None:
    loads = [Load(seed) for seed in range(first, first + 50)]
    for load in loads:
        load.check()
    assert sum(load.bookings for load in loads) > 50
    used, drained = sum(load.used for load in loads), sum(load.drained for load in loads)
    assert used > drained * 1.05, "backfill uses the time before the begins"


class Load:
    """A random cluster, jobs and bookings. ``check`` plays them, and looks at each moment."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes, self.cpus = self.random.randint(1, 4), self.random.choice((4, 8))
        order = self.random.choice(("fifo", "priority", "fair"))
        discipline = self.random.choice(
            ("strict", "best-effort", "best-effort starve=60", "backfill depth=3")
        )
        self.policy = policy(f"{order} {discipline}")
        self.jobs = [self._job(number) for number in range(60)]
        self.wanted = [self._wish(number) for number in range(4)]
        self.bookings = 0
        self.used = self.drained = 0
        """The CPU seconds of jobs that end before the last begin, beside bookings and beside places that are held."""

    def _job(self, number: int) -> Given:
        runs = self.random.choice((5, 20, 60, 200))
        limit = self.random.choice((runs, runs, 2 * runs, None))
        size = self.random.randint(1, self.cpus)
        nodes = self.random.choice((1, 1, 1, self.nodes))
        user, priority = self.random.choice("ab"), self.random.choice((0, 0, 5))
        return Given(f"j{number}", size, runs, nodes, self.random.randint(0, 500), limit, priority, user)

    def _wish(self, number: int) -> tuple[int, str, ClusterSpec, int, int]:
        """When it is booked, its name, what, and from when to when."""
        at = self.random.randint(0, 300)
        begin = at + self.random.choice((10, 50, 200, 400))
        count = self.random.randint(1, self.nodes)
        pieces = (FixedNode({CPU: self.random.randint(1, self.cpus) * SCALE}),) * count
        wanted = ClusterSpec(
            groups=(Group(pieces, "STRICT_SPREAD" if count > 1 else "PACK"),), flexible=False
        )
        return at, f"b{number}", wanted, begin, begin + self.random.choice((20, 100, 300))

    def check(self) -> None:
        trace = Trace(self.nodes, self.cpus, self.policy)
        trace.player.play(
            [trace._arrival(job, job.at) for job in sorted(self.jobs, key=lambda job: job.at)],
            each=lambda: self._look(trace),
        )
        ends = [one for one in trace.player.jobs.values() if one.end_ns is not None]
        assert len(ends) == len(self.jobs), "nobody waits for ever"
        self.used, booked = self._work(trace), self.bookings
        drained = Trace(self.nodes, self.cpus, self.policy)
        drained.player.play(
            [drained._arrival(job, job.at) for job in sorted(self.jobs, key=lambda job: job.at)],
            each=lambda: self._drain(drained),
        )
        self.drained, self.bookings = self._work(drained), booked

    def _book(self, trace: Trace) -> None:
        for at, name, wanted, begin, end in self.wanted:
            if at <= trace.now and name not in self._tried(trace):
                self._tried(trace).add(name)
                self.bookings += begin > trace.now and book(trace, name, wanted, begin, end)

    def _look(self, trace: Trace) -> None:
        """Book what is due. Each place is free at its begin, and no job is on it that could be in its way."""
        self._book(trace)
        now_ns = trace.player.now_ns
        for name, cluster in trace.ledger.clusters.items():
            if cluster.booking is None:
                continue
            if cluster.booking.begin_ns <= now_ns:
                assert cluster.state == ACTIVE, f"{name} is late"
            else:
                self._check_place(trace, cluster.booking)

    def _tried(self, trace: Trace) -> set[str]:
        return vars(trace).setdefault("tried", set())

    def _check_place(self, trace: Trace, booking: Booking) -> None:
        """What is free and what jobs surely return before the begin is enough for the booking."""
        for part in booking.parts:
            free = trace.ledger.vnodes[part.parent_vnode_id].allocation.amounts[CPU]
            for child_id in trace.ledger.children[part.parent_vnode_id]:
                child = trace.ledger.vnodes[child_id]
                other = trace.ledger.clusters[child.cluster_id]
                job = trace.player.running.jobs.get(int(other.job or 0))
                closes = other.booking.end_ns if other.booking else None
                ends = closes if job is None else job.ends_at_ns
                if ends is None or ends > booking.begin_ns:
                    free -= child.allocation.amounts[CPU]
            assert free >= part.allocation.amounts[CPU]

    def _drain(self, trace: Trace) -> None:
        """Let every place be taken from the moment in which it is booked, as soon as it is free."""
        now_ns = trace.player.now_ns
        self._book(trace)
        for name in sorted(trace.ledger.timed):
            cluster = trace.ledger.clusters[name]
            if cluster.state == BOOKED and cluster.booking is not None and cluster.booking.begin_ns > now_ns:
                trace.ledger.put_cluster(replace(cluster, booking=replace(cluster.booking, begin_ns=now_ns)))

    def _work(self, trace: Trace) -> int:
        last = max(begin for _, _, _, begin, _ in self.wanted)
        return sum(
            len(one.arrival.job.spec.fixed) * (one.end_ns - one.start_ns) // SECOND
            for one in trace.player.jobs.values()
            if one.end_ns is not None and one.start_ns is not None and one.end_ns <= last * SECOND
        )
