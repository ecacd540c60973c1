"""``/api/v1/jobs``: why one waits, and what a submit would lead to. Both only read."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from vctl.http import bodies, reading
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, Document, good

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"], responses=ERRORS)


@router.post("/dry-run", responses=good(Document), response_model=None)
def dry_run(request: Request, body: bodies.Job) -> Any:
    """The outcome of a submit with this body; nothing is changed."""
    from vctl.ops import why as ops

    wanted = reading.job_request(server_of(request), body)
    with state(request) as store:
        return ops.dry_run(store, wanted, environment=body.environment or {})
