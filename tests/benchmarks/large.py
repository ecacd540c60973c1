"""Many nodes, queues, jobs and shapes: the pieces of a scheduler's work, and what a command there costs.

The scheduler runs in this process, turn by turn; its nodes are simulated, its jobs are real processes. Each queue has
one gang that holds most of its nodes, and some jobs of one node that end one after the other.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

from tests.benchmarks.bed import Bed, bed
from tests.benchmarks.report import Report
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import SCALE
from vctl.daemon.collection import Collection
from vctl.daemon.scheduler import Scheduler
from vctl.ops import clusters, jobs, nodes, submitting, why
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.shape import shape_key
from vctl.store import observed
from vctl.store.store import Store

SIZES = {"S": (1_000, 20, 5_000, 1_000), "L": (10_000, 200, 50_000, 10_000)}
"""Nodes, queues, waiting jobs, shapes."""
ENDS, IDLE_TURNS, SAMPLES = 5, 5, 10
POLICIES: dict[str, dict[str, object]] = {
    "priority": {"order": "priority", "discipline": "best-effort"},
    "fifo, strict": {"order": "fifo", "discipline": "strict"},
    "backfill": {"order": "priority", "discipline": "backfill"},
    "fair": {"order": "fair", "discipline": "best-effort"},
}
WHOLE = {"CPU": 8 * SCALE, "memory": 16 * (1 << 30) * SCALE}
HOLD = ("sleep", "100000")
QUIET_S, PATIENCE_S = 0.05, 600.0


def run(options: argparse.Namespace) -> Report:
    """All figures at S. ``--row L`` measures at L, too, which takes minutes; another text: only that kind."""
    report = Shown("large: many queues and shapes")
    row = options.row or ""
    kinds = [one for one in ("whole nodes", "elastic", "one cluster") if row in (one, "L", "")]
    for name in ["S", "L"] if row == "L" else ["S"]:
        size = SIZES[name]
        report.remark(f"{name}: {size[0]} nodes, {size[1]} queues, {size[2]} waiting jobs, {size[3]} shapes")
        for kind in kinds:
            with bed() as place:
                if kind != "one cluster":
                    measure(report, f"{name}, {kind}", place, size, is_elastic=kind == "elastic")
                elif name == "S":
                    one_cluster(report, place)
    return report


class Shown(Report):
    """A report that shows each figure as soon as it is known."""

    def add(self, name: str, unit: str, samples: float | Sequence[float], *, base: str | None = None) -> None:
        super().add(name, unit, samples, base=base)
        figure = self.figures[-1]
        say(f"{name}: {figure.median:.1f} {unit} (at most {figure.p99:.1f})")


def say(text: str) -> None:
    """Progress, beside the report."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def one_piece(cpu: int, memory: int = 0) -> ClusterSpec:
    """A job of one node; amounts in 1/10000 units."""
    amounts = {"CPU": cpu} | ({"memory": memory} if memory else {})
    return ClusterSpec(groups=(Group((FixedNode(amounts),)),), flexible=False)


def submit(store: Store, cluster: str, spec: ClusterSpec, priority: int = 0, user: str | None = None) -> str:
    request = JobRequest(
        argv=HOLD, cluster=cluster, spec=spec, cwd="/", priority=priority, time_limit_s=86_400.0
    )
    return str(submitting.submit(store, request, environment={"PATH": os.environ["PATH"]})["submission_id"])


@dataclass
class Place:
    """A state of one size, and the jobs of one node that are to end, by queue."""

    store: Store
    queues: list[str]
    blocks: dict[str, list[str]]


