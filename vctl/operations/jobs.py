"""Jobs: the verbs of ``vctl job``, and why one waits."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from vctl.operations.declare import NOT_GIVEN, Arg, Filters, Here, Limit, Opt, operation

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm
    from vctl.spec.job_request import JobRequest

JOB = Arg("JOB", help="Submission id, number, unique prefix, or last.", complete="jobs")
Job = Annotated[str | int, JOB]
JobRef = Annotated[str, JOB]
Jobs = Annotated[
    Sequence[str],
    Arg("JOB", longest=100_000, help="Submission ids, numbers, unique prefixes, or last.", complete="jobs"),
]
Grace = Annotated[
    float | None,
    Opt(
        "--grace",
        metavar="TIME",
        reads="duration",
        least=0,
        most=1e10,
        help="Time between SIGTERM and SIGKILL, such as 10s (default 3s).",
    ),
]
Priority = Annotated[int | None, Opt("--priority", help="Higher priorities go first.")]
Name = Annotated[str | None, Opt("--name", longest=100_000, help="Display name.")]
Seconds = Annotated[float | None, Opt(least=0, most=1e10, help="Time limit in seconds; null: no limit.")]


def _body(request: "JobRequest", *, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    from vctl.operations.bodies import job_body

    return job_body(request, environment)


@operation("job submit", "POST /jobs", body=_body)
def submit(here: Here, request: "JobRequest", *, environment: Mapping[str, str] | None = None) -> "JobForm":
    """Queue a job, durably."""
    from vctl.ops import submitting

    return submitting.submit(here.store, request, environment=environment)


@operation("job dry-run", "POST /jobs/dry-run", body=_body)
def dry_run(
    here: Here, request: "JobRequest", *, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The outcome of a submit; nothing is changed."""
    from vctl.ops import why as ops

    return ops.dry_run(here.store, request, environment=environment)


@operation("job list", "GET /jobs", items="JobList")
def list_jobs(
    here: Here,
    *,
    filters: Filters = (),
    all: Annotated[bool, Opt(help="Include finished jobs.")] = True,  # noqa: A002  # the name on the wire
    limit: Limit = None,
    cluster: Annotated[str | None, Opt(help="Only jobs of this cluster.")] = None,
    members: Annotated[bool, Opt(help="List array members one by one.")] = True,
) -> "tuple[list[JobForm], int]":
    """Jobs, newest first."""
    from vctl.ops import jobs

    return jobs.list_jobs(here.store, all=all, filters=filters, limit=limit, cluster=cluster, members=members)


@operation("job get", "GET /jobs/{job}")
def get_job(here: Here, ref: Job) -> "JobForm":
    """One job, by submission id, number, unique prefix or ``last``."""
    from vctl.ops import jobs

    return jobs.get_job(here.store, str(ref))


@operation("job delete", "DELETE /jobs/{job}")
def delete_one(here: Here, ref: Job) -> "JobForm":
    """Delete a finished job and its log."""
    from vctl.ops import jobs

    return jobs.delete(here.store, str(ref))[0]


@operation("job delete-all", "POST /jobs/delete", items="JobList")
def delete(here: Here, jobs: Jobs) -> "list[JobForm]":
    """Delete several finished jobs: all of them or none."""
    from vctl.ops import jobs as ops

    return ops.delete(here.store, *jobs)


@operation("job stop", "POST /jobs/{job}/stop")
def stop(
    here: Here,
    ref: Job,
    *,
    grace_s: Grace = None,
    reason: Annotated[str | None, Opt(longest=1000, help="It becomes the message of the job.")] = None,
) -> "JobForm":
    """Request the end of a job; its status shows when it has ended."""
    from vctl.ops import jobs

    return jobs.stop(here.store, str(ref), grace_s=grace_s, message=reason)


@operation("job rerun", "POST /jobs/{job}/rerun")
def rerun(here: Here, ref: Job) -> "JobForm":
    """Submit a job again under a new id."""
    from vctl.ops import rerun as ops

    return ops.rerun(here.store, str(ref))


@operation("job hold", "POST /jobs/{job}/hold")
def hold(here: Here, ref: Job) -> "JobForm":
    """Keep a pending job from starting."""
    from vctl.ops import job_edits

    return job_edits.hold(here.store, str(ref))


@operation("job release", "POST /jobs/{job}/release")
def release(here: Here, ref: Job) -> "JobForm":
    """Let a held job go back to its place in the queue."""
    from vctl.ops import job_edits

    return job_edits.release(here.store, str(ref))


@operation("job edit", "PATCH /jobs/{job}")
def edit(
    here: Here,
    ref: Job,
    *,
    priority: Priority = NOT_GIVEN,
    name: Name = NOT_GIVEN,
    time_limit_s: Seconds = NOT_GIVEN,
) -> "JobForm":
    """Change a pending job, or the time limit of a running one; only the fields that are sent."""
    from vctl.ops import job_edits

    wanted = {"priority": priority, "name": name, "time_limit_s": time_limit_s}
    changes = {field: value for field, value in wanted.items() if value is not NOT_GIVEN}
    return job_edits.edit(here.store, str(ref), changes)


@operation("why", "GET /jobs/{job}/why")
def why(
    here: Here,
    ref: Annotated[
        str | int,
        Arg("JOB", help="Submission id, number, unique prefix, last, or a task.", complete="jobs"),
    ],
) -> dict[str, Any]:
    """Explain why a job or a task waits, and which changes would start it now.

    Shows the jobs ahead in the queue, the resources that each node lacks and their holders, and the smallest changes
    that would start the job now. Each change was tested with the scheduler on a copy of the state.
    """
    from vctl.ops import why as ops

    return ops.why(here.store, str(ref))
