"""``/api/v1/jobs``: what ``vctl job`` can do."""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from vctl.http import bodies, documents, reading, streams
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, good

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], responses=ERRORS)

Filters = Annotated[
    list[str],
    Query(
        alias="filter",
        default_factory=list,
        max_length=50,
        description="key=value or key!=value; repeatable.",
    ),
]
Limit = Annotated[int | None, Query(ge=0, le=2**31, description="Maximum number of entries.")]
MOST_SECONDS = 60.0
BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The output, byte for byte."}
}
_OWN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR")
"""Of the server's environment, what a job gets whose submitter sent none."""


@router.post("", responses=good(documents.Job), response_model=None)
def submit(request: Request, body: bodies.Job) -> Any:
    """Queue a job, durably."""
    from vctl.ops import submitting

    around = body.environment
    if around is None:
        around = {name: os.environ[name] for name in _OWN if name in os.environ}
    server = server_of(request)
    wanted = reading.job_request(server, body)
    around = {**server.background.settings(), **around}  # commands in the job are to see what the server sees
    with state(request) as store:
        return submitting.submit(store, wanted, environment=around)


@router.get("/{job}/wait", responses=good(documents.Watched), response_model=None)
async def wait(
    request: Request,
    job: str,
    timeout_s: Annotated[
        float, Query(ge=0, le=MOST_SECONDS, description="Answer after this time at the latest.")
    ] = 20,
) -> dict[str, Any]:
    """Wait for the end of a job: answers when the job ends or the time is over."""
    return await streams.wait_for_job(server_of(request), job, timeout_s)


@router.get(
    "/{job}/logs",
    responses=BYTES,
    response_class=StreamingResponse,
    response_model=None,
)
async def logs(
    request: Request,
    job: str,
    follow: Annotated[bool, Query(description="Follow the output until the job ends.")] = False,
    offset: Annotated[int, Query(ge=0, le=2**62, description="Number of bytes to skip.")] = 0,
    tail: Annotated[int | None, Query(ge=0, le=2**31, description="Only this many last lines.")] = None,
) -> StreamingResponse:
    """The output of a job, stdout and stderr in order."""
    return await streams.job_log(server_of(request), job, follow=follow, offset=offset, tail=tail)
