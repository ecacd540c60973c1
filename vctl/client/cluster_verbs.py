"""``client.clusters`` and ``client.physical_nodes``: the verbs of ``vctl vc`` and ``vctl node``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from vctl.client import forms
from vctl.client.place import Place
from vctl.client.specs import Amounts
from vctl.client.state_api import Filter, State
from vctl.client.virtual_cluster import VirtualCluster
from vctl.core.clusters import ClusterSpec as CoreSpec
from vctl.spec.ids import resolve_cluster_id

ClusterForms = list[forms.ClusterForm]
NodeForms = list[forms.NodeForm]
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
    ) -> forms.ClusterForm:
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
        return cast(forms.ClusterForm, made)

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
    ) -> forms.ClusterForm:
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
        return cast(forms.ClusterForm, changed)

    def delete(self, cluster_id: str, *, drain: bool = False, force: bool = False) -> forms.ClusterForm:
        """Remove an unused cluster. ``drain``: it goes when it is empty; ``force``: what uses it is stopped."""
        from vctl.ops import clusters

        return cast(forms.ClusterForm, self._place.ask(clusters.delete, cluster_id, drain=drain, force=force))

    def get(self, cluster_id: str | None = None) -> forms.ClusterForm:
        """One cluster; without an id the one that the caller is in."""
        from vctl.ops import cluster_views

        return cast(forms.ClusterForm, self._place.ask(cluster_views.get_cluster, self._named(cluster_id)))

    def list(self, *, filters: Sequence[Filter] = (), limit: int | None = None) -> ClusterForms:
        """Clusters, parents first."""
        return self._state.list_clusters(filters=filters, limit=limit)

    def tree(self, cluster_id: str | None = None) -> forms.ClusterTree:
        """A cluster with everything below it, nested under ``tree``."""
        from vctl.ops import cluster_views

        return cast(forms.ClusterTree, self._place.ask(cluster_views.tree, self._named(cluster_id)))

    def stop(self, cluster_id: str, *, message: str | None = None) -> forms.ClusterForm:
        """Admit no more jobs; what runs goes on."""
        from vctl.ops import admission

        return cast(forms.ClusterForm, self._place.ask(admission.stop, cluster_id, message=message))

    def resume(self, cluster_id: str) -> forms.ClusterForm:
        """Admit jobs again."""
        from vctl.ops import admission

        return cast(forms.ClusterForm, self._place.ask(admission.resume, cluster_id))

    def remove_nodes(self, cluster_id: str, node_ids: Sequence[str]) -> forms.ClusterForm:
        """Give named nodes back to the parent: all of them or none."""
        from vctl.ops import membership

        return cast(forms.ClusterForm, self._place.ask(membership.remove_nodes, cluster_id, node_ids))

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
        self._place = place
        self._state = State(place, cluster)

    def add(
        self,
        *,
        resources: Amounts,
        node_id: str | None = None,
        count: int = 1,
        template: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> NodeForms:
        """Declare one or many equal simulated nodes."""
        from vctl.ops import nodes

        made = self._place.ask(
            nodes.add,
            resources=self._amounts(resources),
            node_id=node_id,
            count=count,
            template=template,
            labels=_labels(labels),
            units=self._units(),
        )
        return cast(NodeForms, made)

    def list(self, *, filters: Sequence[Filter] = (), limit: int | None = None) -> NodeForms:
        """Nodes; inside a job those on which it has a part."""
        return self._state.list_nodes(filters=filters, limit=limit)

    def get(self, node_id: str) -> forms.NodeForm:
        """One node."""
        from vctl.ops import nodes

        return cast(forms.NodeForm, self._place.ask(nodes.get_node, node_id))

    def drain(self, node_id: str, *, reason: str | None = None) -> forms.NodeForm:
        """No new work on a node; what runs there goes on."""
        from vctl.ops import nodes

        return cast(forms.NodeForm, self._place.ask(nodes.drain, node_id, reason=reason))

    def undrain(self, node_id: str) -> forms.NodeForm:
        """Take a drained node back into service."""
        from vctl.ops import nodes

        return cast(forms.NodeForm, self._place.ask(nodes.undrain, node_id))

    def update(
        self, node_id: str, *, resources: Amounts | None = None, labels: Mapping[str, str] | None = None
    ) -> forms.NodeForm:
        """Change totals or labels at run time. Totals named replace the old ones, others stay."""
        from vctl.ops import nodes

        amounts = None if resources is None else self._amounts(resources)
        changed = self._place.ask(
            nodes.update, node_id, resources=amounts, labels=_labels(labels), units=self._units()
        )
        return cast(forms.NodeForm, changed)

    def remove(self, node_id: str) -> forms.NodeForm:
        """Forget a node on which nothing lies."""
        from vctl.ops import nodes

        return cast(forms.NodeForm, self._place.ask(nodes.remove, node_id))

    def kill(self, node_id: str, *, reason: str | None = None) -> forms.NodeForm:
        """Declare a node dead: its work has failed."""
        from vctl.ops import nodes

        return cast(forms.NodeForm, self._place.ask(nodes.kill, node_id, reason=reason))

    def heartbeat(self, node_id: str, *, timeout_s: float | None = None) -> forms.NodeForm:
        """A sign of life; with a timeout the node dies when it falls silent that long."""
        from vctl.ops import nodes

        return cast(forms.NodeForm, self._place.ask(nodes.heartbeat, node_id, timeout_s=timeout_s))

    def _amounts(self, given: Amounts) -> dict[str, int]:
        from vctl.spec.quantities import parse_resources

        return parse_resources(given, "resources", self._units(), totals=True)

    def _units(self) -> frozenset[str]:
        found: frozenset[str] = self._place.config.get("unit_resources")
        return found


def _labels(given: Mapping[str, str] | None) -> dict[str, str] | None:
    from vctl.spec.selectors import parse_labels

    return None if given is None else parse_labels(given, "labels")
