"""Leases that lenders call in because their own work waits, and what has to end so that these are free again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vctl.core.jobs import Run
from vctl.core.leases import CALLED, Lease
from vctl.engine.changes import Change, LeaseCalled
from vctl.engine.rules.leases import slots_inside
from vctl.engine.state import SchedulerState
from vctl.scheduler.leasing import newest_first
from vctl.scheduler.tasking import ancestors


def to_call(state: SchedulerState) -> list[Lease]:
    """Of each cluster that waits for what it lent of its minimum the newest lease."""
    ledger = state.ledger
    lent: dict[str, list[Lease]] = {}
    for lease in state.leases.values():
        borrower = ledger.clusters.get(lease.borrower_id)
        if borrower is not None and borrower.parent_id != lease.lender_id:  # a sibling has it
            lent.setdefault(lease.lender_id, []).append(lease)
    return [next(newest_first(lent[one])) for one in sorted(lent) if waits_in(state, one)]


def waits_in(state: SchedulerState, cluster_id: str) -> bool:
    """Whether work in a cluster or anywhere below it was looked at and has to wait."""
    for parent_id, queue in state.queues.items():
        blocked = any(shape.blocked is not None for shape in queue.shapes.values())
        if blocked and cluster_id in ancestors(state.ledger, parent_id):
            return True
    return any(
        queue.blocked and cluster_id in ancestors(state.ledger, one)
        for one, queue in state.tasks.queues.items()
    )


def called(state: SchedulerState, lease: Lease, ends_at: int) -> Iterator[Change]:
    """Call a lease in, unless it was given back or changed meanwhile, or another scheduler has called it in."""
    if state.leases.get(lease.lease_id) == lease and lease.state != CALLED:
        yield LeaseCalled(replace(lease, state=CALLED, expires_at=min(ends_at, lease.expires_at or ends_at)))


def users_of(state: SchedulerState, lease: Lease) -> list[Run]:
    """Processes that run on the virtual node of a lease, or on one that lies inside it; the newest first."""
    inside = slots_inside(state, lease.vnode_id)
    return sorted((run for run in state.runs.values() if run.vnode_id in inside), key=_age, reverse=True)


def to_end(state: SchedulerState, lease: Lease, now: int) -> Iterator[list[Run]]:
    """What has to end so that a lease is free, never more: a task alone, a job whole.

    A job that has not run yet for as long as its cluster grants to every attempt is left out.
    """
    if (capacity := state.ledger.capacities.get(lease.vnode_id)) is None:
        return
    missing = {name: amount - max(0, capacity.free.get(name, 0)) for name, amount in lease.amounts.items()}
    users = {run.run_id: run for run in users_of(state, lease)}
    ended: set[str] = set()
    for run in users.values():
        if all(amount <= 0 for amount in missing.values()):
            return
        if run.run_id in ended or _is_young(state, run, now):
            continue
        of_job = [run.run_id] if run.task_id is not None else sorted(state.runs_of_job.get(run.job_id, ()))
        yield [state.runs[run_id] for run_id in of_job]
        for run_id in users.keys() & set(of_job) - ended:
            for name in missing:
                missing[name] -= users[run_id].allocation.amounts.get(name, 0)
        ended.update(of_job)


def _is_young(state: SchedulerState, run: Run, now: int) -> bool:
    job = state.running.jobs.get(run.job_id)
    parent = None if job is None else state.ledger.clusters.get(job.parent_id)
    return job is not None and parent is not None and now < job.started_at_ns + parent.queue.min_runtime_ns


def _age(run: Run) -> tuple[int, int]:
    """The larger, the newer. A task that was not seen to start yet is newer than all that were."""
    number = 0 if run.task_id is None else int(run.task_id.rpartition("-")[2])
    return (number, run.started_at or 1 << 63)
