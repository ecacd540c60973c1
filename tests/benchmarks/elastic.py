"""What elastic clusters cost: the same jobs in one queue and spread over clusters that borrow and lend.

The machine has four simulated nodes of 8 CPUs; the processes are real (``sleep``). All jobs wait before the scheduler
begins, so a row measures starts and ends alone. A row is compared with one queue, all jobs in the primary, in the same
round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.bed import Bed, bed
from tests.benchmarks.report import Report
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.core.resources import SCALE
from vctl.engine.changes import Change, JobStarted, RunEnded, RunSeen
from vctl.engine.codec import decode
from vctl.store import feed
from vctl.store.store import Store

NODES, CPUS = 4, 8
PRIMARY = "primary"
ONE_QUEUE = "one queue"
LEAST_RATE, MOST_LATENCY = 0.9, 2.0
"""What a row should reach: of the rate of one queue, and times its latency."""
PATIENCE_S = 120.0
_BESIDE = 1
"""Priority of the jobs that run beside those of a row: they start first, and do not count."""


@dataclass(frozen=True, slots=True)
class Load:
    """One job: its size, how long it runs, its time limit."""

    nodes: int
    cpus: int
    seconds: float
    limit_s: float | None = None

    def request(self, cluster: str, priority: int = 0) -> dict[str, Any]:
        """What is submitted."""
        group = Group((FixedNode({"CPU": self.cpus * SCALE}),) * self.nodes, "STRICT_SPREAD")
        return {
            "argv": ("sleep", f"{self.seconds:.3f}"),
            "cwd": "/",
            "cluster": cluster,
            "spec": ClusterSpec(groups=(group,), flexible=False),
            "time_limit_s": self.limit_s,
            "priority": priority,
        }


@dataclass(frozen=True, slots=True)
class Tree:
    """Clusters, as (id, words of ``vc create``), and those that get the jobs."""

    clusters: Sequence[tuple[str, Sequence[str]]] = ()
    targets: Sequence[str] = (PRIMARY,)
    is_random: bool = False
    discipline: str | None = None

    def deal(self, jobs: Sequence[Load]) -> Iterator[tuple[str, Load]]:
        """Each job with its cluster: in turns, or at random (every time the same)."""
        dice = random.Random(1)
        for number, job in enumerate(jobs):
            yield (
                dice.choice(self.targets) if self.is_random else self.targets[number % len(self.targets)],
                job,
            )


@dataclass(frozen=True, slots=True)
class Work:
    """The jobs of some rows, what runs beside them, and the trees in which they run; the first one is one queue."""

    jobs: Sequence[Load]
    rows: dict[str, Tree]
    beside: Sequence[Load] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """What the jobs of a row did, by the times at which their processes started and ended."""

    jobs: int
    seconds: float
    idle_ms: float
    latency_ms: float | None
    """From an end to the next start, the median; None for jobs of several sizes, where an end makes room for none."""
    changes: float

    @property
    def rate(self) -> float:
        """Jobs per second from the first start to the last end."""
        return self.jobs / self.seconds


# ---- trees and jobs ----


def elastic(*names: str, min_cpus: int = 0, parent: str | None = None) -> list[tuple[str, list[str]]]:
    """Clusters without maximum, whose minimum can be lent as a whole."""
    least = {"CPU": min_cpus} if min_cpus else {}
    words = ["--spec", json.dumps({"flexible_resource_min": least})]
    if min_cpus:
        words += ["--lending-limit", json.dumps(least)]
    return [(name, words + (["--parent", parent] if parent else [])) for name in names]


def siblings(count: int, **options: Any) -> Tree:
    """Elastic clusters in the primary."""
    names = [f"c{number}" for number in range(count)]
    least = options.pop("min_cpus", 0)
    return Tree(elastic(*names, min_cpus=least), names, **options)


def teams() -> Tree:
    """Two teams with three projects each; the jobs run in the projects."""
    projects = {team: [f"{team}-p{number}" for number in range(3)] for team in ("t0", "t1")}
    clusters = [*elastic(*projects)]
    for team, names in projects.items():
        clusters += elastic(*names, parent=team)
    in_turns = [name for pair in zip(*projects.values(), strict=True) for name in pair]
    return Tree(clusters, in_turns)


def mixed(count: int) -> list[Load]:
    """Jobs of many sizes with time limits that are more or less too long, as people give them."""
    dice = random.Random(2)
    found = []
    for _ in range(count):
        seconds = dice.uniform(0.2, 1.0)
        limit_s = seconds * dice.uniform(1.2, 4) + 1
        found.append(Load(dice.choice((1, 1, 1, 2)), dice.choice((1, 2, 4, 8)), seconds, limit_s))
    return found


def works(jobs: int | None = None) -> list[Work]:
    """All rows; ``jobs``: so many in each, instead of each one's own number."""
    gang, whole = Load(2, CPUS, 0.5), Load(NODES, CPUS, 0.2)
    small = "160 jobs of 4 CPUs at random"
    three = elastic("c0", "c1", "c2")
    return [
        Work(
            [gang] * (jobs or 40),
            {
                ONE_QUEUE: Tree(),
                "two siblings": siblings(2),
                "four siblings": siblings(4),
                "eight siblings": siblings(8),
                "two teams with three projects each": teams(),
                "three siblings and the primary": Tree(three, ("c0", "c1", "c2", PRIMARY)),
                "four siblings that lend 8 CPUs each": siblings(4, min_cpus=8),
            },
        ),
        Work(
            [gang] * (jobs or 12),
            {
                f"{ONE_QUEUE}, 12 jobs": Tree(),
                "four siblings that lend 8 CPUs each, 12 jobs": siblings(4, min_cpus=8),
            },
        ),
        Work(
            [Load(1, 4, 0.5)] * (jobs or 160),
            {
                f"{ONE_QUEUE}, {small}": Tree(),
                f"four siblings, {small}": siblings(4, is_random=True),
            },
        ),
        Work(
            mixed(jobs or 120),
            {
                f"{ONE_QUEUE}, mixed jobs with backfill": Tree(discipline="backfill"),
                "four siblings, mixed jobs with backfill": siblings(4, is_random=True, discipline="backfill"),
            },
        ),
        Work(
            [Load(1, 2, 0.5)] * (jobs or 160),
            {
                f"{ONE_QUEUE}, beside four jobs of 1 CPU for a minute": Tree(),
                "four siblings, beside four jobs of 1 CPU for a minute": siblings(4, is_random=True),
            },
            beside=[Load(1, 1, 60)] * 4,
        ),
        Work(
            [gang] * (jobs or 16),
            {
                f"{ONE_QUEUE}, beside two jobs of one node for a minute": Tree(),
                "four siblings, beside two jobs of one node for a minute": siblings(4),
            },
            beside=[Load(1, CPUS, 60)] * 2,
        ),
        Work(
            [whole] * (jobs or 20),
            {
                f"{ONE_QUEUE}, jobs of the whole machine": Tree(),
                "two siblings, jobs of the whole machine": siblings(2),
                "four siblings that lend 8 CPUs each, jobs of the whole machine": siblings(4, min_cpus=8),
                "a sibling for each of the jobs of the whole machine": siblings(jobs or 20),
            },
        ),
    ]


