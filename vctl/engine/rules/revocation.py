"""Calls in leases whose lenders have waiting work, and stops the work that uses these leases.

Jobs that use such a lease get notice and a grace. What uses the lease after that is stopped, newest first, no
more than the lease needs, and never a part of a gang. If the lender needs it no more before
the end of the grace, the jobs go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.clusters import JOB
from vctl.core.jobs import Run
from vctl.core.leases import CALLED, GRANTED, Lease
from vctl.core.resources import Allocation, Amounts, FreeCapacity, difference
from vctl.core.values import replace
from vctl.engine.changes import Change, LeaseCalled, LeaseSpared
from vctl.engine.rules import stops
from vctl.engine.rules.leases import slots_inside
from vctl.engine.settings import Memo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import LeaseNotified, Now, Stimulus
from vctl.scheduler.elasticity import flexible_parts
from vctl.scheduler.leasing import free_part, newest_first
from vctl.scheduler.lending import Waiting, keepers, loans, work_in_lenders


def begin_graces(state: SchedulerState, memo: Memo, stimuli: Iterable[Stimulus], now: Now) -> None:
    """Begin the grace of jobs that got notice."""
    grace_ns = int(state.lease_terms.reclaim_grace_s * 1e9)
    for one in stimuli:
        if isinstance(one, LeaseNotified) and one.lease_id in state.leases:
            memo.notified.setdefault(one.lease_id, {}).setdefault(one.job_id, now.uptime + grace_ns)


def revoked(state: SchedulerState, memo: Memo, now: Now) -> Iterator[Change]:
    """Call in leases whose lenders have waiting work, and stop what uses them after its grace."""
    for gone in memo.notified.keys() - state.leases.keys():
        del memo.notified[gone]
    yield from _spared(state, memo, now.wall)
    ends_at = now.wall + int(state.lease_terms.reclaim_grace_s * 1e9)
    for lease in to_call(state, now.wall):
        if lease.state != CALLED:
            yield LeaseCalled(
                replace(lease, state=CALLED, expires_at=min(ends_at, lease.expires_at or ends_at))
            )
    graces = [at for of_lease in memo.notified.values() for at in of_lease.values()]
    memo.due += [at for at in graces if at > now.uptime]
    if any(at <= now.uptime for at in graces):
        for lease in _called(state):
            yield from _end_use(state, memo, lease, now)


def _spared(state: SchedulerState, memo: Memo, now: int) -> Iterator[Change]:
    """Leave leases with their borrowers that no lender needs any more: its work was stopped, or has started."""
    if not (called := _called(state)):
        return
    duration_s = state.lease_terms.duration_s
    wanting = keepers(state.ledger, waiting(state, now, judged=False))
    lent = loans(state.ledger, state.leases.values())
    needed = {lease.lease_id for one in wanting for lease in lent.get(one, ())}
    for lease in called:
        if lease.lease_id not in needed:
            expires_at = None if duration_s is None else lease.since + int(duration_s * 1e9)
            yield LeaseSpared(replace(lease, state=GRANTED, expires_at=expires_at))
            memo.notified.pop(lease.lease_id, None)


def _end_use(state: SchedulerState, memo: Memo, lease: Lease, now: Now) -> Iterator[Change]:
    ends = memo.notified.get(lease.lease_id, {})
    for victims in list(to_end(state, lease, now.wall)):
        if ends.get(victims[0].job_id, now.uptime + 1) <= now.uptime:
            yield from stops.stop(state, [run.run_id for run in victims], jb.PREEMPTED)


def to_notify(state: SchedulerState, memo: Memo) -> Iterator[tuple[Lease, int]]:
    """The called leases, each with every job that uses it and got no notice of that."""
    for lease in _called(state):
        ends = memo.notified.get(lease.lease_id, {})
        for job_id in sorted({run.job_id for run in users_of(state, lease)} - ends.keys()):
            yield lease, job_id


def _called(state: SchedulerState) -> list[Lease]:
    leases = (state.leases[number] for number in sorted(state.leases))
    return [lease for lease in leases if lease.state == CALLED]


def to_call(state: SchedulerState, now: int) -> list[Lease]:
    """The newest lease of each cluster whose own work waits for a part of its minimum that it has lent."""
    lent = loans(state.ledger, state.leases.values())
    wanting = keepers(state.ledger, waiting(state, now, judged=True)) if lent else {}
    found = (newest_first(lent[one])[0] for one in sorted(lent) if one in wanting)
    return list(
        {lease.lease_id: lease for lease in found}.values()
    )  # clusters around a lender want the same one


def keeping(state: SchedulerState, now: int) -> dict[str, Amounts]:
    """What lenders keep now, because their own work starts with it once a loan has come back."""
    work = waiting(state, now, judged=False)
    return keepers(state.ledger, work, state.nominations.values())


def waiting(state: SchedulerState, now: int, *, judged: bool) -> Iterator[Waiting]:
    """The work that waits for resources. ``judged``: only if nothing has come free since it was looked at."""
    return work_in_lenders(state.ledger, state.queues, state.tasks.queues, now, judged=judged)


def users_of(state: SchedulerState, lease: Lease) -> list[Run]:
    """The runs on the virtual node of a lease or on one inside it, newest first; of a job that borrowed, all."""
    inside = slots_inside(state, lease.vnode_id)
    if _is_of_gang(state, lease):
        inside = set().union(*(slots_inside(state, one) for one in state.ledger.members[lease.borrower_id]))
    return sorted((run for run in state.runs.values() if run.vnode_id in inside), key=_age, reverse=True)


def to_end(state: SchedulerState, lease: Lease, now: int) -> Iterator[list[Run]]:
    """The runs that have to end to free a lease, and no more: each time one task, or all runs of a job.

    Leaves out the runs of a job that has not run for the ``min_runtime`` of its queue.
    """
    ledger = state.ledger
    if lease.vnode_id not in ledger.vnodes:
        return
    capacity = ledger.capacities[lease.vnode_id].copy()
    users = {run.run_id: run for run in users_of(state, lease)}
    ended: set[str] = set()
    freed = _Freed(state, lease)
    for run in users.values():
        if _is_free(state, lease, capacity):
            return
        if run.run_id in ended or _is_young(state, run, now):
            continue
        of_job = [run.run_id] if run.task_id is not None else sorted(state.runs_of_job.get(run.job_id, ()))
        yield [state.runs[run_id] for run_id in of_job]
        ending = [users[one] for one in of_job if one in users and one not in ended]
        for part in freed.by(ending, whole=run.task_id is None):
            capacity.give_back(part)
        ended.update(of_job)


class _Freed:
    """What comes free on the virtual node of a lease while tasks and whole jobs end there one by one."""

    def __init__(self, state: SchedulerState, lease: Lease) -> None:
        self.state = state
        self.slots = slots_inside(state, lease.vnode_id)
        """The virtual nodes that still exist."""
        self.lent = lease.vnode_id
        self.parts: list[tuple[str, Allocation]] = []
        """The freed parts: (virtual node, allocation)."""

    def by(self, runs: list[Run], *, whole: bool) -> Iterator[Allocation]:
        """The allocations that come free when these runs end.

        The virtual nodes of a whole job come free, too, even those of which its processes hold nothing.
        """
        before = len(self.parts)
        for vnode_id in self._own(runs[0].job_id) if whole and runs else ():
            inside = slots_inside(self.state, vnode_id)
            part = self.state.ledger.vnodes[vnode_id].allocation
            for slot, had in self.parts[:before]:
                if slot in inside:
                    part = difference(part, had)
            self.slots -= inside
            self.parts.append((vnode_id, part))
        self.parts += [(run.vnode_id, run.allocation) for run in runs if run.vnode_id in self.slots]
        return (part for _, part in self.parts[before:])

    def _own(self, job_id: int) -> list[str]:
        """The virtual nodes inside the lease's that end with a job; none if it shares its cluster."""
        job = self.state.running.jobs.get(job_id)
        if job is None or job.cluster_id == job.parent_id:
            return []
        return sorted((self.slots - {self.lent}) & self.state.ledger.members.get(job.cluster_id, {}).keys())


