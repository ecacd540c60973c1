"""Jobs of a server: the functions of ``vctl.ops.jobs``, ``submitting`` and ``job_edits``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl.operations.connection import Connection

if TYPE_CHECKING:
    from vctl.spec.job_request import JobRequest

Form = dict[str, Any]
_OURS = ("VCTL_ADDRESS", "VCTL_TOKEN", "VCTL_TOKEN_FILE", "VCTL_HOME")
"""How this client reaches the server is nothing for the job."""


def submit(server: Connection, request: JobRequest, *, environment: Mapping[str, str] | None = None) -> Form:
    """Queue a job, durably."""
    around = os.environ if environment is None else environment
    job: Form = server.post("/jobs", {**document(request), "environment": sendable(around)})
    return job


def sendable(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that is Unicode text; other bytes cannot be sent as JSON."""
    return {
        name: value for name, value in environment.items() if name not in _OURS and _is_text(name + value)
    }


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def document(request: JobRequest) -> Form:
    """A request as the body of a submit; what is as it would be anyway is left out."""
    from dataclasses import fields

    from vctl.spec.cluster_spec import spec_to_document
    from vctl.spec.quantities import resources_document

    body: Form = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if (
            field.name not in ("argv", "spec", "entry", "signal", "after", "array", "cwd")
            and value != field.default
        ):
            body[field.name] = list(value) if isinstance(value, tuple) else value
    body["entrypoint"] = list(request.argv)
    body["cwd"] = request.cwd or os.getcwd()
    if request.spec is not None:
        body["virtual_cluster"] = spec_to_document(request.spec)
    if request.entry is not None:
        body["entrypoint_resources"] = resources_document(request.entry)
    if request.signal is not None:
        body["signal"] = f"{request.signal.name}@{request.signal.before_s:g}"
    if request.after:
        body["after"] = [f"{one.condition}:{one.job}" for one in request.after]
    if request.array is not None:
        body["array"] = _array(request.array.indices, request.array.at_once)
    return body


def _array(indices: range, at_once: int | None) -> str:
    text = f"{indices.start}-{indices[-1]}:{indices.step}"
    return text if at_once is None else f"{text}%{at_once}"
