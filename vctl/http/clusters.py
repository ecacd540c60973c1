"""``/api/v1/clusters``: what ``vctl vc`` can do."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from vctl.http import documents, streams
from vctl.http.context import server_of
from vctl.http.documents import ERRORS, good
from vctl.http.jobs import MOST_SECONDS

router = APIRouter(prefix="/api/v1/clusters", tags=["clusters"], responses=ERRORS)


@router.get("/{cluster:path}/wait", responses=good(documents.Document), response_model=None)
async def wait(
    request: Request,
    cluster: str,
    timeout_s: Annotated[
        float, Query(ge=0, le=MOST_SECONDS, description="Answer after this time at the latest.")
    ] = 20,
) -> dict[str, Any]:
    """``{"gone": true}`` as soon as a cluster that is to be removed is gone."""
    return await streams.wait_until_gone(server_of(request), cluster, timeout_s)