def _is_free(state: SchedulerState, lease: Lease, capacity: FreeCapacity) -> bool:
    """Whether a whole lease could be returned if its virtual node had this free capacity."""
    if _is_of_gang(state, lease):
        return False  # it ends with its job
    ledger = state.ledger
    has = rs.total(part.allocation.amounts for part in flexible_parts(ledger, lease.borrower_id))
    over = rs.subtract(has, ledger.clusters[lease.borrower_id].spec.flexible_min)
    free = free_part(ledger, lease, state.leases.values(), capacity)
    return all(min(amount, over[name]) <= free.amounts.get(name, 0) for name, amount in lease.amounts.items())


def _is_of_gang(state: SchedulerState, lease: Lease) -> bool:
    """Whether a lease is a loan to a job, which needs it for its gang."""
    borrower = state.ledger.clusters.get(lease.borrower_id)
    return borrower is not None and borrower.kind == JOB and borrower.parent_id != lease.lender_id


def _is_young(state: SchedulerState, run: Run, now: int) -> bool:
    job = state.running.jobs.get(run.job_id)
    parent = None if job is None else state.ledger.clusters.get(job.parent_id)
    return job is not None and parent is not None and now < job.started_at_ns + parent.queue.min_runtime_ns


def _age(run: Run) -> tuple[int, int]:
    """A sort key: the larger, the newer. Tasks by number are newer than all main processes, these by start.

    A main process that was not seen to start yet is the newest of these.
    """
    number = 0 if run.task_id is None else int(run.task_id.rpartition("-")[2])
    return (number, run.started_at or 1 << 63)
