"""The verbs of ``vctl task`` and ``vctl list objects``, for tasks and the objects that they exchange."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from vctl import ops, spec
from vctl.operations.declare import Context, asks, operation
from vctl.operations.jobs import MAX_LINES, Cwd, Environment, read_lines
from vctl.spec.params import LONGEST_S, Arg, Fields, Filters, Limit, Opt

if TYPE_CHECKING:
    from vctl.spec.documents import ObjectForm, StartedForm, TaskForm
    from vctl.spec.reports import Why
    from vctl.spec.task_request import TaskRequest

Task = Annotated[str | int, Arg("TASK", help="Task id, its number, or last.", complete="tasks")]
Grace = Annotated[
    float | None,
    Opt(
        "--grace", metavar="TIME", reads="duration", minimum=0, maximum=LONGEST_S,
        help="Time between SIGTERM and SIGKILL (default: the grace period of its job).",
    ),
]  # fmt: skip
InJob = Annotated[
    str | None,
    Opt("--job", metavar="ID", complete="jobs", help="The job (default: the one this runs in)."),
]
InCluster = Annotated[
    str | None,
    Opt("-c", "--cluster", metavar="ID", complete="clusters", help="Only tasks in this cluster and below."),
]
OfJob = Annotated[str | None, Opt(help="Job whose tasks or objects are meant.")]
_INSIDE = ("VCTL_SUBMISSION_ID", "VCTL_NODE_ID", "VCTL_CLUSTER_ID")


TASK_FIELDS = Fields(lambda: spec.task_request.TaskRequest)


@operation("task run", "POST /tasks", right="own")
@asks
def run(
    context: Context, task: Annotated["TaskRequest", TASK_FIELDS], *, environment: Environment = None
) -> "TaskForm":
    """Start a task in a running job."""
    return ops.tasks.run(context.store, task, environment=context.surroundings(environment))


EXAMPLE = '{"entrypoint": ["python", "part.py"]}'


@operation("task run-many", "POST /tasks:batch", right="own")
def run_many(
    context: Context,
    tasks: Annotated[
        Sequence[Mapping[str, Any]],
        Arg("TASK", longest=MAX_LINES, each=run, help="The tasks, each with the fields of one task."),
    ],
    *,
    environment: Environment = None,
    cwd: Cwd = None,
) -> "StartedForm":
    """Start many tasks in running jobs: all of them or none.

    ``environment`` and ``cwd`` are for the tasks that have none of their own. An error names the line, counted from 1.
    """
    lines = read_lines(context, run, TASK_FIELDS, tasks, EXAMPLE, environment, cwd)
    return {"task_ids": ops.tasks.run_many(context.store, lines)}


@operation("task list", "GET /tasks", right="see", items="TaskList")
def list_tasks(
    context: Context,
    *,
    filters: Filters = (),
    all: Annotated[bool, Opt(help="Include finished tasks.")] = True,  # noqa: A002  # the name on the wire
    limit: Limit = None,
    job: OfJob = None,
    cluster: InCluster = None,
) -> "tuple[list[TaskForm], int]":
    """Tasks, oldest first."""
    return ops.tasks.list_tasks(
        context.store, all=all, filters=filters, limit=limit, job=job, cluster=cluster
    )


@operation("task get", "GET /tasks/{task}", right="see")
def get_task(context: Context, ref: Task) -> "TaskForm":
    """Show one task: its state, the reason it waits, its node."""
    return ops.tasks.get_task(context.store, str(ref))


@operation("task why", "GET /tasks/{task}/why", right="see")
def why(context: Context, ref: Task) -> "Why":
    """Why a task waits: reason, queue, virtual nodes, and the smallest changes that would start it now."""
    return ops.why.why(context.store, ops.tasks.get_task(context.store, str(ref))["task_id"])


@operation("task cancel", "POST /tasks/{task}/cancel", right="change")
def cancel(context: Context, ref: Task, *, grace_s: Grace = None) -> "TaskForm":
    """Request the end of a task."""
    return ops.tasks.cancel(context.store, str(ref), grace_s=grace_s)


@operation("objects list", "GET /objects", right="see", items="ObjectList")
def list_objects(
    context: Context, *, filters: Filters = (), limit: Limit = None, job: OfJob = None
) -> "tuple[list[ObjectForm], int]":
    """Objects, by job and name, of all jobs or of one."""
    return ops.objects.list_objects(context.store, filters=filters, limit=limit, job=job)


@operation("object get", "GET /object", right="read")
def get_object(
    context: Context,
    ref: Annotated[str, Opt(help="JOB/NAME, or a name that only one job has.")],
    *,
    job: Annotated[str | None, Opt(help="Job whose objects are searched first.")] = None,
) -> "ObjectForm":
    """One object."""
    return ops.objects.get_object(context.store, ref, job=job)


@operation("task put", "POST /objects", right="own")
def put(
    context: Context,
    name: Annotated[str, Arg("NAME", help="The name of the object.")],
    inside: Annotated[
        Mapping[str, str], Opt(help="The variables that vctl gave to the process that puts it.")
    ],
) -> "ObjectForm":
    """Make an object of a file that a process of a running job wrote into its object directory."""
    return ops.objects.put(context.store, name, environment=inside)


def inside(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that identify the calling process within its job, for ``put``."""
    return {name: environment[name] for name in _INSIDE if name in environment}
