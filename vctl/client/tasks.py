"""Tasks of a server: the functions of ``vctl.ops.tasks``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl.client.jobs import sendable
from vctl.operations.connection import Connection, at

if TYPE_CHECKING:
    from vctl.spec.task_request import TaskRequest

Form = dict[str, Any]


def run(server: Connection, request: TaskRequest, *, environment: Mapping[str, str] | None = None) -> Form:
    """Start a task in a running job."""
    from vctl.spec.quantities import resources_document

    body = {
        "entrypoint": list(request.argv),
        "job": request.job,
        "resources": resources_document(request.request),
        "label_selector": {one.key: str(one) for one in request.selector} or None,
        "strategy": request.strategy,
        "name": request.name,
        "max_retries": request.max_retries,
        "detach": request.detach,
        "env": dict(request.env),
        "environment": sendable(os.environ if environment is None else environment),
        "cwd": request.cwd or os.getcwd(),
        "grace_s": request.grace_s,
        "inputs": list(request.inputs),
        "outputs": list(request.outputs),
    }
    task: Form = server.post("/tasks", body)
    return task


def get_task(server: Connection, ref: str) -> Form:
    """One task."""
    task: Form = server.get(at("tasks", ref))
    return task


def list_tasks(
    server: Connection,
    *,
    all: bool = False,  # noqa: A002  # as in vctl.ops.tasks
    filters: Sequence[str] = (),
    limit: int | None = None,
    job: str | None = None,
) -> tuple[list[Form], int]:
    """Tasks, oldest first, and how many there are without the limit."""
    found = server.get("/tasks", all=all, filter=list(filters), limit=limit, job=job)
    return found["items"], found["total"]


def cancel(server: Connection, ref: str, *, grace_s: float | None = None) -> Form:
    """End a task."""
    task: Form = server.post(at("tasks", ref, "cancel"), {"grace_s": grace_s})
    return task


def log_blocks(server: Connection, ref: str, *, tail: int | None = None) -> Iterator[bytes]:
    """The output of a task as it is now."""
    return server.stream(at("tasks", ref, "logs"), tail=tail)
