"""The verbs by kind of object: ``client.jobs``, ``tasks``, ``clusters`` and ``physical_nodes``."""

from __future__ import annotations

import os
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Required, TypedDict, Unpack

from vctl import ops, spec
from vctl.client import inside
from vctl.client.handles import Handle, Job, Task
from vctl.client.state_api import Filters, Verbs
from vctl.errors import BadSpec, param
from vctl.operations import clusters, jobs, nodes, tasks
from vctl.operations.declare import Here, Verb, asks, operation
from vctl.spec.ids import resolve_cluster_id

if TYPE_CHECKING:
    from vctl.client.specs import Amount, Amounts, LabelSelector
    from vctl.client.virtual_cluster import VirtualCluster
    from vctl.spec import documents
    from vctl.spec.job_request import JobRequest

    # a class has a method with the name list
    JobForms = list[documents.JobForm]
    TaskForms = list[documents.TaskForm]
    ClusterForms = list[documents.ClusterForm]
    NodeForms = list[documents.NodeForm]

Command = str | Sequence[str]
"""The words of a command, or a line that is split as a shell does; no shell is run."""
Duration = float | str
"""Seconds, or a text such as ``1h30m``."""
JobHandles = list[Job]
_DURATIONS = ("time_limit", "grace", "backoff")
_MAPS = ("env", "metadata", "labels")
_OPERATORS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1"}


class JobFields(TypedDict, total=False):
    """What a submit can be given besides its command; the options of ``vctl job submit`` explain them."""

    virtual_cluster: VirtualCluster | Mapping[str, Any] | None
    cluster: str | None
    num_cpus: Amount | None
    num_gpus: Amount | None
    memory: Amount | None
    nodes: int | None
    entrypoint_num_cpus: Amount | None
    entrypoint_num_gpus: Amount | None
    entrypoint_memory: Amount | None
    entrypoint_resources: Amounts | None
    priority: int
    time_limit: Duration | None
    signal: str | None
    begin_at: float | None
    hold: bool
    after: Sequence[str]
    per_node: bool
    label: bool
    ray: bool
    ray_dashboard: bool
    array: str | None
    max_retries: int
    retry_on: Sequence[str]
    backoff: Duration
    grace: Duration | None
    name: str
    submission_id: str | None
    env: Mapping[str, str] | None
    clean_env: bool
    working_dir: str | os.PathLike[str] | None
    metadata: Mapping[str, str] | None
    labels: Mapping[str, str] | None


class BatchedJob(JobFields):
    """A job of ``Jobs.submit_many``."""

    entrypoint: Required[Command]


class Queued(TypedDict):
    """The part of the answer to a submit that ``Jobs.submit`` needs."""

    submission_id: str


@operation("job submit", "POST /jobs")
@asks(jobs.request)
def _queued(here: Here, asked: tuple[JobRequest, Mapping[str, str]]) -> Queued:
    """Queue a job, durably, and return only its id. A server returns the whole form of the job."""
    return {"submission_id": ops.submitting.queue(here.store, *asked)}


class Started(Verbs, ABC):
    """The verbs that jobs and tasks share."""

    @abstractmethod
    def get(self, ref: str | int) -> Handle:
        """A job or task by any of its names."""

    def wait(self, *refs: str | int, timeout_s: float | None = None) -> int:
        """Wait until all are over; returns the first exit code that is not 0, in the given order, else 0."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        handles = [self.get(ref) for ref in refs]
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
        if unknown := fields.keys() - JobFields.__optional_keys__:
            raise TypeError(f"Jobs.submit() got an unexpected keyword argument {min(unknown)!r}")
        values = self._values(entrypoint, fields)
        words = values.pop("entrypoint")
        form = _queued(self.backend, words, environment=inside.environment(), **values)
        return Job(self.backend, form["submission_id"])

    def submit_many(self, batch: Iterable[BatchedJob]) -> JobHandles:
        """Queue many commands, durably: all of them or none. Each is a map of the arguments of ``submit``.

        ``after`` may name the ids of jobs that are earlier in the batch. An error names the line: 1 is the first job.
        """
        documents: list[dict[str, Any]] = []
        for line, job in enumerate(batch, 1):
            with ops.batches.of_line(line):
                fields = dict(spec.fields.as_mapping(job, "", "a job", '{"entrypoint": ["true"]}'))
                for name in fields:
                    if name not in BatchedJob.__annotations__:
                        fix = spec.fields.did_you_mean(name, BatchedJob.__annotations__)
                        raise spec.fields.refuse(name, "unknown field", fix)
                documents.append(self._values(fields.pop("entrypoint", ()), fields))
        found = jobs.submit_many(self.backend, documents, environment=inside.environment())
        return [Job(self.backend, name) for name in found["submission_ids"]]

    def _values(self, entrypoint: object, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a submit: the given ones, and those of the settings."""
        config = self.backend.config
        values: dict[str, Any] = {
            "entrypoint": words_of(entrypoint),
            "grace_s": config.get("kill_grace"),
            "job_scope": config.get("job_scope"),
        }
        for name, value in fields.items():
            if name in _DURATIONS:
                if value is not None or name == "backoff":
                    values[f"{name}_s"] = seconds_of(value, name)
            elif name == "working_dir":
                values["cwd"] = _directory(value)
            elif value is not None or name not in _MAPS:
                values[name] = value
        if not values.get("cluster"):
            values["cluster"] = None if inside.submission_id() else config.get("cluster")
        return values

    def get(self, ref: str | int) -> Job:
        """A job by submission id, number, unique prefix or ``last``."""
        return Job(self.backend, str(jobs.get_job(self.backend, ref)["submission_id"]))

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
        self,
        ref: str | int,
        *,
        priority: int | None = None,
        name: str | None = None,
        time_limit: Duration | None = None,
    ) -> documents.JobForm:
        """Change a pending job, or the time limit of a running job (``none``: no limit)."""
        changes = jobs.edited(priority, name, time_limit, "time_limit")
        return jobs.edit(self.backend, ref, **changes)

    def rerun(self, ref: str | int) -> Job:
        """Submit the request of a job again under a new id."""
        return self.get(ref).rerun()

    why = Verb(jobs.why)
    hold = Verb(jobs.hold)
    release = Verb(jobs.release)


