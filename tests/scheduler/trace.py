"""A cluster under a virtual clock: jobs with true run times arrive, ``decide`` starts them. No processes, no store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vctl.core import resources as rs
from vctl.core.clusters import LOGICAL, PRIMARY, Cluster, ClusterSpec, FixedNode, Group
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.queue_policy import SECOND, QueuePolicy
from vctl.core.resources import SCALE
from vctl.scheduler import plan as pl
from vctl.scheduler.backfill import Reservation
from vctl.scheduler.cycle import decide
from vctl.scheduler.fairness import Usage
from vctl.scheduler.plan import Plan
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running


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
        self.ledger = Ledger()
        for number in range(1, nodes + 1):
            total = rs.whole_node({"CPU": cpus * SCALE})
            self.ledger.put_node(Node(f"n{number:03}", f"{cpus}c", total, f"n{number:03}", {}))
        self.ledger.set_primary_queue(policy)
        self.queues: dict[str, Queue] = {}
        self.running = Running()
        self.usage = Usage()
        self.now = 0
        self.started: dict[str, int] = {}
        self.first_reserved: dict[str, int] = {}
        self.waits: dict[str, tuple[str, str]] = {}
        self._ends: list[tuple[int, int]] = []
        self._given: dict[int, Given] = {}
        self._starts: dict[int, pl.Start] = {}

    def share(self, cluster_id: str, weight: int) -> None:
        """A flexible logical cluster below the primary, without any minimum."""
        policy = QueuePolicy(weight=weight)
        self.ledger.put_cluster(Cluster(cluster_id, PRIMARY, LOGICAL, ClusterSpec(), True, queue=policy))

    def submit(self, job: Given) -> None:
        """Queue a job now."""
        number = len(self._given) + 1
        self._given[number] = job
        spec = ClusterSpec(
            groups=(Group((FixedNode({"CPU": job.size * SCALE}),) * job.nodes),), flexible=False
        )
        limit_ns = None if job.limit is None else job.limit * SECOND
        self.queues.setdefault(job.cluster, Queue(job.cluster)).put(
            PendingJob(
                number,
                job.name,
                job.cluster,
                f"{job.size}x{job.nodes}",
                spec,
                {},
                job.priority,
                user=job.user,
                submitted_at_ns=self.now * SECOND,
                time_limit_ns=limit_ns,
            )
        )

    def round(self) -> list[str]:
        """Decide until nothing more starts; the names of what has started."""
        names: list[str] = []
        while True:
            plan = decide(
                self.ledger, self.queues, now_ns=self.now * SECOND, running=self.running, usage=self.usage
            )
            self._note(plan)
            for start in plan.starts:
                self._start(start)
                names.append(start.job.submission_id)
            if not plan.starts:
                return names

    def _note(self, plan: Plan) -> None:
        for wait in plan.waits:
            self.waits[wait.shape] = (wait.reason, wait.message)
        for queue in self.queues.values():
            queue.emptied.clear()
            for kept in queue.kept.values():
                if isinstance(kept, Reservation) and kept.start_ns is not None:
                    self.first_reserved.setdefault(kept.submission_id, kept.start_ns // SECOND)

    def _start(self, start: pl.Start) -> None:
        job = start.job
        assert pl.still_fits(self.ledger, start)
        pl.apply(self.ledger, start)
        self.queues[job.parent_id].drop(job.job_id)
        end_ns = None if job.time_limit_ns is None else self.now * SECOND + job.time_limit_ns
        self.running.put(
            RunningJob(job.job_id, job.parent_id, start.cluster_id, start.run_id, job.user, end_ns)
        )
        self.started[job.submission_id] = self.now
        self._starts[job.job_id] = start
        self._ends.append((self.now + self._given[job.job_id].runs, job.job_id))

    def end(self, number: int) -> None:
        """A job is over; what its parent has grown for it returns at once."""
        start = self._starts.pop(number)
        self.ledger.discharge(start.run_id)
        assert start.cluster is not None
        self.ledger.remove_cluster(start.cluster.cluster_id)
        self.running.drop(number)
        if start.job.parent_id != PRIMARY:
            self._shrink(start.job.parent_id)

    def _shrink(self, cluster_id: str) -> None:
        for vnode_id in list(self.ledger.members[cluster_id]):
            vnode, room = self.ledger.vnodes[vnode_id], self.ledger.rooms[vnode_id]
            if room.is_untouched():
                self.ledger.release(vnode_id)
            elif any(room.free.values()):
                spare = room.copy().take(room.free)
                self.ledger.resize(replace(vnode, holding=rs.difference(vnode.holding, spare)))

    def _reserved(self) -> list[int]:
        """Reserved starts that are still to come: the daemon looks every few seconds, too."""
        kept = (one for queue in self.queues.values() for one in queue.kept.values())
        starts = [
            one.start_ns // SECOND
            for one in kept
            if isinstance(one, Reservation) and one.start_ns is not None
        ]
        return [at for at in starts if at > self.now]

    def play(self, jobs: list[Given], *, until: int = 10**9, each: Callable[[], None] = lambda: None) -> None:
        """Let everything happen in the order of time; ``each`` is called after every moment."""
        coming = sorted(jobs, key=lambda job: job.at)
        while coming or self._ends or self._reserved():
            self.now = min([job.at for job in coming[:1]] + [at for at, _ in self._ends] + self._reserved())
            if self.now > until:
                return
            for due in sorted(end for end in self._ends if end[0] <= self.now):
                self._ends.remove(due)
                self.end(due[1])
            while coming and coming[0].at <= self.now:
                self.submit(coming.pop(0))
            each()
            self.round()


def used(trace: Trace) -> Mapping[str, int]:
    """CPUs held by the jobs of each cluster."""
    return {
        name: trace.ledger.total(name).get("CPU", 0) // SCALE
        for name, cluster in trace.ledger.clusters.items()
        if cluster.kind == LOGICAL
    }
