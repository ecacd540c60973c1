"""Jobs of different priority on one ledger: rounds of ``decide``, victims that leave and wait again. No clock."""

from __future__ import annotations

from dataclasses import dataclass

from tests.scheduler import candidates as g
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import REQUEUE, SECOND, QueuePolicy
from vctl.core.values import replace
from vctl.scheduler import plan as pl
from vctl.scheduler.cycle import decide
from vctl.scheduler.plan import Plan
from vctl.scheduler.preemption import Preempt
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running

POLICY = QueuePolicy(preemption=REQUEUE)


@dataclass(frozen=True)
class Begun:
    """A start that was carried out."""

    start: pl.Start
    run_id: str


class Contest:
    """``ledger`` is served by ``policy``; ``now`` in seconds moves only when a test says so."""

    def __init__(self, ledger: Ledger, policy: QueuePolicy = POLICY, parent_id: str = PRIMARY) -> None:
        self.ledger = ledger
        self.parent_id = parent_id
        if parent_id == PRIMARY:
            ledger.set_primary_queue(policy)
        else:
            ledger.put_cluster(replace(ledger.clusters[parent_id], queue=policy))
        self.queue = Queue(parent_id)
        self.running = Running()
        self.now = 0
        self.begun: dict[int, Begun] = {}
        self.names: dict[str, int] = {}
        self.known: dict[int, PendingJob] = {}
        self.ending: dict[int, Preempt] = {}
        self.log: list[str] = []

    def submit(
        self, name: str, priority: int, spec: ClusterSpec, *, shares: bool = False, entry: str = ""
    ) -> int:
        """Queue a job."""
        number = self.names.setdefault(name, len(self.names) + 1)
        asked = (spec, entry)
        self.queue.put(
            PendingJob(
                number, name, self.parent_id, repr(asked), spec, g.amounts(entry), priority, shares_parent=shares,
                submitted_at_ns=self.now * SECOND + number,
            )
        )  # fmt: skip
        self.known[number] = self.queue.jobs[number]
        return number

    def run(
        self,
        name: str,
        priority: int,
        spec: ClusterSpec,
        *,
        since: int = 0,
        shares: bool = False,
        entry: str = "",
    ) -> None:
        """A job that runs since then; it must have a place."""
        number = self.submit(name, priority, spec, shares=shares, entry=entry)
        self.round(preempts=False)
        assert number in self.begun, name
        job = self.running.jobs[number]
        self.running.put(replace(job, started_at_ns=since * SECOND))

    def round(self, *, preempts: bool = True) -> Plan:
        """One round, carried out at once; those who are to go are told, but go only later."""
        plan = decide(
            self.ledger,
            {self.parent_id: self.queue},
            now_ns=self.now * SECOND,
            running=self.running,
            preempts=preempts,
        )
        self.queue.emptied.clear()
        for parent_id, job_id in plan.lapsed:
            assert parent_id == self.parent_id
            self._unmark(job_id)
        for one in plan.preempts:
            self.queue.set_nomination(one.job.job_id, one.nomination)
            for victim in one.victims:
                self.running.leave(victim.job.job_id)
                self.ending[victim.job.job_id] = one
            names = " ".join(sorted(victim.job.submission_id for victim in one.victims))
            self.log.append(f"preempt {names} for {one.job.submission_id}")
        for start in plan.starts:
            assert pl.still_fits(self.ledger, start)
            job = start.job
            run_id = f"run-{job.job_id}"
            g.run(self.ledger, start, run_id)
            self.queue.drop(job.job_id)
            self._unmark(job.job_id)
            self.begun[job.job_id] = Begun(start, run_id)
            self.running.put(RunningJob.begun(job, start.cluster_id, run_id, self.now * SECOND))
            self.log.append(f"start {job.submission_id}")
        return plan

    def _unmark(self, job_id: int) -> None:
        nomination = self.queue.nominations.get(job_id)
        if nomination is not None:
            self.queue.set_nomination(job_id, None)
            self.ledger.note_growth(part[0] for part in nomination.pieces)

    def gone(self, job_id: int, *, requeue: bool = True) -> None:
        """A job that runs has ended; what it was told to leave for may use what it returns."""
        begun, job = self.begun.pop(job_id), self.running.jobs[job_id]
        self.ledger.discharge(begun.run_id)
        if begun.start.cluster is not None:
            self.ledger.remove_cluster(begun.start.cluster_id)
        self.running.drop(job_id)
        self.ending.pop(job_id, None)
        for winner, nomination in list(self.queue.nominations.items()):
            if job_id in nomination.awaited:
                self.queue.set_nomination(winner, replace(nomination, awaited=nomination.awaited - {job_id}))
        self.log.append(f"end {job.submission_id}")
        if requeue:
            self.queue.put(begun.start.job)

    def victims_leave(self) -> None:
        """All who were told to go have gone, and wait again."""
        for job_id in sorted(self.ending):
            self.gone(job_id)

    def is_running(self, name: str) -> bool:
        """Whether a job runs."""
        return self.names[name] in self.begun

    def told_to_go(self) -> list[str]:
        """Names of those who were told."""
        return sorted(self.running.jobs[job_id].submission_id for job_id in self.ending)
