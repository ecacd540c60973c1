"""Tasks, the commands that run inside a running job: start, show, list and cancel them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from vctl import ops, spec
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
               "VCTL_OBJECT_DIR", "VCTL_PRIVATE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")  # fmt: skip
"""The variables about the process that starts a task; the task does not get them."""


def run(store: Store, request: TaskRequest, *, environment: Mapping[str, str] | None = None) -> TaskForm:
    """Queue a task in a running job. It waits until its inputs exist and its cluster has free resources or
    has grown.

    Raises NotFound for an unknown job, Conflict when the job is over or has not started, or has an object (or
    a task that makes one) of the name of an output. A task is never refused for its size. If an input can no
    longer appear, the task is FAILED.
    """
    environ = os.environ if environment is None else environment
    with store.transaction():
        task_id = _Batch(store, 1).add(request, environ)
    return get_task(store, task_id)


def run_many(store: Store, requests: Sequence[tuple[TaskRequest, Mapping[str, str]]]) -> list[str]:
    """Queue many tasks, durably: all of them or none; returns their ids. An error names the line of a request.

    Each request comes with the environment of who starts it.
    """
    with store.transaction():
        batch, ids = _Batch(store, len(requests)), list[str]()
        for line, (request, environ) in enumerate(requests, 1):
            with ops.batches.of_line(line):
                ids.append(batch.add(request, environ))
    return ids


class _Batch:
    """Tasks that one transaction queues. Equal questions are asked once.

    A read writes the tasks before it, so nothing is read for each task that has no objects.
    """

    def __init__(self, store: Store, count: int) -> None:
        self._store = store
        self._numbers = self._free_numbers(count)
        self._jobs: dict[tuple[str, str], Row] = {}
        self._clusters: dict[tuple[int, str | None], str] = {}
        self._detached: dict[str, bool] = {}
        self._nodes: set[tuple[str, str]] = set()
        self._environments: dict[int, str] = {}

    def add(self, request: TaskRequest, environ: Mapping[str, str]) -> str:
        """Queue one task; returns its id. The caller keeps ``environ`` as long as this batch."""
        from vctl.spec.task_request import job_of

        store = self._store
        job = self._job(*job_of(request, environ))
        job_id = job["job_id"]
        inside = environ.get("VCTL_SUBMISSION_ID") == job["submission_id"]
        number = next(self._numbers)
        task_id = f"task-{number}"
        logs.forget_log(store.home, task_id)  # after a restore, numbers are used again
        owner_id = (environ.get("VCTL_TASK_ID") if inside else None) or job["submission_id"]
        task = Task(
            task_id, number, job_id, self._cluster(job, environ.get("VCTL_CLUSTER_ID") if inside else None), owner_id,
            {name: amount for name, amount in request.request.items() if amount},
            job["grace_s"] if request.grace_s is None else request.grace_s, request.selector,
            _strategy(request.strategy),
            environ.get("VCTL_VNODE_ID") if inside else None, request.inputs, request.outputs, request.max_retries,
            request.detach, request.detach or self._outlives(owner_id), request.name or None,
            tk.PENDING_ARGS if request.inputs else tk.PENDING_NODE,
        )  # fmt: skip
        if (task.cluster_id, task.strategy) not in self._nodes:
            check_node(store, task.cluster_id, task.strategy)
            self._nodes.add((task.cluster_id, task.strategy))
        if task.outputs:
            ops.objects.check_new(store, job_id, task.outputs)
        cwd = spec.text.stored_path(request.cwd or os.getcwd())
        launch = Launch(
            argv=rows.dumps(list(request.argv)), env=self._environment(request, environ), cwd=cwd,
            options=rows.dumps(request.options),
        )  # fmt: skip
        store.emit(TaskSubmitted(store.clock(), task, launch))
        if task.inputs or task.outputs:
            ops.objects.accept(store, task)
        return task_id

    def _free_numbers(self, count: int) -> Iterator[int]:
        """Numbers of new tasks: no job has the id of such a task."""
        first = table.next_number(self._store)
        while True:
            names = {f"task-{number}": number for number in range(first, first + count)}
            in_use = jobs.taken(self._store, names)
            yield from (number for name, number in names.items() if name not in in_use)
            first, count = first + count, max(1, len(in_use))

    def _job(self, ref: str, named_by: str) -> Row:
        if (job := self._jobs.get((ref, named_by))) is None:
            job = jobs.get(self._store, job_ops.resolve_named(self._store, ref, named_by))
            assert job is not None
            rights.check_own(self._store, job, "start a task in")
            if job["status"] != jb.RUNNING or job["outcome"] is not None:
                raise Conflict(
                    f"job {job['submission_id']} is {job['status']} and takes no tasks",
                    fix="start tasks while the job runs",
                )
            self._jobs[ref, named_by] = job
        return job

    def _cluster(self, job: Row, inside: str | None) -> str:
        """The cluster of a new task: that of the caller, which may be a sub-cluster, else that of the job."""
        key = job["job_id"], inside
        if (cluster_id := self._clusters.get(key)) is None:
            own = str(job["cluster_id"])
            is_sub = inside and inside != own and inside in clusters.subtree(self._store, own)
            cluster_id = self._clusters[key] = str(inside) if is_sub else own
        return cluster_id

    def _outlives(self, owner_id: str) -> bool:
        """Whether the owner of a task outlives its job, so that the task does."""
        if (outlives := self._detached.get(owner_id)) is None:
            outlives = self._detached[owner_id] = table.is_detached(self._store, owner_id)
        return outlives

    def _environment(self, request: TaskRequest, environ: Mapping[str, str]) -> str:
        """The environment of a task as JSON; tasks without variables of their own share one text."""
        if not request.env and (text := self._environments.get(id(environ))) is not None:
            return text
        captured = {**environ, **request.env}
        text = rows.dumps({name: value for name, value in captured.items() if name not in _OF_THE_RUN})
        if not request.env:
            self._environments[id(environ)] = text
        return text


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
    if row is None and ref == spec.ids.LAST:
        newest = table.views(store, limit=1)
        row = newest[0] if newest else None
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
    parsed = parse_filters(filters, FILTER_KEYS)
    derived = [part for part in parsed if part[0] == "state_reason"]
    within, values = scope.of_tasks(store, cluster)
    where = [within]
    if not all:
        where.append("ended_at IS NULL")
    if job is not None:
        where.append("job_id = ?")
        values.append(job_ops.resolve_named(store, job, param("job")))
    with store.snapshot():
        narrowed, more = filters_table.conditions(
            store, table.FILTERED, [part for part in parsed if part[0] != "state_reason"]
        )
        condition = " AND ".join([*where, narrowed])
        values += more
        reasons = TaskReasons(store)
        shown = table.views(store, condition, values, None if derived else limit)
        listed = [form(row, reasons.of(row)) for row in shown]
        if derived:  # the tables do not have the reason of a task that waits
            listed = [row for row in listed if forms.matches(row, derived)]
            return (listed if limit is None else listed[max(0, len(listed) - limit) :]), len(listed)
        full = limit is not None and len(listed) == limit
        return listed, table.count(store, condition, values) if full else len(listed)


def cancel(store: Store, ref: str, *, grace_s: float | None = None) -> TaskForm:
    """Cancel a task: a waiting task at once; of a running task the scheduler ends the processes."""
    with store.transaction():
        row = _row(store, ref)
        rights.check_number(store, row["job_id"], "cancel a task of")
        key = row["task_id"], row["job_id"], row["cluster_id"]
        if row["state"] == tk.RUNNING:
            requested_at = row["stop_requested_at"] or store.clock()
            store.emit(TaskStopAsked(requested_at, *key, row["grace_s"] if grace_s is None else grace_s))
        elif row["state"] not in tk.FINAL:
            store.emit(TaskEnded(store.clock(), *key, "cancel", tk.CANCELLED, "cancelled before it started"))
            if row["outputs"] != "[]":
                ops.objects.settle(store, row["job_id"], rows.loads(row["outputs"]))
    return get_task(store, row["task_id"])


def task_id(store: Store, ref: str) -> str:
    """The id of a task, from any of its names. Raises NotFound."""
    return str(_row(store, ref)["task_id"])


def log(store: Store, ref: str) -> logs.Log:
    """The output of a task."""
    row = _row(store, ref)
    rights.check_read_number(store, row["job_id"])
    return logs.Log(logs.log_of(store.home, str(row["task_id"])))
