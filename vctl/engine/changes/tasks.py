"""Changes of tasks and of the objects that they use and leave. A task's start also records its copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.core.tasks import Maker, Task
from vctl.core.values import field, replace
from vctl.engine.changes.change import Change, PublicEvent, change
from vctl.engine.changes.submits import OUTSIDE, Launch

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class TaskSubmitted(Change):
    """A task was submitted. It promises the objects that it declares as outputs."""

    at: int
    task: Task
    launch: Launch | None = field(default=None, compare=False, repr=False, metadata={OUTSIDE: True})

    def public_event(self) -> PublicEvent:
        return _event("task.submitted", self.task.task_id, self.task.job_id, self.task.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        state.tasks.put(self.task)
        state.tasks.promise(self.task.job_id, self.task.outputs, Maker(self.task.task_id))


@change
class TaskReady(Change):
    """All inputs of a task exist: it waits for a place."""

    task_id: str
    job_id: int
    cluster_id: str

    def public_event(self) -> PublicEvent:
        return _event("task.ready", self.task_id, self.job_id, self.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        _move(state, self.task_id, tk.PENDING_NODE)


@change
class TaskAwaits(Change):
    """Inputs of a task do not exist yet, or not any more."""

    task_id: str
    job_id: int
    cluster_id: str
    message: str

    def public_event(self) -> PublicEvent:
        return _event("task.awaits_inputs", self.task_id, self.job_id, self.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        _move(state, self.task_id, tk.PENDING_ARGS, awaits=self.message)


@change
class TaskBound(Change):
    """A task waits for this virtual node only, and counts as load of it; or (None) it waits for any."""

    task_id: str
    job_id: int
    vnode_id: str | None = None
    node_id: str | None = None

    def public_event(self) -> PublicEvent:
        return PublicEvent("", "task", self.task_id, None, self.job_id)

    def apply(self, state: SchedulerState) -> None:
        _move(state, self.task_id, tk.PENDING_NODE, vnode_id=self.vnode_id, node_id=self.node_id)


@change
class Copy:
    """A copy of an object on the node of a task that uses it."""

    name: str
    size: int
    maker: str | None = None


@change
class TaskStarted(Change):
    """A task starts: its process, and the copies of its inputs on its node."""

    at: int
    task_id: str
    run: Run
    copies: tuple[Copy, ...] = ()

    def public_event(self) -> PublicEvent:
        run = self.run
        return _event("task.started", self.task_id, run.job_id, run.cluster_id, {"vnode": run.vnode_id})

    def apply(self, state: SchedulerState) -> None:
        run = self.run
        state.add_run(run)
        if (task := state.tasks.unfinished.get(self.task_id)) is not None:
            started = replace(
                task, state=tk.RUNNING, vnode_id=run.vnode_id, node_id=run.node_id, attempt=run.attempt
            )
            state.tasks.put(started)
        for copy in self.copies:
            state.tasks.put_copy(run.job_id, copy.name, run.node_id, copy.size, copy.maker, run.cluster_id)


@change
class TaskRetried(Change):
    """An attempt of a task failed, and the task waits for a place again."""

    task_id: str
    job_id: int
    cluster_id: str
    message: str

    def public_event(self) -> PublicEvent:
        return _event("task.retried", self.task_id, self.job_id, self.cluster_id, {"message": self.message})

    def apply(self, state: SchedulerState) -> None:
        _move(state, self.task_id, tk.PENDING_NODE)


@change
class TaskStopAsked(Change):
    """A stop of a running task was requested. The time is that of the first request."""

    at: int
    task_id: str
    job_id: int
    cluster_id: str
    grace_s: float
    reason: str = tk.CANCELLED

    def public_event(self) -> PublicEvent:
        return _event("task.stop_requested", self.task_id, self.job_id, self.cluster_id)

    def apply(self, state: SchedulerState) -> None:
        if (task := state.tasks.unfinished.get(self.task_id)) is not None:
            state.tasks.put(replace(task, stop_requested_at=self.at, grace_s=self.grace_s))
            state.note_stop(state.runs_of_task(self.task_id, self.job_id))


@change
class TaskEnded(Change):
    """A task is over. ``move``: ``finish`` or ``fail``, or ``cancel`` for a task that waited."""

    at: int
    task_id: str
    job_id: int
    cluster_id: str
    move: str
    reason: str | None
    message: str | None
    exit_code: int | None = None

    @property
    def state(self) -> str:
        """The final state of the task."""
        return tk.FINISHED if self.move == "finish" else tk.FAILED

    def public_event(self) -> PublicEvent:
        data = {"state": self.state, "exit_code": self.exit_code}
        return _event("task.ended", self.task_id, self.job_id, self.cluster_id, data)

    def apply(self, state: SchedulerState) -> None:
        task = state.tasks.unfinished.get(self.task_id)
        if task is not None:
            state.tasks.drop(self.task_id)
            maker = Maker(self.task_id, self.state, self.reason, task.node_id)
            state.tasks.promise(self.job_id, task.outputs, maker)


def _event(
    kind: str, task_id: str, job_id: int, cluster_id: str, data: Mapping[str, object] | None = None
) -> PublicEvent:
    return PublicEvent(kind, "task", task_id, cluster_id, job_id, data or {})


def _move(
    state: SchedulerState, task_id: str, phase: str, *, vnode_id: str | None = None, node_id: str | None = None,
    awaits: str = "",
) -> None:  # fmt: skip
    if (task := state.tasks.unfinished.get(task_id)) is not None:
        state.tasks.put(replace(task, state=phase, vnode_id=vnode_id, node_id=node_id, awaits=awaits))


@change
class ObjectCreated(Change):
    """An object of ``size`` bytes exists: made by a task, or (None) put by the entrypoint."""

    at: int
    job_id: int
    name: str
    node_id: str
    cluster_id: str
    size: int
    task_id: str | None = None

    def public_event(self) -> PublicEvent:
        data = {"node": self.node_id, "size": self.size, "task": self.task_id}
        return PublicEvent("object.created", "object", self.name, self.cluster_id, self.job_id, data)

    def apply(self, state: SchedulerState) -> None:
        state.tasks.put_copy(self.job_id, self.name, self.node_id, self.size, self.task_id, self.cluster_id)
        if self.task_id is None:
            state.tasks.promise(self.job_id, (self.name,), Maker(None))


@change
class ObjectLost(Change):
    """The copy of an object on a node is lost, or (None) all copies. ``silent``: another copy is left."""

    job_id: int
    name: str
    node_id: str | None = None
    cluster_id: str | None = None
    silent: bool = False

    def public_event(self) -> PublicEvent:
        data = {} if self.node_id is None else {"node": self.node_id}
        kind = "" if self.silent else "object.lost"
        return PublicEvent(kind, "object", self.name, self.cluster_id, self.job_id, data)

    def apply(self, state: SchedulerState) -> None:
        state.tasks.lose_copy(self.job_id, self.name, self.node_id)


@change
class ObjectsDropped(Change):
    """The objects of a job, ``count`` copies in all, were dropped with it, and their makers are forgotten."""

    job_id: int
    count: int

    def public_event(self) -> PublicEvent:
        kind = "objects.dropped" if self.count else ""
        return PublicEvent(kind, "objects", str(self.job_id), None, self.job_id, {"count": self.count})

    def apply(self, state: SchedulerState) -> None:
        state.tasks.drop_objects(self.job_id)
