"""``/api/v1/clusters``: what ``vctl vc`` can do."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from vctl.http import bodies, documents, reading, streams
from vctl.http.answers import JSONResponse
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, good, listing
from vctl.http.jobs import MOST_SECONDS, Filters

router = APIRouter(prefix="/api/v1/clusters", tags=["clusters"], responses=ERRORS)


@router.post("", responses=good(documents.Cluster), response_model=None)
def create(request: Request, body: bodies.NewCluster) -> Any:
    """Create a virtual cluster."""
    from vctl.ops import clusters

    server = server_of(request)
    spec = reading.cluster_spec(server, body.spec, logical=True)
    replica_sets = reading.replica_sets(body.cluster_id, body.replica_sets)
    with state(request) as store:
        return clusters.create(
            store,
            body.cluster_id,
            divisible=body.divisible,
            spec=spec,
            replica_sets=replica_sets,
            parent_id=body.parent_id,
            borrow_limit=reading.limit(server, body.borrow_limit, "borrow_limit"),
            lending_limit=reading.limit(server, body.lending_limit, "lending_limit"),
            queue=body.queue,
        )


@router.get("", responses=good(documents.ClusterList), response_model=None)
def list_(
    request: Request,
    filters: Filters,
    all_kinds: Annotated[bool, Query(description="Also the primary and the clusters of jobs.")] = True,
) -> JSONResponse:
    """Virtual clusters, parents first."""
    from vctl.ops import cluster_views

    with state(request) as store:
        found = cluster_views.list_clusters(store, filters=filters, all_kinds=all_kinds)
    return JSONResponse(listing("ClusterList", found))


@router.get("/{cluster}", responses=good(documents.Cluster), response_model=None)
def get(request: Request, cluster: str) -> Any:
    """One virtual cluster."""
    from vctl.ops import cluster_views

    with state(request) as store:
        return cluster_views.get_cluster(store, cluster)


@router.patch("/{cluster}", responses=good(documents.Cluster), response_model=None)
def update(request: Request, cluster: str, body: bodies.ClusterChange) -> Any:
    """Change the resources of a virtual cluster: the whole change or none of it."""
    from vctl.ops import clusters

    server = server_of(request)
    spec = reading.cluster_spec(server, body.spec, logical=True)
    replica_sets = reading.replica_sets(cluster, body.replica_sets)
    revision = None if body.revision is None else int(body.revision)
    with state(request) as store:
        return clusters.update(
            store,
            cluster,
            divisible=body.divisible,
            spec=spec,
            replica_sets=replica_sets,
            revision=revision,
            borrow_limit=reading.limit(server, body.borrow_limit, "borrow_limit"),
            lending_limit=reading.limit(server, body.lending_limit, "lending_limit"),
            queue=body.queue,
        )


@router.delete("/{cluster}", responses=good(documents.Cluster), response_model=None)
def delete(
    request: Request,
    cluster: str,
    drain: Annotated[
        bool, Query(description="Admit no more jobs; the cluster is deleted when it is empty.")
    ] = False,
    force: Annotated[bool, Query(description="Stop its jobs and tasks first.")] = False,
) -> Any:
    """Delete a virtual cluster."""
    from vctl.ops import clusters

    with state(request) as store:
        return clusters.delete(store, cluster, drain=drain, force=force)


@router.post("/{cluster}/remove-nodes", responses=good(documents.Cluster), response_model=None)
def remove_nodes(request: Request, cluster: str, body: bodies.ClusterNodes) -> Any:
    """Give nodes of a virtual cluster back to its parent: all that are named, or none."""
    from vctl.ops import membership

    with state(request) as store:
        return membership.remove_nodes(store, cluster, body.node_ids)


@router.post("/{cluster}/stop", responses=good(documents.Cluster), response_model=None)
def stop(request: Request, cluster: str, body: bodies.Admission | None = None) -> Any:
    """Stop admitting jobs; running jobs go on."""
    from vctl.ops import admission

    with state(request) as store:
        return admission.stop(store, cluster, message=body.message if body else None)


@router.post("/{cluster}/resume", responses=good(documents.Cluster), response_model=None)
def resume(request: Request, cluster: str) -> Any:
    """Admit jobs again."""
    from vctl.ops import admission

    with state(request) as store:
        return admission.resume(store, cluster)


@router.get("/{cluster}/tree", responses=good(documents.Cluster), response_model=None)
def tree(request: Request, cluster: str) -> Any:
    """A virtual cluster with everything below it, nested under ``tree``."""
    from vctl.ops import cluster_views

    with state(request) as store:
        return cluster_views.tree(store, cluster)


@router.get("/{cluster}/wait", responses=good(documents.Document), response_model=None)
async def wait(
    request: Request,
    cluster: str,
    timeout_s: Annotated[
        float, Query(ge=0, le=MOST_SECONDS, description="Answer after this time at the latest.")
    ] = 20,
) -> dict[str, Any]:
    """``{"gone": true}`` as soon as a cluster that is to be removed is gone."""
    return await streams.wait_until_gone(server_of(request), cluster, timeout_s)
