"""Why a job of a server waits: the functions of ``vctl.ops.why``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl.client.jobs import document, sendable
from vctl.operations.connection import Connection, at

if TYPE_CHECKING:
    from vctl.spec.job_request import JobRequest

Form = dict[str, Any]


def why(server: Connection, ref: str | int) -> Form:
    """Why a job waits, and what would start it now."""
    answer: Form = server.get(at("jobs", str(ref), "why"))
    return answer


def waits_for_itself(server: Connection, ref: str | int) -> str | None:
    """When a job or a task cannot start before one has ended that submitted it: says so."""
    said: str | None = why(server, ref).get("waits_for_itself")
    return said


def dry_run(server: Connection, request: JobRequest, *, environment: Mapping[str, str] | None = None) -> Form:
    """What a submit would lead to."""
    around = os.environ if environment is None else environment
    body = {**document(request), "environment": sendable(around)}
    answer: Form = server.post("/jobs/dry-run", body)
    return answer
