"""Writing what a round decided: each gang whole or not at all, one transaction a round."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from vctl.core import jobs as jb
from vctl.core import resources as rs
from vctl.core.jobs import Run
from vctl.daemon import gangs
from vctl.daemon.following import FollowedState
from vctl.engine.changes import JobStarted, RunStarted
from vctl.ops.growth import write_growth
from vctl.scheduler import plan as pl
from vctl.scheduler import plan_tasks as pt
from vctl.scheduler.elasticity import Grow, apply_growth
from vctl.scheduler.plan import Plan, Start
from vctl.scheduler.plan_tasks import TaskStart
from vctl.store import jobs, objects, rows, shapes, tasks
from vctl.store.rows import loads
from vctl.store.store import Row, Store


def commit(store: Store, state: FollowedState, plan: Plan) -> list[Run]:
    """Write every gang that still fits; a stale one is decided again. Returns the processes to launch."""
    started: list[Run] = []
    all_came = True
    with store.transaction():
        state.follow(store)  # inside the write lock: from here on nobody changes anything
        waiting = jobs.waiting(store, [start.job.job_id for start in plan.starts]) if plan.starts else {}
        for start in plan.starts:
            parent = state.parent_of.get(start.job.job_id)
            queue = state.queues.get(start.job.parent_id)
            is_wanted = (
                parent is not None and queue is not None and queue.jobs.get(start.job.job_id) == start.job
            )
            if not is_wanted or not pl.still_fits(state.ledger, start):
                all_came = False  # it was stopped or changed meanwhile, or its place was taken
                continue
            if (row := waiting.get(start.job.job_id)) is not None:
                started += _start(store, state, start, row)
        for task in plan.task_starts:
            is_wanted = task.task.task_id in state.task_cluster
            if not is_wanted or not pt.task_still_fits(state.ledger, task):
                all_came = False
                continue
            started.append(_start_task(store, state, task))
        for told in plan.task_waits:
            reason = jb.INFEASIBLE if told.infeasible else jb.INSUFFICIENT
            tasks.mark_waiting(store, told.task_id, reason, told.message, told.vnode_id)
            state.bind_task(told)
        if not all_came:
            state.forget_verdicts()  # others were passed over beside what did not come, and some need nobody's end
            plan = dataclasses.replace(plan, preempts=())
        state.preemptions.begin(store, state, plan)
        for wait in plan.waits:
            shapes.set_wait(store, wait.parent_id, wait.shape, wait.reason, wait.message)
        for parent_id, shape in plan.cleared:
            queue = state.queues[parent_id]
            queue.emptied.discard(shape)
            if shape not in queue.shapes:
                shapes.clear_wait(store, parent_id, shape)
        state.caught_up(store)
    return started


def _start(store: Store, state: FollowedState, start: Start, row: Row) -> Sequence[Run]:
    """Write one gang; its processes, the main one first."""
    job, cluster = start.job, start.cluster
    if cluster is not None:
        cluster = dataclasses.replace(cluster, revision=store.next_revision())
        held = rs.total(vnode.allocation.amounts for vnode in start.vnodes)
        node_ids = sorted({vnode.node_id for vnode in start.vnodes})
    else:
        held, node_ids = dict(start.allocation.amounts), [start.node_id]
    attempt = row["attempt"] + 1
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
    begun = dataclasses.replace(
        rows.running(row), cluster_id=start.cluster_id, run_id=run.run_id, started_at_ns=now, attempt=attempt,
        ends_at_ns=None if job.time_limit_ns is None else now + job.time_limit_ns, message=None, master_port=port,
    )  # fmt: skip
    state.emit(store, JobStarted(now, begun, tuple(node_ids), held, runs, cluster, start.vnodes))
    state.preemptions.unmark(store, state, job.job_id, "it has started")
    return runs


def _start_task(store: Store, state: FollowedState, start: TaskStart) -> Run:
    task = start.task
    _grow(store, state, start.growth, task.job_id)
    row = tasks.get(store, task.task_id)
    assert row is not None
    attempt = row["attempt"] + 1
    run = Run(
        f"{task.task_id}.{attempt}.{os.urandom(3).hex()}", task.job_id, attempt, 0, task.cluster_id, start.vnode_id,
        start.node_id, start.allocation, task_id=task.task_id, supervisor=state.assign(),
    )  # fmt: skip
    state.emit(store, RunStarted(store.clock(), run))
    if task.inputs_at:
        names = loads(row["inputs"])
        objects.insert_copies(store, task.job_id, names, node_id=run.node_id, cluster_id=run.cluster_id)
    tasks.mark_started(store, task.task_id, vnode_id=start.vnode_id, node_id=start.node_id, attempt=attempt)
    state.drop_task(task.task_id)
    return run


def _grow(store: Store, state: FollowedState, growth: Sequence[Grow], job_id: int | None) -> None:
    """Write how clusters grow, top level first."""
    for step in growth:
        apply_growth(state.ledger, step)
        for lease in write_growth(store, state.ledger, step, lease_s=state.lease_s, job_id=job_id):
            state.leases[lease.lease_id] = lease
