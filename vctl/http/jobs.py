"""``/api/v1/jobs``: what ``vctl job`` can do."""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from vctl.http import bodies, documents, reading, streams
from vctl.http.answers import JSONResponse
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, good, listing

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


@router.get("", responses=good(documents.JobList), response_model=None)
def list_(
    request: Request,
    filters: Filters,
    over_too: Annotated[bool, Query(alias="all", description="Include finished jobs.")] = True,
    limit: Limit = None,
    cluster: str | None = None,
    members: Annotated[bool, Query(description="List array members one by one.")] = True,
) -> JSONResponse:
    """Jobs, newest first."""
    from vctl.ops import jobs

    with state(request) as store:
        found, total = jobs.list_jobs(
            store, all=over_too, filters=filters, limit=limit, cluster=cluster, members=members
        )
    return JSONResponse(listing("JobList", found, total))


@router.get("/{job}", responses=good(documents.Job), response_model=None)
def get(request: Request, job: str) -> Any:
    """One job, by submission id, number, unique prefix or ``last``."""
    from vctl.ops import jobs

    with state(request) as store:
        return jobs.get_job(store, job)


@router.delete("/{job}", responses=good(documents.Job), response_model=None)
def delete(request: Request, job: str) -> Any:
    """Delete a finished job and its log."""
    from vctl.ops import jobs

    with state(request) as store:
        return jobs.delete(store, job)[0]


@router.post("/delete", responses=good(documents.JobList), response_model=None)
def delete_all(request: Request, body: bodies.JobNames) -> JSONResponse:
    """Delete several finished jobs: all of them or none."""
    from vctl.ops import jobs

    with state(request) as store:
        return JSONResponse(listing("JobList", jobs.delete(store, *body.jobs)))


@router.post("/{job}/stop", responses=good(documents.Job), response_model=None)
def stop(request: Request, job: str, body: bodies.Stop | None = None) -> Any:
    """Request the end of a job; its status shows when it has ended."""
    from vctl.ops import jobs

    given = body or bodies.Stop()
    with state(request) as store:
        return jobs.stop(store, job, grace_s=given.grace_s, message=given.reason)


@router.post("/{job}/rerun", responses=good(documents.Job), response_model=None)
def rerun(request: Request, job: str) -> Any:
    """Submit a job again under a new id."""
    from vctl.ops import rerun as ops

    with state(request) as store:
        return ops.rerun(store, job)


@router.post("/{job}/hold", responses=good(documents.Job), response_model=None)
def hold(request: Request, job: str) -> Any:
    """Keep a pending job from starting."""
    from vctl.ops import job_edits

    with state(request) as store:
        return job_edits.hold(store, job)


@router.post("/{job}/release", responses=good(documents.Job), response_model=None)
def release(request: Request, job: str) -> Any:
    """Let a held job go back to its place in the queue."""
    from vctl.ops import job_edits

    with state(request) as store:
        return job_edits.release(store, job)


@router.patch("/{job}", responses=good(documents.Job), response_model=None)
def edit(request: Request, job: str, body: bodies.JobChange) -> Any:
    """Change a pending job, or the time limit of a running one; only the fields that are sent."""
    from vctl.ops import job_edits

    with state(request) as store:
        return job_edits.edit(store, job, body.model_dump(include=body.model_fields_set))


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
