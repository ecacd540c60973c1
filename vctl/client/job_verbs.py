"""The verbs by kind of object: ``client.jobs``, ``tasks``, ``clusters`` and ``physical_nodes``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from vctl import ops, spec
from vctl.client import inside
from vctl.client.fields import (
    BatchedJob,
    BatchedTask,
    Command,
    JobFields,
    TaskFields,
    check_names,
    seconds_of,
    task_values,
    values_of,
    words_of,
)
from vctl.client.handles import ConfiguredBackend, Handle, Job, Task
from vctl.client.queued import queued
from vctl.client.state_api import Filters, Verbs
from vctl.operations import clusters, jobs, limits, nodes, tasks, tokens
from vctl.operations.declare import Verb
from vctl.spec.ids import resolve_cluster_id

if TYPE_CHECKING:
    from vctl.client.specs import Amounts
    from vctl.spec import documents
    from vctl.spec.params import Written

    # a class has a method with the name list
    JobForms = list[documents.JobForm]
    TaskForms = list[documents.TaskForm]
    ClusterForms = list[documents.ClusterForm]
    NodeForms = list[documents.NodeForm]

JobHandles = list[Job]
TaskHandles = list[Task]


class ClusterFields(TypedDict, total=False):
    """The wanted state of a cluster; the options of ``vctl vc create`` explain them."""

    divisible: bool | None
    replica_sets: Mapping[str, Any] | None
    spec: Written | Mapping[str, Any] | None
    borrow_limit: Amounts | None
    lending_limit: Amounts | None
    private: Sequence[str] | None
    user_template: Mapping[str, Any] | None
    queue: Mapping[str, Any] | None
    submitters: Sequence[str] | None
    admins: Sequence[str] | None
    private_queue: bool | None


class Started(Verbs, ABC):
    """The verbs that jobs and tasks share."""

    @abstractmethod
    def get(self, ref: str | int) -> Handle:
        """A job or task by any of its names."""

    def named(self, *refs: str | int) -> Sequence[Handle]:
        """Jobs or tasks by any of their names."""
        return [self.get(ref) for ref in refs]

    def wait(self, *refs: str | int, timeout_s: float | None = None) -> int:
        """Wait until all are over; returns the first exit code that is not 0, in the given order, else 0."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        handles = self.named(*refs)
        codes = [handle.wait_until(give_up, timeout_s) for handle in handles]
        return next((code for code in codes if code), 0)

    def logs(self, ref: str | int, *, tail: int | None = None) -> str:
        """The present output; ``tail``: only the last lines."""
        return self.get(ref).logs(tail=tail)


