"""The verbs of ``vctl job``, and ``vctl why``."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from vctl import ops, spec
from vctl.errors import param
from vctl.operations.declare import Context, Operation, asks, operation
from vctl.spec.overrides import OptionalFields
from vctl.spec.params import (
    LONGEST_S,
    NOT_GIVEN,
    Arg,
    Fields,
    Filters,
    Limit,
    Opt,
    values_of,
)

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm, SubmittedForm
    from vctl.spec.job_request import JobRequest
    from vctl.spec.overrides import Overrides
    from vctl.spec.reports import DryRun, Why

T = TypeVar("T")
JOB = Arg("JOB", help="Submission id, number, unique prefix, or last.", complete="jobs")
Job = Annotated[str | int, JOB]
JobRef = Annotated[str, JOB]
Jobs = Annotated[
    Sequence[str],
    Arg(
        "JOB",
        longest=100_000,
        help="Submission ids, numbers, unique prefixes, or last; patterns ('sweep_*'), members (sweep_2-4).",
        complete="jobs",
    ),
]
Grace = Annotated[
    float | None,
    Opt(
        "--grace",
        metavar="TIME",
        reads="duration",
        minimum=0,
        maximum=LONGEST_S,
        help="Time between SIGTERM and SIGKILL, such as 10s (default 3s).",
    ),
]

# ---- submitting ----

OURS = ("VCTL_ADDRESS", "VCTL_TOKEN", "VCTL_TOKEN_FILE", "VCTL_HOME", "VCTL_SOCKET")
"""Variables by which a client reaches the server; it does not send them, so no job gets them."""


def _sendable(environment: Mapping[str, str] | None) -> dict[str, str]:
    """The part of an environment that is Unicode text; other bytes cannot be sent as JSON."""
    given = os.environ if environment is None else environment
    return {name: value for name, value in given.items() if name not in OURS and _is_text(name + value)}


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


Environment = Annotated[
    Mapping[str, str] | None,
    Opt(kernel=True, sent=_sendable, help="The environment of the submitter (a server: a part of its own)."),
]
JOB_FIELDS = Fields(
    lambda: spec.job_request.JobRequest,
    settings=lambda context: {
        "grace_s": context.config.get("kill_grace"),
        "notify": context.config.get("notify"),
    },
)
Request = Annotated["JobRequest", JOB_FIELDS]
RerunChanges = Annotated["Overrides[JobRequest]", OptionalFields(lambda: spec.job_request.JobRequest, ())]


@operation("job submit", "POST /jobs", right="submit")
@asks
def submit(context: Context, job: Request, *, environment: Environment = None) -> "JobForm":
    """Queue a job, durably."""
    return ops.submitting.submit(context.store, job, environment=context.surroundings(environment))


MAX_LINES = 100_000
EXAMPLE = '{"entrypoint": ["python", "train.py"]}'


Cwd = Annotated[
    str | None,
    Opt(
        kernel=True,
        sent=lambda cwd: cwd or os.getcwd(),
        longest=100_000,
        help="Directory in which the command starts.",
    ),
]


@operation("job submit-many", "POST /jobs:batch", right="submit")
def submit_many(
    context: Context,
    jobs: Annotated[
        Sequence[Mapping[str, Any]],
        Arg("JOB", longest=MAX_LINES, each=submit, help="The jobs, each with the fields of a submit."),
    ],
    *,
    environment: Environment = None,
    cwd: Cwd = None,
) -> "SubmittedForm":
    """Queue many jobs, durably: all of them or none.

    ``after`` may name the ids of earlier lines. ``environment`` and ``cwd`` are for the jobs that have none of their
    own. An error names the line, counted from 1.
    """
    lines = read_lines(context, submit, JOB_FIELDS, jobs, EXAMPLE, environment, cwd)
    return {"submission_ids": ops.batches.queue(context.store, lines)}


def read_lines(
    context: Context,
    verb: Operation[..., Any],
    fields: Fields[T],
    documents: Sequence[Mapping[str, Any]],
    example: str,
    environment: Mapping[str, str] | None,
    cwd: str | None,
) -> list[tuple[T, Mapping[str, str]]]:
    """The requests of a batch, each a document with the fields of a verb, and the environments of their submitters."""
    listed = verb.path.strip("/")
    if not documents:
        raise spec.fields.refuse(
            param(listed), "the list is empty", f"write at least one {listed[:-1]}: [{example}]"
        )
    around = dict(context.surroundings(environment))  # os.environ decodes each name at each reading
    requests: list[tuple[T, Mapping[str, str]]] = []
    params = {param.wire: param for param in verb.params}
    for line, document in enumerate(documents, 1):
        with ops.batches.of_line(line):
            values = {"cwd": cwd, **values_of(params, document, f"a {listed[:-1]}", example)}
            own = values.pop("environment", None)
            request = fields.read(context, values)
            requests.append((request, around if own is None else context.surroundings(own)))
    return requests


@operation("job dry-run", "POST /jobs/dry-run", right="submit")
@asks
def dry_run(context: Context, job: Request, *, environment: Environment = None) -> "DryRun":
    """The outcome of a submit; nothing is changed."""
    return ops.why.dry_run(context.store, job, environment=context.surroundings(environment))


# ---- submitted jobs ----


@operation("job list", "GET /jobs", right="see", items="JobList")
def list_jobs(
    context: Context,
    *,
    filters: Filters = (),
    all: Annotated[bool, Opt(help="Include finished jobs.")] = True,  # noqa: A002  # the name on the wire
    limit: Limit = None,
    cluster: Annotated[str | None, Opt(help="Only jobs of this cluster.")] = None,
    members: Annotated[bool, Opt(help="List array members one by one.")] = True,
    forecast: Annotated[bool, Opt(help="Say when waiting jobs are expected to start.")] = True,
    by_turn: Annotated[
        bool, Opt(help="Running jobs first, then the queues in their order, then finished jobs.")
    ] = False,
    named: Annotated[
        Sequence[str],
        Opt(wire="job", longest=1000, help="Only these: ids, patterns and ranges of members; repeatable."),
    ] = (),
) -> "tuple[Sequence[JobForm], int]":
    """Jobs, newest first."""
    return ops.jobs.list_jobs(
        context.store,
        all=all,
        filters=filters,
        limit=limit,
        cluster=cluster,
        members=members,
        forecast=forecast,
        by_turn=by_turn,
        named=named,
    )


@operation("job get", "GET /jobs/{job}", right="see")
def get_job(
    context: Context,
    ref: Job,
    *,
    forecast: Annotated[
        bool,
        Opt("--forecast", off="--no-forecast", help="Say when it is expected to start, if it waits."),
    ] = True,
) -> "JobForm":
    """Show one job: its state, the reason it waits, the resources it holds."""
    return ops.jobs.get_job(context.store, str(ref), forecast=forecast)


@operation("job delete", "DELETE /jobs/{job}", right="change")
def delete_one(context: Context, ref: Job) -> "JobForm":
    """Delete a finished job and its log."""
    return ops.jobs.delete(context.store, str(ref))[0]


@operation("job delete-all", "POST /jobs/delete", right="change", items="JobList")
def delete(context: Context, jobs: Jobs) -> "list[JobForm]":
    """Delete several finished jobs: all of them or none."""
    return ops.jobs.delete(context.store, *jobs)


@operation("job stop", "POST /jobs/{job}/stop", right="change")
def stop(
    context: Context,
    ref: Job,
    *,
    grace_s: Grace = None,
    reason: Annotated[str | None, Opt(longest=1000, help="It becomes the message of the job.")] = None,
) -> "JobForm":
    """Request the end of a job; its status shows when it has ended."""
    return ops.jobs.stop(context.store, str(ref), grace_s=grace_s, message=reason)


@operation("job rerun", "POST /jobs/{job}/rerun", right="change")
@asks
def rerun(
    context: Context,
    ref: Job,
    changes: RerunChanges,
    *,
    failed: Annotated[
        bool,
        Opt(
            "--failed",
            help="Only what did not succeed, in place: members of an array run again under their own indices.",
        ),
    ] = False,
) -> "JobForm":
    """Submit a job again, with the fields that are sent in place of its own.

    It gets a new id, or with ``failed`` runs again in place. ``env`` and ``metadata`` are put on top of those of the
    job.
    """
    return ops.reruns.rerun(context.store, str(ref), changes, failed=failed)


@operation("job hold", "POST /jobs/{job}/hold", right="change")
def hold(context: Context, ref: Job) -> "JobForm":
    """Keep a pending job from starting."""
    return ops.job_edits.hold(context.store, str(ref))


@operation("job release", "POST /jobs/{job}/release", right="change")
def release(context: Context, ref: Job) -> "JobForm":
    """Let a held job go back to its place in the queue."""
    return ops.job_edits.release(context.store, str(ref))


JOB_CHANGES = OptionalFields(
    lambda: spec.job_request.JobRequest,
    but=("argv", "submission_id", "array", "hold", "clean_env", "job_scope"),
)


@operation("job edit", "PATCH /jobs/{job}", right="change")
@asks
def edit(
    context: Context,
    ref: Job,
    changes: Annotated["Overrides[JobRequest]", JOB_CHANGES],
    *,
    max_running: Annotated[
        int | None,
        Opt(
            "--max-running",
            metavar="N",
            reads="whole number",
            minimum=1,
            maximum=100_000,
            help="Members of an array that run at a time; none: all.",
        ),
    ] = NOT_GIVEN,
) -> "JobForm":
    """Change what a waiting job asks for, or the time limit of a running one; only the fields that are sent.

    The job is judged as at its submit: all of the edit or nothing. null stands for what a submit without the field
    gives. Variables and metadata are added to the present ones. Of an array, what waits is changed.
    """
    return ops.job_edits.edit(context.store, str(ref), changes, max_running=max_running)


@operation("why", "GET /jobs/{job}/why", right="see")
def why(
    context: Context,
    ref: Annotated[
        str | int, Arg("JOB", help="Submission id, number, unique prefix, last, or a task.", complete="jobs")
    ],
) -> "Why":
    """Explain why a job or a task waits, and which changes would start it now.

    Shows the jobs ahead in the queue, the resources that each node lacks and their holders, and the smallest changes
    that would start the job now. Each change was tested with the scheduler on a copy of the state.
    """
    return ops.why.why(context.store, str(ref))
