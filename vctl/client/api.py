"""The functions and the client of ``import vctl``: a client for every verb, and the state of the caller's cluster."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate

from vctl import operations, ops, spec
from vctl.client.context import RuntimeContext
from vctl.client.fields import seconds_of
from vctl.client.handles import ConfiguredBackend, Local, backend_of
from vctl.client.job_verbs import Clusters, Jobs, Limits, Nodes, Tasks, Tokens
from vctl.client.state_api import Filter, State
from vctl.client.virtual_cluster import VirtualCluster, VirtualClusterInfo
from vctl.core.clusters import PRIMARY
from vctl.errors import BadSpec, NotPermitted
from vctl.operations import clusters, upkeep, views
from vctl.operations.declare import P, R, Verb

if TYPE_CHECKING:
    from vctl.spec import documents, reports


class Client(State):
    """Every verb of the command line, on a state directory or a server.

    Its lists and amounts are those of one cluster: the given one, else the cluster of the caller. Threads may share a
    client, and its state stays open between calls.
    """

    def __init__(self, backend: ConfiguredBackend, cluster: str | None = None) -> None:
        super().__init__(backend, cluster)
        self.jobs = Jobs(backend, cluster)
        self.tasks = Tasks(backend, cluster)
        self.clusters = Clusters(backend, cluster)
        self.submit = self.jobs.submit
        self.run = self.tasks.run
        self.physical_nodes = Nodes(backend, cluster)
        self.tokens = Tokens(backend, cluster)
        self.limits = Limits(backend, cluster)

    def __repr__(self) -> str:
        return f"<vctl client of {self.backend!r}>"

    status = Verb(views.status)
    scheduler = Verb(views.scheduler)
    report = Verb(views.report)
    leases = State.list_leases
    demand = State.list_demand
    gpus = State.list_gpus

    def events(
        self,
        *,
        since: int = 0,
        limit: int | None = None,
        job: str | int | None = None,
        filters: Sequence[Filter] = (),
    ) -> list[documents.EventForm]:
        """Events after a number, oldest first; ``job`` chooses one job."""
        if job is None:
            return self.list_events(since=since, filters=filters, limit=limit)
        events, _ = views.list_events(self.backend, since=since, limit=limit, job=str(job))
        return events

    def current_cluster(self) -> VirtualClusterInfo:
        """The cluster of this client."""
        return VirtualClusterInfo(self.backend, self.cluster_id)

    # ---- trees of clusters ----

    def plan(self, document: Mapping[str, Any], *, prune: bool = False) -> reports.TreeDiff:
        """The changes that ``apply`` would make."""
        return clusters.plan(self.backend, self._clusters(document), prune=prune)

    def apply(self, document: Mapping[str, Any], *, prune: bool = False) -> reports.TreeDiff:
        """Change the logical clusters to match a document, in one transaction."""
        return clusters.apply(self.backend, self._clusters(document), prune=prune)

    def export(self, cluster: str | None = None) -> dict[str, Any]:
        """The tree file of one cluster and the clusters inside it; without an id of those inside this client's."""
        if cluster is None:
            return clusters.export_inside(self.backend, self.cluster_id)
        return clusters.export(self.backend, cluster)

    def _clusters(self, document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """The clusters of a document, which is checked as a whole."""
        spec.tree_file.parse_tree(document, units=self._units())
        entries: Sequence[Mapping[str, Any]] = document["clusters"]
        return entries

    def _units(self) -> frozenset[str]:
        units: frozenset[str] = self.backend.config.get("unit_resources")
        return units

    # ---- care of the state ----

    def doctor(self, *, prove: bool = False, repair: bool = False) -> reports.Diagnosis:
        """Check the state and this machine; ``repair`` makes the safe repairs first."""
        return (upkeep.repair if repair else upkeep.doctor)(self.backend, prove=prove)

    replay = Verb(upkeep.replay)

    def simulate(
        self,
        *,
        policies: Sequence[str] = (),
        nodes: Sequence[int] = (),
        trace: str | os.PathLike[str] | None = None,
        model: Mapping[str, Any] | None = None,
        since: float | None = None,
        until: float | None = None,
        cluster: str | None = None,
        template: str | None = None,
        node_resources: Mapping[str, float | str] | None = None,
        limit_factor: float | None = None,
    ) -> dict[str, Any]:
        """Simulate a workload under other policies or machines, and compare them. Changes nothing.

        ``trace`` is a file, ``model`` such as ``{"jobs": 500, "seed": 1, "load": 0.9}``; else the recorded history
        between two moments, in seconds since the epoch, is played.
        """
        each = None
        if node_resources is not None:
            each = spec.quantities.parse_resources(
                dict(node_resources), "node_resources", self._units(), totals=True
            )
        request = ops.simulated.SimulationRequest(
            trace=None
            if trace is None
            else ops.simulate.read_trace(os.fspath(trace), per_node=ops.simulated.processors_of(each)),
            model=None if model is None else operations.simulation.model_of(model),
            since=since,
            until=until,
            cluster=self._simulated(cluster, recorded=trace is None and model is None),
            policies=tuple(policies),
            nodes=tuple(nodes),
            template=template,
            node_resources=each,
            limit_factor=limit_factor,
        )
        return operations.simulation.run(self.backend, request)

    def _simulated(self, given: str | None, *, recorded: bool) -> str | None:
        """The cluster whose jobs are simulated; None for all."""
        if given is not None:
            return spec.ids.resolve_cluster_id(given, "cluster")
        return self.cluster_id if recorded and self.cluster_id != PRIMARY else None

    def prune(self, older_than: float | str, *, dry_run: bool = False) -> documents.Pruned:
        """Delete jobs that ended longer ago, with their logs."""
        return upkeep.prune(self.backend, seconds_of(older_than, "older_than"), dry_run=dry_run)

    def backup(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Write a copy of the state to a file; jobs go on."""
        if not isinstance(self.backend, Local):
            raise NotPermitted(
                f"{path} cannot be written: the state is at {self.backend!r}",
                fix=self.backend.config.nearer,
            )
        with self.backend.opened() as store:
            return ops.backup.backup(store, Path(path))


def connect(
    address: str | os.PathLike[str] | None = None, *, cluster: str | None = None, token: str | None = None
) -> Client:
    """A client of a state directory (a path), of a server (a URL), or of the one in the settings.

    Without an address its lists are those of the caller's cluster; with an address those of the primary, unless a
    cluster is given.
    """
    whole = PRIMARY if address is not None else None
    return Client(backend_of(address, token), cluster or whole)


def get_runtime_context() -> RuntimeContext:
    """The runtime context of this process."""
    return RuntimeContext(backend_of())


def _of_caller(method: Callable[Concatenate[State, P], R]) -> Callable[P, R]:
    """Turn a method of ``State`` into a function, which asks about the cluster of the caller."""

    def ask(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(State(backend_of()), *args, **kwargs)

    ask.__name__, ask.__qualname__, ask.__doc__ = method.__name__, method.__name__, method.__doc__
    # what ``inspect`` reads the signature from, without the first parameter; to make one here takes 5 ms
    ask.__wrapped__ = partial(method, None)  # type: ignore[arg-type, attr-defined]  # never called
    return ask


cluster_resources = _of_caller(State.cluster_resources)
available_resources = _of_caller(State.available_resources)
nodes = _of_caller(State.nodes)
summarize_tasks = _of_caller(State.summarize_tasks)
summarize_objects = _of_caller(State.summarize_objects)
summarize_jobs = _of_caller(State.summarize_jobs)
list_clusters = _of_caller(State.list_clusters)
list_vnodes = _of_caller(State.list_vnodes)
list_nodes = _of_caller(State.list_nodes)
list_jobs = _of_caller(State.list_jobs)
list_tasks = _of_caller(State.list_tasks)
list_objects = _of_caller(State.list_objects)
list_leases = _of_caller(State.list_leases)
list_events = _of_caller(State.list_events)


_held: list[VirtualCluster] = []


def init(
    virtual_cluster: VirtualCluster | Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    timeout_s: float | None = None,
) -> VirtualCluster:
    """Hold a virtual cluster until ``shutdown()`` or the end of the program; waits until it is granted.

    Outside of jobs an own job holds it; inside a job it is a sub-cluster. It is released also when the program is
    killed.
    """
    if _held:
        raise BadSpec("vctl.init() was called already", fix="call vctl.shutdown() first")
    given = virtual_cluster.as_dict() if isinstance(virtual_cluster, VirtualCluster) else virtual_cluster
    if isinstance(virtual_cluster, VirtualCluster):
        name = name or virtual_cluster.name
        timeout_s = virtual_cluster.timeout_s if timeout_s is None else timeout_s
    cluster = VirtualCluster.from_dict(given or {}, name=name, timeout_s=timeout_s)
    _held.append(cluster.__enter__())
    atexit.register(_at_exit, os.getpid())
    return cluster


def shutdown() -> None:
    """Release the virtual cluster of ``init()``, if there is one; waits for tasks that are not detached."""
    _release(None)


def _at_exit(pid: int) -> None:
    if os.getpid() == pid:  # a forked child does not release it
        _release(_ended_by())


def _release(error: BaseException | None) -> None:
    if _held:
        _held.pop().__exit__(None if error is None else type(error), error, None)


def _ended_by() -> BaseException | None:
    """The exception that ends this program; None at a prompt, where an exception ends only one line."""
    at_prompt = sys.flags.interactive or hasattr(sys, "ps1")
    return None if at_prompt else getattr(sys, "last_value", None)
