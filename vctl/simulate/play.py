"""Simulates a workload event by event: jobs arrive, ``decide`` starts them, they end after their run time.

Queues, rounds, growth and the return of loans are those of the daemon. Only the store, the processes and the
clock are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import chain, count

from vctl.core import jobs as jb
from vctl.core.clusters import ACTIVE, BOOKED, REMOVING
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import REQUEUE
from vctl.core.resources import Amounts
from vctl.core.values import field, replace, value
from vctl.engine.rules.leases import granted, granted_to_gang, loans_of
from vctl.scheduler.bookings import free_place
from vctl.scheduler.cycle import MOST_STARTS, decide
from vctl.scheduler.elasticity import apply_growth
from vctl.scheduler.explain.trial import RunningHolder, stop
from vctl.scheduler.fairness import Usage
from vctl.scheduler.lending import take_back
from vctl.scheduler.plan import Plan, Start, Trial, take
from vctl.scheduler.queueing import Queue
from vctl.scheduler.running import Running
from vctl.scheduler.work import Budget
from vctl.simulate.workload import Arrival

UNKNOWN_CLUSTER = "UnknownCluster"
PROGRESS_EVERY = 250
"""Arrivals between two reports of progress."""


@value(slots=True)
class Played:
    """The result of one job. ``start_ns`` None: it waits or was refused, ``reason`` says why."""

    arrival: Arrival
    start_ns: int | None = None
    end_ns: int | None = None
    held: Amounts = field(default_factory=dict)
    cut: bool = False
    """Whether the time limit ended the job before its run time was over."""
    preempted: int = 0
    """The number of times that the job was ended for one of higher priority; each time its work was lost."""
    reserved_ns: int | None = None
    """The first reserved start that the job got."""
    reason: str | None = None
    message: str = ""


class Player:
    """Plays jobs on a ledger, which it changes; ``now_ns`` is the time of the virtual clock.

    An idle loan that nobody wants stays with its borrower, while a daemon gives it back after some seconds.
    A preempted job ends at once, like a program that does not handle the warning.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.queues: dict[str, Queue] = {}
        self.running = Running()
        self.usage = Usage()
        self.budget = Budget()
        """The steps that are left for all rounds."""
        self.now_ns = 0
        self.rounds = 0
        self.jobs: dict[int, Played] = {}
        self.waits: dict[tuple[str, str], tuple[str, str]] = {}
        """(cluster, wait key) -> the last reason and message."""
        self._lease_ids = count(1 + max(ledger.leases, default=0))
        self._ends: list[tuple[int, int, int]] = []
        """A heap of (end, job id, number of the attempt)."""
        self._begins: list[int] = []
        self.closed: list[str] = []
        """The booked clusters that were closed at the last moment."""
        self._holders: dict[int, RunningHolder] = {}

    # ---- events ----

    def submit(self, arrival: Arrival) -> None:
        """Submit a job now. A job that can never run is refused: it gets only a reason."""
        job = arrival.job
        played = self.jobs[job.job_id] = Played(arrival)
        if job.parent_id not in self.ledger.clusters:
            played.reason = UNKNOWN_CLUSTER
            played.message = f"The virtual cluster {job.parent_id} does not exist."
            return
        queue = self.queues.setdefault(job.parent_id, Queue(job.parent_id))
        is_open = self.ledger.clusters[job.parent_id].state != BOOKED
        if is_open and (never := queue.feasibility.why_never(self.ledger, job)) is not None:
            played.reason, played.message = jb.INFEASIBLE, never
            return
        queue.put(job)
        if job.begin_at_ns is not None and job.begin_at_ns > self.now_ns:
            heappush(self._begins, job.begin_at_ns)

    def end(self, job_id: int) -> None:
        """End a job. What its cluster has borrowed stays there, idle, until work that waits starts with it."""
        holder = self._holders.pop(job_id)
        stop(self.ledger, holder)
        if holder.cluster_id is not None:
            take_back(self.ledger)
        self.running.end(job_id, self.now_ns)

    def round(self) -> list[Start]:
        """Run rounds as long as the scheduler would go on at once; returns the starts."""
        started: list[Start] = []
        while True:
            plan = self._decide()
            self.rounds += 1
            self._note(plan)
            for start in plan.starts:
                self._start(start, plan.trial)
            started += plan.starts
            goes_on = self._preempt(plan)
            if len(plan.starts) < MOST_STARTS and not goes_on and not plan.has_loans:
                return started

    def _decide(self) -> Plan:
        return decide(
            self.ledger,
            self.queues,
            now_ns=self.now_ns,
            running=self.running,
            usage=self.usage,
            budget=self.budget,
            keeps=True,
        )

    def _preempt(self, plan: Plan) -> bool:
        """Carry out the preemptions of a plan; True if the scheduler would go on at once."""
        for parent_id, job_id in plan.lapsed:
            self._unmark(self.queues[parent_id], job_id)
        for preempt in plan.preempts:
            queue = self.queues[preempt.job.parent_id]
            queue.set_nomination(preempt.job.job_id, replace(preempt.nomination, awaited=frozenset()))
            for victim in preempt.victims:
                self._evict(victim.job.job_id, requeue=queue.policy.preemption == REQUEUE)
        return bool(plan.preempts or plan.lapsed or plan.unsearched)

    def _evict(self, job_id: int, *, requeue: bool) -> None:
        played = self.jobs[job_id]
        self.end(job_id)
        played.preempted += 1
        played.end_ns = self.now_ns
        if requeue:
            played.start_ns = played.end_ns = None
            job = played.arrival.job
            self.queues[job.parent_id].put(job)

    def _unmark(self, queue: Queue, job_id: int) -> None:
        nomination = queue.nominations.get(job_id)
        if nomination is not None:
            queue.set_nomination(job_id, None)
            self.ledger.note_growth(part[0] for part in nomination.pieces)

    def _note(self, plan: Plan) -> None:
        for wait in plan.waits:
            self.waits[wait.parent_id, wait.shape] = (wait.reason, wait.message)
        for parent_id, shape in plan.cleared:
            self.waits.pop((parent_id, shape), None)
            self.queues[parent_id].emptied.discard(shape)
        for reservation in chain.from_iterable(queue.kept.values() for queue in self.queues.values()):
            played = self.jobs[reservation.job_id]
            if played.reserved_ns is None:
                played.reserved_ns = reservation.start_ns

    def _start(self, start: Start, trial: Trial | None) -> None:
        job, played = start.job, self.jobs[start.job.job_id]
        loans = loans_of(start.growth)
        for step in start.growth:
            apply_growth(self.ledger, step)
        for change in granted(self.ledger, start.growth, loans, self.now_ns, self._lease_ids.__next__):
            self.ledger.put_lease(change.lease)
        if trial and start.cluster and trial.settle(job.job_id, start.cluster, start.vnodes):
            self.ledger.charge(start.run_id, start.vnode_id, start.allocation)
        else:
            take(self.ledger, start)
        for change in granted_to_gang(start.vnodes, loans, self.now_ns, self._lease_ids.__next__):
            self.ledger.put_lease(change.lease)
        self._unmark(self.queues[job.parent_id], job.job_id)
        self.queues[job.parent_id].drop(job.job_id)
        row = RunningJob.begun(job, start.cluster_id, start.run_id, self.now_ns, held=start.held)
        self.running.put(row)
        limit_ns, lasts_ns = job.time_limit_ns, played.arrival.runs_ns
        if limit_ns is not None and limit_ns < lasts_ns:
            lasts_ns, played.cut = limit_ns, True
        played.start_ns, played.end_ns = self.now_ns, self.now_ns + lasts_ns
        played.held = start.held
        self._holders[job.job_id] = RunningHolder(
            job.job_id, job.submission_id, job.priority,
            None if start.cluster is None else start.cluster_id, (start.run_id,), row,
        )  # fmt: skip
        heappush(self._ends, (played.end_ns, job.job_id, played.preempted))

    # ---- in the order of time ----

    def play(
        self,
        arrivals: Sequence[Arrival],
        *,
        until_ns: int | None = None,
        each: Callable[[], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Played]:
        """Play all events, or those until ``until_ns``, in order of time; returns the results of the jobs.

        ``each`` is called at every moment before the round. ``progress`` gets the number of arrivals so far,
        after every ``PROGRESS_EVERY`` of them.
        """
        coming = 0
        ordered = sorted(arrivals, key=lambda arrival: arrival.job.submitted_at_ns)
        while (moment := self._next(ordered, coming)) is not None:
            if until_ns is not None and moment > until_ns:
                break
            self._go_to(moment)
            while coming < len(ordered) and ordered[coming].job.submitted_at_ns <= moment:
                self.submit(ordered[coming])
                coming += 1
                if progress is not None and coming % PROGRESS_EVERY == 0:
                    progress(coming)
            if each is not None:
                each()
            self.round()
        if until_ns is None:
            self._close()
        return list(self.jobs.values())

    def _go_to(self, moment: int) -> None:
        """Let the time come: what is to end by then ends."""
        self.now_ns = moment
        while self._ends and self._ends[0][0] <= moment:
            _, job_id, attempt = heappop(self._ends)
            if job_id in self._holders and attempt == self.jobs[job_id].preempted:
                self.end(job_id)
        while self._begins and self._begins[0] <= moment:
            heappop(self._begins)
        self.closed.clear()
        if self.ledger.timed:
            self._close_bookings()
            self._open_bookings()

    def _close_bookings(self) -> None:
        """Close the booked clusters whose end has come, with the jobs in them."""
        for cluster_id in sorted(self.ledger.timed):
            cluster = self.ledger.clusters.get(cluster_id)  # None: it was in one that has closed
            if cluster is None or cluster.booking is None or cluster.booking.end_ns > self.now_ns:
                continue
            below = [cluster_id, *self.ledger.below(cluster_id)]
            for one in below:
                for job_id in self._holders.keys() & self.running.of_parent.get(one, {}).keys():
                    self.end(job_id)
                    self.jobs[job_id].cut, self.jobs[job_id].end_ns = True, self.now_ns
                if (queue := self.queues.pop(one, None)) is not None:
                    for job in queue.jobs.values():
                        played = self.jobs[job.job_id]
                        played.reason, played.message = (
                            jb.BOOKING_ENDED,
                            "the booking of its cluster has ended",
                        )
            self.ledger.put_cluster(replace(cluster, state=REMOVING))
            for one in reversed(below):
                if one in self.ledger.clusters and self._is_unused(one):
                    self.ledger.remove_cluster(one)
            self.closed.append(cluster_id)

    def _is_unused(self, cluster_id: str) -> bool:
        """Whether nothing is in a cluster, nor in its virtual nodes."""
        ledger = self.ledger
        vnode_ids = ledger.members.get(cluster_id, ())
        return not ledger.subclusters.get(cluster_id) and all(
            ledger.capacities[vnode_id].is_untouched() and vnode_id not in ledger.homes
            for vnode_id in vnode_ids
        )

    def _open_bookings(self) -> None:
        """Open the booked clusters whose begin has come and whose place is free."""
        booked = self.ledger.booked
        for cluster in (
            [] if booked is None else sorted(booked.clusters.values(), key=lambda one: one.cluster_id)
        ):
            booking = cluster.booking
            if booking is None or booking.begin_ns > self.now_ns:
                continue
            if (vnodes := free_place(self.ledger, cluster, booking)) is not None:
                self.ledger.put_cluster(replace(cluster, state=ACTIVE))
                self.ledger.assign_all(vnodes)

    def _next(self, ordered: Sequence[Arrival], coming: int) -> int | None:
        moments = [self._ends[0][0]] if self._ends else []
        if coming < len(ordered):
            moments.append(ordered[coming].job.submitted_at_ns)
        if self._begins:
            moments.append(self._begins[0])
        for cluster_id in self.ledger.timed:
            if (booking := self.ledger.clusters[cluster_id].booking) is not None:
                moments += [at for at in (booking.begin_ns, booking.end_ns) if at > self.now_ns]
        for queue in self.queues.values():
            if queue.again_ns is not None and queue.again_ns > self.now_ns:
                moments.append(queue.again_ns)
            moments += queue.reserved_after(self.now_ns)
        return min(moments, default=None)

    def _close(self) -> None:
        """Set the reason of the jobs that still wait after the last event."""
        for queue in self.queues.values():
            for job in queue.jobs.values():
                played = self.jobs[job.job_id]
                played.reason, played.message = self._why(queue, job)

    def _why(self, queue: Queue, job: PendingJob) -> tuple[str, str]:
        if job.held:
            return "Held", "held"
        keys = f"{job.shape};user={job.user}", job.shape
        told = next(
            (self.waits[queue.parent_id, key] for key in keys if (queue.parent_id, key) in self.waits), None
        )
        # what the last round before the beginning has told is not told again
        return told or next(
            (queue.reported[key] for key in keys if key in queue.reported), ("PendingEvaluation", "")
        )
