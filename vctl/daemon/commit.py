"""Writing what a round decided: each gang whole or not at all, one transaction a round."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.jobs import Run, RunningJob
from vctl.daemon import gangs
from vctl.daemon.following import FollowedState
from vctl.engine.changes import Copy, JobStarted, TaskBound, TaskStarted, VNodesChanged
from vctl.engine.rules import preemption
from vctl.ops.forms import timestamp
from vctl.ops.growth import granted_for
from vctl.scheduler import plan_tasks as pt
from vctl.scheduler.cycle import MOST_STARTS
from vctl.scheduler.elasticity import Grow
from vctl.scheduler.plan import Plan, Start
from vctl.scheduler.plan_tasks import TaskStart, TaskWait
from vctl.store import jobs, observed
from vctl.store.store import Store


def commit(store: Store, state: FollowedState, plan: Plan) -> list[Run]:
    """Write every gang that still fits; a stale one is decided again. Returns the processes to launch."""
    started: list[Run] = []
    all_came = True
    state.trial = plan.trial
    with store.transaction():
        state.follow(store)  # inside the write lock: from here on nobody changes anything
        for start in plan.starts:
            parent = state.parent_of.get(start.job.job_id)
            queue = state.queues.get(start.job.parent_id)
            job = None if parent is None or queue is None else queue.jobs.get(start.job.job_id)
            is_wanted = job is start.job or job == start.job
            if not is_wanted or not state.has_place(start):
                all_came = False  # it was stopped or changed meanwhile, or its place was taken
                continue
            started += _start(store, state, start)
        for task in plan.task_starts:
            is_wanted = state.tasks.is_queued(task.task.task_id)
            if not is_wanted or not pt.task_still_fits(state.ledger, task):
                all_came = False
                continue
            started.append(_start_task(store, state, task))
        state.end_trial()
        _tell_tasks(store, state, plan.task_waits)
        if not all_came:
            state.forget_verdicts()  # others were passed over beside what did not come, and some need nobody's end
            plan = dataclasses.replace(plan, preempts=())
        _preempt(store, state, plan)
        for wait in plan.waits:
            observed.set_wait(store, wait.parent_id, wait.shape, wait.reason, wait.message)
        for parent_id, shape in plan.cleared:
            queue = state.queues[parent_id]
            queue.emptied.discard(shape)
            if shape not in queue.shapes:
                observed.clear_wait(store, parent_id, shape)
    return started


def leaves_more(plan: Plan, started: list[Run]) -> bool:
    """Whether there may be more to start at once than what was started of a plan."""
    proposed = len(plan.starts) + len(plan.task_starts)
    done = len({run.task_id or run.job_id for run in started})  # a gang has several processes
    return proposed >= MOST_STARTS or done < proposed or plan.tasks_deferred or plan.unsearched


def _start(store: Store, state: FollowedState, start: Start) -> Sequence[Run]:
    """Write one gang; its processes, the main one first."""
    job, cluster = start.job, start.cluster
    if cluster is not None:
        cluster = dataclasses.replace(cluster, revision=store.next_revision())
        held = rs.total(vnode.allocation.amounts for vnode in start.vnodes)
        node_ids = sorted({vnode.node_id for vnode in start.vnodes})
    else:
        held, node_ids = dict(start.allocation.amounts), [start.node_id]
    attempt = job.attempt + 1
    run = Run(
        f"{job.job_id}.{attempt}.0.{os.urandom(3).hex()}", job.job_id, attempt, 0, start.cluster_id, start.vnode_id,
        start.node_id, start.allocation, supervisor=state.assign(),
    )  # fmt: skip
    _grow(store, state, start.growth, None)
    runs: tuple[Run, ...] = (run,)
    port = None
    if job.per_node:
        vnodes = start.vnodes or gangs.vnodes_of(state.ledger, start.cluster_id)
        runs, port = gangs.members(vnodes, run, state.assign), gangs.free_port(jobs.master_ports(store))
    now = store.clock()
    begun = RunningJob.begun(job, start.cluster_id, run.run_id, now, port)
    state.emit(store, JobStarted(now, begun, tuple(node_ids), held, runs, cluster, start.vnodes))
    for change in preemption.give_up(state, job.job_id, "it has started"):
        state.emit(store, change)
    return runs


def _preempt(store: Store, state: FollowedState, plan: Plan) -> None:
    """Begin the preemptions of a plan that are still right; others are decided again."""
    for _, job_id in plan.lapsed:
        for change in preemption.give_up(state, job_id, "it still does not fit"):
            state.emit(store, change)
    for one in plan.preempts:
        if not preemption.still_stands(state, one):
            state.forget_verdicts()
            continue
        for change in preemption.begin(state, one, store.clock(), timestamp):
            state.emit(store, change)


def _start_task(store: Store, state: FollowedState, start: TaskStart) -> Run:
    task = state.tasks.unfinished[start.task.task_id]
    _grow(store, state, start.growth, task.job_id)
    attempt = task.attempt + 1
    run = Run(
        f"{task.task_id}.{attempt}.{os.urandom(3).hex()}", task.job_id, attempt, 0, task.cluster_id, start.vnode_id,
        start.node_id, start.allocation, task_id=task.task_id, supervisor=state.assign(),
    )  # fmt: skip
    copies = []
    for name in task.inputs:
        one = state.tasks.objects.get(task.job_id, {}).get(name)
        if one is not None and run.node_id not in one.at:
            copies.append(Copy(name, next(iter(one.at.values())), one.maker))
    state.emit(store, TaskStarted(store.clock(), task.task_id, run, tuple(copies)))
    return run


def _tell_tasks(store: Store, state: FollowedState, waits: Sequence[TaskWait]) -> None:
    """Why tasks wait, and which of them wait for one virtual node alone."""
    told = [one for one in waits if state.tasks.is_queued(one.task_id)]
    for one in told:
        task = state.tasks.unfinished[one.task_id]
        if task.vnode_id != one.vnode_id:
            vnode = state.ledger.vnodes.get(one.vnode_id or "")
            node_id = None if vnode is None else vnode.node_id
            state.emit(store, TaskBound(task.task_id, task.job_id, one.vnode_id, node_id))
            state.tasks.heard(one)
    if told:
        observed.tell_tasks(store, [
            (jb.INFEASIBLE if one.infeasible else jb.INSUFFICIENT, one.message, one.task_id) for one in told
        ])  # fmt: skip


def _grow(store: Store, state: FollowedState, growth: Sequence[Grow], job_id: int | None) -> None:
    """Let clusters grow for a start, top level first."""
    if growth:
        state.emit(store, VNodesChanged(placed=tuple(step.after for step in growth), for_start=True))
        for granted in granted_for(store, state.ledger, growth, lease_s=state.lease_s, job_id=job_id):
            state.emit(store, granted)
