"""Calling back what a cluster lent of its minimum, when its own work waits for it: newest lease first.

The borrower's job is told (an event, a file, its signal or one that no program dies of) and has a grace; what still
uses the lease then is ended, newest first, never more than the lease and never half a gang.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from vctl.core import jobs as jb
from vctl.core.jobs import Run
from vctl.core.leases import CALLED, Lease
from vctl.daemon import notices
from vctl.daemon.following import FollowedState
from vctl.engine.changes import LeaseCalled
from vctl.engine.rules.leases import slots_inside
from vctl.scheduler.leasing import newest_first
from vctl.scheduler.tasking import ancestors
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
        lent = [lease for lease in state.leases.values() if self._is_sibling_loan(state, lease)]
        for lender_id in sorted({lease.lender_id for lease in lent}):
            if waits_in(state, lender_id):
                loans = [lease for lease in lent if lease.lender_id == lender_id]
                self._call_in(state, next(newest_first(loans)), tell)
        now = time.monotonic()
        for lease_id, deadline in sorted(self._deadline.items()):
            if deadline <= now and (due := state.leases.get(lease_id)) is not None:
                self._end_use(state, due, stop, tell)

    def _is_sibling_loan(self, state: FollowedState, lease: Lease) -> bool:
        borrower = state.ledger.clusters.get(lease.borrower_id)
        return borrower is not None and borrower.parent_id != lease.lender_id

    def _call_in(self, state: FollowedState, lease: Lease, tell: Signal) -> None:
        if lease.lease_id in self._deadline:
            return
        ends = self.store.clock() + int(self.grace_s * 1e9)
        with self.store.transaction():
            state.follow(self.store)
            if state.leases.get(lease.lease_id) != lease:
                return  # given back or changed meanwhile: the next turn looks at what there is then
            if lease.state != CALLED:  # else the scheduler before has, and its grace begins again
                ends_at = min(ends, lease.expires_at or ends)
                state.emit(self.store, LeaseCalled(replace(lease, state=CALLED, expires_at=ends_at)))
        self._deadline[lease.lease_id] = time.monotonic() + self.grace_s
        self._told[lease.lease_id] = {}
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
            "ends_at_ns": ends,
        }
        notices.write(self.store.home, job["submission_id"], notice)
        asked = rows.loads(job["rules"]).get("signal")
        members = state.members_of(job_id)
        for run_id in sorted(state.runs_of_job.get(job_id, ())):
            tell(run_id, asked["number"] if asked and run_id in members else NOTICE_SIGNAL)

    def _end_use(self, state: FollowedState, lease: Lease, stop: Stop, tell: Signal) -> None:
        """End the newest processes on the lease until it is free; a job ends whole, and never without its grace."""
        now = time.monotonic()
        self._deadline[lease.lease_id] = now + self.grace_s
        missing = dict(lease.amounts)
        capacity = state.ledger.capacities.get(lease.vnode_id)
        if capacity is None:
            return
        for name in missing:
            missing[name] -= max(0, capacity.free.get(name, 0))
        told = self._told[lease.lease_id]
        for run in sorted(users_of(state, lease), key=_age, reverse=True):
            if all(amount <= 0 for amount in missing.values()):
                return
            if self._is_young(state, run):
                continue  # asked again after another grace
            if run.job_id not in told:  # it began to use the lease later
                self._tell(state, run.job_id, lease, self.store.clock() + int(self.grace_s * 1e9), tell)
            for victim in [run] if run.task_id is not None else _whole_job(state, run):
                if told[run.job_id] <= now:
                    stop(victim, jb.PREEMPTED, self.grace_s if victim.task_id is None else 3.0)
                for name in missing:
                    missing[name] -= victim.allocation.amounts.get(name, 0)

    def _is_young(self, state: FollowedState, run: Run) -> bool:
        """Whether its job has not yet run for as long as its cluster grants to every attempt."""
        job = state.running.jobs.get(run.job_id)
        parent = None if job is None else state.ledger.clusters.get(job.parent_id)
        if job is None or parent is None:
            return False
        return self.store.clock() < job.started_at_ns + parent.queue.min_runtime_ns


def users_of(state: FollowedState, lease: Lease) -> Iterator[Run]:
    """Processes that run on the virtual node of a lease, or on one that lies inside it."""
    inside = slots_inside(state, lease.vnode_id)
    return (run for run in list(state.runs.values()) if run.vnode_id in inside)


def _age(run: Run) -> tuple[int, int]:
    """The larger, the newer. A task that was not seen to start yet is newer than all that were."""
    number = 0 if run.task_id is None else int(run.task_id.rpartition("-")[2])
    return (number, run.started_at or 1 << 63)


def _whole_job(state: FollowedState, run: Run) -> list[Run]:
    return [state.runs[run_id] for run_id in sorted(state.runs_of_job.get(run.job_id, ()))]


def waits_in(state: FollowedState, cluster_id: str) -> bool:
    """Whether work in a cluster or anywhere below it was looked at and has to wait."""
    for parent_id, queue in state.queues.items():
        blocked = any(shape.blocked is not None for shape in queue.shapes.values())
        if blocked and cluster_id in ancestors(state.ledger, parent_id):
            return True
    return any(
        queue.blocked and cluster_id in ancestors(state.ledger, one)
        for one, queue in state.tasks.queues.items()
    )
