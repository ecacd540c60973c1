"""The state API of one cluster, as ``ray.util.state``: only objects in the cluster and below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from vctl import ops
from vctl.client import inside
from vctl.client.handles import ConfiguredBackend
from vctl.core.clusters import PRIMARY
from vctl.errors import BadSpec, param
from vctl.operations import clusters, jobs, nodes, tasks, views
from vctl.spec.fields import refuse, show
from vctl.spec.ids import JOB_MARK, resolve_cluster_id
from vctl.spec.params import Limit, Param

if TYPE_CHECKING:
    from vctl.spec.documents import (
        Amounts,
        ClusterForm,
        DemandForm,
        EventForm,
        GpuForm,
        JobForm,
        LeaseForm,
        NodeForm,
        NodeOfCluster,
        ObjectForm,
        Summary,
        TaskForm,
        VNodeForm,
    )

Filter = str | tuple[str, str, object]
"""``state=RUNNING``, ``state!=RUNNING``, or as in Ray ``("state", "=", "RUNNING")``."""
Filters = Sequence[Filter]
LIMIT = Param("limit", Limit, default=None)
F = TypeVar("F", bound=Mapping[str, Any])


class State:
    """The resources and objects of one cluster; without an id of the cluster of the caller."""

    def __init__(self, backend: ConfiguredBackend, cluster: str | None = None) -> None:
        self.backend = backend
        self._cluster = None if cluster is None else resolve_cluster_id(cluster, "cluster")

    @property
    def cluster_id(self) -> str:
        """The cluster whose state is shown."""
        return self._cluster or inside.cluster_id()

    # ---- amounts ----

    def cluster_resources(self) -> Amounts:
        """Total of the cluster."""
        return views.cluster_resources(self.backend, self.cluster_id)

    def available_resources(self) -> Amounts:
        """Free resources of the cluster."""
        return views.available_resources(self.backend, self.cluster_id)

    def nodes(self) -> list[NodeOfCluster]:
        """Its virtual nodes, in the form of ``ray.nodes()``."""
        return views.nodes(self.backend, self.cluster_id)

    # ---- lists ----

    def list_clusters(self, *, filters: Filters = (), limit: int | None = None) -> list[ClusterForm]:
        """The cluster and the clusters below it, parents first."""
        listed = clusters.list_clusters(self.backend)
        below = ops.scope.below(self.cluster_id, listed)
        return _chosen(
            [cluster for cluster in listed if below(cluster["cluster_id"])], filters, limit, "ClusterForm"
        )

    def list_vnodes(self, *, filters: Filters = (), limit: int | None = None) -> list[VNodeForm]:
        """The virtual nodes of the cluster and of the clusters below it."""
        return self._inside(views.vnodes(self.backend), filters, limit, "VNodeForm")

    def list_nodes(self, *, filters: Filters = (), limit: int | None = None) -> list[NodeForm]:
        """The physical nodes on which the cluster has resources."""
        listed = nodes.list_nodes(self.backend)
        if self.cluster_id != PRIMARY:
            own = {node["NodeName"] for node in self.nodes()}
            listed = [node for node in listed if node["node_id"] in own]
        return _chosen(listed, filters, limit, "NodeForm")

    def list_gpus(self, *, filters: Filters = (), limit: int | None = None) -> list[GpuForm]:
        """The devices of the physical nodes on which the cluster has resources, with holders and processes."""
        listed = views.list_gpus(self.backend)
        if self.cluster_id != PRIMARY:
            own = {node["NodeName"] for node in self.nodes()}
            listed = [gpu for gpu in listed if gpu["node_id"] in own]
        return _chosen(listed, filters, limit, "GpuForm")

    def list_jobs(
        self, *, filters: Filters = (), limit: int | None = None, forecast: bool = True
    ) -> list[JobForm]:
        """Jobs that were submitted to the cluster, and the job whose cluster it is; newest first.

        Without ``forecast`` the expected starts are left out, which saves up to a tenth of a second.
        """
        within = None if self.cluster_id == PRIMARY else self.cluster_id
        listed, _ = jobs.list_jobs(self.backend, cluster=within, forecast=forecast)
        return _chosen(listed, filters, limit, "JobForm")

    def list_tasks(self, *, filters: Filters = (), limit: int | None = None) -> list[TaskForm]:
        """Tasks in the cluster and below it, with finished tasks, oldest first."""
        within = None if self.cluster_id == PRIMARY else self.cluster_id
        known = [text for text in _texts(filters) if ops.forms.key_of(text) in ops.tasks.FILTER_KEYS]
        listed, _ = tasks.list_tasks(self.backend, filters=known, cluster=within)
        return _chosen(listed, filters, limit, "TaskForm")

    def list_objects(self, *, filters: Filters = (), limit: int | None = None) -> list[ObjectForm]:
        """Outputs of tasks in the cluster and below it that are kept on nodes, by job and name."""
        return self._inside(tasks.list_objects(self.backend)[0], filters, limit, "ObjectForm")

    def list_leases(self, *, filters: Filters = (), limit: int | None = None) -> list[LeaseForm]:
        """Leases in which the cluster or a cluster below it borrows or lends."""
        below = self._scope()
        leases = views.list_leases(self.backend)
        own = [lease for lease in leases if below(lease["borrower_id"]) or below(lease["lender_id"])]
        return _chosen(own, filters, limit, "LeaseForm")

    def list_events(
        self, *, since: int = 0, filters: Filters = (), limit: int | None = None
    ) -> list[EventForm]:
        """Events of the cluster and of the clusters below it, oldest first; with a limit the newest ones."""
        within = None if self.cluster_id == PRIMARY else self.cluster_id
        events, _ = views.list_events(self.backend, since=since, cluster=within)
        LIMIT.check(limit)
        chosen = _chosen(events, filters, None, "EventForm")
        return chosen if limit is None else chosen[max(len(chosen) - limit, 0) :]

    def list_demand(self, *, filters: Filters = (), limit: int | None = None) -> list[DemandForm]:
        """Waiting requests in the cluster and below it."""
        return self._inside(views.demand(self.backend), filters, limit, "DemandForm")

    # ---- summaries ----

    def summarize_tasks(self) -> Summary:
        """The number of tasks in each state."""
        return _summary("tasks", "state", self.list_tasks())

    def summarize_objects(self) -> Summary:
        """The number of objects on each node."""
        return _summary("objects", "node_id", self.list_objects())

    def summarize_jobs(self) -> Summary:
        """The number of jobs in each state."""
        return _summary("jobs", "status", self.list_jobs(forecast=False))

    def _inside(self, listed: list[F], filters: Filters, limit: int | None, form: str) -> list[F]:
        below = self._scope()
        return _chosen(
            [document for document in listed if below(document["cluster_id"])], filters, limit, form
        )

    def _scope(self) -> Callable[[str], bool]:
        """A function that tells whether a cluster is this one or below it."""
        top = self.cluster_id
        if top == PRIMARY or JOB_MARK in top:
            return ops.scope.below(top, ())
        return ops.scope.below(top, clusters.list_clusters(self.backend))


class Verbs:
    """The verbs of one kind of object; ``_state`` has the lists of the cluster."""

    def __init__(self, backend: ConfiguredBackend, cluster: str | None) -> None:
        self.backend = backend
        self._state = State(backend, cluster)


def _texts(filters: Filters) -> list[str]:
    if isinstance(filters, str):
        raise _no_filters(filters)
    return [_text(condition) for condition in filters]


def _text(given: Filter) -> str:
    if isinstance(given, str):
        return given
    try:
        key, mark, value = given
    except (TypeError, ValueError):
        raise _no_filters(given) from None
    return f"{key}{mark}{value}"


def _no_filters(given: object) -> BadSpec:
    return refuse(
        param("filters"),
        f"{show(given)} is not a list of filters",
        'write it as ["state=RUNNING"] or [("state", "=", "RUNNING")]',
    )


def _chosen(listed: Sequence[F], filters: Filters, limit: int | None, form: str) -> list[F]:
    LIMIT.check(limit)
    return ops.forms.choose(listed, _texts(filters), "" if listed else form)[:limit]


def _summary(kind: str, by: str, listed: Sequence[Mapping[str, Any]]) -> Summary:
    counts = Counter(str(item[by]) for item in listed)
    return {"kind": kind, "by": by, "counts": dict(counts), "total": len(listed)}
