"""ant-ray's management API of virtual clusters, word for word: paths, envelope, messages, order of checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, WithJsonSchema

from vctl import ops
from vctl.core.clusters import LOGICAL
from vctl.errors import Conflict, NotFound, VctlError
from vctl.http.answers import CREATE, MANAGEMENT, REMOVE, REMOVE_NODES, JSONResponse, envelope, failure
from vctl.http.context import state
from vctl.http.documents import MANAGEMENT_ERRORS, Managed, good
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import MAX_REPLICAS
from vctl.spec.documents import ClusterForm
from vctl.store.store import Store

Id = Annotated[StrictStr, Field(max_length=1024)]
Count = Annotated[StrictInt, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_REPLICAS})]


class Body(BaseModel):
    """A body of the management API; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class VirtualCluster(Body):
    """A wanted state: final counts of whole nodes by template; what is not named counts as 0."""

    virtualClusterId: Id = ""  # noqa: N815
    divisible: StrictBool | Literal["true", "false"] = False
    replicaSets: dict[str, Count] = {}  # noqa: N815
    revision: StrictInt | Annotated[str, Field(pattern=r"^[0-9]{1,30}$")] = 0


class NodesToRemove(Body):
    """Nodes to remove from a cluster."""

    virtualClusterId: Id = ""  # noqa: N815
    nodesToRemove: Annotated[list[Id], Field(max_length=100_000)] = []  # noqa: N815


router = APIRouter(prefix=MANAGEMENT, tags=["management"], responses=MANAGEMENT_ERRORS)


@router.post("", responses=good(Managed), response_model=None)
def create_or_update(request: Request, body: VirtualCluster) -> JSONResponse:
    """Bring a virtual cluster to a wanted state; an unknown id creates it."""
    cluster_id = body.virtualClusterId
    try:
        with state(request) as store:
            form = _bring(store, body)
    except VctlError as error:
        return _failed(CREATE, cluster_id, error)
    return _done(
        "Virtual cluster created or updated.",
        virtualClusterId=cluster_id,
        revision=form["revision"],
        nodeInstances=_instances(form["node_instances"]),
    )


def _bring(store: Store, body: VirtualCluster) -> ClusterForm:
    """Update a cluster, or create it if it does not exist; update it if another request was faster."""
    cluster_id = body.virtualClusterId
    change = ClusterChange(divisible=body.divisible in (True, "true"), replica_sets=body.replicaSets)

    def update() -> ClusterForm:
        return ops.clusters.update(store, cluster_id, change, revision=int(body.revision))

    try:
        return update()
    except NotFound:
        pass
    try:
        return ops.clusters.create(store, cluster_id, change)
    except Conflict as error:
        if "exists already" not in error.problem:
            raise
    return update()


@router.post("/remove_nodes", responses=good(Managed), response_model=None)
def remove_nodes(request: Request, body: NodesToRemove) -> JSONResponse:
    """Give nodes of a virtual cluster back to its parent: all that are named, or none."""
    cluster_id = body.virtualClusterId
    try:
        with state(request) as store:
            ops.clusters.remove_nodes(store, cluster_id, body.nodesToRemove)
    except VctlError as error:
        return _failed(REMOVE_NODES, cluster_id, error)
    return _done("Virtual cluster successfully updated.", virtualClusterId=cluster_id)


@router.get("", responses=good(Managed), response_model=None)
def get_all(
    request: Request,
    include_job_clusters: Annotated[bool, Query(description="Include the clusters of jobs.")] = False,
) -> JSONResponse:
    """All logical clusters, with their nodes."""
    with state(request) as store:
        forms = ops.clusters.instances(store, job_clusters=include_job_clusters)
    clusters = [
        {
            "virtualClusterId": form["cluster_id"],
            "divisible": form["divisible"]
            and form["kind"] == LOGICAL,  # ant-ray's job clusters hold no others
            "isRemoved": False,
            "nodeInstances": _instances(form["node_instances"]),
            "revision": form["revision"],
        }
        for form in forms
    ]
    return _done("All virtual clusters fetched.", virtualClusters=clusters)


@router.delete("/{virtual_cluster_id:path}", responses=good(Managed), response_model=None)
def remove(request: Request, virtual_cluster_id: str) -> JSONResponse:
    """Remove a virtual cluster that nothing uses."""
    try:
        with state(request) as store:
            ops.clusters.delete(store, virtual_cluster_id)
    except VctlError as error:
        return _failed(REMOVE, virtual_cluster_id, error)
    return _done(f"Virtual cluster {virtual_cluster_id} removed.", virtualClusterId=virtual_cluster_id)


def _instances(nodes: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {
        node_id: {"hostname": node["hostname"], "templateId": node["template_id"]}
        for node_id, node in nodes.items()
    }


def _done(msg: str, **data: Any) -> JSONResponse:
    return JSONResponse(envelope(result=True, msg=msg, data=data))


def _failed(what: str, cluster_id: str, error: VctlError) -> JSONResponse:
    return JSONResponse(failure(what, cluster_id, error), error.http_status)