class Jobs(Started):
    """The verbs of ``vctl job``."""

    def submit(self, entrypoint: Command, **fields: Unpack[JobFields]) -> Job:
        """Queue a command, durably; the job starts when all its required resources are free.

        ``begin_at`` is in seconds since the epoch. ``signal`` is sent before the time limit: ``USR1@60``. ``after``
        names jobs that must end first: ``ok:ID``, ``any:ID``, ``notok:ID``. ``array`` such as ``0-99%8`` makes
        several jobs; the returned ``Job`` stands for all of them.
        """
        check_names("Jobs.submit", fields, JobFields)
        values = self._values(entrypoint, fields)
        form = queued(self.backend, environment=inside.environment(), **values)
        return Job(self.backend, form["submission_id"])

    def submit_many(self, batch: Iterable[BatchedJob]) -> JobHandles:
        """Queue many commands, durably: all of them or none. Each is a map of the arguments of ``submit``.

        ``after`` may name the ids of jobs that are earlier in the batch. An error names the line: 1 is the first job.
        """
        documents = _lines(
            batch, "a job", '{"entrypoint": ["true"]}', BatchedJob,
            lambda fields: self._values(fields.pop("entrypoint", ()), fields),
        )  # fmt: skip
        reply = jobs.submit_many(self.backend, documents, environment=inside.environment())
        return [Job(self.backend, name) for name in reply["submission_ids"]]

    def _values(self, entrypoint: object, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a submit: the given ones, and those of the settings."""
        config = self.backend.config
        values: dict[str, Any] = {
            "entrypoint": words_of(entrypoint),
            "grace_s": config.get("kill_grace"),
            "notify": config.get("notify"),
            "job_scope": config.get("job_scope"),
            **values_of(fields),
        }
        if not values.get("cluster"):
            values["cluster"] = None if inside.submission_id() else config.get("cluster")
        return values

    def get(self, ref: str | int) -> Job:
        """A job by submission id, number, unique prefix or ``last``."""
        return Job(self.backend, str(jobs.get_job(self.backend, ref)["submission_id"]))

    def named(self, *refs: str | int) -> JobHandles:
        """Jobs by any of their names, patterns (``sweep_*``) and ranges of members (``sweep_2-4``): each once."""
        found: dict[str, None] = {}
        for ref in refs:
            forms, _ = jobs.list_jobs(self.backend, named=[str(ref)], members=False, forecast=False)
            found |= {form["submission_id"]: None for form in reversed(forms)}
        return [Job(self.backend, name) for name in found]

    def list(self, *, filters: Filters = (), limit: int | None = None) -> JobForms:
        """Jobs, newest first, with finished jobs."""
        return self._state.list_jobs(filters=filters, limit=limit)

    def stop(self, ref: str | int, *, grace_s: float | None = None, wait: bool = True) -> documents.JobForm:
        """Stop a job."""
        return self.get(ref).stop(grace_s=grace_s, wait=wait)

    def delete(self, *refs: str | int) -> JobForms:
        """Delete finished jobs: all of them or none."""
        return jobs.delete(self.backend, [str(ref) for ref in refs])

    def edit(
        self, ref: str | int, *, max_running: int | str | None = None, **fields: Unpack[JobFields]
    ) -> documents.JobForm:
        """Change what a waiting job asks for, or the time limit of a running one: the arguments of ``submit``.

        ``"none"`` takes away what an argument gave (``time_limit``, ``begin_at``, ``after``, …); None changes nothing.
        ``max_running``: how many members of an array run at a time. Of an array, what waits is changed.
        """
        return self.get(ref).edit(max_running=max_running, **fields)

    def rerun(self, ref: str | int, *, failed: bool = False, **fields: Unpack[JobFields]) -> Job:
        """Submit a job again under a new id, with the fields of ``submit`` that are given in place of its own.

        ``failed``: in place, only what did not succeed: members of an array run again under their own indices.
        ``env`` and ``metadata`` are put on top of those of the job.
        """
        return rerun(self.backend, ref, fields, failed=failed)

    why = Verb(jobs.why)
    hold = Verb(jobs.hold)
    release = Verb(jobs.release)


def rerun(backend: ConfiguredBackend, ref: str | int, fields: Mapping[str, Any], *, failed: bool) -> Job:
    """Submit a job again; see ``Jobs.rerun``."""
    check_names("Jobs.rerun", fields, JobFields)
    none = {f"{name}_s": None for name in ("time_limit", "grace") if fields.get(name, "") is None}
    form = jobs.rerun(backend, ref, failed=failed, **values_of(fields), **none)
    return Job(backend, form["submission_id"])


class Tasks(Started):
    """The verbs of ``vctl task``."""

    def run(self, command: Command, **fields: Unpack[TaskFields]) -> Task:
        """Start a command in the cluster of the caller, or in the named job, with resources of its own.

        It takes one CPU by default. It waits until its resources are free, and never leaves its cluster. It starts when
        all ``inputs`` exist as ``$VCTL_OBJECT_DIR/NAME``, and writes its ``outputs`` to that directory.
        """
        check_names("Tasks.run", fields, TaskFields)
        form = tasks.run(self.backend, environment=inside.environment(), **task_values(command, fields))
        return Task(self.backend, form["task_id"])

    def run_many(self, batch: Iterable[BatchedTask]) -> TaskHandles:
        """Start many commands: all of them or none. Each is a map of the arguments of ``run``.

        An error names the line: 1 is the first task.
        """
        documents = _lines(
            batch, "a task", '{"command": ["true"]}', BatchedTask,
            lambda fields: task_values(fields.pop("command", ()), fields),
        )  # fmt: skip
        reply = tasks.run_many(self.backend, documents, environment=inside.environment())
        return [Task(self.backend, name) for name in reply["task_ids"]]

    def put(self, name: str) -> documents.ObjectForm:
        """Make the file that this program wrote to ``$VCTL_OBJECT_DIR/name`` an object, an input for tasks."""
        return tasks.put(self.backend, name, tasks.inside(inside.environment()))

    def get(self, ref: str | int) -> Task:
        """A task by its id, its number or ``last``."""
        return Task(self.backend, str(tasks.get_task(self.backend, ref)["task_id"]))

    why = Verb(tasks.why)

    def list(self, *, filters: Filters = (), limit: int | None = None) -> TaskForms:
        """Tasks, oldest first, with finished tasks."""
        return self._state.list_tasks(filters=filters, limit=limit)

    def cancel(
        self, ref: str | int, *, grace_s: float | None = None, wait: bool = True
    ) -> documents.TaskForm:
        """Cancel a task."""
        return self.get(ref).cancel(grace_s=grace_s, wait=wait)


def _lines(
    batch: Iterable[object],
    what: str,
    example: str,
    known: Any,
    read: Callable[[dict[str, Any]], dict[str, Any]],
) -> list[dict[str, Any]]:
    """The values of each line of a batch, from its arguments; ``known`` has their names. Errors name the line."""
    lines: list[dict[str, Any]] = []
    for line, arguments in enumerate(batch, 1):
        with ops.batches.of_line(line):
            fields = dict(spec.fields.as_mapping(arguments, "", what, example))
            for name in fields:
                if name not in known.__annotations__:
                    fix = spec.fields.did_you_mean(name, known.__annotations__)
                    raise spec.fields.refuse(name, "unknown field", fix)
            lines.append(read(fields))
    return lines


class Clusters(Verbs):
    """The verbs of ``vctl vc``."""

    delete = Verb(clusters.delete)
    stop = Verb(clusters.stop)
    resume = Verb(clusters.resume)
    remove_nodes = Verb(clusters.remove_nodes)
    reserve = Verb(clusters.reserve)

    def create(
        self,
        cluster_id: str,
        *,
        parent: str | None = None,
        detach: bool = False,
        **fields: Unpack[ClusterFields],
    ) -> documents.ClusterForm:
        """Create a virtual cluster. ``detach``: inside a job, let it outlive the job."""
        check_names("Clusters.create", fields, ClusterFields)
        return clusters.create(self.backend, cluster_id, parent=parent, detach=detach, **fields)

    def update(
        self, cluster_id: str, *, revision: int | str | None = None, **fields: Unpack[ClusterFields]
    ) -> documents.ClusterForm:
        """Change the resources of a virtual cluster: the whole change or none of it."""
        check_names("Clusters.update", fields, ClusterFields)
        return clusters.update(self.backend, cluster_id, revision=revision, **fields)

    def get(self, cluster_id: str | None = None) -> documents.ClusterForm:
        """One cluster; without an id the cluster of the caller."""
        return clusters.get_cluster(self.backend, self._named(cluster_id))

    def tree(self, cluster_id: str | None = None) -> documents.ClusterTree:
        """A cluster with everything below it, nested under ``tree``."""
        return clusters.tree(self.backend, self._named(cluster_id))

    def list(self, *, filters: Filters = (), limit: int | None = None) -> ClusterForms:
        """Clusters, parents first."""
        return self._state.list_clusters(filters=filters, limit=limit)

    def _named(self, cluster_id: str | None) -> str:
        return self._state.cluster_id if cluster_id is None else resolve_cluster_id(cluster_id, "cluster_id")


class Tokens(Verbs):
    """The verbs by which a user of a shared service signs in to its HTTP API, and out."""

    def login(self, for_: float | str = "30d", *, name: str = "") -> documents.LoginForm:
        """A new token, good for a time such as ``"8h"``; it is shown this once."""
        return tokens.login(self.backend, for_s=seconds_of(for_, "for_"), name=name)

    logout = Verb(tokens.logout)
    list = Verb(tokens.list_tokens)
    revoke = Verb(tokens.revoke)


class Limits(Verbs):
    """The verbs of ``vctl limit``."""

    set = Verb(limits.set_limits)
    list = Verb(limits.list_limits)
    clear = Verb(limits.clear)


class Nodes(Verbs):
    """The verbs of ``vctl node``: physical nodes."""

    def list(self, *, filters: Filters = (), limit: int | None = None) -> NodeForms:
        """Nodes; inside a job the nodes on which it has resources."""
        return self._state.list_nodes(filters=filters, limit=limit)

    add = Verb(nodes.add)
    get = Verb(nodes.get_node)
    drain = Verb(nodes.drain)
    undrain = Verb(nodes.undrain)
    update = Verb(nodes.update)
    remove = Verb(nodes.remove)
    kill = Verb(nodes.kill)
    heartbeat = Verb(nodes.heartbeat)
    ignore = Verb(nodes.ignore)
