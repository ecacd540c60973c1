"""Tasks and the objects that they hand to each other: the verbs of ``vctl task`` and ``vctl list objects``."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from vctl.operations.declare import Arg, Filters, Here, Limit, Opt, operation
from vctl.operations.jobs import Grace

if TYPE_CHECKING:
    from vctl.spec.documents import ObjectForm, TaskForm
    from vctl.spec.task_request import TaskRequest

Task = Annotated[str | int, Arg("TASK", help="Task id, number, or last.", complete="tasks")]
OfJob = Annotated[str | None, Opt(help="Job whose tasks or objects are meant.")]
_INSIDE = ("VCTL_SUBMISSION_ID", "VCTL_NODE_ID", "VCTL_CLUSTER_ID")


def _body(request: "TaskRequest", *, environment: Mapping[str, str] | None = None) -> dict[str, object]:
    from vctl.operations.bodies import task_body

    return task_body(request, environment)


@operation("task run", "POST /tasks", body=_body)
def run(here: Here, request: "TaskRequest", *, environment: Mapping[str, str] | None = None) -> "TaskForm":
    """Start a task in a running job."""
    from vctl.ops import tasks

    return tasks.run(here.store, request, environment=environment)


@operation("task list", "GET /tasks", items="TaskList")
def list_tasks(
    here: Here,
    *,
    filters: Filters = (),
    all: Annotated[bool, Opt(help="Include finished tasks.")] = True,  # noqa: A002  # the name on the wire
    limit: Limit = None,
    job: OfJob = None,
) -> "tuple[list[TaskForm], int]":
    """Tasks, oldest first."""
    from vctl.ops import tasks

    return tasks.list_tasks(here.store, all=all, filters=filters, limit=limit, job=job)


@operation("task get", "GET /tasks/{task}")
def get_task(here: Here, ref: Task) -> "TaskForm":
    """One task, by its id, its number or ``last``."""
    from vctl.ops import tasks

    return tasks.get_task(here.store, str(ref))


@operation("task why", "GET /tasks/{task}/why")
def why(here: Here, ref: Task) -> dict[str, Any]:
    """Why a task waits: reason, queue, virtual nodes, and the smallest changes that would start it now."""
    from vctl.ops import tasks
    from vctl.ops import why as ops

    return ops.why(here.store, tasks.get_task(here.store, str(ref))["task_id"])


@operation("task cancel", "POST /tasks/{task}/cancel")
def cancel(here: Here, ref: Task, *, grace_s: Grace = None) -> "TaskForm":
    """Request the end of a task."""
    from vctl.ops import tasks

    return tasks.cancel(here.store, str(ref), grace_s=grace_s)


@operation("objects list", "GET /objects", items="ObjectList")
def list_objects(
    here: Here, *, filters: Filters = (), limit: Limit = None, job: OfJob = None
) -> "tuple[list[ObjectForm], int]":
    """Objects, by job and name; of one job when asked."""
    from vctl.ops import object_views

    return object_views.list_objects(here.store, filters=filters, limit=limit, job=job)


@operation("object get", "GET /object")
def get_object(
    here: Here,
    ref: Annotated[str, Opt(help="JOB/NAME, or a name that only one job has.")],
    *,
    job: Annotated[str | None, Opt(help="Job whose objects are searched first.")] = None,
) -> "ObjectForm":
    """One object."""
    from vctl.ops import object_views

    return object_views.get_object(here.store, ref, job=job)


@operation("task put", "POST /objects")
def put(
    here: Here,
    name: Annotated[str, Arg("NAME", help="The name of the object.")],
    inside: Annotated[
        Mapping[str, str], Opt(help="The variables that vctl gave to the process that puts it.")
    ],
) -> "ObjectForm":
    """Make an object of a file that a process of a running job wrote into its object directory."""
    from vctl.ops import objects

    return objects.put(here.store, name, environment=inside)


def inside(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that tell which process of which job puts an object."""
    return {name: environment[name] for name in _INSIDE if name in environment}