# ---- a row ----


def play(work: Work, tree: Tree) -> Played:
    """Queue all jobs of a row, run them, and end what runs beside them."""
    with bed() as place:
        place.add_nodes(NODES, {"CPU": CPUS})
        policy = ("--queue-discipline", tree.discipline) if tree.discipline else ()
        if policy:
            place.vctl("vc", "update", PRIMARY, *policy)
        for name, words in tree.clusters:
            place.vctl("vc", "create", name, "--divisible", *words, *policy)
        beside = [job.request(cluster, _BESIDE) for cluster, job in tree.deal(work.beside)]
        place.submit_many([*beside, *(job.request(cluster) for cluster, job in tree.deal(work.jobs))])
        with place.daemon():
            try:
                _until_over(place)
            finally:
                place.end_all()
        return _read(place, work)


def _until_over(place: Bed) -> None:
    left = f"SELECT count(*) FROM jobs WHERE priority <> {_BESIDE} AND status IN ('PENDING', 'RUNNING')"
    give_up = time.monotonic() + PATIENCE_S
    with Store.open(place.home) as store:
        while waiting := store.value(left):
            if time.monotonic() > give_up:
                raise RuntimeError(f"{waiting} jobs have not ended after {PATIENCE_S:.0f} s")
            time.sleep(0.02)


