"""Changes of tasks: submitted, moved between waiting and running, told to end, over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from vctl.core import tasks as tk
from vctl.core.jobs import Run
from vctl.core.tasks import Task
from vctl.engine.changes.change import PublicEvent, change
from vctl.engine.changes.submits import OUTSIDE, Launch


@change
class TaskSubmitted:
    """There is another task: what it uses, and what it is to leave, is known from now on."""

    at: int
    task: Task
    launch: Launch | None = field(default=None, compare=False, repr=False, metadata={OUTSIDE: True})

    def public_event(self) -> PublicEvent:
        return _event("task.submitted", self.task.task_id, self.task.job_id, self.task.cluster_id)


@change
class TaskReady:
    """All inputs of a task are there: it waits for a place."""

    task_id: str
    job_id: int
    cluster_id: str

    def public_event(self) -> PublicEvent:
        return _event("task.ready", self.task_id, self.job_id, self.cluster_id)


@change
class TaskAwaits:
    """Inputs of a task are not there, or not any more."""

    task_id: str
    job_id: int
    cluster_id: str
    message: str

    def public_event(self) -> PublicEvent:
        return _event("task.awaits_inputs", self.task_id, self.job_id, self.cluster_id)


@change
class TaskBound:
    """A task waits for this virtual node alone, as load of it; or (None) for none in particular."""

    task_id: str
    job_id: int
    vnode_id: str | None = None
    node_id: str | None = None

    def public_event(self) -> PublicEvent:
        """For schedulers alone."""
        return PublicEvent("", "task", self.task_id, None, self.job_id)


@change
class Copy:
    """A copy of an object on the node of a task that uses it."""

    name: str
    size: int
    maker: str | None = None


@change
class TaskStarted:
    """A task runs from now on: its process is to be started, beside copies of its inputs."""

    at: int
    task_id: str
    run: Run
    copies: tuple[Copy, ...] = ()

    def public_event(self) -> PublicEvent:
        run = self.run
        return _event("task.started", self.task_id, run.job_id, run.cluster_id, {"vnode": run.vnode_id})


@change
class TaskRetried:
    """A try of a task has failed, and it waits for a place again."""

    task_id: str
    job_id: int
    cluster_id: str
    message: str

    def public_event(self) -> PublicEvent:
        return _event("task.retried", self.task_id, self.job_id, self.cluster_id, {"message": self.message})


@change
class TaskStopAsked:
    """A running task is to end. The first request keeps its time."""

    at: int
    task_id: str
    job_id: int
    cluster_id: str
    grace_s: float
    reason: str = tk.CANCELLED

    def public_event(self) -> PublicEvent:
        return _event("task.stop_requested", self.task_id, self.job_id, self.cluster_id)


@change
class TaskEnded:
    """A task is over. ``move``: ``finish`` or ``fail``, or ``cancel`` for one that waited."""

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
        """The state in which it is from now on."""
        return tk.FINISHED if self.move == "finish" else tk.FAILED

    def public_event(self) -> PublicEvent:
        data = {"state": self.state, "exit_code": self.exit_code}
        return _event("task.ended", self.task_id, self.job_id, self.cluster_id, data)


def _event(
    kind: str, task_id: str, job_id: int, cluster_id: str, data: Mapping[str, object] | None = None
) -> PublicEvent:
    return PublicEvent(kind, "task", task_id, cluster_id, job_id, data or {})
