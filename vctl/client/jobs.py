"""Jobs of a server: the functions of ``vctl.ops.jobs``, ``submitting`` and ``job_edits``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl.operations.connection import Connection, at

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


def resolve(server: Connection, ref: str | int) -> str:
    """The job that a submission id, number, unique prefix or ``last`` names: its submission id."""
    return str(get_job(server, ref)["submission_id"])


def get_job(server: Connection, ref: str | int) -> Form:
    """One job."""
    job: Form = server.get(at("jobs", str(ref)))
    return job


def list_jobs(
    server: Connection,
    *,
    all: bool = False,  # noqa: A002  # as in vctl.ops.jobs
    filters: Sequence[str] = (),
    limit: int | None = None,
    cluster: str | None = None,
    members: bool = True,
) -> tuple[list[Form], int]:
    """Jobs, newest first, and how many there are without the limit."""
    found = server.get("/jobs", all=all, filter=list(filters), limit=limit, cluster=cluster, members=members)
    return found["items"], found["total"]


def log_blocks(server: Connection, ref: str, *, tail: int | None = None) -> Iterator[bytes]:
    """The output of a job as it is now."""
    return server.stream(at("jobs", ref, "logs"), tail=tail)


def stop(
    server: Connection, ref: str | int, *, grace_s: float | None = None, message: str | None = None
) -> Form:
    """End a job."""
    job: Form = server.post(at("jobs", str(ref), "stop"), {"grace_s": grace_s, "reason": message})
    return job


def rerun(server: Connection, ref: str | int) -> Form:
    """Submit a job once more, as it was."""
    job: Form = server.post(at("jobs", str(ref), "rerun"))
    return job


def hold(server: Connection, ref: str | int) -> Form:
    """Keep a pending job from starting."""
    job: Form = server.post(at("jobs", str(ref), "hold"))
    return job


def release(server: Connection, ref: str | int) -> Form:
    """Let a held job go back to its place in the queue."""
    job: Form = server.post(at("jobs", str(ref), "release"))
    return job


def edit(server: Connection, ref: str | int, changes: Mapping[str, object]) -> Form:
    """Change a job that is not over."""
    job: Form = server.patch(at("jobs", str(ref)), changes)
    return job


def delete(server: Connection, *refs: str | int) -> list[Form]:
    """Forget jobs that are over, all of them or none."""
    gone: list[Form] = server.post("/jobs/delete", {"jobs": [str(ref) for ref in refs]})["items"]
    return gone


def prune(server: Connection, older_than_s: float, *, dry_run: bool = False) -> Form:
    """Forget jobs that ended longer ago."""
    done: Form = server.post("/prune", {"older_than_s": older_than_s, "dry_run": dry_run})
    return done
