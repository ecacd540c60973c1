"""The state API of one cluster, as ``ray.util.state``: what is in it and below it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from vctl.client import inside
from vctl.client.place import Place
from vctl.core.clusters import PRIMARY
from vctl.operations import clusters, jobs, nodes, tasks, views
from vctl.spec import documents
from vctl.spec.ids import JOB_MARK, resolve_cluster_id

Filter = str | tuple[str, str, object]
"""``state=RUNNING``, ``state!=RUNNING``, or as in Ray ``("state", "=", "RUNNING")``."""
F = TypeVar("F", bound=Mapping[str, Any])


class State:
    """What one cluster has and does. Without an id: the one that the caller is in."""

    def __init__(self, place: Place, cluster: str | None = None) -> None:
        self._place = place
        self._cluster = None if cluster is None else resolve_cluster_id(cluster, "cluster")

    @property
    def cluster_id(self) -> str:
        """The cluster that is looked at."""
        return self._cluster or inside.cluster_id()

    # ---- amounts ----

    def cluster_resources(self) -> documents.Amounts:
        """Total of the cluster."""
        return views.cluster_resources(self._place, self.cluster_id)

    def available_resources(self) -> documents.Amounts:
        """What is free in it."""
        return views.available_resources(self._place, self.cluster_id)

    def nodes(self) -> list[documents.NodeOfCluster]:
        """Its virtual nodes, in the form of ``ray.nodes()``."""
        return views.nodes(self._place, self.cluster_id)

    # ---- lists ----

    def list_clusters(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.ClusterForm]:
        """The cluster and those below it, parents first."""
        from vctl.ops import scope

        found = clusters.list_clusters(self._place)
        below = scope.below(self.cluster_id, found)
        return _chosen([one for one in found if below(one["cluster_id"])], filters, limit)

    def list_vnodes(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.VNodeForm]:
        """The virtual nodes of the cluster and of those below it."""
        below = self._scope()
        found = views.vnodes(self._place)
        return _chosen([one for one in found if below(one["cluster_id"])], filters, limit)

    def list_nodes(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.NodeForm]:
        """The physical nodes on which the cluster has a part."""
        found = nodes.list_nodes(self._place)
        if self.cluster_id != PRIMARY:
            own = {one["NodeName"] for one in self.nodes()}
            found = [one for one in found if one["node_id"] in own]
        return _chosen(found, filters, limit)

    def list_jobs(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.JobForm]:
        """Jobs that were sent to the cluster, and the one whose cluster it is; newest first."""
        within = None if self.cluster_id == PRIMARY else self.cluster_id
        found, _ = jobs.list_jobs(self._place, cluster=within)
        return _chosen(found, filters, limit)

    def list_tasks(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.TaskForm]:
        """Tasks in the cluster and below it, those that are over too, oldest first."""
        below = self._scope()
        found = tasks.list_tasks(self._place)[0]
        return _chosen([one for one in found if below(one["cluster_id"])], filters, limit)

    def list_objects(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.ObjectForm]:
        """Outputs of tasks in the cluster and below it that are kept on nodes, by job and name."""
        below = self._scope()
        found = tasks.list_objects(self._place)[0]
        return _chosen([one for one in found if below(one["cluster_id"])], filters, limit)

    def list_leases(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.LeaseForm]:
        """What the cluster and those below it borrowed or lent."""
        below = self._scope()
        found = views.list_leases(self._place)
        own = [one for one in found if below(one["borrower_id"]) or below(one["lender_id"])]
        return _chosen(own, filters, limit)

    def list_events(
        self, *, since: int = 0, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.EventForm]:
        """The history of the cluster and of those below it, oldest first; with a limit the newest of it."""
        within = None if self.cluster_id == PRIMARY else self.cluster_id
        found, _ = views.list_events(self._place, since=since, cluster=within)
        chosen = _chosen(found, filters, None)
        return chosen if limit is None else chosen[max(len(chosen) - limit, 0) :]

    def list_demand(
        self, *, filters: Sequence[Filter] = (), limit: int | None = None
    ) -> list[documents.DemandForm]:
        """What is asked for in the cluster and below it, and not there."""
        below = self._scope()
        found = views.demand(self._place)
        return _chosen([one for one in found if below(one["cluster_id"])], filters, limit)

    # ---- summaries ----

    def summarize_tasks(self) -> documents.Summary:
        """How many tasks there are in each state."""
        return _summary("tasks", "state", self.list_tasks())

    def summarize_objects(self) -> documents.Summary:
        """How many objects there are on each node."""
        return _summary("objects", "node_id", self.list_objects())

    def summarize_jobs(self) -> documents.Summary:
        """How many jobs there are in each state."""
        return _summary("jobs", "status", self.list_jobs())

    def _scope(self) -> Callable[[str], bool]:
        """Whether a cluster is the one that is looked at, or below it."""
        from vctl.ops import scope

        here = self.cluster_id
        if here == PRIMARY or JOB_MARK in here:
            return scope.below(here, ())
        return scope.below(here, clusters.list_clusters(self._place))


def _chosen(found: list[F], filters: Sequence[Filter], limit: int | None) -> list[F]:
    from vctl.ops.filters import choose

    texts = [one if isinstance(one, str) else f"{one[0]}{one[1]}{one[2]}" for one in filters]
    kept = list(choose(found, texts))
    return kept if limit is None else kept[:limit]


def _summary(kind: str, by: str, found: Sequence[Mapping[str, Any]]) -> documents.Summary:
    counts: dict[str, int] = {}
    for one in found:
        counts[str(one[by])] = counts.get(str(one[by]), 0) + 1
    return {"kind": kind, "by": by, "counts": counts, "total": len(found)}