def _times(changes: Iterable[Change]) -> dict[int, tuple[float, float]]:
    """Job -> when its process started and ended, in seconds."""
    job_of: dict[str, int] = {}
    began: dict[str, float] = {}
    times: dict[int, tuple[float, float]] = {}
    for change in changes:
        if isinstance(change, JobStarted):
            job_of[change.job.run_id] = change.job.job_id
        if isinstance(change, RunSeen | RunEnded) and change.process is not None:
            began[change.run_id] = change.process.started_at / 1e9
        if isinstance(change, RunEnded):
            times[job_of[change.run_id]] = began[change.run_id], change.at / 1e9
    return times


def _read(place: Bed, work: Work) -> Played:
    """Times of the processes, and changes of leases. Jobs were submitted in their order, so their numbers have it."""
    jobs = f"SELECT job_id FROM jobs WHERE priority <> {_BESIDE} AND status = 'SUCCEEDED' ORDER BY job_id"
    with Store.open(place.home) as store:
        if feed.base(store):
            raise RuntimeError("the journal has forgotten when the first processes started")
        times = _times(decode(row["change"]) for row in feed.journal(store, 0) if row["change"] is not None)
        found = [times[job_id] for job_id in store.column(jobs)]
        changes = store.value("SELECT count(*) FROM events WHERE kind IN ('lease.granted', 'lease.returned')")
    if len(found) != len(work.jobs):
        raise RuntimeError(f"{len(found)} of {len(work.jobs)} jobs succeeded")
    # An end is recorded when the scheduler hears of it, and the supervisor may have started a next job before.
    ran = sorted((start, start + job.seconds) for (start, _), job in zip(found, work.jobs, strict=True))
    is_uniform = len(set(work.jobs)) == 1
    return Played(
        jobs=len(ran),
        seconds=max(end for _, end in found) - ran[0][0],
        idle_ms=1e3 * max(_gaps(ran), default=0.0),
        latency_ms=1e3 * statistics.median(_latencies(ran)) if is_uniform else None,
        changes=changes / (len(ran) + len(work.beside)),
    )


def _gaps(ran: Sequence[tuple[float, float]]) -> Iterator[float]:
    """How long nothing ran, before each start but the first one; all jobs waited from the beginning."""
    last_end = ran[0][1]
    for started, ended in ran[1:]:
        yield max(0.0, started - last_end)
        last_end = max(last_end, ended)


def _latencies(ran: Sequence[tuple[float, float]]) -> list[float]:
    """From each end of equal jobs to the start that it makes room for."""
    starts, ends = [start for start, _ in ran], sorted(end for _, end in ran)
    at_first = sum(start < ends[0] for start in starts)
    return [start - end for start, end in zip(starts[at_first:], ends, strict=False)]


# ---- all rows ----


def run(options: argparse.Namespace) -> Report:
    """Each work in one queue, and in its trees, in turns."""
    report = Report(
        f"elastic: the same jobs in one queue and in elastic clusters, {NODES} nodes of {CPUS} CPUs"
    )
    all_rows = [(work, _chosen(work, options.row)) for work in works(options.jobs)]
    chosen = [(work, rows) for work, rows in all_rows if len(rows) > 1]
    if not chosen:
        raise SystemExit(f"--row: no row has {options.row!r} in its name")
    played: dict[str, list[Played]] = {}
    for _ in range(options.rounds or 1):
        for work, rows in chosen:
            for name, tree in rows.items():
                played.setdefault(name, []).append(play(work, tree))
    bases = {name: next(iter(rows)) for _, rows in chosen for name in rows}

    def add(what: str, unit: str, figure: Callable[[Played], float | None], *, compare: bool = False) -> None:
        for name, rounds in played.items():
            base = f"{bases[name]}{what}" if compare and bases[name] != name else None
            if samples := [found for one in rounds if (found := figure(one)) is not None]:
                report.add(f"{name}{what}", unit, samples, base=base)

    add("", "jobs per s", lambda one: one.rate, compare=True)
    add(": an end to the next start", "ms", lambda one: one.latency_ms, compare=True)
    add(": the longest idle while jobs wait", "ms", lambda one: one.idle_ms)
    add(": changes of leases", "per job", lambda one: one.changes)
    report.remark(
        f"aims: a rate of {LEAST_RATE} of one queue, a latency of {MOST_LATENCY:.0f} times that of one queue"
    )
    return report


def _chosen(work: Work, text: str | None) -> dict[str, Tree]:
    """The rows that have a text in their name, and always their one queue."""
    base = next(iter(work.rows))
    return {name: tree for name, tree in work.rows.items() if name == base or text is None or text in name}
