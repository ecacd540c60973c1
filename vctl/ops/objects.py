"""Objects: named files that tasks leave on nodes for other tasks of their job.

A name identifies one object of a job. The *maker* of an object is the task or the entrypoint that makes it,
or will make it. Tasks that need the object wait while its last maker works, and fail when the maker fails.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.clusters import PRIMARY
from vctl.core.nodes import DEAD
from vctl.core.tasks import Maker, Task
from vctl.core.values import value
from vctl.engine.changes import ObjectCreated
from vctl.engine.rules import objects as rule
from vctl.errors import BadSpec, Conflict, NotFound, param
from vctl.ops import forms, rights
from vctl.ops import jobs as job_ops
from vctl.ops.forms import choose
from vctl.runtime import objects as files
from vctl.spec.ids import JOB_MARK
from vctl.store import clusters, jobs, nodes, rows
from vctl.store import objects as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import ObjectForm


@value(frozen=True, slots=True)
class StoredObjects:
    """The objects of a job in the tables."""

    store: Store
    job_id: int

    def users(self, names: Collection[str]) -> list[Task]:
        """Tasks that have not started and use one of these objects, oldest first."""
        return [rows.task(row) for row in table.expecting(self.store, self.job_id, names)]

    def there(self, names: Collection[str]) -> Collection[str]:
        """The names in ``names`` that have an object."""
        return table.there(self.store, self.job_id, names)

    def makers(self, names: Collection[str]) -> Mapping[str, Maker]:
        """The makers of these objects, by name."""
        return table.makers(self.store, self.job_id, names)

    def takes_tasks(self) -> bool:
        """Whether the job runs."""
        return jobs.is_running(self.store, self.job_id)


def settle(store: Store, job_id: int, names: Iterable[str]) -> None:
    """Move the tasks that wait for these objects, after a change of an object or its maker; inside a transaction."""
    for change in rule.settle(StoredObjects(store, job_id), names, store.clock()):
        store.emit(change)


def accept(store: Store, task: Task) -> None:
    """Check the objects of a new task, which may wait or fail at once because of them; inside a transaction."""
    if task.inputs:
        change = rule.what_follows(StoredObjects(store, task.job_id), task, store.clock())
        if change is not None:
            store.emit(change)
    if task.outputs:
        settle(store, task.job_id, task.outputs)  # other tasks may wait for these outputs already


def check_new(store: Store, job_id: int, names: Collection[str]) -> None:
    """Raise Conflict when an object with one of these names exists, or a task makes it."""
    there, makers = table.there(store, job_id, names), table.makers(store, job_id, names)
    for name in names:
        maker = makers.get(name)
        if name in there:
            raise Conflict(
                f"the job has an object {name} already", fix="use it, or choose another name",
                details={"object": name},
            )  # fmt: skip
        if maker is not None and maker.task_id is not None and maker.state is None:
            raise Conflict(
                f"{maker.task_id} produces {name} already", fix="wait for it, cancel it, or choose another name",
                details={"object": name, "task": maker.task_id},
            )  # fmt: skip


def put(store: Store, name: str, *, environment: Mapping[str, str] | None = None) -> ObjectForm:
    """Make a file or directory in ``$VCTL_OBJECT_DIR`` an object; for processes of a running job.

    Raises BadSpec outside a job, NotFound when there is no such file, Conflict when the object exists.
    """
    from vctl.spec.task_request import check_object_name

    check_object_name(name, "NAME")
    environ = os.environ if environment is None else environment
    submission_id, node_id = environ.get("VCTL_SUBMISSION_ID"), environ.get("VCTL_NODE_ID")
    if not submission_id or not node_id:
        raise BadSpec(
            "objects can be put only inside a job, and this process is not in one (VCTL_SUBMISSION_ID"
            " and VCTL_NODE_ID are not set)",
            fix="call it from the job's own command",
        )
    with store.transaction():
        job = jobs.get(store, job_ops.resolve_named(store, submission_id, "VCTL_SUBMISSION_ID"))
        assert job is not None
        rights.check_own(store, job, "put an object into")
        if job["status"] != jb.RUNNING:
            raise Conflict(f"job {submission_id} is {job['status']}", fix="put objects while the job runs")
        directory = files.folder_path(
            store.job_files, job["job_id"], job["attempt"], _known_node(store, node_id)
        )
        try:
            size = files.size_of(directory, name)
        except files.Unusable as error:
            raise NotFound(
                error.problem, fix=f"write a file or a directory to $VCTL_OBJECT_DIR/{name} first"
            ) from None
        check_new(store, job["job_id"], [name])
        cluster_id = environ.get("VCTL_CLUSTER_ID") or job["cluster_id"]
        if cluster_id != job["cluster_id"] and cluster_id not in clusters.subtree(store, job["cluster_id"]):
            cluster_id = job["cluster_id"]
        files.seal(directory, name)
        store.emit(ObjectCreated(store.clock(), job["job_id"], name, node_id, cluster_id, size))
        settle(store, job["job_id"], [name])
    return get_object(store, f"{submission_id}/{name}")


def _known_node(store: Store, node_id: str) -> str:
    row = nodes.get(store, node_id)
    if row is None or row["state"] == DEAD:
        raise NotFound(f"there is no living node {node_id!r}", fix="see `vctl node list`")
    return node_id


def orphaned(store: Store) -> list[tuple[int, int, str]]:
    """(job, attempt, node) of the directories of objects that no job needs any more."""
    return [
        directory
        for directory in files.folders(store.job_files)
        if not files.is_empty(store.job_files, *directory) and not table.is_wanted(store, *directory[:2])
    ]


def remove_orphaned(store: Store) -> list[str]:
    """Remove the directories that ``orphaned`` finds; returns a sentence about each."""
    done = []
    for job_id, attempt, node_id in orphaned(store):
        files.remove(store.job_files, job_id, attempt, node_id)
        done.append(
            f"removed the objects of job {job_id}, attempt {attempt}, on {node_id}, which no job needs"
        )
    return done


def without_files(store: Store) -> list[str]:
    """Sentences about objects without files. One copy is enough: others may not have arrived yet."""
    return [
        f"object {stored['object_id']} is not on {' or '.join(stored['node_ids'])}, where it should be"
        for stored in list_objects(store)[0]
        if not any(
            files.is_there(
                files.folder_path(store.job_files, stored["job_id"], stored["attempt"], node_id),
                stored["name"],
            )
            for node_id in stored["node_ids"]
        )
    ]


def list_objects(
    store: Store, *, filters: Sequence[str] = (), limit: int | None = None, job: str | None = None
) -> tuple[list[ObjectForm], int]:
    """Objects, by job and name, and their number without the limit; ``job`` chooses one job."""
    columns = {} if job is None else {"job_id": job_ops.resolve_named(store, job, param("job"))}
    with store.snapshot():
        listed = choose(_forms(store, table.listed(store, **columns)), filters, "ObjectForm")
    return (listed if limit is None else listed[:limit]), len(listed)


def get_object(store: Store, ref: str, *, job: str | None = None) -> ObjectForm:
    """One object, by ``JOB/NAME`` or by a unique name. An object of ``job`` precedes those of other jobs."""
    owner, slash, name = ref.rpartition("/")
    with store.snapshot():
        if slash:
            matches = _forms(store, table.listed(store, job_id=job_ops.resolve(store, owner), name=name))
        else:
            matches = _forms(store, table.listed(store, name=name))
            matches = [match for match in matches if match["submission_id"] == job] or matches
    if len(matches) > 1:
        shown = ", ".join(str(match["object_id"]) for match in matches[:5])
        raise BadSpec(f"several jobs have an object {name!r}: {shown}", fix="write JOB/NAME")
    if not matches:
        raise NotFound(f"there is no object {ref!r}", fix="see `vctl list objects`", details={"object": ref})
    rights.check_read_number(store, matches[0]["job_id"], "the objects")
    return matches[0]


def _forms(store: Store, copies: Sequence[Row]) -> list[ObjectForm]:
    """The JSON forms of objects from the rows of their copies; the first copy of each is where it was made."""
    by_name: dict[tuple[int, str], ObjectForm] = {}
    for row in copies:
        form = by_name.get((row["job_id"], row["name"]))
        if form is None:
            directory = files.folder_path(store.job_files, row["job_id"], row["attempt"], row["node_id"])
            by_name[row["job_id"], row["name"]] = {
                "object_id": f"{row['submission_id']}/{row['name']}",
                "name": row["name"],
                "job_id": row["job_id"],
                "submission_id": row["submission_id"],
                "cluster_id": row["cluster_id"],
                "task_id": row["task_id"],
                "node_id": row["node_id"],
                "node_ids": [row["node_id"]],
                "size": row["size"],
                "created_at": forms.timestamp(row["created_at"]),
                "attempt": row["attempt"],
                "path": str(directory / row["name"]),
            }
        else:
            form["node_ids"].append(row["node_id"])
    return list(by_name.values())


def used_bytes(store: Store, cluster_id: str) -> int:
    """Bytes of the objects of a cluster and of those below it, every copy counted."""
    sizes = table.sizes(store)
    if cluster_id == PRIMARY or not sizes:
        return sum(row["size"] for row in sizes)
    below = [cluster_id, *clusters.subtree(store, cluster_id)]
    return sum(
        row["size"]
        for row in sizes
        # objects of a deleted sub-cluster stay; the id of a cluster begins with the id of its parent
        if any(
            row["cluster_id"] == ancestor or row["cluster_id"].startswith(ancestor + JOB_MARK)
            for ancestor in below
        )
    )
