"""Ray's job API, as Ray's own command and ``JobSubmissionClient`` speak it: its forms around the verbs of jobs."""

from __future__ import annotations

import asyncio
import codecs
import json
import secrets
import shlex
import string
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr, WithJsonSchema

from vctl import ops
from vctl.core import jobs as jb
from vctl.core.values import replace
from vctl.errors import BadSpec, Conflict, NotFound, VctlError
from vctl.http import streams
from vctl.http.answers import JSONResponse, answer
from vctl.http.context import context_of, server_of
from vctl.http.derived import KernelText
from vctl.http.documents import ERRORS, Document, good
from vctl.operations import jobs
from vctl.operations.declare import Context
from vctl.ops.waiting import JOBS
from vctl.ray.http.ray_environment import expanded, installs, private_ray, read
from vctl.ray.ops import packages
from vctl.spec.documents import JobForm
from vctl.spec.job_request import JobRay
from vctl.spec.quantities import LARGEST
from vctl.spec.source import parse_text
from vctl.store import jobs as table

SHELL = ("/bin/sh", "-c")
"""An entrypoint of Ray is a line for a shell."""
LETTERS = string.ascii_letters + string.digits
MAX_REASON = 120
"""The most bytes of the reason in the close frame of a websocket."""
LAST_LINES, LAST_CHARACTERS = 10, 20_000
"""The most lines and characters of the output that the message of a failed job repeats."""

router = APIRouter(prefix="/api/jobs", tags=["ray"], responses=ERRORS)

_AMOUNT = {"minimum": 0, "maximum": LARGEST}
Number = Annotated[  # floats first: a refusal names the first
    StrictFloat | StrictInt, WithJsonSchema({"type": "number", **_AMOUNT})
]
Bytes = Annotated[StrictInt, WithJsonSchema({"type": "integer", **_AMOUNT})]
JobId = Annotated[str, Path(alias="job", description="Submission id.")]


class Submission(BaseModel):
    """What a client of Ray sends to submit a job."""

    model_config = ConfigDict(extra="forbid")

    entrypoint: Annotated[KernelText, Field(description="Command line for a shell.")]
    submission_id: Annotated[StrictStr | None, Field(description="Id to give to the job.")] = None
    job_id: Annotated[StrictStr | None, Field(description="Former name of submission_id.")] = None
    runtime_env: dict[str, Any] | None = None
    metadata: Annotated[
        dict[str, StrictStr] | None,
        Field(
            description="`virtual_cluster` holds a cluster spec as JSON, `virtual_cluster_id` the target,"
            " `vctl_ray` the kind of its own Ray: lazy, private, dashboard or none."
        ),
    ] = None
    entrypoint_num_cpus: Number | None = None
    entrypoint_num_gpus: Number | None = None
    entrypoint_memory: Bytes | None = None
    entrypoint_resources: dict[str, Number] | None = None
    entrypoint_label_selector: dict[str, StrictStr] | None = None


class Submitted(Document):
    """The id of a new job, under both names."""

    job_id: str
    submission_id: str


class Details(Document):
    """A job as Ray describes it."""

    type: str
    submission_id: str
    status: str
    entrypoint: str
    message: str | None
    start_time: int
    end_time: int | None
    metadata: dict[str, str]
    runtime_env: dict[str, Any]
    driver_exit_code: int | None


# ---- submit ----


@router.post("/", responses=good(Submitted), response_model=None)
def submit(request: Request, body: Submission) -> JSONResponse:
    """Queue a job, durably."""
    submission_id = (
        body.submission_id
        or body.job_id
        or f"raysubmit_{''.join(secrets.choice(LETTERS) for _ in range(16))}"
    )
    if not body.entrypoint.strip():
        raise BadSpec(
            "entrypoint: there is no command to run", fix="write a command line, such as python train.py"
        )
    setting = server_of(request).config.get("ray_jobs")
    with context_of(request) as on, ExitStack() as files:
        _submit(on, body, submission_id, setting, files)
    return JSONResponse({"job_id": submission_id, "submission_id": submission_id})


