"""Small clusters with a few jobs that are all there at the start, and how long the scheduler takes over them.

Durations are known and given as time limits, so the only question is which job starts when and where. Times in minutes.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.queue_policy import SECOND, QueuePolicy
from vctl.core.resources import SCALE
from vctl.scheduler import plan as pl
from vctl.scheduler.cycle import decide
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running

MINUTE = 60 * SECOND
INSTANCES = 300
NAMES = ("CPU", "memory", "GPU")
Size = tuple[int, int, int]
"""CPUs, GiB of memory, GPUs."""

TEMPLATES: tuple[Size, ...] = ((4, 16, 0), (8, 32, 0), (16, 32, 0), (8, 64, 2), (16, 64, 4))


@dataclass(frozen=True)
class Given:
    """A job: what each of its nodes takes, for how many minutes, and how they are to lie."""

    bundles: tuple[Size, ...]
    minutes: int
    policy: str = "PACK"

    @property
    def distinct(self) -> bool:
        return self.policy == "STRICT_SPREAD"


@dataclass(frozen=True)
class Instance:
    """Nodes and jobs; the jobs in the order in which they were sent."""

    nodes: tuple[Size, ...]
    jobs: tuple[Given, ...]


def instance(seed: int) -> Instance:
    """2 to 5 nodes of mixed sizes, 6 to 14 jobs that each fit when all is empty."""
    rng = random.Random(seed)
    nodes = tuple(rng.choice(TEMPLATES) for _ in range(rng.randint(2, 5)))
    jobs: list[Given] = []
    wanted = rng.randint(6, 14)
    while len(jobs) < wanted:
        job = _job(rng, nodes)
        if _fits_alone(nodes, job):
            jobs.append(job)
    return Instance(nodes, tuple(jobs))


def _job(rng: random.Random, nodes: tuple[Size, ...]) -> Given:
    """Three of five ask for one node, the others are gangs of two apart or packed groups of two to four.

    Sizes are mostly powers of two and times spread evenly over their logarithms, as in the logs of real machines
    (U. Lublin and D. G. Feitelson, "The workload on parallel supercomputers", 2003).
    """
    kind = rng.choices(("one", "STRICT_SPREAD", "PACK"), (60, 20, 20))[0]
    count = {"one": 1, "STRICT_SPREAD": 2, "PACK": rng.randint(2, 4)}[kind]
    cpus, memory, gpus = rng.choice(nodes)
    asked = _power(rng, cpus) if rng.random() < 0.75 else rng.randint(1, cpus)
    units = _power(rng, gpus) if gpus and rng.random() < 0.5 else 0
    if units:
        asked = min(cpus, units * rng.choice((2, 4)))
    gib = min(memory, asked * rng.choice((1, 2, 4, 8)))
    minutes = round(math.exp(rng.uniform(math.log(10), math.log(120))))
    if kind == "PACK":
        asked, gib, units = max(1, asked // 2), max(1, gib // 2), -(-units // 2)
    return Given(((asked, gib, units),) * count, minutes, "PACK" if kind == "one" else kind)


def _power(rng: random.Random, most: int) -> int:
    return 2 ** rng.randint(0, most.bit_length() - 1)


def ledger_of(nodes: tuple[Size, ...]) -> Ledger:
    """The nodes, empty."""
    ledger = Ledger()
    for number, size in enumerate(nodes, 1):
        total = rs.whole_node(_amounts(size))
        ledger.put_node(Node(f"n{number}", "x".join(map(str, size)), total, f"n{number}", {}))
    return ledger


def pending(number: int, job: Given, priority: int = 0) -> PendingJob:
    """A job as the scheduler sees it."""
    fixed = tuple(FixedNode(_amounts(size)) for size in job.bundles)
    spec = ClusterSpec(groups=(Group(fixed, job.policy),), flexible=False)
    return PendingJob(
        number,
        f"job{number}",
        PRIMARY,
        f"shape{number}",
        spec,
        {},
        priority,
        time_limit_ns=job.minutes * MINUTE,
    )


def _amounts(size: Size) -> dict[str, int]:
    return {name: amount * SCALE for name, amount in zip(NAMES, size, strict=True) if amount}


def _fits_alone(nodes: tuple[Size, ...], job: Given) -> bool:
    ledger = ledger_of(nodes)
    queue = Queue(PRIMARY)
    queue.put(pending(1, job))
    return bool(decide(ledger, {PRIMARY: queue}, now_ns=0).starts)


def play(given: Instance, policy: QueuePolicy) -> int:
    """The makespan when the shipped scheduler serves the jobs, every one of which runs for its time limit."""
    ledger = ledger_of(given.nodes)
    ledger.set_primary_queue(policy)
    queue, running = Queue(PRIMARY), Running()
    for number, job in enumerate(given.jobs, 1):
        queue.put(pending(number, job))
    ends: list[tuple[int, pl.Start]] = []
    now = 0
    while queue.jobs or ends:
        for start in decide(ledger, {PRIMARY: queue}, now_ns=now * MINUTE, running=running).starts:
            number = start.job.job_id
            assert pl.still_fits(ledger, start)
            pl.apply(ledger, start)
            queue.drop(number)
            end = now + given.jobs[number - 1].minutes
            running.put(RunningJob(number, PRIMARY, start.cluster_id, start.run_id, "", end * MINUTE))
            ends.append((end, start))
        now = min(end for end, _ in ends)
        for end, start in [one for one in ends if one[0] == now]:
            ends.remove((end, start))
            assert start.cluster is not None
            ledger.discharge(start.run_id)
            ledger.remove_cluster(start.cluster.cluster_id)
            running.drop(start.job.job_id)
    return now
