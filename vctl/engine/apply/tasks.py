"""What tasks are after a change of theirs."""

from __future__ import annotations

from dataclasses import replace

from vctl.core.tasks import PENDING_ARGS, PENDING_NODE, RUNNING, Maker
from vctl.engine import changes as ch
from vctl.engine.apply.runs import add_run
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.TaskSubmitted)
def _submitted(state: SchedulerState, change: ch.TaskSubmitted) -> None:
    state.tasks.put(change.task)
    state.tasks.promise(change.task.job_id, change.task.outputs, Maker(change.task.task_id))


@applies(ch.TaskReady, ch.TaskRetried)
def _ready(state: SchedulerState, change: ch.TaskReady | ch.TaskRetried) -> None:
    _move(state, change.task_id, PENDING_NODE)


@applies(ch.TaskAwaits)
def _awaits(state: SchedulerState, change: ch.TaskAwaits) -> None:
    _move(state, change.task_id, PENDING_ARGS, awaits=change.message)


def _move(
    state: SchedulerState, task_id: str, phase: str, *, vnode_id: str | None = None, node_id: str | None = None,
    awaits: str = "",
) -> None:  # fmt: skip
    if (task := state.tasks.unfinished.get(task_id)) is not None:
        state.tasks.put(replace(task, state=phase, vnode_id=vnode_id, node_id=node_id, awaits=awaits))


@applies(ch.TaskBound)
def _bound(state: SchedulerState, change: ch.TaskBound) -> None:
    _move(state, change.task_id, PENDING_NODE, vnode_id=change.vnode_id, node_id=change.node_id)


@applies(ch.TaskStarted)
def _started(state: SchedulerState, change: ch.TaskStarted) -> None:
    run = change.run
    add_run(state, run)
    if (task := state.tasks.unfinished.get(change.task_id)) is not None:
        started = replace(
            task, state=RUNNING, vnode_id=run.vnode_id, node_id=run.node_id, attempt=run.attempt
        )
        state.tasks.put(started)
    for copy in change.copies:
        state.tasks.put_copy(run.job_id, copy.name, run.node_id, copy.size, copy.maker, run.cluster_id)


@applies(ch.TaskStopAsked)
def _stop_asked(state: SchedulerState, change: ch.TaskStopAsked) -> None:
    if (task := state.tasks.unfinished.get(change.task_id)) is not None:
        state.tasks.put(replace(task, stop_requested_at=change.at, grace_s=change.grace_s))
        state.note_stop(state.runs_of_task(change.task_id, change.job_id))


@applies(ch.TaskEnded)
def _ended(state: SchedulerState, change: ch.TaskEnded) -> None:
    task = state.tasks.unfinished.get(change.task_id)
    if task is not None:
        state.tasks.drop(change.task_id)
        maker = Maker(change.task_id, change.state, change.reason, task.node_id)
        state.tasks.promise(change.job_id, task.outputs, maker)
