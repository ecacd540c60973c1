"""``/api/v1/nodes``: what ``vctl node`` can do."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from vctl.http import bodies, documents, reading
from vctl.http.answers import JSONResponse
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, good, listing
from vctl.http.jobs import Filters
from vctl.spec.selectors import parse_labels

router = APIRouter(prefix="/api/v1/nodes", tags=["nodes"], responses=ERRORS)


@router.post("", responses=good(documents.NodeList), response_model=None)
def add(request: Request, body: bodies.NewNodes) -> JSONResponse:
    """Declare one simulated node, or many equal ones."""
    from vctl.ops import nodes

    server = server_of(request)
    amounts = reading.resources(server, body.resources, "resources", totals=True)
    with state(request) as store:
        made = nodes.add(
            store,
            resources=amounts,
            node_id=body.node_id,
            count=body.count,
            template=body.template,
            labels=None if body.labels is None else parse_labels(body.labels, "labels"),
            source=body.source,
            units=server.units,
        )
    return JSONResponse(listing("NodeList", made))


@router.get("", responses=good(documents.NodeList), response_model=None)
def list_(request: Request, filters: Filters) -> JSONResponse:
    """The physical nodes of all clusters."""
    from vctl.ops import nodes

    with state(request) as store:
        return JSONResponse(listing("NodeList", nodes.list_nodes(store, filters=filters)))


@router.get("/{node}", responses=good(documents.Node), response_model=None)
def get(request: Request, node: str) -> Any:
    """One physical node."""
    from vctl.ops import nodes

    with state(request) as store:
        return nodes.get_node(store, node)


@router.patch("/{node}", responses=good(documents.Node), response_model=None)
def update(request: Request, node: str, body: bodies.NodeChange) -> Any:
    """Change the resources or the labels of a node."""
    from vctl.ops import nodes

    server = server_of(request)
    amounts = None
    if body.resources is not None:
        amounts = reading.resources(server, body.resources, "resources", totals=True)
    labels = None if body.labels is None else parse_labels(body.labels, "labels")
    with state(request) as store:
        return nodes.update(store, node, resources=amounts, labels=labels, units=server.units)


@router.delete("/{node}", responses=good(documents.Node), response_model=None)
def remove(request: Request, node: str) -> Any:
    """Remove a node on which nothing runs."""
    from vctl.ops import nodes

    with state(request) as store:
        return nodes.remove(store, node)


@router.post("/{node}/drain", responses=good(documents.Node), response_model=None)
def drain(request: Request, node: str, body: bodies.Reason | None = None) -> Any:
    """Give a node no new work."""
    from vctl.ops import nodes

    with state(request) as store:
        return nodes.drain(store, node, reason=body.reason if body else None)


@router.post("/{node}/undrain", responses=good(documents.Node), response_model=None)
def undrain(request: Request, node: str) -> Any:
    """Take a drained node back into service."""
    from vctl.ops import nodes

    with state(request) as store:
        return nodes.undrain(store, node)


@router.post("/{node}/kill", responses=good(documents.Node), response_model=None)
def kill(request: Request, node: str, body: bodies.Reason | None = None) -> Any:
    """Declare a node dead."""
    from vctl.ops import nodes

    with state(request) as store:
        return nodes.kill(store, node, reason=body.reason if body else None)


@router.post("/{node}/heartbeat", responses=good(documents.Node), response_model=None)
def heartbeat(request: Request, node: str, body: bodies.Heartbeat | None = None) -> Any:
    """Send a heartbeat for a node."""
    from vctl.ops import nodes

    with state(request) as store:
        return nodes.heartbeat(store, node, timeout_s=body.timeout_s if body else None)
