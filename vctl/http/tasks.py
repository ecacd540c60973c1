"""``/api/v1/tasks``: what ``vctl task`` can do."""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from vctl.http import bodies, documents, reading, streams
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, good
from vctl.http.jobs import BYTES, MOST_SECONDS

router = APIRouter(prefix="/api/v1/tasks", tags=["tasks"], responses=ERRORS)


@router.post("", responses=good(documents.Task), response_model=None)
def run(request: Request, body: bodies.Task) -> Any:
    """Start a task in a running job."""
    from vctl.ops import tasks

    wanted = reading.task_request(server_of(request), body)
    around = body.environment
    if around is None:
        around = {"PATH": os.environ.get("PATH", os.defpath)}
    with state(request) as store:
        return tasks.run(store, wanted, environment=around)


@router.get("/{task}/wait", responses=good(documents.WatchedTask), response_model=None)
async def wait(
    request: Request,
    task: str,
    timeout_s: Annotated[
        float, Query(ge=0, le=MOST_SECONDS, description="Answer after this time at the latest.")
    ] = 20,
) -> dict[str, Any]:
    """Wait for the end of a task: answers when the task ends or the time is over."""
    return await streams.wait_for_task(server_of(request), task, timeout_s)


@router.get("/{task}/logs", responses=BYTES, response_class=StreamingResponse, response_model=None)
async def logs(
    request: Request,
    task: str,
    follow: Annotated[bool, Query(description="Follow the output until the task ends.")] = False,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Number of bytes to skip.")] = 0,
    tail: Annotated[int | None, Query(ge=0, le=2**31, description="Only this many last lines.")] = None,
) -> StreamingResponse:
    """The output of a task, stdout and stderr in order."""
    return await streams.task_log(server_of(request), task, follow=follow, offset=offset, tail=tail)
