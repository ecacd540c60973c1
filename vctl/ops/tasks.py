"""Tasks, the commands that run inside a running job: start, show, list and cancel them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vctl import spec
from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.tasks import Task
from vctl.engine.changes import Launch, TaskEnded, TaskStopAsked, TaskSubmitted
from vctl.errors import Conflict, NotFound, param
from vctl.ops import forms, logs, rights, scope
from vctl.ops import jobs as job_ops
from vctl.ops.forms import parse_filters
from vctl.ops.task_reasons import TaskReasons, check_node
from vctl.store import clusters, jobs, rows
from vctl.store import filters as filters_table
from vctl.store import tasks as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import TaskForm
    from vctl.spec.task_request import TaskRequest

FILTER_KEYS = tuple(table.FILTERED)
_OF_THE_RUN = ("VCTL_RUN_ID", "VCTL_TASK_ID", "VCTL_ATTEMPT", "VCTL_RESOURCES", "VCTL_VNODE_ID", "VCTL_NODE_ID",
               "VCTL_OBJECT_DIR", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")  # fmt: skip
"""The variables about the process that starts a task; the task does not get them."""


def run(store: Store, request: TaskRequest, *, environment: Mapping[str, str] | None = None) -> TaskForm:
    """Queue a task in a running job. It waits until its inputs exist and its cluster has free resources or
    has grown.

    Raises NotFound for an unknown job, Conflict when the job is over or has not started, or has an object (or
    a task that makes one) of the name of an output. A task is never refused for its size. If an input can no
    longer appear, the task is FAILED.
    """
    from vctl.spec.task_request import job_of

    environ = os.environ if environment is None else environment
    ref, named_by = job_of(request, environ)
    with store.transaction():
        job_id = job_ops.resolve_named(store, ref, named_by)
        job = jobs.get(store, job_id)
        assert job is not None
        rights.check_job(store, job)
        if job["status"] != jb.RUNNING or job["outcome"] is not None:
            raise Conflict(
                f"job {job['submission_id']} is {job['status']} and takes no tasks",
                fix="start tasks while the job runs",
            )
        inside = environ.get("VCTL_SUBMISSION_ID") == job["submission_id"]
        number = table.next_number(store)
        while jobs.number_of(store, f"task-{number}") is not None:
            number += 1
        task_id = f"task-{number}"
        logs.forget_log(store.home, task_id)  # after a restore, numbers are used again
        owner_id = (environ.get("VCTL_TASK_ID") if inside else None) or job["submission_id"]
        task = Task(
            task_id, number, job_id, _cluster(store, job, environ.get("VCTL_CLUSTER_ID") if inside else None), owner_id,
            {name: amount for name, amount in request.request.items() if amount},
            job["grace_s"] if request.grace_s is None else request.grace_s, request.selector,
            _strategy(request.strategy),
            environ.get("VCTL_VNODE_ID") if inside else None, request.inputs, request.outputs, request.max_retries,
            request.detach, request.detach or table.is_detached(store, owner_id), request.name or None,
            tk.PENDING_ARGS if request.inputs else tk.PENDING_NODE,
        )  # fmt: skip
        check_node(store, task.cluster_id, task.strategy)
        if task.outputs:
            from vctl.ops import objects

            objects.check_new(store, job_id, task.outputs)
        captured = {**environ, **request.env}
        env = {name: value for name, value in captured.items() if name not in _OF_THE_RUN}
        cwd = spec.text.stored_path(request.cwd or os.getcwd())
        launch = Launch(argv=rows.dumps(list(request.argv)), env=rows.dumps(env), cwd=cwd)
        store.emit(TaskSubmitted(store.clock(), task, launch))
        if task.inputs or task.outputs:
            from vctl.ops import objects

            objects.accept(store, task)
    return get_task(store, task_id)


def _cluster(store: Store, job: Row, inside: str | None) -> str:
    """The cluster of a new task: that of the caller, which may be a sub-cluster, else that of the job."""
    own = str(job["cluster_id"])
    if inside and inside != own and inside in clusters.subtree(store, own):
        return inside
    return own


def _strategy(given: str) -> str:
    """A strategy with a full id: tables show the alias of the primary, as in ``NODE:primary##train/0``."""
    word, colon, node_id = given.partition(":")
    return f"{word}{colon}{spec.ids.full_cluster_id(node_id)}"


