"""The application: every route of the server, its OpenAPI, and the services that start and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import metadata
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse

from vctl import __version__
from vctl.errors import NotFound
from vctl.http import answers, live, management, metrics
from vctl.http.context import Server, state
from vctl.http.derived import router_of
from vctl.http.documents import Document, Version, good
from vctl.http.events import Broadcast
from vctl.http.guard import OPEN, Guard
from vctl.http.protocol import Complaints, capacity
from vctl.operations import clusters, jobs, limits, nodes, simulation, tasks, tokens, upkeep, views
from vctl.ray.http import ray_jobs, ray_packages
from vctl.store import feed

SPOKEN = "2.40.0"
"""The version of Ray whose job API the server implements."""

DECLARED = (jobs, tasks, clusters, nodes, limits, views, upkeep, simulation, tokens)
"""The modules whose verbs have routes."""

OPEN_TO_ALL = "open"
"""The right of a route that needs no name."""
WRITTEN_BY_HAND = {
    **dict.fromkeys(("GET /healthz", "GET /metrics", "GET /api/version", "GET /virtual_clusters"), OPEN_TO_ALL),
    **dict.fromkeys(
        (
            "POST /virtual_clusters", "POST /virtual_clusters/remove_nodes",
            "DELETE /virtual_clusters/{virtual_cluster_id}",
        ),
        "administer",
    ),
    **dict.fromkeys(
        (
            "GET /api/v1/jobs/{job}/wait", "GET /api/v1/tasks/{task}/wait", "GET /api/v1/clusters/{cluster}/wait",
            "GET /api/v1/events/stream", "GET /api/jobs/", "GET /api/jobs/{job}",
        ),
        "see",
    ),
    **dict.fromkeys(
        (
            "GET /api/v1/jobs/{job}/logs", "GET /api/v1/tasks/{task}/logs", "GET /api/jobs/{job}/logs",
            "GET /api/jobs/{job}/logs/tail",
        ),
        "read",
    ),
    "POST /api/jobs/": "submit",
    **dict.fromkeys(("POST /api/jobs/{job}/stop", "DELETE /api/jobs/{job}"), "change"),
    **dict.fromkeys(
        ("GET /api/packages/{protocol}/{package}", "PUT /api/packages/{protocol}/{package}"), "sign"
    ),
}  # fmt: skip
"""Method and path of each route without a declared verb -> the right that it needs, as in ``vctl/ops/rights.py``."""


def ray_version() -> str:
    """The version of Ray that is installed here, and that jobs get; without Ray, the version that is spoken."""
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return SPOKEN


def create_app(server: Server) -> FastAPI:
    """The application of one server with all its routes."""
    app = FastAPI(
        title="vctl", version=__version__, lifespan=_lifespan, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False, default_response_class=answers.JSONResponse,
    )  # fmt: skip
    app.state.server, app.state.broadcast = server, Broadcast(server)
    app.add_middleware(Guard, server=server)
    answers.install(app)
    strict = [Depends(answers.refuse_unread)]
    _add_open_routes(app)  # first, as monitors ask them all the time, and routes are tried in this order
    app.include_router(management.router, dependencies=strict)
    app.include_router(live.router, dependencies=strict)
    app.include_router(ray_jobs.router)
    app.include_router(ray_packages.router)
    for module in DECLARED:
        app.include_router(router_of(module), dependencies=strict)
    _add_refusal_of_websockets(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    server: Server = app.state.server
    _, threads = capacity()
    asyncio.get_running_loop().set_exception_handler(Complaints())
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
    current_default_thread_limiter().total_tokens = threads
    with server.store() as store:
        server.changes.start(store.watched())
    sweeping = asyncio.create_task(ray_packages.sweep_now_and_then(server))
    try:
        yield
    finally:
        sweeping.cancel()
        server.changes.stop()


def _add_open_routes(app: FastAPI) -> None:
    published: dict[str, Any] = {}
    ray = ray_version()

    @app.get(
        "/healthz", tags=["server"], responses=good(Document, "The server answers and can read its state.")
    )
    def healthz(request: Request) -> dict[str, Any]:
        """Whether the server can read its state."""
        with state(request) as store:
            return {"ok": feed.last(store) >= 0, "version": __version__}

    @app.get(
        "/metrics", tags=["server"], response_class=PlainTextResponse, response_model=None,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus' text format."}},
    )  # fmt: skip
    def figures(request: Request) -> PlainTextResponse:
        """Figures for Prometheus."""
        with state(request) as store:
            return PlainTextResponse(metrics.text(store), media_type=metrics.CONTENT_TYPE)

    @app.get("/api/version", tags=["server"], responses=good(Version), response_model=None)
    def version() -> dict[str, str]:
        """Versions, in the form that Ray's clients ask for."""
        return {
            "version": "4",
            "ray_version": ray,
            "ray_commit": f"vctl-{__version__}",
            "session_name": f"vctl_{__version__}",
            "vctl_version": __version__,
        }

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> dict[str, Any]:
        """This description."""
        if not published:
            published.update(describe(app))
        return published


def _add_refusal_of_websockets(app: FastAPI) -> None:
    @app.websocket("/{path:path}")
    async def no_websocket(websocket: WebSocket) -> None:
        """Refuse a websocket at any other path with a message, which the framework would not send."""
        path = websocket.url.path[:200]
        error = NotFound(
            f"there is no websocket at {path}", fix="the one that there is follows a job of Ray's API"
        )
        await websocket.send_denial_response(answers.answer(websocket, error))


def describe(app: FastAPI) -> dict[str, Any]:
    """The published OpenAPI: bad input is answered with 400, not 422, and routes that need a token say so.

    ``x-right`` is the right that an operation needs in a shared service; a route without one is refused here.
    """
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=_ABOUT)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["responses"].pop("422", None)
            if "x-right" not in operation:
                operation["x-right"] = WRITTEN_BY_HAND[f"{method.upper()} {path}"]
            if method != "get" or path not in OPEN:
                operation["security"] = [{"token": []}]
    components = document.setdefault("components", {})
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for name in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(name, None)
    return document


_ABOUT = (
    "Virtual clusters: the management API as in ant-ray under /virtual_clusters, everything that the command line "
    "can read or do under /api/v1. Errors carry a code, the exit code of the command line, a message and a fix."
)
