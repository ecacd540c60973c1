"""``client.clusters`` and ``client.physical_nodes``: the verbs of ``vctl vc`` and ``vctl node``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from vctl.client.place import Place
from vctl.client.specs import Amounts
from vctl.client.state_api import Filter, State
from vctl.client.virtual_cluster import VirtualCluster
from vctl.core.clusters import ClusterSpec as CoreSpec
from vctl.operations import nodes
from vctl.operations.declare import Verb
from vctl.spec import documents
from vctl.spec.ids import resolve_cluster_id

ClusterForms = list[documents.ClusterForm]
NodeForms = list[documents.NodeForm]
Spec = VirtualCluster | Mapping[str, Any]


class Clusters:
    """The verbs of ``vctl vc``."""

    def __init__(self, place: Place, cluster: str | None) -> None:
        self._place = place
        self._state = State(place, cluster)

    def create(
        self,
        cluster_id: str,
        *,
        divisible: bool = False,
        spec: Spec | None = None,
        replica_sets: Mapping[str, int] | None = None,
        parent: str | None = None,
        borrow_limit: Amounts | None = None,
        lending_limit: Amounts | None = None,
        queue: Mapping[str, object] | None = None,
    ) -> documents.ClusterForm:
        """Make a cluster that lasts; with a job's cluster as its parent one that goes with the job."""
        from vctl.ops import clusters

        made = self._place.ask(
            clusters.create,
            cluster_id,
            divisible=divisible,
            spec=self._spec(spec),
            replica_sets=_counts(cluster_id, replica_sets),
            parent_id=None if parent is None else resolve_cluster_id(parent, "parent"),
            borrow_limit=self._limit(borrow_limit, "borrow_limit"),
            lending_limit=self._limit(lending_limit, "lending_limit"),
            queue=queue,
        )
        return cast(documents.ClusterForm, made)

    def update(
        self,
        cluster_id: str,
        *,
        divisible: bool | None = None,
        spec: Spec | None = None,
        replica_sets: Mapping[str, int] | None = None,
        revision: int | None = None,
        borrow_limit: Amounts | None = None,
        lending_limit: Amounts | None = None,
        queue: Mapping[str, object] | None = None,
    ) -> documents.ClusterForm:
        """Bring a cluster to a wanted state: all of it or nothing."""
        from vctl.ops import clusters

        changed = self._place.ask(
            clusters.update,
            cluster_id,
            divisible=divisible,
            spec=self._spec(spec),
            replica_sets=_counts(cluster_id, replica_sets),
            revision=revision,
            borrow_limit=self._limit(borrow_limit, "borrow_limit"),
            lending_limit=self._limit(lending_limit, "lending_limit"),
            queue=queue,
        )
        return cast(documents.ClusterForm, changed)

    def delete(self, cluster_id: str, *, drain: bool = False, force: bool = False) -> documents.ClusterForm:
        """Remove an unused cluster. ``drain``: it goes when it is empty; ``force``: what uses it is stopped."""
        from vctl.ops import clusters

        return cast(
            documents.ClusterForm, self._place.ask(clusters.delete, cluster_id, drain=drain, force=force)
        )

    def get(self, cluster_id: str | None = None) -> documents.ClusterForm:
        """One cluster; without an id the one that the caller is in."""
        from vctl.ops import cluster_views

        return cast(
            documents.ClusterForm, self._place.ask(cluster_views.get_cluster, self._named(cluster_id))
        )

    def list(self, *, filters: Sequence[Filter] = (), limit: int | None = None) -> ClusterForms:
        """Clusters, parents first."""
        return self._state.list_clusters(filters=filters, limit=limit)

    def tree(self, cluster_id: str | None = None) -> documents.ClusterTree:
        """A cluster with everything below it, nested under ``tree``."""
        from vctl.ops import cluster_views

        return cast(documents.ClusterTree, self._place.ask(cluster_views.tree, self._named(cluster_id)))

    def stop(self, cluster_id: str, *, message: str | None = None) -> documents.ClusterForm:
        """Admit no more jobs; what runs goes on."""
        from vctl.ops import admission

        return cast(documents.ClusterForm, self._place.ask(admission.stop, cluster_id, message=message))

    def resume(self, cluster_id: str) -> documents.ClusterForm:
        """Admit jobs again."""
        from vctl.ops import admission

        return cast(documents.ClusterForm, self._place.ask(admission.resume, cluster_id))

    def remove_nodes(self, cluster_id: str, node_ids: Sequence[str]) -> documents.ClusterForm:
        """Give named nodes back to the parent: all of them or none."""
        from vctl.ops import membership

        return cast(documents.ClusterForm, self._place.ask(membership.remove_nodes, cluster_id, node_ids))

    def _named(self, cluster_id: str | None) -> str:
        return self._state.cluster_id if cluster_id is None else resolve_cluster_id(cluster_id, "cluster_id")

    def _spec(self, given: Spec | None) -> CoreSpec | None:
        from vctl.spec.cluster_spec import parse_cluster_spec

        if given is None:
            return None
        document = given.as_dict() if isinstance(given, VirtualCluster) else given
        return parse_cluster_spec(document, units=self._units(), logical=True, path="spec")

    def _limit(self, given: Amounts | None, path: str) -> dict[str, int] | None:
        from vctl.spec.quantities import parse_resources

        return None if given is None else parse_resources(given, path, self._units())

    def _units(self) -> frozenset[str]:
        found: frozenset[str] = self._place.config.get("unit_resources")
        return found


def _counts(cluster_id: str, given: Mapping[str, int] | None) -> dict[str, int] | None:
    from vctl.spec.cluster_spec import parse_replica_sets

    return None if given is None else parse_replica_sets(given, "replica_sets", cluster_id=cluster_id)


class Nodes:
    """The verbs of ``vctl node``: physical nodes, whoever owns them."""

    def __init__(self, place: Place, cluster: str | None) -> None:
        self.backend = place
        self._state = State(place, cluster)

    def list(self, *, filters: Sequence[Filter] = (), limit: int | None = None) -> NodeForms:
        """Nodes; inside a job those on which it has a part."""
        return self._state.list_nodes(filters=filters, limit=limit)

    add = Verb(nodes.add)
    get = Verb(nodes.get_node)
    drain = Verb(nodes.drain)
    undrain = Verb(nodes.undrain)
    update = Verb(nodes.update)
    remove = Verb(nodes.remove)
    kill = Verb(nodes.kill)
    heartbeat = Verb(nodes.heartbeat)
