"""Calls in leases whose lenders have waiting work, and stops the work that uses these leases.

Jobs that use such a lease get notice and a grace. What uses the lease after that is stopped, newest first, no
more than the lease needs, and never a part of a gang. If the lender needs it no more before
the end of the grace, the jobs go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, JOB, LOGICAL
from vctl.core.jobs import Run
from vctl.core.leases import CALLED, GRANTED, Lease
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts, beyond, least_of
from vctl.core.values import replace
from vctl.engine.changes import Change, LeaseCalled, LeaseSpared
from vctl.engine.rules import stops
from vctl.engine.rules.leases import slots_inside
from vctl.engine.settings import TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import LeaseNotified, Now, Stimulus
from vctl.scheduler.elasticity import above_its_minimum
from vctl.scheduler.leasing import extended, idle_parts, is_of_gang, newest_first
from vctl.scheduler.lending import Waiting, keepers, kept_back, loans, wishes, work_in_lenders
from vctl.scheduler.recall import recall


def begin_graces(state: SchedulerState, memo: TurnMemo, stimuli: Iterable[Stimulus], now: Now) -> None:
    """Begin the grace of jobs that got notice."""
    grace_ns = int(state.lease_terms.reclaim_grace_s * 1e9)
    for stimulus in stimuli:
        if isinstance(stimulus, LeaseNotified) and stimulus.lease_id in state.leases:
            memo.notified.setdefault(stimulus.lease_id, {}).setdefault(stimulus.job_id, now.uptime + grace_ns)


def revoked(state: SchedulerState, memo: TurnMemo, now: Now, number: Callable[[], int]) -> Iterator[Change]:
    """Call in what lenders lack for their waiting work, and stop what uses it after its grace.

    ``number``: the next lease's id.
    """
    for lease_id in memo.notified.keys() - state.leases.keys():
        del memo.notified[lease_id]
    yield from _spared(state, memo, now.wall)
    ends_at = now.wall + int(state.lease_terms.reclaim_grace_s * 1e9)
    for lease, amounts in to_call(state, now.wall):
        rest = beyond(lease.amounts, amounts)
        called = replace(
            lease, amounts=amounts, state=CALLED, expires_at=min(ends_at, lease.expires_at or ends_at)
        )
        if rest:
            yield LeaseCalled(replace(called, lease_id=number()), replace(lease, amounts=rest))
        else:
            yield LeaseCalled(called)
    graces = [at for of_lease in memo.notified.values() for at in of_lease.values()]
    memo.due += [at for at in graces if at > now.uptime]
    if any(at <= now.uptime for at in graces):
        yield from _end_use(state, memo, now)


def _spared(state: SchedulerState, memo: TurnMemo, now: int) -> Iterator[Change]:
    """Leave leases with their borrowers whose lender needs them no more: its work was stopped, or has started."""
    if not _called(state):
        return
    lent = loans(state.ledger, state.leases.values())
    wanting = keepers(state.ledger, waiting(state, now, judged=False))
    duration_s = state.lease_terms.duration_s
    needed = {lease.lease_id for lender_id in wanting for lease in lent.get(lender_id, ())}
    for lease in [lease for of_borrower in _called(state).values() for lease in of_borrower]:
        if lease.lease_id not in needed:
            expires_at = None if duration_s is None else lease.since + int(duration_s * 1e9)
            spared = replace(lease, state=GRANTED, expires_at=expires_at)
            yield LeaseSpared(spared, extended(state.ledger, spared))
            memo.notified.pop(lease.lease_id, None)


def _end_use(state: SchedulerState, memo: TurnMemo, now: Now) -> Iterator[Change]:
    for borrower_id in _called(state):
        for lease, victims in list(to_end(state, borrower_id, now.wall)):
            ends = memo.notified.get(lease.lease_id, {})
            if ends.get(victims[0].job_id, now.uptime + 1) <= now.uptime:
                yield from stops.stop(state, [run.run_id for run in victims], jb.PREEMPTED)


def to_notify(state: SchedulerState, memo: TurnMemo, now: int) -> Iterator[tuple[Lease, int]]:
    """The called leases, each with the jobs that would have to end something at the end of a grace from now on.

    Without those that got notice of that.
    """
    ends_at = now + int(state.lease_terms.reclaim_grace_s * 1e9)
    for borrower_id in _called(state):
        leases: dict[tuple[int, int], Lease] = {}
        for lease, victims in to_end(state, borrower_id, ends_at):
            if victims[0].job_id not in memo.notified.get(lease.lease_id, {}):
                leases.setdefault((lease.lease_id, victims[0].job_id), lease)
        for (_, job_id), lease in sorted(leases.items()):
            yield lease, job_id


def _called(state: SchedulerState) -> dict[str, list[Lease]]:
    """Borrower -> its called leases, the first called first."""
    called: dict[str, list[Lease]] = {}
    for number in sorted(state.leases):
        if (lease := state.leases[number]).state == CALLED:
            called.setdefault(lease.borrower_id, []).append(lease)
    return called


def to_call(state: SchedulerState, now: int) -> list[tuple[Lease, Amounts]]:
    """What clusters lack for their own waiting work and have lent: parts of their leases, the newest first.

    Nothing while enough was called already. What is called for a cluster counts for those around it, too.
    """
    lent = loans(state.ledger, state.leases.values())
    wanting = wishes(state.ledger, waiting(state, now, judged=True)) if lent else {}
    requested: dict[int, Amounts] = {}
    for lender_id in sorted(lent.keys() & wanting.keys()):
        rest = wanting[lender_id].lack
        for lease in lent[lender_id]:
            rest = beyond(rest, lease.amounts if lease.state == CALLED else requested.get(lease.lease_id, {}))
        for lease in newest_first(lent[lender_id]):
            before = requested.get(lease.lease_id, {})
            if lease.state != CALLED and (part := least_of(beyond(lease.amounts, before), rest)):
                requested[lease.lease_id], rest = rs.add(before, part), beyond(rest, part)
    return [(state.leases[number], amounts) for number, amounts in requested.items()]


def keeping(state: SchedulerState, now: int) -> dict[str, Amounts]:
    """What lenders keep now, because their own work starts with it once a loan has come back."""
    return kept_back(state.ledger, state.queues, state.tasks.queues, now, state.nominations.values())


def waiting(state: SchedulerState, now: int, *, judged: bool) -> Iterator[Waiting]:
    """The work that waits for resources. ``judged``: only if nothing has come free since it was looked at."""
    return work_in_lenders(state.ledger, state.queues, state.tasks.queues, now, judged=judged)


def users_of(state: SchedulerState, borrower_id: str) -> list[Run]:
    """The runs on what a cluster may have borrowed, at any depth, newest first: for a job, all of it."""
    ledger = state.ledger
    is_job = ledger.clusters[borrower_id].kind == JOB
    inside: set[str] = set()
    for vnode in ledger.slots(borrower_id):
        if is_job or vnode.kind == FLEXIBLE:
            inside |= slots_inside(state, vnode.vnode_id)
    return sorted((run for run in state.runs.values() if run.vnode_id in inside), key=_age, reverse=True)


def to_end(state: SchedulerState, borrower_id: str, now: int) -> Iterator[tuple[Lease, list[Run]]]:
    """The runs that have to end to free the called leases of a cluster, and no more: each time one task, or all runs
    of a job, and the lease for which it ends.

    Leaves out the runs of a job that has not run for the ``min_runtime`` of its queue.
    """
    called = _called(state).get(borrower_id, ())
    if borrower_id not in state.ledger.clusters or not called:
        return
    users = users_of(state, borrower_id)
    trial = _Trial(state, borrower_id)
    requested: Amounts = {}
    for lease in called:
        requested = rs.add(requested, lease.amounts)
        for run in users:
            if not (names := trial.lacking(replace(lease, amounts=requested))):
                break
            if run.run_id not in trial.ended and not _is_young(state, run, now):
                victims = [state.runs[run_id] for run_id in _with(state, run)]
                if trial.end(victims, names):
                    yield lease, victims


def _with(state: SchedulerState, run: Run) -> list[str]:
    """What ends with a run: itself if it is a task, else all runs of its job."""
    return [run.run_id] if run.task_id is not None else sorted(state.runs_of_job.get(run.job_id, ()))


class _Trial:
    """A copy of a borrower and the clusters below it, in which runs end and what comes free goes up to the borrower."""

    def __init__(self, state: SchedulerState, borrower_id: str) -> None:
        ledger = state.ledger
        self.state, self.borrower_id = state, borrower_id
        self.ended: set[str] = set()
        below = [cluster_id for cluster_id in ledger.below(borrower_id) if _passes_on(ledger, cluster_id)]
        tree = self.tree = ledger.part([borrower_id, *below])
        for cluster_id in (borrower_id, *below):
            for vnode in ledger.slots(cluster_id):
                tree.capacities[vnode.node_id] = ledger.capacities[vnode.node_id]  # to see whether it shrank
            for lease in ledger.borrowed(cluster_id):
                tree.put_lease(lease)
        recall(tree, borrower_id)

    def lacking(self, lease: Lease) -> set[str]:
        """The resources of which less is idle than a lease is to return."""
        tree, requested = self.tree, lease.amounts
        if self.borrower_id not in tree.members:
            return set()  # it was the cluster of a job that has ended
        if not is_of_gang(tree, lease):
            requested = least_of(requested, above_its_minimum(tree, tree.clusters[self.borrower_id]))
        return set(beyond(requested, rs.total(part.amounts for _, part in idle_parts(tree, lease))))

    def end(self, victims: Sequence[Run], names: Collection[str]) -> bool:
        """Let a task end, or all runs of a job; False, and it goes on, if that frees nothing of these resources."""
        job = self.state.running.jobs.get(victims[0].job_id)
        is_whole = any(run.task_id is None for run in victims)
        own = job.cluster_id if job is not None and is_whole and job.cluster_id != job.parent_id else None
        if own is None:
            ended = (run for run in victims if run.run_id not in self.ended)
            freed = [(run.vnode_id, run.allocation) for run in ended]
        else:
            source = self.tree if own in self.tree.members else self.state.ledger
            freed = [(vnode.parent_id or "", vnode.allocation) for vnode in source.slots(own)]
        freed = [(slot_id, part) for slot_id, part in freed if self._reaches(slot_id, part.amounts, names)]
        if not freed and own != self.borrower_id:
            return False
        self.ended.update(run.run_id for run in victims)
        for slot_id, part in freed:
            capacity = self.tree.capacities[slot_id]
            capacity.give_back(part)
            self.tree.set_capacity(slot_id, capacity)
        for cluster_id in () if own is None else (own, *self.state.ledger.below(own)):
            self.tree.members.pop(cluster_id, None)
            for lease in list(self.tree.borrowed(cluster_id)):
                self.tree.put_lease(replace(lease, amounts={}))
        recall(self.tree, self.borrower_id)
        return True

    def _reaches(self, slot_id: str, amounts: Amounts, names: Collection[str]) -> bool:
        """Whether a part of what comes free in a slot goes up to the borrower: each cluster keeps its minimum."""
        tree = self.tree
        gained = {name for name in names if amounts.get(name, 0)}
        cluster_id = tree.vnodes[slot_id].cluster_id if slot_id in tree.capacities else ""
        while cluster_id != self.borrower_id and gained:
            if cluster_id not in tree.members:
                return False
            cluster = tree.clusters[cluster_id]
            gained &= above_its_minimum(tree, cluster).keys()
            cluster_id = cluster.parent_id or ""
        return bool(gained)


def _passes_on(ledger: Ledger, cluster_id: str) -> bool:
    """Whether a cluster below a borrower may have something that it returns, or contain one that does."""
    return ledger.clusters[cluster_id].kind == LOGICAL or bool(ledger.borrowed(cluster_id))


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
