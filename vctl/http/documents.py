"""What answers look like, for the published OpenAPI. Answers are not squeezed through these: fields may be added."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

Amounts = dict[str, float]


class Document(BaseModel):
    """More fields may come."""

    model_config = ConfigDict(extra="allow")


class ErrorFields(Document):
    """What went wrong and how to fix it; ``exit_code`` is that of the command line."""

    code: str
    exit_code: int
    message: str
    hint: str
    details: dict[str, Any]


class Error(Document):
    """The envelope of an error."""

    error: ErrorFields


class Managed(Document):
    """The envelope of the management API, for good and bad news."""

    result: bool
    msg: str
    data: dict[str, Any]


class Job(Document):
    """A job."""

    job_id: int
    submission_id: str
    name: str | None
    status: str
    state_reason: str | None
    message: str | None
    exit_code: int | None
    cluster_id: str
    parent_cluster_id: str
    priority: int
    queue_position: int | None
    entrypoint: str
    attempt: int
    user: str
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    resources: Amounts
    node_ids: list[str]
    wait_s: float | None
    run_s: float | None
    time_limit_s: float | None
    log_path: str | None
    metadata: dict[str, str]
    array_id: str | None
    array_index: int | None


class Watched(Document):
    """A job, and whether it is over; null once it was deleted."""

    over: bool
    job: Job | None


class Task(Document):
    """A task."""

    task_id: str
    name: str | None
    state: str
    job_id: int
    owner_id: str
    cluster_id: str
    vnode_id: str | None
    node_id: str | None
    resources: Amounts
    exit_code: int | None
    attempt: int
    inputs: list[str]
    outputs: list[str]
    created_at: str
    started_at: str | None
    ended_at: str | None
    state_reason: str | None
    message: str | None
    strategy: str
    detached: bool


class Object(Document):
    """An output of a task for other tasks of its job. ``size`` in bytes; ``node_ids``: every node with a copy."""

    object_id: str
    name: str
    job_id: int
    submission_id: str
    cluster_id: str
    task_id: str | None
    node_id: str
    node_ids: list[str]
    size: int
    created_at: str
    attempt: int
    path: str


class WatchedTask(Document):
    """A task, and whether it is over; null once it was forgotten."""

    over: bool
    task: Task | None


class Cluster(Document):
    """A virtual cluster."""

    cluster_id: str
    parent_id: str | None
    kind: str
    divisible: bool
    revision: int
    spec: dict[str, Any]
    replica_sets: dict[str, int]
    node_instances: dict[str, dict[str, str]]
    total_resources: Amounts
    available_resources: Amounts
    max_resources: Amounts | None
    children: list[str]
    jobs: list[str]
    state: str
    message: str | None
    borrow_limit: Amounts | None
    lending_limit: Amounts
    queue: dict[str, Any]


class Node(Document):
    """A physical node."""

    node_id: str
    hostname: str
    template_id: str
    source: str
    state: str
    reason: str | None
    author: str | None
    state_since: str
    resources: Amounts
    available: Amounts | None
    labels: dict[str, str]
    last_heartbeat: str | None
    heartbeat_timeout_s: float | None
    created_at: str


class Listing(Document):
    """A list in its envelope."""

    api_version: str
    kind: str
    items: list[dict[str, Any]]
    total: int


class JobList(Listing):
    """Jobs."""

    items: list[Job]  # type: ignore[assignment]  # narrower than any object


class TaskList(Listing):
    """Tasks."""

    items: list[Task]  # type: ignore[assignment]  # narrower than any object


class ObjectList(Listing):
    """Objects."""

    items: list[Object]  # type: ignore[assignment]  # narrower than any object


class ClusterList(Listing):
    """Virtual clusters."""

    items: list[Cluster]  # type: ignore[assignment]  # narrower than any object


class NodeList(Listing):
    """Physical nodes."""

    items: list[Node]  # type: ignore[assignment]  # narrower than any object


class Version(Document):
    """As Ray's, so that its clients accept this server."""

    version: str
    ray_version: str
    ray_commit: str
    session_name: str


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request is not valid."},
    401: {"model": Error, "description": "The token is missing or wrong."},
    403: {"model": Error, "description": "Not permitted, or asked under the name of another host."},
    404: {"model": Error, "description": "No such object."},
    409: {"model": Error, "description": "It exists, is in use or has changed, or resources are short."},
    413: {"model": Error, "description": "Too large."},
    503: {"model": Error, "description": "The state cannot be written now."},
}
MANAGEMENT_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**answer, "model": Managed} for status, answer in ERRORS.items()
}


def good(model: Any, description: str = "Done.") -> dict[int | str, dict[str, Any]]:
    """The documentation of a good answer."""
    return {200: {"model": model, "description": description}}


def listing(kind: str, items: list[Any], total: int | None = None) -> dict[str, Any]:
    """Many objects in the list envelope."""
    return {
        "api_version": "vctl/v1",
        "kind": kind,
        "items": items,
        "total": len(items) if total is None else total,
    }
