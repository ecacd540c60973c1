"""Objects: named files that tasks leave on nodes for other tasks of their job. Put one, and judge who waits.

A name stands for one object of a job. Whoever has promised it last, a task or the entrypoint, decides what becomes of
tasks that wait for it: they go on waiting while it works, and fail with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core import tasks as tk
from vctl.core.nodes import DEAD
from vctl.core.tasks import Task
from vctl.engine.changes import Change, ObjectCreated, TaskAwaits, TaskEnded, TaskReady
from vctl.errors import BadSpec, Conflict, NotFound
from vctl.ops import jobs as job_ops
from vctl.ops import object_views, rights
from vctl.runtime import objects as files
from vctl.store import clusters, jobs, nodes, rows
from vctl.store import objects as table
from vctl.store import tasks as task_table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import ObjectForm

Emit = Callable[[Change], None]
"""Makes a change: in the tables, and by a scheduler in its state as well."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the inputs of a task say: all there, or what it waits for, or why it can never run."""

    places: Mapping[str, Mapping[str, int]]
    """name -> node id -> bytes."""
    awaits: str = ""
    broken: str = ""


def judge(store: Store, job_id: int, names: Sequence[str]) -> Verdict:
    """Whether the objects of these names are there, may still come, or cannot come any more."""
    places = table.places(store, job_id, names)
    missing = [name for name in names if name not in places]
    if not missing:
        return Verdict(places)
    promised = table.promised(store, job_id, missing)
    awaits: list[str] = []
    takes_tasks: bool | None = None
    for name in missing:
        maker = promised.get(name)
        if maker is not None and maker["state"] is not None and maker["state"] not in tk.FINAL:
            awaits.append(f"{name} from {maker['task_id']}")
            continue
        if maker is not None:
            return Verdict(places, broken=_why_broken(name, maker))
        if takes_tasks is None:
            job = jobs.get(store, job_id)
            takes_tasks = job is not None and job["status"] == jb.RUNNING
        if not takes_tasks:
            return Verdict(places, broken=f"no task produces input {name}, and the job has ended")
        awaits.append(f"{name}, which no task produces yet")
    return Verdict(places, awaits=f"waits for {' and '.join(awaits)}")


def _why_broken(name: str, maker: Row) -> str:
    if maker["task_id"] is None:
        return f"input {name} was put by the entrypoint and is lost: the node it lay on is gone"
    if maker["state"] == tk.FINISHED:
        return f"input {name} of {maker['task_id']} is lost: {maker['node_id']}, where it lay, is gone"
    return f"input {name} cannot be produced: {maker['task_id']} FAILED ({maker['state_reason']})"


def settle(store: Store, emit: Emit, job_id: int, names: Iterable[str]) -> None:
    """Something happened to the objects of these names: move the tasks that wait for them.

    One whose inputs are all there waits for a place; one whose input cannot come is FAILED ``InputFailed``, and with
    it what waits for its outputs. Inside a transaction.
    """
    pending = list(names)
    while pending:
        moved = [row for row in table.expecting(store, job_id, pending) if _move(store, emit, row)]
        ended = (row for row in moved if row["outputs"] != "[]")
        pending = [name for row in ended for name in rows.loads(row["outputs"])]


def _move(store: Store, emit: Emit, row: Row) -> bool:
    """Let a task that has not started be what its inputs say; whether that is something else."""
    key = row["task_id"], row["job_id"], row["cluster_id"]
    verdict = judge(store, row["job_id"], rows.loads(row["inputs"]))
    if verdict.broken:
        emit(TaskEnded(store.clock(), *key, "cancel", tk.INPUT_FAILED, verdict.broken))
    elif verdict.awaits:
        if row["state"] == tk.PENDING_ARGS and row["message"] == verdict.awaits:
            return False
        emit(TaskAwaits(*key, verdict.awaits))
    elif row["state"] == tk.PENDING_ARGS:
        emit(TaskReady(*key))
    else:
        return False
    return True


def give_up(store: Store, emit: Emit, job_id: int) -> None:
    """The job takes no more tasks: those that wait for what nobody makes fail."""
    names = {name for row in table.awaiting(store, job_id) for name in rows.loads(row["inputs"])}
    settle(store, emit, job_id, sorted(names))


