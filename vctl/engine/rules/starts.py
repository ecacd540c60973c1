"""Starts the jobs and tasks of a plan: each is checked again first; a gang starts whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vctl.core.clusters import VNode
from vctl.core.jobs import Run, RunningJob
from vctl.core.resources import EMPTY
from vctl.core.tasks import PENDING_NODE
from vctl.core.values import replace, value
from vctl.engine.changes import Change, Copy, JobStarted, TaskBound, TaskStarted, VNodesChanged
from vctl.engine.rules import leases, preemption
from vctl.engine.rules.leases import Loans
from vctl.engine.state import SchedulerState
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.limits import LimitUse, refusal, use_of
from vctl.scheduler.plan import Plan, Start, TaskStart, nodes_of, still_fits


@value(frozen=True, slots=True)
class Supply:
    """Functions that return names and numbers for starts. None was used before, and the port is free."""

    name: Callable[[], str]
    supervisor: Callable[[], int]
    revision: Callable[[], int]
    lease: Callable[[], int]
    request: Callable[[], str]
    port: Callable[[set[int]], int]


def starts(state: SchedulerState, plan: Plan, supply: Supply, now: int) -> Iterator[Change]:
    """The changes for the part of a plan that still holds, in the order of the round; the rest is decided again.

    Tasks come first: the growth for a job may begin with what their growth has left.
    """
    came = 0
    use = use_of(state.ledger, state.running, now)
    for task in plan.task_starts:
        if not state.tasks.is_queued(task.task.task_id) or not still_fits(state.ledger, task):
            continue
        if (job := state.running.jobs.get(task.task.job_id)) is None or use.grow(job, task.growth) is None:
            yield from _start_task(state, task, supply, now)
            came += 1
    for start in plan.starts:
        if _still_waits(state, start) and state.has_room(start, now) and _is_admitted(state, use, start):
            yield from _start(state, start, supply, now)
            came += 1
            use.add(start.job.parent_id, start.job.user, start.held)
    state.end_trial()
    for wait in plan.task_waits:  # the task now waits for one virtual node only, or for any again
        waiting = state.tasks.unfinished.get(wait.task_id)
        if waiting is not None and waiting.state == PENDING_NODE and waiting.vnode_id != wait.vnode_id:
            vnode = state.ledger.vnodes.get(wait.vnode_id or "")
            node_id = None if vnode is None else vnode.node_id
            yield TaskBound(waiting.task_id, waiting.job_id, wait.vnode_id, node_id)
    for _, job_id in plan.lapsed:
        yield from preemption.give_up(state, job_id, "it still does not fit")
    if came == plan.proposed:
        for preempt in plan.preempts:
            if preemption.still_holds(state, preempt):
                yield from preemption.begin(state, preempt, now)


def _still_waits(state: SchedulerState, start: Start) -> bool:
    """Whether a job still waits as it did when the plan was made: it was not stopped or changed since."""
    queue = state.queues.get(start.job.parent_id)
    job = None if queue is None else queue.jobs.get(start.job.job_id)
    return job is start.job or job == start.job


def _is_admitted(state: SchedulerState, use: LimitUse, start: Start) -> bool:
    """Whether no limit keeps a job back that is about to start."""
    policy = state.ledger.clusters[start.job.parent_id].queue
    return refusal(policy, state.running, use, start.job, start.held) is None


def _start(state: SchedulerState, start: Start, supply: Supply, now: int) -> Iterator[Change]:
    job, cluster = start.job, start.cluster
    if cluster is not None:
        cluster = replace(cluster, revision=supply.revision())
    attempt = job.attempt + 1
    run = Run(
        f"{job.job_id}.{attempt}.0.{supply.name()}", job.job_id, attempt, 0, start.cluster_id, start.vnode_id,
        start.node_id, start.allocation, supervisor=supply.supervisor(),
    )  # fmt: skip
    loans = leases.loans_of(start.growth)
    yield from grow(state, start.growth, None, supply.lease, now, loans)
    runs: tuple[Run, ...] = (run,)
    port = None
    if job.per_node:
        runs = _gang(start.vnodes or state.ledger.ranked(start.cluster_id), run, supply)
        port = supply.port({running.master_port or 0 for running in state.running.jobs.values()})
    begun = RunningJob.begun(job, start.cluster_id, run.run_id, now, held=start.held, master_port=port)
    yield JobStarted(now, begun, tuple(sorted(nodes_of(start))), runs, cluster, start.vnodes)
    if loans:
        yield from leases.granted_to_gang(
            start.vnodes, loans, now, supply.lease, lease_s=state.lease_terms.duration_s, job_id=job.job_id
        )
    yield from preemption.give_up(state, job.job_id, "it has started")


def _gang(vnodes: Sequence[VNode], first: Run, supply: Supply) -> tuple[Run, ...]:
    """The runs of a gang, one in each virtual node: ``first`` with its allocation, the others without any."""
    others = (
        replace(
            first, run_id=f"{first.job_id}.{first.attempt}.{rank}.{supply.name()}", rank=rank,
            vnode_id=vnode.vnode_id, node_id=vnode.node_id, allocation=EMPTY, supervisor=supply.supervisor(),
        )
        for rank, vnode in enumerate(vnodes)
        if vnode.vnode_id != first.vnode_id
    )  # fmt: skip
    return first, *others


def _start_task(state: SchedulerState, start: TaskStart, supply: Supply, now: int) -> Iterator[Change]:
    task = state.tasks.unfinished[start.task.task_id]
    yield from grow(state, start.growth, task.job_id, supply.lease, now, leases.loans_of(start.growth))
    attempt = task.attempt + 1
    run = Run(
        f"{task.task_id}.{attempt}.{supply.name()}", task.job_id, attempt, 0, task.cluster_id, start.vnode_id,
        start.node_id, start.allocation, task_id=task.task_id, supervisor=supply.supervisor(),
    )  # fmt: skip
    copies = []
    for name in task.inputs:
        stored = state.tasks.objects.get(task.job_id, {}).get(name)
        if stored is not None and run.node_id not in stored.at:
            copies.append(Copy(name, next(iter(stored.at.values())), stored.maker))
    yield TaskStarted(now, task.task_id, run, tuple(copies))


def grow(
    state: SchedulerState, growth: Sequence[Grow], job_id: int | None, number: Callable[[], int], now: int, loans: Loans
) -> Iterator[Change]:  # fmt: skip
    """Let idle loans go home and clusters grow for a start, top level first."""
    if growth:
        yield rearranged(growth)
        yield from leases.returned(state.leases, growth)
        yield from leases.granted(
            state.ledger, growth, loans, now, number, lease_s=state.lease_terms.duration_s, job_id=job_id
        )  # fmt: skip


def rearranged(growth: Sequence[Grow]) -> VNodesChanged:
    """The virtual nodes after all steps. One may get smaller first and then go, larger again, or come elsewhere."""
    last = {step.after.vnode_id: step for step in growth}
    removed = tuple(vnode_id for vnode_id, step in last.items() if step.is_removal)
    placed = tuple(step.after for step in last.values() if not step.is_removal)
    return VNodesChanged(removed, placed, for_start=True)
