"""``client.clusters`` and ``client.physical_nodes``: the verbs of ``vctl vc`` and ``vctl node``."""

from __future__ import annotations

from vctl.client.state_api import Filters, Verbs
from vctl.operations import clusters, nodes
from vctl.operations.declare import Verb
from vctl.spec import documents
from vctl.spec.ids import resolve_cluster_id

ClusterForms = list[documents.ClusterForm]
NodeForms = list[documents.NodeForm]


class Clusters(Verbs):
    """The verbs of ``vctl vc``."""

    create = Verb(clusters.create)
    update = Verb(clusters.update)
    delete = Verb(clusters.delete)
    stop = Verb(clusters.stop)
    resume = Verb(clusters.resume)
    remove_nodes = Verb(clusters.remove_nodes)

    def get(self, cluster_id: str | None = None) -> documents.ClusterForm:
        """One cluster; without an id the one that the caller is in."""
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
    """The verbs of ``vctl node``: physical nodes, whoever owns them."""

    def list(self, *, filters: Filters = (), limit: int | None = None) -> NodeForms:
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
