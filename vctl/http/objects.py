"""``/api/v1/objects``: what tasks have left on nodes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from vctl.http import bodies, documents
from vctl.http.answers import JSONResponse
from vctl.http.context import state
from vctl.http.documents import ERRORS, good, listing
from vctl.http.jobs import Filters, Limit

router = APIRouter(prefix="/api/v1", tags=["objects"], responses=ERRORS)


@router.get("/objects", responses=good(documents.ObjectList), response_model=None)
def list_(request: Request, filters: Filters, limit: Limit = None, job: str | None = None) -> JSONResponse:
    """Objects, by job and name; of one job when asked."""
    from vctl.ops import object_views

    with state(request) as store:
        found, total = object_views.list_objects(store, filters=filters, limit=limit, job=job)
    return JSONResponse(listing("ObjectList", found, total))


@router.get("/object", responses=good(documents.Object), response_model=None)
def get(
    request: Request,
    ref: Annotated[str, Query(description="JOB/NAME, or a name that only one job has.")],
    job: Annotated[str | None, Query(description="Job whose objects are searched first.")] = None,
) -> Any:
    """One object."""
    from vctl.ops import object_views

    with state(request) as store:
        return object_views.get_object(store, ref, job=job)


@router.post("/objects", responses=good(documents.Object), response_model=None)
def put(request: Request, body: bodies.Put) -> Any:
    """Make an object of a file that a process of a running job wrote into its object directory."""
    from vctl.ops import objects

    with state(request) as store:
        return objects.put(store, body.name, environment=body.inside)
