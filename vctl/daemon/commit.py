"""Writes the plan of a search inside a transaction: what starts, and why other jobs and tasks wait."""

from __future__ import annotations

import socket

from vctl.core import jobs as jb
from vctl.daemon.following import FollowedState
from vctl.engine.changes import JobNominated, JobStarted, TaskBound, TaskStarted
from vctl.engine.rules.starts import Supply, starts
from vctl.engine.stimuli import Now
from vctl.ops.nodes import new_request_id
from vctl.scheduler.plan import Plan
from vctl.store import observed
from vctl.store.store import Store


def _free_port(in_use: set[int]) -> int:
    """A free port of this machine that is not in ``in_use``."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in in_use:
            return port


def supply_of(store: Store, state: FollowedState) -> Supply:
    """The functions that give names and numbers to the rules."""
    return Supply(
        state.new_name, state.assign, store.next_revision, store.next_lease, new_request_id, _free_port
    )


def commit(store: Store, state: FollowedState, plan: Plan, now: Now) -> int:
    """Write the part of a plan that still holds. Returns how many jobs and tasks started."""
    started = nominated = 0
    bound = set()
    for change in starts(state, plan, supply_of(store, state), now.wall):
        state.emit(store, change)
        if isinstance(change, JobStarted | TaskStarted):
            started += 1
        elif isinstance(change, JobNominated):
            nominated += 1
        elif isinstance(change, TaskBound):
            bound.add(change.task_id)
    if started < plan.proposed or nominated < len(plan.preempts):
        state.forget_verdicts()  # they assume starts that did not come, or preemptions that are not needed
    waits = [wait for wait in plan.task_waits if state.tasks.is_queued(wait.task_id)]
    for task in waits:
        if task.task_id in bound:
            state.tasks.note_message(task)
    if waits:
        observed.set_task_waits(store, [
            (jb.INFEASIBLE if wait.infeasible else jb.INSUFFICIENT, wait.message, wait.task_id) for wait in waits
        ])  # fmt: skip
    for wait in plan.waits:
        observed.set_wait(store, wait.parent_id, wait.shape, wait.reason, wait.message)
    for parent_id, shape in plan.cleared:
        queue = state.queues[parent_id]
        queue.emptied.discard(shape)
        if shape not in queue.shapes:
            observed.clear_wait(store, parent_id, shape)
    state.write_reservations(store)
    return started
