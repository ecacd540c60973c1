"""The rest of ``/api/v1``: what a cluster has and does, the history, and the care of the state."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from vctl.http import bodies, reading, streams
from vctl.http.answers import JSONResponse
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, Listing, good, listing

router = APIRouter(prefix="/api/v1", tags=["views"], responses=ERRORS)

Cluster = Annotated[str | None, Query(description="Cluster (default: the primary).")]
Since = Annotated[int, Query(ge=0, le=2**62, description="Only events after this number.")]


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
    from vctl.ops import simulated

    wanted = reading.simulation(server_of(request), body or bodies.Simulation())
    with state(request) as store:
        data = simulated.at(store.home, wanted)
    runs = data["items"]
    assert isinstance(runs, list)
    return JSONResponse({**listing("SimulationRunList", runs), **data})
