"""One queue in one round: takes its jobs in order, one at a time, and starts or passes them."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.jobs import PendingJob, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.queue_policy import BACKFILL, FAIR
from vctl.scheduler.backfill import Reservation, Walls
from vctl.scheduler.disciplines import DISCIPLINES, Line
from vctl.scheduler.fairness import Shares
from vctl.scheduler.feasibility import ever
from vctl.scheduler.gang_growth import grow_for_gang
from vctl.scheduler.orders import OrderKey, order_key
from vctl.scheduler.placement import Placed, Unplaced, place
from vctl.scheduler.plan import Start, Wait, start_of, take
from vctl.scheduler.queueing import Lane, Queue, Shape
from vctl.scheduler.running import Running

Head = tuple[float, OrderKey, PendingJob, Lane, Iterator[PendingJob]]


class Turn:
    """The state of a queue within a round. ``shares`` is None where no order is fair."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        running: Running,
        shares: Shares | None,
        *,
        now_ns: int,
        stale: bool,
    ) -> None:
        self.ledger = ledger
        self.queue = queue
        self.running = running
        self.shares = shares
        self.now_ns = now_ns
        self.policy = queue.policy
        self.waits: list[Wait] = []
        self._said: set[str] = set()
        self._line = Line(ledger, queue, self.policy, running, now_ns, stale)
        self._heads: list[Head] = []
        for shape in queue.shapes.values():
            for lane in shape.lanes.values():
                self._push(lane, queue.candidates(lane, now_ns), first=True)
        heapify(self._heads)

    @property
    def is_over(self) -> bool:
        """Whether every job was started or passed."""
        return not self._heads

    def rank(self) -> tuple[float, ...]:
        """Whose turn it is among queues: the smallest. It only grows while jobs start."""
        if self.shares is None:
            return ()
        return (*self.shares.turn_of(self.queue.parent_id), self._heads[0][0])

    def finish(self) -> None:
        """Remember what is reserved for the next round."""
        if self.is_over:
            self.queue.kept = dict(self._line.reserved)
        else:  # the round was cut short before all heads were seen
            self.queue.kept |= self._line.reserved

    def step(self) -> Start | None:
        """Look at the next job; the start is applied to the ledger."""
        share, _, job, lane, rest = heappop(self._heads)
        if share < self._share_of(job):
            self._push_job(job, lane, rest)  # its user has got more since
            return None
        shape = self.queue.shapes[lane.shape]
        if self._is_kept_back(job, lane):
            return None
        if shape.blocked is not None or self.queue.is_hopeless(self.ledger, shape):
            assert shape.blocked is not None
            self._pass(job, lane, rest, *shape.blocked)
            return None
        binding = self._line.binding(job)
        if binding and lane.walled == binding:
            self._pass_walled(job, lane, rest, binding)
            return None
        with Walls(self.ledger, binding, self._line.coming() if binding else {}):
            start, found = self._try(job)
        if start is not None:
            self._count(start)
            self._push(lane, rest)
        elif found is not None:
            self._refuse(job, lane, rest, found, binding)
        return start

    def _refuse(
        self,
        job: PendingJob,
        lane: Lane,
        rest: Iterator[PendingJob],
        found: Unplaced,
        binding: list[Reservation],
    ) -> None:
        """A job did not fit: because of what is in use, or because of what is reserved?"""
        shape = self.queue.shapes[lane.shape]
        if binding:
            bare = place(self.ledger, job.parent_id, job.spec, job.entry)
            if isinstance(bare, Placed):
                lane.walled = binding
                self._pass_walled(job, lane, rest, binding)
                return
            found = bare
        shape.exhausted = found.exhausted
        shape.blocked, shape.before = self._verdict(job, shape, found), None
        self._pass(job, lane, rest, *shape.blocked)

    def _pass_walled(
        self, job: PendingJob, lane: Lane, rest: Iterator[PendingJob], binding: list[Reservation]
    ) -> None:
        names = ", ".join(one.submission_id for one in binding)
        self._pass(job, lane, rest, jb.HEAD_OF_LINE, f"it would use what is reserved for {names}")

    def _pass(
        self, job: PendingJob, lane: Lane, rest: Iterator[PendingJob], reason: str, message: str
    ) -> None:
        """Go on behind a job that stays; what that means for those behind it, the discipline knows."""
        self._say(lane, reason, message)
        if reason == jb.INFEASIBLE:
            return
        DISCIPLINES[self.policy.discipline](self._line, job)
        if self.policy.discipline == BACKFILL and self._line.heads < self.policy.backfill_depth:
            self._push(lane, rest)  # the next of its shape may be a head as well

    def _is_kept_back(self, job: PendingJob, lane: Lane) -> bool:
        """Whether a blocked head or a limit keeps the job back; then its whole lane."""
        policy, parent_id = self.policy, self.queue.parent_id
        if (head := self._line.stopped_by) is not None:
            self._say(lane, jb.HEAD_OF_LINE, f"job {head.submission_id} is before it and must start first")
            return True
        most = policy.max_running_jobs
        if most is not None and self.running.count(parent_id) >= most:
            self._say(lane, jb.CAP_REACHED, f"at most {most} jobs may run in {parent_id} at a time")
            return True
        most = policy.max_running_per_user
        if most is not None and self.running.count_of(parent_id, job.user) >= most:
            text = f"at most {most} jobs of {job.user} may run in {parent_id} at a time"
            self._say(lane, jb.USER_LIMIT, text)
            return True
        return False

    def _try(self, job: PendingJob) -> tuple[Start | None, Unplaced | None]:
        """Place a job, letting its parent grow when it has no room; what is started is applied to the ledger."""
        ledger = self.ledger
        found = place(ledger, job.parent_id, job.spec, job.entry)
        if isinstance(found, Placed):
            start = start_of(ledger, job, found)
            take(ledger, start, start.run_id)
            return start, None
        can_grow = ledger.clusters[job.parent_id].spec.flexible
        grown = grow_for_gang(ledger, job.parent_id, job.spec, job.entry) if can_grow else None
        if grown is None:
            return None, found
        steps, placed = grown
        start = start_of(ledger, job, placed, steps)
        take(ledger, start, start.run_id)
        return start, None

    def _count(self, start: Start) -> None:
        """A job that was started in this round counts for what the round decides after it."""
        job = start.job
        end_ns = None if job.time_limit_ns is None else self.now_ns + job.time_limit_ns
        self.running.put(
            RunningJob(job.job_id, job.parent_id, start.cluster_id, start.run_id, job.user, end_ns)
        )
        if self.shares is not None:
            holdings = [vnode.holding for vnode in start.vnodes] or [start.holding]
            self.shares.add(job.parent_id, job.user, rs.total(holding.amounts for holding in holdings))

    def _verdict(self, job: PendingJob, shape: Shape, found: Unplaced) -> tuple[str, str]:
        """Reason and message; whether it could ever run depends only on what the parent has, so it is asked once."""
        version = self.ledger.versions.get(job.parent_id, 0)
        if shape.never is None or shape.never[0] != version:
            never = ever(self.ledger, job.parent_id, job.spec, job.entry)
            shape.never = (version, None if never is None else never.message)
        can_gain = self.ledger.may_gain_nodes or self.ledger.clusters[job.parent_id].spec.flexible
        if shape.never[1] is not None and not can_gain:
            return jb.INFEASIBLE, shape.never[1]
        return jb.INSUFFICIENT, found.message

    def _say(self, lane: Lane, reason: str, message: str) -> None:
        """Tell why a lane waits, when it is news; the first of its jobs in order decides what is told."""
        key = self.queue.wait_key(lane)
        if key in self._said:
            return
        self._said.add(key)
        if self.queue.told.get(key) != (reason, message):
            self.queue.told[key] = (reason, message)
            self.waits.append(Wait(self.queue.parent_id, key, reason, message))

    def _share_of(self, job: PendingJob) -> float:
        if self.shares is None or self.policy.order != FAIR:
            return 0.0
        return self.shares.of_user(self.queue.parent_id, job.user)

    def _push(self, lane: Lane, rest: Iterator[PendingJob], *, first: bool = False) -> None:
        job = next(rest, None)
        if job is not None:
            self._push_job(job, lane, rest, first=first)

    def _push_job(
        self, job: PendingJob, lane: Lane, rest: Iterator[PendingJob], *, first: bool = False
    ) -> None:
        entry = (self._share_of(job), order_key(job, self.policy), job, lane, rest)
        self._heads.append(entry) if first else heappush(self._heads, entry)
