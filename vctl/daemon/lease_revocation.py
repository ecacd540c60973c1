"""Calling back what a cluster lent of its minimum, when its own work waits for it: newest lease first.

The borrower's job is told (an event, a file, its signal or one that no program dies of) and has a grace; what still
uses the lease then is ended, newest first, never more than the lease and never half a gang.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.core.leases import CALLED, Lease
from vctl.daemon import notices
from vctl.daemon.following import FollowedState
from vctl.engine.rules.revocation import called, to_call, to_end, users_of
from vctl.store import jobs, rows
from vctl.store.store import Store

NOTICE_SIGNAL = signal.SIGURG
"""Ignored by default, so that a job which does not know of leases is not harmed by being told."""

Stop = Callable[[Run, str, float], None]
Signal = Callable[[str, int], object]


class LeaseRevocation:
    """Leases that are called in, and when their grace ends."""

    def __init__(self, store: Store, *, grace_s: float = 30.0) -> None:
        self.store = store
        self.grace_s = grace_s
        self._deadline: dict[int, float] = {}
        """Leases that were called in, and when it is looked next who still uses them."""
        self._told: dict[int, dict[int, float]] = {}
        """lease -> job -> when the grace of that job ends."""

    def due_s(self) -> float:
        """Seconds until the next grace ends."""
        return min((max(0.0, at - time.monotonic()) for at in self._deadline.values()), default=float("inf"))

    def turn(self, state: FollowedState, stop: Stop, tell: Signal) -> None:
        """Call in what lenders with waiting work have lent; end what uses it after the grace."""
        for gone in set(self._deadline) - set(state.leases):
            del self._deadline[gone], self._told[gone]
        for lease in to_call(state):
            if lease.lease_id not in self._deadline:
                self._call_in(state, lease, tell)
        now = time.monotonic()
        for lease_id, deadline in sorted(self._deadline.items()):
            if deadline <= now and (due := state.leases.get(lease_id)) is not None:
                self._end_use(state, due, stop, tell)

    def _call_in(self, state: FollowedState, lease: Lease, tell: Signal) -> None:
        ends = self.store.clock() + int(self.grace_s * 1e9)
        state.emit_all(self.store, lambda: called(state, lease, ends))
        lease_id = lease.lease_id
        if (now := state.leases.get(lease_id)) is None or now.state != CALLED or now.amounts != lease.amounts:
            return  # given back or changed meanwhile: the next turn looks at what there is then
        self._deadline[lease_id] = time.monotonic() + self.grace_s
        self._told[lease_id] = {}
        for job_id in sorted({run.job_id for run in users_of(state, lease)}):
            self._tell(state, job_id, lease, ends, tell)

    def _tell(self, state: FollowedState, job_id: int, lease: Lease, ends: int, tell: Signal) -> None:
        """The file named by VCTL_LEASE_FILE, then a signal to every process of the job. Its grace begins."""
        self._told[lease.lease_id][job_id] = time.monotonic() + self.grace_s
        job = jobs.get(self.store, job_id)
        if job is None:
            return
        notice = {
            "lease_id": lease.lease_id,
            "amounts": dict(lease.amounts),
            "lender_id": lease.lender_id,
            "task_ids": [run.task_id for runs in to_end(state, lease, ends) for run in runs if run.task_id],
            "ends_at_ns": ends,
        }
        notices.write(self.store.home, job["submission_id"], notice)
        asked = rows.loads(job["rules"]).get("signal")
        members = state.members_of(job_id)
        for run_id in sorted(state.runs_of_job.get(job_id, ())):
            tell(run_id, asked["number"] if asked and run_id in members else NOTICE_SIGNAL)

    def _end_use(self, state: FollowedState, lease: Lease, stop: Stop, tell: Signal) -> None:
        """End the newest processes on the lease until it is free; a job ends whole, and never without its grace."""
        now, wall = time.monotonic(), self.store.clock()
        self._deadline[lease.lease_id] = now + self.grace_s
        told = self._told[lease.lease_id]
        for victims in list(to_end(state, lease, wall)):
            job_id = victims[0].job_id
            if job_id not in told:  # it began to use the lease later
                self._tell(state, job_id, lease, wall + int(self.grace_s * 1e9), tell)
            if told[job_id] <= now:
                for victim in victims:
                    stop(victim, jb.PREEMPTED, self.grace_s if victim.task_id is None else 3.0)