def build(place: Bed, size: tuple[int, int, int, int], *, is_elastic: bool) -> Place:
    """Nodes, queues, what holds them, and the waiting jobs."""
    many, queues, waiting, kinds = size
    dice = random.Random(1)
    store = Store.open(place.home)
    nodes.add(store, resources=WHOLE, count=many, template="8c16g")
    each, names = many // queues, [f"q{number:03}" for number in range(queues)]
    for name in names:
        if is_elastic:
            clusters.create(store, name, ClusterChange(divisible=True, spec=ClusterSpec(flexible_min={})))
        else:
            clusters.create(store, name, ClusterChange(divisible=True, replica_sets={"8c16g": each}))
    blocks = {name: [submit(store, name, one_piece(8 * SCALE), 2) for _ in range(ENDS)] for name in names}
    for name in names:
        gang = ClusterSpec(
            groups=(Group((FixedNode(WHOLE),) * (each - ENDS), "STRICT_SPREAD"),), flexible=False
        )
        submit(store, name, gang, 1)
    sizes = [
        one_piece(dice.randint(1, 80) * SCALE // 10, dice.randint(1, 900) * (1 << 24) * SCALE)
        for _ in range(kinds)
    ]
    with store.together():  # one commit, and nobody judges whether these shapes fit: all of them do
        for name in names:
            for one in sizes:
                observed.set_feasible(store, name, shape_key(one, {}), observed.capacity(store))
        for _ in range(waiting):
            submit(store, dice.choice(names), dice.choice(sizes))
    return Place(store, names, blocks)


class Pieces:
    """Runs a scheduler; notes how long each piece of its work takes, in ms. Between two it answers commands."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.pieces: list[float] = []
        self.ended_at = 0.0
        """When the awaited condition held first, at the end of a piece."""
        self._awaited: Callable[[], bool] = lambda: False
        turn: Any = scheduler.work
        step = turn._step

        def timed(state: object) -> bool:
            began = time.perf_counter()
            more = bool(step(state))
            ended = time.perf_counter()
            self.pieces.append((ended - began) * 1e3)
            if self._awaited():
                self._awaited, self.ended_at = lambda: False, ended
            return more

        turn._step = timed

    def until_quiet(self) -> float:
        """Turn until nothing happens for a moment; returns the ms of all turns, and leaves the pieces."""
        taken, quiet_at = 0.0, time.monotonic() + QUIET_S
        while time.monotonic() < quiet_at:
            began = time.perf_counter()
            self.scheduler.turn()
            taken += (time.perf_counter() - began) * 1e3
            poll = select.poll()
            poll.register(self.scheduler.watch.fileno(), select.POLLIN)
            if self.scheduler.work.more or poll.poll(QUIET_S * 1e3):
                quiet_at = time.monotonic() + QUIET_S
        return taken

    def until(self, condition: Callable[[], bool]) -> float:
        """Turn until a condition holds; returns when the piece ended after which it did."""
        give_up, self.ended_at, self._awaited = time.monotonic() + PATIENCE_S, 0.0, condition
        while not self.ended_at:
            assert time.monotonic() < give_up, "waited too long"
            self.scheduler.turn()
        return self.ended_at


def measure(
    report: Report, name: str, place: Bed, size: tuple[int, int, int, int], *, is_elastic: bool
) -> None:
    """The rows of one size."""
    say(f"{name}: fill")
    there = build(place, size, is_elastic=is_elastic)
    with ruling(place) as scheduler:
        pieces = Pieces(scheduler)
        began = time.perf_counter()
        scheduler.start()
        load = (time.perf_counter() - began) * 1e3
        report.add(f"{name}: load", "ms", load)
        report.add(f"{name}: first turns, in all", "ms", pieces.until_quiet())
        report.add(f"{name}: first turns, the longest piece", "ms", max(pieces.pieces))
        idle = []
        for _ in range(IDLE_TURNS):
            began = time.perf_counter()
            scheduler.turn()
            idle.append((time.perf_counter() - began) * 1e3)
        report.add(f"{name}: a turn without news", "ms", idle)
        pieces.pieces.clear()
        changes = []
        for policy, (queue, blocks) in zip(POLICIES, there.blocks.items(), strict=False):
            clusters.update(there.store, queue, ClusterChange(queue=POLICIES[policy]))
            changes.append(pieces.until_quiet())
            report.add(
                f"{name}: an end -> the next start, {policy}",
                "ms",
                [next_start(there.store, pieces, one) for one in blocks],
            )
        report.add(f"{name}: one queue gets another policy", "ms", changes)
        report.add(f"{name}: ends and changes, the longest piece", "ms", max(pieces.pieces))
        last = there.store.value(
            "SELECT submission_id FROM jobs WHERE status = 'PENDING' ORDER BY job_id DESC LIMIT 1"
        )
        report.add(
            f"{name}: why of the last job", "ms", list(timed(3, lambda _: why.why(there.store, str(last))))
        )
        end_all(there.store, scheduler)
    there.store.close()


def next_start(store: Store, pieces: Pieces, job: str) -> float:
    """End a job; the ms until another one has started in its place, looking at nothing else meanwhile.

    The turn may go on with a look at what the loans of that start have left.
    """
    pieces.until_quiet()
    newest = "SELECT max(assigned_at) FROM runs"
    before = store.value(newest)
    pid = store.value("SELECT pid FROM runs JOIN jobs USING (job_id) WHERE submission_id = ?", job)
    assert pid and before
    began = time.perf_counter()
    os.killpg(pid, signal.SIGKILL)
    return (pieces.until(lambda: store.value(newest) > before) - began) * 1e3


def one_cluster(report: Report, place: Bed) -> None:
    """A logical cluster of 1,000 nodes that are in use: submits, and clusters inside it."""
    numbers = count(1)
    with Store.open(place.home) as store, ruling(place) as scheduler:
        nodes.add(store, resources=WHOLE, count=1_000, template="8c16g")
        clusters.create(store, "big", ClusterChange(divisible=True, replica_sets={"8c16g": 1_000}))
        pieces = Pieces(scheduler)
        scheduler.start()
        for _ in range(20):
            gang = ClusterSpec(
                groups=(Group((FixedNode({"CPU": 4 * SCALE}),) * 50, "STRICT_SPREAD"),), flexible=False
            )
            submit(store, "big", gang)
        pieces.until_quiet()
        known = one_piece(8 * SCALE)
        submit(store, "big", known)
        fresh = timed(SAMPLES, lambda number: submit(store, "big", one_piece(8 * SCALE, number * SCALE)))
        report.add(
            "1,000 nodes in one cluster: submit of a known shape",
            "ms",
            list(timed(SAMPLES, lambda _: submit(store, "big", known))),
        )
        report.add("1,000 nodes in one cluster: submit of a new shape", "ms", list(fresh))
        slices = ClusterSpec(flexible_min={"CPU": SCALE})

        def create(_: int) -> None:
            clusters.create(
                store, f"small-{next(numbers)}", ClusterChange(divisible=True, spec=slices), parent_id="big"
            )

        report.add("1,000 nodes in one cluster: vc create in it", "ms", list(timed(SAMPLES, create)))
        end_all(store, scheduler)


def timed(times: int, act: Callable[[int], object]) -> Iterator[float]:
    """The ms of each call."""
    for number in range(1, times + 1):
        began = time.perf_counter()
        act(number)
        yield (time.perf_counter() - began) * 1e3


@contextmanager
def ruling(place: Bed) -> Iterator[Scheduler]:
    """A scheduler in this process, which is not started yet."""
    store, collection = Store.open(place.home), Collection()
    scheduler = Scheduler(store, kind="foreground", local_node=False)
    collection.start()  # as the daemon does: no collection inside a turn
    try:
        yield scheduler
    finally:
        collection.stop()
        scheduler.close()
        store.close()


def end_all(store: Store, scheduler: Scheduler) -> None:
    """End what runs; nothing else starts meanwhile."""
    say("end")
    with store.together():
        for row in store.rows("SELECT DISTINCT parent_cluster_id FROM jobs WHERE status = 'PENDING'"):
            clusters.stop(store, row[0])
        for (name,) in list(store.rows("SELECT submission_id FROM jobs WHERE status = 'RUNNING'")):
            jobs.stop(store, name, grace_s=0)
    give_up = time.monotonic() + PATIENCE_S
    while store.value("SELECT count(*) FROM runs") and time.monotonic() < give_up:
        scheduler.turn()
