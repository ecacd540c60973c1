"""The rest of ``/api/v1``: what a cluster has and does, the history, and the care of the state."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from vctl.http import bodies, reading, streams
from vctl.http.answers import JSONResponse
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, Amounts, Document, Listing, good, listing
from vctl.http.jobs import Filters, Limit

router = APIRouter(prefix="/api/v1", tags=["views"], responses=ERRORS)

Cluster = Annotated[str | None, Query(description="Cluster (default: the primary).")]
Since = Annotated[int, Query(ge=0, le=2**62, description="Only events after this number.")]


@router.get("/status", responses=good(Document), response_model=None)
def status(request: Request, cluster: Cluster = None) -> Any:
    """Show running jobs, waiting jobs and free resources."""
    from vctl.ops import overview

    with state(request) as store:
        return overview.status(store, cluster)


@router.get("/scheduler", responses=good(Document), response_model=None)
def scheduler(request: Request) -> Any:
    """Whether a scheduler is running, and its last heartbeat."""
    from vctl.ops import views

    with state(request) as store:
        return views.scheduler(store)


@router.get("/cluster-resources", responses=good(Amounts), response_model=None)
def cluster_resources(request: Request, cluster: Cluster = None) -> Any:
    """Total of a cluster."""
    from vctl.ops import views

    with state(request) as store:
        return views.cluster_resources(store, cluster)


@router.get("/available-resources", responses=good(Amounts), response_model=None)
def available_resources(request: Request, cluster: Cluster = None) -> Any:
    """Free resources of a cluster."""
    from vctl.ops import views

    with state(request) as store:
        return views.available_resources(store, cluster)


@router.get("/cluster-nodes", responses=good(Listing), response_model=None)
def cluster_nodes(request: Request, cluster: Cluster = None) -> JSONResponse:
    """The virtual nodes of a cluster, as ``vctl nodes`` shows them."""
    from vctl.ops import views

    with state(request) as store:
        return JSONResponse(listing("VNodeList", views.nodes(store, cluster)))


@router.get("/current-cluster", responses=good(Document), response_model=None)
def current_cluster(request: Request, cluster: Cluster = None) -> Any:
    """A cluster as a job in it sees it."""
    from vctl.ops import views

    with state(request) as store:
        return views.current_cluster(store, cluster)


@router.get("/vnodes", responses=good(Listing), response_model=None)
def vnodes(request: Request) -> JSONResponse:
    """Every virtual node of every cluster but the primary."""
    from vctl.ops import views

    with state(request) as store:
        return JSONResponse(listing("VNodeList", views.vnodes(store)))


@router.get("/vnodes/{vnode:path}", responses=good(Document), response_model=None)
def vnode(request: Request, vnode: str) -> Any:
    """One virtual node as a process on it sees it."""
    from vctl.ops import views

    with state(request) as store:
        return views.current_node(store, vnode)


@router.get("/leases", responses=good(Listing), response_model=None)
def leases(request: Request) -> JSONResponse:
    """Resources that clusters borrow above their minimum."""
    from vctl.ops import leases as ops

    with state(request) as store:
        return JSONResponse(listing("LeaseList", ops.list_leases(store)))


@router.get("/demand", responses=good(Listing), response_model=None)
def demand(request: Request) -> JSONResponse:
    """Resource requests that wait."""
    from vctl.ops import leases as ops

    with state(request) as store:
        return JSONResponse(listing("DemandList", ops.demand(store)))


@router.get("/events", responses=good(Listing), response_model=None)
def events(
    request: Request,
    filters: Filters,
    since: Since = 0,
    limit: Limit = None,
    job: str | None = None,
    cluster: str | None = None,
) -> JSONResponse:
    """History, oldest first: after a number, or the newest ones."""
    from vctl.ops import views

    with state(request) as store:
        found, total = views.list_events(
            store, since=since, limit=limit, job=job, cluster=cluster, filters=filters
        )
    return JSONResponse(listing("EventList", found, total))


@router.get("/summary/{kind}", responses=good(Document), response_model=None)
def summary(request: Request, kind: Literal["jobs", "events"]) -> Any:
    """How many jobs there are in each state, or events of each kind."""
    from vctl.ops import views

    with state(request) as store:
        return views.summary(store, kind)


@router.get(
    "/events/stream",
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}},
    response_class=StreamingResponse,
    response_model=None,
)
async def stream(
    request: Request,
    since: Annotated[
        int | None,
        Query(ge=0, le=2**62, description="Only events after this number (default: only new events)."),
    ] = None,
    job: str | None = None,
    cluster: str | None = None,
    last_event_id: Annotated[
        str | None,
        Header(description="Number of the last event that the reader has; it takes precedence over since."),
    ] = None,
) -> StreamingResponse:
    """Events as they happen. ``id`` is the number of the event: a reader that comes back misses nothing."""
    after = (
        int(last_event_id)
        if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 19
        else since
    )
    server = server_of(request)
    return StreamingResponse(
        await streams.events_from(server, after, job, cluster),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


@router.post("/simulate", responses=good(Listing), response_model=None)
def simulate(request: Request, body: bodies.Simulation | None = None) -> JSONResponse:
    """Simulate recorded, given or modelled work under other policies or on other machines. Changes nothing."""
    from vctl.ops import simulation

    wanted = reading.simulation(server_of(request), body or bodies.Simulation())
    with state(request) as store:
        data = simulation.run(store, wanted)
    runs = data["items"]
    assert isinstance(runs, list)
    return JSONResponse({**listing("SimulationRunList", runs), **data})
