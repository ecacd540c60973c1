"""Virtual clusters of a server: the functions of ``vctl.ops.clusters`` and its neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl.core.clusters import PRIMARY
from vctl.operations.connection import Connection, at

if TYPE_CHECKING:
    from vctl.core.clusters import ClusterSpec
    from vctl.core.resources import Amounts

Form = dict[str, Any]


def create(
    server: Connection,
    cluster_id: str,
    *,
    divisible: bool = False,
    spec: ClusterSpec | None = None,
    replica_sets: Mapping[str, int] | None = None,
    parent_id: str | None = None,
    borrow_limit: Amounts | None = None,
    lending_limit: Amounts | None = None,
    queue: Mapping[str, object] | None = None,
) -> Form:
    """Make a logical cluster."""
    wanted = {"cluster_id": cluster_id, "divisible": divisible, "parent_id": parent_id, "queue": queue}
    made: Form = server.post(
        "/clusters", {**wanted, **_contents(spec, replica_sets, borrow_limit, lending_limit)}
    )
    return made


def update(
    server: Connection,
    cluster_id: str,
    *,
    divisible: bool | None = None,
    spec: ClusterSpec | None = None,
    replica_sets: Mapping[str, int] | None = None,
    revision: int | None = None,
    borrow_limit: Amounts | None = None,
    lending_limit: Amounts | None = None,
    queue: Mapping[str, object] | None = None,
) -> Form:
    """Bring a cluster to a wanted state."""
    if queue is None:
        _check(cluster_id)
    wanted = {"divisible": divisible, "revision": revision, "queue": queue}
    changed: Form = server.patch(
        at("clusters", cluster_id), {**wanted, **_contents(spec, replica_sets, borrow_limit, lending_limit)}
    )
    return changed


def _check(cluster_id: str, action: str = "created or updated") -> None:
    """An id is part of the path: what cannot be one is refused here, in the same words."""
    from vctl.spec.ids import JOB_MARK, check_new_cluster_id, resolve_cluster_id

    if JOB_MARK in cluster_id:
        resolve_cluster_id(cluster_id, "virtual cluster id")
    else:
        check_new_cluster_id(cluster_id, action=action)


def _contents(
    spec: ClusterSpec | None,
    replica_sets: Mapping[str, int] | None,
    borrow_limit: Amounts | None,
    lending_limit: Amounts | None,
) -> Form:
    from vctl.spec.cluster_spec import spec_to_document
    from vctl.spec.quantities import resources_document

    return {
        "borrow_limit": None if borrow_limit is None else resources_document(borrow_limit),
        "lending_limit": None if lending_limit is None else resources_document(lending_limit),
        "spec": None if spec is None else spec_to_document(spec),
        "replica_sets": None if replica_sets is None else dict(replica_sets),
    }


def delete(server: Connection, cluster_id: str, *, drain: bool = False, force: bool = False) -> Form:
    """Remove a logical cluster."""
    _check(cluster_id, action="removed")
    gone: Form = server.delete(at("clusters", cluster_id), drain=drain, force=force)
    return gone


def stop(server: Connection, cluster_id: str, *, message: str | None = None) -> Form:
    """Admit no more jobs to a cluster."""
    changed: Form = server.post(at("clusters", cluster_id, "stop"), {"message": message})
    return changed


def resume(server: Connection, cluster_id: str) -> Form:
    """Admit jobs again."""
    changed: Form = server.post(at("clusters", cluster_id, "resume"))
    return changed


def remove_nodes(server: Connection, cluster_id: str, node_ids: Sequence[str]) -> Form:
    """Give named nodes back to the parent."""
    changed: Form = server.post(at("clusters", cluster_id, "remove-nodes"), {"node_ids": list(node_ids)})
    return changed


def get_cluster(server: Connection, cluster_id: str) -> Form:
    """One cluster."""
    found: Form = server.get(at("clusters", cluster_id))
    return found


def list_clusters(server: Connection, *, filters: Sequence[str] = (), all_kinds: bool = True) -> list[Form]:
    """Clusters, parents first."""
    return server.items("/clusters", filter=list(filters), all_kinds=all_kinds)


def tree(server: Connection, cluster_id: str | None = None) -> Form:
    """A cluster with everything below it."""
    found: Form = server.get(at("clusters", cluster_id or PRIMARY, "tree"))
    return found