def _submit(on: Context, body: Submission, submission_id: str, setting: str | None, files: ExitStack) -> None:
    metadata = body.metadata or {}
    given = body.runtime_env or {}
    environment = read(given)
    working_dir = environment.working_dir
    around = on.surroundings(None)
    values = {
        "entrypoint": (*SHELL, body.entrypoint),
        "cluster": metadata.get("virtual_cluster_id"),
        "name": metadata.get("job_name", ""),
        "submission_id": submission_id,
        "metadata": metadata,
        "cwd": working_dir if working_dir is not None and working_dir.startswith("/") else None,
        **_resources(body, metadata),
    }
    request = jobs.JOB_FIELDS.read(on, values)
    unpacked_at: str | None = None
    wheels: tuple[FilePath, ...] = ()
    python_path: list[str] = []
    archive = None if working_dir is None or request.cwd is not None else working_dir
    if archive is not None or environment.modules or environment.wheels:
        uid = None if on.store.identity is None else on.store.identity.uid
        unpacked = files.enter_context(
            packages.unpacked(
                on.store.home, submission_id, uid, archive, environment.modules, environment.wheels
            )
        )
        wheels = unpacked.wheels
        unpacked_at = str(unpacked.root)
        python_path = [str(path) for path in (unpacked.working_dir, *unpacked.modules) if path is not None]
        if unpacked.working_dir is not None:
            request = replace(request, cwd=str(unpacked.working_dir))
    ray = JobRay(private_ray(on, request, metadata, setting, around), given, unpacked_at)
    installed = installs(environment, wheels, ray.own)
    own = {name: expanded(value, around) for name, value in environment.variables.items()}
    variables = {"PYTHONUNBUFFERED": "1", **own}
    if python_path:
        variables["PYTHONPATH"] = ":".join(filter(None, (*python_path, variables.get("PYTHONPATH"))))
    try:
        request = replace(request, env=variables, ray=ray, runtime_env=installed)
        ops.submitting.submit(on.store, request, environment=around)
    except Conflict as error:
        if "submission_id" not in error.details:
            raise
        raise Conflict(
            f"Job with submission_id {submission_id} already exists. Please use a different submission_id.",
            fix="leave it out to get a new one",
            details=error.details,
        ) from None


