"""A small cluster under the virtual clock of ``vctl simulate``: jobs in a few characters, times in seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import SECOND, QueuePolicy
from vctl.core.resources import CPU, SCALE
from vctl.core.values import replace
from vctl.scheduler.queueing import Queue
from vctl.simulate.machine import equal_nodes
from vctl.simulate.play import Player
from vctl.simulate.workload import Arrival, rigid


@dataclass(frozen=True)
class Given:
    """A job of a trace: ``size`` CPUs on each of ``nodes`` nodes; times in seconds, ``limit`` None for no limit."""

    name: str
    size: int
    runs: int
    nodes: int = 1
    at: int = 0
    limit: int | None = None
    priority: int = 0
    user: str = "me"
    cluster: str = PRIMARY


class Trace:
    """Plays jobs on equal nodes; ``started`` tells when, ``waits`` the reasons told last."""

    def __init__(self, nodes: int, cpus: int, policy: QueuePolicy) -> None:
        self.player = Player(equal_nodes(nodes, {CPU: cpus * SCALE}))
        self.ledger.set_primary_queue(policy)
        self._count = 0

    @property
    def ledger(self) -> Ledger:
        return self.player.ledger

    @property
    def queues(self) -> Mapping[str, Queue]:
        return self.player.queues

    @property
    def now(self) -> int:
        return self.player.now_ns // SECOND

    @property
    def started(self) -> dict[str, int]:
        """Job -> second of its start."""
        jobs = self.player.jobs.values()
        return {
            one.arrival.job.submission_id: one.start_ns // SECOND for one in jobs if one.start_ns is not None
        }

    @property
    def first_reserved(self) -> dict[str, int]:
        """Job -> second of the first reserved start that it was given."""
        jobs = self.player.jobs.values()
        return {
            one.arrival.job.submission_id: one.reserved_ns // SECOND
            for one in jobs
            if one.reserved_ns is not None
        }

    @property
    def waits(self) -> dict[str, tuple[str, str]]:
        """Shape -> (reason, message)."""
        return {shape: reported for (_, shape), reported in self.player.waits.items()}

    def share(self, cluster_id: str, weight: int, parent_id: str = PRIMARY) -> None:
        """A flexible logical cluster without any minimum."""
        policy = QueuePolicy(weight=weight)
        self.ledger.put_cluster(Cluster(cluster_id, parent_id, LOGICAL, ClusterSpec(), True, queue=policy))

    def submit(self, job: Given, *, begin_at: int | None = None) -> None:
        """Queue a job now; it may begin at a second."""
        arrival = self._arrival(job, self.now)
        begins_ns = None if begin_at is None else begin_at * SECOND
        self.player.submit(replace(arrival, job=replace(arrival.job, begin_at_ns=begins_ns)))

    def _arrival(self, job: Given, at: int) -> Arrival:
        self._count += 1
        pending = PendingJob(
            self._count, job.name, job.cluster, f"{job.size}x{job.nodes}",
            rigid(job.nodes, {CPU: job.size * SCALE}), {}, job.priority, user=job.user,
            submitted_at_ns=at * SECOND, time_limit_ns=None if job.limit is None else job.limit * SECOND,
        )  # fmt: skip
        return Arrival(pending, job.runs * SECOND)

    def round(self) -> list[str]:
        """Decide once; the names of what has started."""
        return [start.job.submission_id for start in self.player.round()]

    def end(self, number: int) -> None:
        """A job is over."""
        self.player.end(number)

    def play(
        self, jobs: list[Given], *, until: int | None = None, each: Callable[[], None] | None = None
    ) -> None:
        """Let everything happen in the order of time; ``each`` is called at every moment before its round."""
        arrivals = [self._arrival(job, job.at) for job in sorted(jobs, key=lambda job: job.at)]
        self.player.play(arrivals, until_ns=None if until is None else until * SECOND, each=each)


def used(trace: Trace) -> Mapping[str, int]:
    """CPUs held by the jobs of each cluster."""
    return {
        name: trace.ledger.total(name).get(CPU, 0) // SCALE
        for name, cluster in trace.ledger.clusters.items()
        if cluster.kind == LOGICAL
    }
