"""The routes without a declared verb: waiting for an end, growing output, and the stream of events."""

from enum import Enum
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import StreamingResponse

from vctl.errors import BadSpec
from vctl.http import documents, streams
from vctl.http.context import server_of
from vctl.http.documents import ERRORS, good
from vctl.http.events import events_from
from vctl.ops.waiting import CLUSTERS, JOBS, TASKS, Kind

router = APIRouter(prefix="/api/v1", responses=ERRORS)

Seconds = Annotated[float, Query(ge=0, le=60, description="Answer after this time at the latest.")]
Offset = Annotated[int, Query(ge=0, le=2**62, description="Number of bytes to skip.")]
Tail = Annotated[int | None, Query(ge=0, le=2**31, description="Only this many last lines.")]
BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The output, byte for byte."}
}


def _add(kind: Kind, noun: str, watched: type[documents.Document]) -> None:
    """Add the routes that wait for the end of a job or a task, and that read its output."""

    async def wait(
        request: Request, ref: Annotated[str, Path(alias=noun)], timeout_s: Seconds = 20
    ) -> dict[str, Any]:
        over, form = await streams.wait_for(server_of(request), kind, ref, timeout_s, request.is_disconnected)
        return {"over": over, noun: form}

    async def logs(
        request: Request,
        ref: Annotated[str, Path(alias=noun)],
        follow: Annotated[bool, Query(description=f"Follow the output until the {noun} ends.")] = False,
        offset: Offset = 0,
        tail: Tail = None,
    ) -> StreamingResponse:
        if follow and tail is not None:  # as on the command line
            raise BadSpec("tail: it cannot be combined with follow", fix="leave one of the two out")
        return await streams.log_of(server_of(request), kind, ref, follow=follow, offset=offset, tail=tail)

    path = f"/{noun}s/{{{noun}}}"
    tags: list[str | Enum] = [f"{noun}s"]
    router.add_api_route(
        f"{path}/wait",
        wait,
        name=f"wait_for_{noun}",
        tags=tags,
        responses=good(watched),
        response_model=None,
        description=f"Wait for the end of a {noun}: answers when the {noun} ends or the time is over.",
    )
    router.add_api_route(
        f"{path}/logs", logs, name=f"{noun}_logs", tags=tags, responses=BYTES, response_class=StreamingResponse,
        response_model=None, description=f"The output of a {noun}, stdout and stderr in order.",
    )  # fmt: skip


_add(JOBS, "job", documents.Watched)
_add(TASKS, "task", documents.WatchedTask)


@router.get(
    "/clusters/{cluster:path}/wait",
    tags=["clusters"],
    responses=good(documents.Document),
    response_model=None,
)
async def wait_until_gone(request: Request, cluster: str, timeout_s: Seconds = 20) -> dict[str, Any]:
    """``{"gone": true}`` as soon as a cluster that is to be removed is gone."""
    watched = await streams.wait_for(
        server_of(request), CLUSTERS, cluster, timeout_s, request.is_disconnected
    )
    return {"gone": watched.over}


@router.get(
    "/events/stream",
    tags=["views"],
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
    after = since
    if last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):
            raise BadSpec(
                "Last-Event-ID: it must be the number of an event",  # without it the reader would miss some
                fix="send the id of the last event, or leave the header out",
            )
        after = int(last_event_id)
    server = server_of(request)
    return StreamingResponse(
        await events_from(request, server, after, job, cluster),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