def _resources(body: Submission, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The resource parameters of a submit: the spec in the metadata, and the request of the entrypoint."""
    spec = None
    if "virtual_cluster" in metadata:
        spec = parse_text(metadata["virtual_cluster"], "a cluster spec", "metadata.virtual_cluster")
        if not isinstance(spec, dict):
            raise BadSpec("metadata.virtual_cluster: not a cluster spec", fix="write an object, such as {}")
    entry = {
        "CPU": body.entrypoint_num_cpus,
        "GPU": body.entrypoint_num_gpus,
        "memory": body.entrypoint_memory,
        **(body.entrypoint_resources or {}),
    }
    if not body.entrypoint_label_selector:
        return {
            "virtual_cluster": spec,
            "entrypoint_num_cpus": body.entrypoint_num_cpus,
            "entrypoint_num_gpus": body.entrypoint_num_gpus,
            "entrypoint_memory": body.entrypoint_memory,
            "entrypoint_resources": body.entrypoint_resources,
        }
    if spec is not None:
        raise BadSpec(
            "entrypoint_label_selector: cannot be combined with metadata.virtual_cluster",
            fix="put label_selector into a node of the spec",
        )
    amounts = {name: amount for name, amount in entry.items() if amount} or {"CPU": 1}
    node = {"resources": amounts, "label_selector": body.entrypoint_label_selector}
    return {"virtual_cluster": {"fixed_size_nodes": [{"nodes": [node]}]}}


# ---- look ----


@router.get("/", responses=good(list[Details]), response_model=None)
def list_jobs(request: Request) -> JSONResponse:
    """All jobs, newest first; an array is one entry."""
    with context_of(request) as on:
        forms, _ = jobs.list_jobs.at(on, members=False)
        seen = ops.privacy.visible(on.store, (form["job_id"] for form in forms))
        envs = {number: env for number, env in table.runtime_envs(on.store).items() if number in seen}
    return JSONResponse([_details(form, envs.get(form["job_id"])) for form in forms])


@router.get("/{job}", responses=good(Details), response_model=None)
def get_job(request: Request, job: JobId) -> JSONResponse:
    """One job."""
    with context_of(request) as on:
        form = _get(on, job)
        seen = ops.privacy.visible(on.store, [form["job_id"]])
        env = table.runtime_envs(on.store, form["job_id"]).get(form["job_id"]) if seen else None
        details = _details(form, env)
        if seen and form["state_reason"] == jb.NON_ZERO_EXIT and (tail := _tail(on, job)):
            details["message"] += f", last available logs (truncated to {LAST_CHARACTERS:,} chars):\n{tail}"
    return JSONResponse(details)


def _get(on: Context, job: str) -> JobForm:
    """A job by its whole id, as Ray's clients name it: no prefix of one, and no ``last``."""
    try:
        form = jobs.get_job.at(on, job)
    except (NotFound, BadSpec):
        form = None
    if form is None or form["submission_id"] != job:
        raise NotFound(f"Job {job} does not exist", fix="see `ray job list`", details={"job": job})
    return form


def _details(form: JobForm, runtime_env: str | None) -> dict[str, Any]:
    status, started, ended = form["status"], form["started_at"], form["ended_at"]
    entrypoint = form["entrypoint"]
    if runtime_env is not None:
        entrypoint = shlex.split(entrypoint)[-1]
    return {
        "type": "SUBMISSION",
        "job_id": None,
        "submission_id": form["submission_id"],
        "driver_info": None,
        "status": status,
        "entrypoint": entrypoint,
        "message": _message(form),
        "error_type": _error_type(form),
        "start_time": _milliseconds(started or form["submitted_at"]),
        "end_time": None if ended is None else _milliseconds(ended),
        "metadata": form["metadata"],
        "runtime_env": {} if runtime_env is None else json.loads(runtime_env),
        "driver_agent_http_address": None,
        "driver_node_id": form["node_ids"][0] if started and form["node_ids"] else None,
        "driver_exit_code": None if status == jb.STOPPED else form["exit_code"],
    }


def _message(form: JobForm) -> str:
    """The sentence that Ray has for this state, else the reason and its message."""
    status, reason = form["status"], form["state_reason"]
    if reason == jb.NON_ZERO_EXIT:
        return f"Job entrypoint command failed with exit code {form['exit_code']}"
    if reason is not None:
        return f"{reason}: {form['message']}" if form["message"] else reason
    return "Job finished successfully." if status == jb.SUCCEEDED else "Job is currently running."


def _error_type(form: JobForm) -> str | None:
    if form["status"] != jb.FAILED:
        return None
    known = {
        jb.NON_ZERO_EXIT: "JOB_ENTRYPOINT_COMMAND_ERROR",
        jb.LAUNCH_FAILED: "JOB_ENTRYPOINT_COMMAND_START_ERROR",
    }
    return known.get(form["state_reason"] or "", form["state_reason"])


def _milliseconds(moment: str) -> int:
    return (ops.forms.moment(moment) or 0) // 1_000_000


def _tail(on: Context, job: str) -> str:
    log = ops.jobs.log(on.store, job)
    return b"".join(log.read(tail=LAST_LINES)).decode(errors="replace")[-LAST_CHARACTERS:]


# ---- output ----


@router.get(
    "/{job}/logs", responses={200: {"content": {"application/json": {}}, "description": "`{logs}`"}},
    response_class=StreamingResponse, response_model=None,
)  # fmt: skip
def logs(request: Request, job: JobId) -> StreamingResponse:
    """The output of a job, stdout and stderr in order."""
    with context_of(request) as on:
        _get(on, job)
        log = ops.jobs.log(on.store, job)
    return StreamingResponse(_as_document(log.read()), media_type="application/json")


def _as_document(blocks: Iterator[bytes]) -> Iterator[str]:
    """``{"logs": TEXT}`` in parts, because a log may be too large for the memory."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    yield '{"logs":"'
    for block in blocks:
        yield json.dumps(decoder.decode(block))[1:-1]
    yield json.dumps(decoder.decode(b"", final=True))[1:-1] + '"}'


@router.get("/{job}/logs/tail", responses=good(Document), response_model=None)
def tail_without_websocket(job: JobId) -> JSONResponse:
    """The output of a job as it grows, over a websocket, in messages of text."""
    raise BadSpec(
        f"the output of {job} is followed over a websocket",
        fix="ask for one; if you did, the server needs a package: pip install wsproto",
    )


@router.websocket("/{job}/logs/tail")
async def tail(websocket: WebSocket, job: str) -> None:
    """The output of a job as it grows, until the job is over or nobody listens.

    It closes with 1000 at the end of the job, with 1001 when the server ends, and with 1011 and the reason when the
    output can no longer be followed.
    """
    server = server_of(websocket)

    def check() -> None:
        with context_of(websocket) as on:
            _get(on, job)

    try:
        await asyncio.to_thread(check)
        blocks = await streams.followed(server, JOBS, job)
    except VctlError as error:
        await websocket.send_denial_response(answer(websocket, error))
        return
    await websocket.accept()
    sending = asyncio.create_task(_send(websocket, blocks))
    leaving = asyncio.create_task(_disconnected(websocket))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        with suppress(WebSocketDisconnect):  # the client has gone
            if not leaving.done():
                code, reason = sending.result()
                await websocket.close(1001 if server.changes.ended else code, reason)
    finally:
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)


async def _send(websocket: WebSocket, blocks: AsyncIterator[bytes]) -> tuple[int, str]:
    """Send the output; returns the code and the reason with which the websocket is to be closed."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    code, reason = 1000, ""
    async with aclosing(blocks):  # type: ignore[type-var]  # a generator
        try:
            async for block in blocks:
                if text := decoder.decode(block):
                    await websocket.send_text(text)
        except VctlError as error:
            code, reason = 1011, error.problem.encode()[:MAX_REASON].decode(errors="ignore")
    if text := decoder.decode(b"", final=True):
        await websocket.send_text(text)
    return code, reason


async def _disconnected(websocket: WebSocket) -> None:
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


# ---- end ----


class Stopped(Document):
    """Whether there was something to stop."""

    stopped: bool


class Deleted(Document):
    """The job is forgotten."""

    deleted: bool


@router.post("/{job}/stop", responses=good(Stopped), response_model=None)
def stop(request: Request, job: JobId) -> JSONResponse:
    """Request the end of a job: `stopped` is false if it was over."""
    with context_of(request) as on:
        form = _get(on, job)
        if form["status"] in jb.FINAL:
            return JSONResponse({"stopped": False})
        jobs.stop.at(on, job)
    return JSONResponse({"stopped": True})


@router.delete("/{job}", responses=good(Deleted), response_model=None)
def delete(request: Request, job: JobId) -> JSONResponse:
    """Delete a finished job and its log."""
    with context_of(request) as on:
        form = _get(on, job)
        if form["status"] not in jb.FINAL:
            raise Conflict(
                f"Attempted to delete job '{job}', but it is in a non-terminal state {form['status']}.",
                fix="stop it first",
            )
        jobs.delete_one.at(on, job)
    return JSONResponse({"deleted": True})