def accept(store: Store, task: Task) -> None:
    """A new task uses and leaves objects: it may wait, or be over at once. Inside a transaction."""
    if task.inputs:
        row = task_table.get(store, task.task_id)
        assert row is not None
        _move(store, store.emit, row)
    if task.outputs:
        settle(store, store.emit, task.job_id, task.outputs)  # others may wait for it already


def check_new(store: Store, job_id: int, names: Collection[str]) -> None:
    """Raise Conflict when there is an object of such a name already, or a task makes it."""
    there = table.places(store, job_id, names)
    makers = table.promised(store, job_id, names)
    for name in names:
        maker = makers.get(name)
        if name in there:
            raise Conflict(
                f"the job has an object {name} already", fix="use it, or choose another name",
                details={"object": name},
            )  # fmt: skip
        if maker is not None and maker["state"] is not None and maker["state"] not in tk.FINAL:
            raise Conflict(
                f"{maker['task_id']} produces {name} already", fix="wait for it, cancel it, or choose another name",
                details={"object": name, "task": maker["task_id"]},
            )  # fmt: skip


def put(store: Store, name: str, *, environment: Mapping[str, str] | None = None) -> ObjectForm:
    """Make what lies in ``$VCTL_OBJECT_DIR`` under a name an object; for processes of a running job.

    Raises BadSpec outside a job, NotFound when nothing lies there, Conflict when there is such an object.
    """
    from vctl.spec.task_request import check_object_name

    check_object_name(name, "NAME")
    around = os.environ if environment is None else environment
    submission_id, node_id = around.get("VCTL_SUBMISSION_ID"), around.get("VCTL_NODE_ID")
    if not submission_id or not node_id:
        raise BadSpec(
            "objects can be put only inside a job, and this process is not in one (VCTL_SUBMISSION_ID"
            " and VCTL_NODE_ID are not set)",
            fix="call it from the job's own command",
        )
    with store.transaction():
        job = jobs.get(store, job_ops.resolve(store, submission_id))
        assert job is not None
        rights.check_job(store, job)
        if job["status"] != jb.RUNNING:
            raise Conflict(f"job {submission_id} is {job['status']}", fix="put objects while the job runs")
        place = files.place_of(store.home, job["job_id"], job["attempt"], _known_node(store, node_id))
        try:
            size = files.size_of(place, name)
        except files.Unusable as error:
            raise NotFound(
                error.problem, fix=f"write a file or a directory to $VCTL_OBJECT_DIR/{name} first"
            ) from None
        check_new(store, job["job_id"], [name])
        cluster_id = around.get("VCTL_CLUSTER_ID") or job["cluster_id"]
        if cluster_id != job["cluster_id"] and cluster_id not in clusters.subtree(store, job["cluster_id"]):
            cluster_id = job["cluster_id"]
        files.seal(place, name)
        store.emit(ObjectCreated(store.clock(), job["job_id"], name, node_id, cluster_id, size))
        settle(store, store.emit, job["job_id"], [name])
    return object_views.get_object(store, f"{submission_id}/{name}")


def _known_node(store: Store, node_id: str) -> str:
    row = nodes.get(store, node_id)
    if row is None or row["state"] == DEAD:
        raise NotFound(f"there is no living node {node_id!r}", fix="see `vctl node list`")
    return node_id


def left_over(store: Store) -> list[tuple[int, int, str]]:
    """(job, attempt, node) of directories of objects that nobody needs any more."""
    return [one for one in files.kept(store.home) if not table.is_wanted(store, *one[:2])]


def remove_left_over(store: Store) -> list[str]:
    """Remove them; what was done."""
    done = []
    for job_id, attempt, node_id in left_over(store):
        files.remove(store.home, job_id, attempt, node_id)
        done.append(
            f"removed the objects of job {job_id}, attempt {attempt}, on {node_id}, which no job needs"
        )
    return done


def without_files(store: Store) -> list[str]:
    """Objects that lie nowhere: a copy may not have been brought yet, so one of several places is enough."""
    return [
        f"object {one['object_id']} is not on {' or '.join(one['node_ids'])}, where it should be"
        for one in object_views.list_objects(store)[0]
        if not any(
            files.is_there(files.place_of(store.home, one["job_id"], one["attempt"], node_id), one["name"])
            for node_id in one["node_ids"]
        )
    ]
