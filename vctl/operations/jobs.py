"""The verbs of ``vctl job``, and ``vctl why``."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from vctl import ops, spec
from vctl.errors import BadSpec, param
from vctl.operations.declare import Here, asks, operation
from vctl.operations.params import NOT_GIVEN, Arg, Filters, Limit, Opt, Written, document_of, values_of

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm, SubmittedForm
    from vctl.spec.job_request import JobRequest
    from vctl.spec.reports import DryRun, Why

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
LEAST, MOST = -(2**31), 2**31
Priority = Annotated[
    int | None, Opt("--priority", least=LEAST, most=MOST, help="Higher priorities go first.")
]
Name = Annotated[str | None, Opt("--name", longest=100_000, help="Display name.")]
NO_LIMIT = ("none", "unlimited")
Seconds = Annotated[float | None, Opt(least=0, most=1e10, help="Time limit in seconds; null: no limit.")]

# ---- submitting ----

OURS = ("VCTL_ADDRESS", "VCTL_TOKEN", "VCTL_TOKEN_FILE", "VCTL_HOME")
"""Variables by which a client reaches the server; it does not send them, so no job gets them."""
NONE: Mapping[str, str] = {}
NODE_FAILED = ("NodeFailed",)


def _sendable(environment: Mapping[str, str] | None) -> dict[str, str]:
    """The part of an environment that is Unicode text; other bytes cannot be sent as JSON."""
    given = os.environ if environment is None else environment
    return {name: value for name, value in given.items() if name not in OURS and _is_text(name + value)}


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


Words = Annotated[
    Sequence[str],
    Arg("CMD", longest=10_000, help="The command and its arguments, after --.", complete="command"),
]
Document = Mapping[str, Any] | None
Variables = Annotated[Mapping[str, str], Opt(kernel=True, help="Variables, set on top of the environment.")]
Environment = Annotated[
    Mapping[str, str] | None,
    Opt(kernel=True, sent=_sendable, help="The environment of the submitter (a server: a part of its own)."),
]
Directory = Annotated[
    str | None,
    Opt(
        kernel=True,
        sent=lambda cwd: cwd or os.getcwd(),
        longest=100_000,
        help="Directory in which the command starts.",
    ),
]
Title = Annotated[str, Opt("--name", longest=100_000, help="Display name.")]


def request(
    here: Here,
    entrypoint: Words,
    *,
    cluster: Annotated[
        str | None,
        Opt(
            "-c", "--cluster", metavar="ID", complete="clusters",
            help="Cluster to submit to (default: VCTL_CLUSTER).",
        ),
    ] = None,
    virtual_cluster: Annotated[
        Mapping[str, Any] | Written | None,
        Opt(
            "--virtual-cluster", metavar="JSON|@FILE|-", reads="cluster spec",
            help="Resources to reserve for the job, all or none: a cluster spec.",
        ),
    ] = None,
    num_cpus: Annotated[
        float | str | None, Opt("-n", "--num-cpus", metavar="N", reads="text", help="CPUs of each reserved node.")
    ] = None,
    num_gpus: Annotated[
        float | str | None, Opt("-g", "--num-gpus", metavar="N", reads="text", help="GPUs of each reserved node.")
    ] = None,
    memory: Annotated[
        float | str | None,
        Opt("--memory", metavar="SIZE", reads="text", help="Memory of each reserved node, such as 8GiB."),
    ] = None,
    nodes: Annotated[
        int | None, Opt("--nodes", least=1, most=10_000, help="Number of reserved nodes, each on its own machine (1).")
    ] = None,
    entrypoint_num_cpus: Annotated[
        float | str | None,
        Opt("--entrypoint-num-cpus", metavar="N", reads="text", help="CPUs of the command itself."),
    ] = None,
    entrypoint_num_gpus: Annotated[
        float | str | None,
        Opt("--entrypoint-num-gpus", metavar="N", reads="text", help="GPUs of the command itself."),
    ] = None,
    entrypoint_memory: Annotated[
        float | str | None,
        Opt("--entrypoint-memory", metavar="SIZE", reads="text", help="Memory of the command itself."),
    ] = None,
    entrypoint_resources: Annotated[
        Document,
        Opt("--entrypoint-resources", metavar="JSON", reads="resources", help="Other resources of the command itself."),
    ] = None,
    priority: Annotated[
        int, Opt("--priority", least=LEAST, most=MOST, help="Higher priorities go first (0).")
    ] = 0,
    time_limit_s: Annotated[
        float | None,
        Opt(
            "--time-limit", metavar="TIME", reads="positive duration", least=0, most=1e10,
            help="End the job after 90s, 1h30m or 01:30:00.",
        ),
    ] = None,
    name: Title = "",
    submission_id: Annotated[str | None, Opt("--submission-id", metavar="ID", help="Choose the id.")] = None,
    env: Variables = NONE,
    environment: Environment = None,
    clean_env: Annotated[
        bool, Opt("--clean-env", help="Do not pass this environment on to the job.")
    ] = False,
    cwd: Directory = None,
    metadata: Annotated[Mapping[str, str], Opt(help="Metadata stored with the job.")] = NONE,
    labels: Annotated[Mapping[str, str], Opt(help="Labels stored with the job.")] = NONE,
    grace_s: Grace = None,
    hold: Annotated[bool, Opt("--hold", help="Do not start it before `vctl job release`.")] = False,
    begin_at: Annotated[
        float | None,
        Opt(
            "--begin", metavar="TIME", reads="begin", least=0, most=9e9,
            help="Earliest start: 1h from now, the next 16:00, or 2030-01-31T08:00.",
        ),
    ] = None,
    array: Annotated[
        str | None,
        Opt(
            "--array", metavar="INDEXES",
            help="One job for each index, such as 0-99 or 0-99:2, with VCTL_ARRAY_INDEX; 0-99%8 runs 8 at a time.",
        ),
    ] = None,
    after: Annotated[
        Sequence[str],
        Opt(
            "--after", metavar="COND:ID", complete="after",
            help="Start only after that job succeeded (ok:ID), ended (any:ID) or failed (notok:ID); repeatable.",
        ),
    ] = (),
    per_node: Annotated[
        bool, Opt("--per-node", help="Run the command in every virtual node, with RANK and WORLD_SIZE.")
    ] = False,
    label: Annotated[
        bool, Opt("--label", help="With --per-node: put the rank before each line of output.")
    ] = False,
    ray: Annotated[
        bool, Opt("--ray", help="Start a Ray cluster for the job alone, of its virtual nodes; needs Ray.")
    ] = False,
    ray_dashboard: Annotated[
        bool, Opt("--ray-dashboard", help="--ray with the dashboard, which ray.util.state needs.")
    ] = False,
    max_retries: Annotated[
        int,
        Opt(
            "--max-retries", least=0, most=1000,
            help="Number of retries after failures that --retry-on names (0).",
        ),
    ] = 0,
    retry_on: Annotated[
        Sequence[str],
        Opt(
            "--retry-on", metavar="CAUSE,…", reads="words", complete="causes",
            help="Failures to retry: NodeFailed (default), ExitCode, LaunchFailed, OutOfMemory.",
        ),
    ] = NODE_FAILED,
    backoff_s: Annotated[
        float,
        Opt(
            "--backoff", metavar="TIME", reads="duration", least=0, most=1e10,
            help="Wait before the first retry, doubled each time (1s).",
        ),
    ] = 1,
    signal: Annotated[
        str | None,
        Opt(
            "--signal", metavar="SIG@TIME",
            help="Signal sent this many seconds before the time limit, and with the notice of a preemption: USR1@60.",
        ),
    ] = None,
    job_scope: Annotated[
        str, Opt(choices=("own", "all"), help="What the job may change: what is its own, or all.")
    ] = "own",
) -> "tuple[JobRequest, Mapping[str, str]]":  # fmt: skip
    """The request of a submit, and the environment of the submitter."""
    from vctl.spec import options
    from vctl.spec.cluster_spec import parse_cluster_spec

    document = document_of(virtual_cluster)
    short = spec.job_request.shortcut_spec(
        num_cpus, num_gpus, memory, nodes, units=here.units, beside_spec=document is not None
    )
    return spec.job_request.JobRequest(
        argv=tuple(entrypoint),
        cluster=cluster,
        spec=short if document is None else parse_cluster_spec(document, units=here.units, camel_case=True),
        entry=spec.job_request.entry_request(
            entrypoint_num_cpus,
            entrypoint_num_gpus,
            entrypoint_memory,
            entrypoint_resources,
            units=here.units,
        ),
        priority=priority,
        time_limit_s=time_limit_s,
        name=name,
        submission_id=submission_id,
        env=env,
        clean_env=clean_env,
        cwd=cwd,
        metadata=metadata,
        labels=labels,
        grace_s=here.config.get("kill_grace") if grace_s is None else grace_s,
        hold=hold,
        begin_at=begin_at,
        array=None if array is None else options.parse_array(array, param("array")),
        after=tuple(options.parse_dependency(text, param("after")) for text in after),
        per_node=per_node,
        label=label,
        ray=spec.job_request.JobRay("dashboard" if ray_dashboard else "plain" if ray else ""),
        max_retries=max_retries,
        retry_on=tuple(retry_on),
        backoff_s=backoff_s,
        signal=None if signal is None else options.parse_warning_signal(signal, param("signal")),
        job_scope=job_scope,
    ), here.surroundings(environment)


@operation("job submit", "POST /jobs")
@asks(request)
def submit(here: Here, asked: "tuple[JobRequest, Mapping[str, str]]") -> "JobForm":
    """Queue a job, durably."""
    return ops.submitting.submit(here.store, asked[0], environment=asked[1])


MOST_LINES = 100_000
EXAMPLE = '{"entrypoint": ["python", "train.py"]}'


@operation("job submit-many", "POST /jobs:batch")
def submit_many(
    here: Here,
    jobs: Annotated[
        Sequence[Mapping[str, Any]],
        Arg("JOB", longest=MOST_LINES, each=submit, help="The jobs, each with the fields of a submit."),
    ],
    *,
    environment: Environment = None,
    cwd: Directory = None,
) -> "SubmittedForm":
    """Queue many jobs, durably: all of them or none.

    ``after`` may name the ids of earlier lines. ``environment`` and ``cwd`` are for the jobs that have none of their
    own. An error names the line, counted from 1.
    """
    if not jobs:
        raise spec.fields.refuse(param("jobs"), "the list is empty", f"write at least one job: [{EXAMPLE}]")
    around = dict(here.surroundings(environment))  # os.environ decodes each name at each reading
    own = Here(here.store, here.config, lambda given: around if given is None else here.surroundings(given))
    requests: list[tuple[JobRequest, Mapping[str, str]]] = []
    fields = {param.wire: param for param in submit.params}
    for line, document in enumerate(jobs, 1):
        with ops.batches.of_line(line):
            values = {"cwd": cwd, **values_of(fields, document, "a job", EXAMPLE)}
            requests.append(request(own, values.pop("entrypoint"), **values))
    return {"submission_ids": ops.batches.queue(here.store, requests)}


@operation("job dry-run", "POST /jobs/dry-run")
@asks(request)
def dry_run(here: Here, asked: "tuple[JobRequest, Mapping[str, str]]") -> "DryRun":
    """The outcome of a submit; nothing is changed."""
    return ops.why.dry_run(here.store, asked[0], environment=asked[1])


# ---- submitted jobs ----


@operation("job list", "GET /jobs", items="JobList")
def list_jobs(
    here: Here,
    *,
    filters: Filters = (),
    all: Annotated[bool, Opt(help="Include finished jobs.")] = True,  # noqa: A002  # the name on the wire
    limit: Limit = None,
    cluster: Annotated[str | None, Opt(help="Only jobs of this cluster.")] = None,
    members: Annotated[bool, Opt(help="List array members one by one.")] = True,
) -> "tuple[Sequence[JobForm], int]":
    """Jobs, newest first."""
    return ops.jobs.list_jobs(
        here.store, all=all, filters=filters, limit=limit, cluster=cluster, members=members
    )


@operation("job get", "GET /jobs/{job}")
def get_job(here: Here, ref: Job) -> "JobForm":
    """Show one job: its state, the reason it waits, the resources it holds."""
    return ops.jobs.get_job(here.store, str(ref))


@operation("job delete", "DELETE /jobs/{job}")
def delete_one(here: Here, ref: Job) -> "JobForm":
    """Delete a finished job and its log."""
    return ops.jobs.delete(here.store, str(ref))[0]


@operation("job delete-all", "POST /jobs/delete", items="JobList")
def delete(here: Here, jobs: Jobs) -> "list[JobForm]":
    """Delete several finished jobs: all of them or none."""
    return ops.jobs.delete(here.store, *jobs)


@operation("job stop", "POST /jobs/{job}/stop")
def stop(
    here: Here,
    ref: Job,
    *,
    grace_s: Grace = None,
    reason: Annotated[str | None, Opt(longest=1000, help="It becomes the message of the job.")] = None,
) -> "JobForm":
    """Request the end of a job; its status shows when it has ended."""
    return ops.jobs.stop(here.store, str(ref), grace_s=grace_s, message=reason)


@operation("job rerun", "POST /jobs/{job}/rerun")
def rerun(here: Here, ref: Job) -> "JobForm":
    """Submit a job again under a new id."""
    return ops.submitting.rerun(here.store, str(ref))


@operation("job hold", "POST /jobs/{job}/hold")
def hold(here: Here, ref: Job) -> "JobForm":
    """Keep a pending job from starting."""
    return ops.job_edits.hold(here.store, str(ref))


@operation("job release", "POST /jobs/{job}/release")
def release(here: Here, ref: Job) -> "JobForm":
    """Let a held job go back to its place in the queue."""
    return ops.job_edits.release(here.store, str(ref))


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
    wanted = {"priority": priority, "name": name, "time_limit_s": time_limit_s}
    changes = {field: value for field, value in wanted.items() if value is not NOT_GIVEN}
    return ops.job_edits.edit(here.store, str(ref), changes)


def edited(
    priority: int | None, name: str | None, time_limit: float | str | None, path: str
) -> dict[str, Any]:
    """The changes of an edit. None leaves a field unchanged; ``none`` as time limit means no limit."""
    given = {"priority": priority, "name": name}
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    if time_limit in NO_LIMIT:
        changes["time_limit_s"] = None
    elif time_limit is not None:
        try:
            changes["time_limit_s"] = spec.quantities.parse_duration(time_limit, path, positive=True)
        except BadSpec as error:
            raise BadSpec(
                error.problem, fix=f"{error.fix}; none for no limit", details=error.details
            ) from None
    return changes


@operation("why", "GET /jobs/{job}/why")
def why(
    here: Here,
    ref: Annotated[
        str | int, Arg("JOB", help="Submission id, number, unique prefix, last, or a task.", complete="jobs")
    ],
) -> "Why":
    """Explain why a job or a task waits, and which changes would start it now.

    Shows the jobs ahead in the queue, the resources that each node lacks and their holders, and the smallest changes
    that would start the job now. Each change was tested with the scheduler on a copy of the state.
    """
    return ops.why.why(here.store, str(ref))
