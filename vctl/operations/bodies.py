"""What a server is sent for a submit and for a task: requests as documents, with the environment of the submitter."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vctl.spec.job_request import JobRequest
    from vctl.spec.task_request import TaskRequest

_OURS = ("VCTL_ADDRESS", "VCTL_TOKEN", "VCTL_TOKEN_FILE", "VCTL_HOME")
"""How this client reaches the server is nothing for the job."""


def sendable(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that is Unicode text; other bytes cannot be sent as JSON."""
    return {
        name: value for name, value in environment.items() if name not in _OURS and _is_text(name + value)
    }


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def job_body(request: JobRequest, environment: Mapping[str, str] | None) -> dict[str, Any]:
    """The body of a submit; what is as it would be anyway is left out."""
    from dataclasses import fields

    from vctl.spec.cluster_spec import spec_to_document
    from vctl.spec.quantities import resources_document

    body: dict[str, Any] = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if (
            field.name not in ("argv", "spec", "entry", "signal", "after", "array", "cwd")
            and value != field.default
        ):
            body[field.name] = list(value) if isinstance(value, tuple) else value
    body["entrypoint"] = list(request.argv)
    body["environment"] = sendable(os.environ if environment is None else environment)
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


def task_body(request: TaskRequest, environment: Mapping[str, str] | None) -> dict[str, Any]:
    """The body of a task."""
    from vctl.spec.quantities import resources_document

    return {
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