def form(row: Row, shown: tuple[str | None, str | None]) -> TaskForm:
    """A task in its documented form; ``shown`` are its reason token and the message."""
    reason, message = shown
    return {
        "task_id": row["task_id"],
        "name": row["name"],
        "state": row["state"],
        "job_id": row["job_id"],
        "owner_id": row["owner_id"],
        "cluster_id": row["cluster_id"],
        "vnode_id": row["vnode_id"],
        "node_id": row["node_id"],
        "resources": forms.amounts(rows.loads(row["request"])),
        "exit_code": row["exit_code"],
        "attempt": row["attempt"],
        "inputs": rows.loads(row["inputs"]),
        "outputs": rows.loads(row["outputs"]),
        "created_at": forms.timestamp(row["created_at"]),
        "started_at": forms.timestamp(row["started_at"]),
        "ended_at": forms.timestamp(row["ended_at"]),
        "state_reason": reason,
        "message": message,
        "strategy": row["strategy"],
        "detached": bool(row["detached"]),
    }


def _row(store: Store, ref: str) -> Row:
    row = table.get(store, ref) or (table.get(store, f"task-{ref}") if ref.isdigit() else None)
    if row is None and ref == job_ops.LAST:
        found = table.views(store, "task_number = (SELECT max(task_number) FROM tasks)")
        row = found[0] if found else None
    if row is None:
        raise no_task(ref)
    return row


def no_task(ref: str) -> NotFound:
    """The error that names an unknown task."""
    return NotFound(f"there is no task {ref!r}", fix="see `vctl task list -a`", details={"task": ref})


def get_task(store: Store, ref: str) -> TaskForm:
    """One task, by its id, its number or ``last``."""
    with store.snapshot():
        row = _row(store, ref)
        return form(row, TaskReasons(store).of(row))


def list_tasks(
    store: Store,
    *,
    all: bool = False,  # noqa: A002  # the option's name
    filters: Sequence[str] = (),
    limit: int | None = None,
    job: str | None = None,
    cluster: str | None = None,
) -> tuple[list[TaskForm], int]:
    """Tasks, oldest first (with a limit the newest), and their number; without ``all`` only unfinished tasks."""
    wanted = parse_filters(filters, FILTER_KEYS)
    derived = [one for one in wanted if one[0] == "state_reason"]
    within, values = scope.of_tasks(store, cluster)
    where = [within]
    if not all:
        where.append("ended_at IS NULL")
    if job is not None:
        where.append("job_id = ?")
        values.append(job_ops.resolve_named(store, job, param("job")))
    with store.snapshot():
        narrowed, more = filters_table.conditions(
            store, table.FILTERED, [one for one in wanted if one[0] != "state_reason"]
        )
        condition = " AND ".join([*where, narrowed])
        values += more
        reasons = TaskReasons(store)
        shown = table.views(store, condition, values, None if derived else limit)
        found = [form(row, reasons.of(row)) for row in shown]
        if derived:  # the tables do not have the reason of a task that waits
            found = [one for one in found if forms.matches(one, derived)]
            return (found if limit is None else found[max(0, len(found) - limit) :]), len(found)
        full = limit is not None and len(found) == limit
        return found, table.count(store, condition, values) if full else len(found)


def cancel(store: Store, ref: str, *, grace_s: float | None = None) -> TaskForm:
    """Cancel a task: a waiting task at once; of a running task the scheduler ends the processes."""
    with store.transaction():
        row = _row(store, ref)
        rights.check_number(store, row["job_id"])
        key = row["task_id"], row["job_id"], row["cluster_id"]
        if row["state"] == tk.RUNNING:
            asked_at = row["stop_requested_at"] or store.clock()
            store.emit(TaskStopAsked(asked_at, *key, row["grace_s"] if grace_s is None else grace_s))
        elif row["state"] not in tk.FINAL:
            store.emit(TaskEnded(store.clock(), *key, "cancel", tk.CANCELLED, "cancelled before it started"))
            if row["outputs"] != "[]":
                from vctl.ops import objects

                objects.settle(store, row["job_id"], rows.loads(row["outputs"]))
    return get_task(store, row["task_id"])


def task_id(store: Store, ref: str) -> str:
    """The id of a task, from any of its names. Raises NotFound."""
    return str(_row(store, ref)["task_id"])


def log_path(store: Store, ref: str) -> Path:
    """The log file of a task."""
    return logs.log_of(store.home, task_id(store, ref))
