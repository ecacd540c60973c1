"""The routes that no declaration gives: waiting for an end, output as it grows, events as they happen."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from vctl.http import documents, streams
from vctl.http.context import server_of
from vctl.http.documents import ERRORS, good

router = APIRouter(prefix="/api/v1", responses=ERRORS)

Seconds = Annotated[float, Query(ge=0, le=60, description="Answer after this time at the latest.")]
Offset = Annotated[int, Query(ge=0, le=2**62, description="Number of bytes to skip.")]
Tail = Annotated[int | None, Query(ge=0, le=2**31, description="Only this many last lines.")]
BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The output, byte for byte."}
}


@router.get("/jobs/{job}/wait", tags=["jobs"], responses=good(documents.Watched), response_model=None)
async def wait_for_job(
    request: Request,
    job: str,
    timeout_s: Seconds = 20,
) -> dict[str, Any]:
    """Wait for the end of a job: answers when the job ends or the time is over."""
    over, form = await streams.wait_for(server_of(request), streams.JOBS, job, timeout_s)
    return {"over": over, "job": form}


@router.get(
    "/jobs/{job}/logs",
    tags=["jobs"],
    responses=BYTES,
    response_class=StreamingResponse,
    response_model=None,
)
async def job_logs(
    request: Request,
    job: str,
    follow: Annotated[bool, Query(description="Follow the output until the job ends.")] = False,
    offset: Offset = 0,
    tail: Tail = None,
) -> StreamingResponse:
    """The output of a job, stdout and stderr in order."""
    return await streams.log_of(
        server_of(request), streams.JOBS, job, follow=follow, offset=offset, tail=tail
    )


@router.get("/tasks/{task}/wait", tags=["tasks"], responses=good(documents.WatchedTask), response_model=None)
async def wait_for_task(
    request: Request,
    task: str,
    timeout_s: Seconds = 20,
) -> dict[str, Any]:
    """Wait for the end of a task: answers when the task ends or the time is over."""
    over, form = await streams.wait_for(server_of(request), streams.TASKS, task, timeout_s)
    return {"over": over, "task": form}


@router.get(
    "/tasks/{task}/logs",
    tags=["tasks"],
    responses=BYTES,
    response_class=StreamingResponse,
    response_model=None,
)
async def task_logs(
    request: Request,
    task: str,
    follow: Annotated[bool, Query(description="Follow the output until the task ends.")] = False,
    offset: Offset = 0,
    tail: Tail = None,
) -> StreamingResponse:
    """The output of a task, stdout and stderr in order."""
    return await streams.log_of(
        server_of(request), streams.TASKS, task, follow=follow, offset=offset, tail=tail
    )


@router.get(
    "/clusters/{cluster:path}/wait",
    tags=["clusters"],
    responses=good(documents.Document),
    response_model=None,
)
async def wait_until_gone(
    request: Request,
    cluster: str,
    timeout_s: Seconds = 20,
) -> dict[str, Any]:
    """``{"gone": true}`` as soon as a cluster that is to be removed is gone."""
    return await streams.wait_until_gone(server_of(request), cluster, timeout_s)


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