class Tasks(Started):
    """The verbs of ``vctl task``."""

    def run(
        self,
        command: Command,
        *,
        num_cpus: Amount | None = None,
        num_gpus: Amount | None = None,
        memory: Amount | None = None,
        resources: Amounts | None = None,
        label_selector: LabelSelector | None = None,
        strategy: str = "HYBRID",
        name: str = "",
        max_retries: int = 0,
        detach: bool = False,
        job: str | None = None,
        env: Mapping[str, str] | None = None,
        working_dir: str | os.PathLike[str] | None = None,
        grace: Duration | None = None,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> Task:
        """Start a command in the cluster of the caller, or in the named job, with resources of its own.

        It takes one CPU by default. It waits until its resources are free, and never leaves its cluster. It starts when
        all ``inputs`` exist as ``$VCTL_OBJECT_DIR/NAME``, and writes its ``outputs`` to that directory.
        """
        from vctl.client.specs import selector_document

        form = tasks.run(
            self.backend,
            words_of(command),
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory,
            resources=resources,
            label_selector=None if label_selector is None else selector_document(label_selector),
            strategy=strategy,
            inputs=inputs,
            outputs=outputs,
            max_retries=max_retries,
            name=name,
            job=job,
            detach=detach,
            env=jobs.NONE if env is None else env,
            environment=inside.environment(),
            cwd=_directory(working_dir),
            grace_s=None if grace is None else seconds_of(grace, "grace"),
        )
        return Task(self.backend, form["task_id"])

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


def words_of(command: object) -> tuple[str, ...]:
    """The words of a command. Refuses operators of a shell."""
    if not isinstance(command, str | Iterable):
        raise spec.fields.refuse(
            param("entrypoint"),
            f"{spec.fields.show(command)} is not a command",
            'write it as ["python", "train.py"]',
        )
    if not isinstance(command, str):
        return tuple(command)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BadSpec(
            f"{param('entrypoint')}: {error}: {command}", fix="close the quotes, or write a list"
        ) from None
    if found := next((word for word in words if word in _OPERATORS), None):
        raise BadSpec(
            f"{param('entrypoint')}: {found} needs a shell, and no shell is run",
            fix='write ["sh", "-c", "..."], or the words as a list',
        )
    return tuple(words)


def _directory(given: str | os.PathLike[str] | None) -> str | None:
    if given is None:
        return None
    try:
        return os.path.abspath(os.path.expanduser(os.fsdecode(given)))
    except TypeError:
        raise spec.fields.refuse(
            param("working_dir"), f"{spec.fields.show(given)} is not a path", "put it in quotes"
        ) from None


def seconds_of(given: Duration, path: str) -> float:
    """A duration in seconds."""
    return spec.quantities.parse_duration(given, path)


class Clusters(Verbs):
    """The verbs of ``vctl vc``."""

    create = Verb(clusters.create)
    update = Verb(clusters.update)
    delete = Verb(clusters.delete)
    stop = Verb(clusters.stop)
    resume = Verb(clusters.resume)
    remove_nodes = Verb(clusters.remove_nodes)

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
