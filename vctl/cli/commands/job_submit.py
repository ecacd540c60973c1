"""``vctl job submit``: all that may be said about a job."""

from typing import TYPE_CHECKING, Annotated

from vctl.cli.call import Call
from vctl.cli.common import CHANGES, NO_LOCAL_NODE, Grace, WithProgress
from vctl.cli.declare import command
from vctl.cli.output import Answer, Data, done, single
from vctl.operations import jobs
from vctl.operations.declare import Arg, Opt

if TYPE_CHECKING:
    from vctl.spec.job_request import JobRequest


@command(
    "job submit",
    "vctl job submit -- python train.py",
    "vctl job submit --num-cpus 4 --num-gpus 1 --time-limit 1h30m --no-wait -- python train.py --epochs 3",
    'vctl job submit -c team-a --virtual-cluster \'{"fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1}}'
    ', {"resources": {"GPU": 1}}], "scheduling_policy": "STRICT_SPREAD"}]}\' -- ./run.sh',
    common=(NO_LOCAL_NODE, *CHANGES),
    own_words=True,
)
def submit(
    call: Call,
    words: Annotated[
        list[str], Arg("CMD", help="The command and its arguments, after --.", complete="command")
    ],
    cluster: Annotated[
        str | None,
        Opt(
            "-c",
            "--cluster",
            metavar="ID",
            complete="clusters",
            help="Cluster to submit to (default: VCTL_CLUSTER).",
        ),
    ] = None,
    virtual_cluster: Annotated[
        str | None,
        Opt(
            "--virtual-cluster",
            metavar="JSON|@FILE|-",
            help="Resources to reserve for the job, all or none: a cluster spec.",
        ),
    ] = None,
    num_cpus: Annotated[
        str | None, Opt("-n", "--num-cpus", metavar="N", help="CPUs of each reserved node.")
    ] = None,
    num_gpus: Annotated[
        str | None, Opt("-g", "--num-gpus", metavar="N", help="GPUs of each reserved node.")
    ] = None,
    memory: Annotated[
        str | None, Opt("--memory", metavar="SIZE", help="Memory of each reserved node, such as 8GiB.")
    ] = None,
    nodes: Annotated[
        int | None, Opt("--nodes", help="Number of reserved nodes, each on its own machine (1).")
    ] = None,
    entrypoint_num_cpus: Annotated[
        str | None, Opt("--entrypoint-num-cpus", metavar="N", help="CPUs of the command itself.")
    ] = None,
    entrypoint_num_gpus: Annotated[
        str | None, Opt("--entrypoint-num-gpus", metavar="N", help="GPUs of the command itself.")
    ] = None,
    entrypoint_memory: Annotated[
        str | None, Opt("--entrypoint-memory", metavar="SIZE", help="Memory of the command itself.")
    ] = None,
    entrypoint_resources: Annotated[
        str | None,
        Opt("--entrypoint-resources", metavar="JSON", help="Other resources of the command itself."),
    ] = None,
    priority: Annotated[int, Opt("--priority", help="Higher priorities go first (0).")] = 0,
    time_limit: Annotated[
        str | None, Opt("--time-limit", metavar="TIME", help="End the job after 90s, 1h30m or 01:30:00.")
    ] = None,
    name: Annotated[str, Opt("--name", help="Display name.")] = "",
    submission_id: Annotated[str | None, Opt("--submission-id", metavar="ID", help="Choose the id.")] = None,
    env: Annotated[
        list[str] | None, Opt("--env", metavar="K=V", help="Set a variable for the job; repeatable.")
    ] = None,
    env_file: Annotated[
        str | None, Opt("--env-file", metavar="FILE", complete="file", help="Read variables from K=V lines.")
    ] = None,
    clean_env: Annotated[
        bool, Opt("--clean-env", help="Do not pass this environment on to the job.")
    ] = False,
    working_dir: Annotated[
        str | None,
        Opt(
            "--working-dir",
            "--cwd",
            metavar="DIR",
            complete="dir",
            help="Directory in which the command starts.",
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None, Opt("--metadata", metavar="K=V", help="Metadata stored with the job; repeatable.")
    ] = None,
    metadata_json: Annotated[
        str | None, Opt("--metadata-json", metavar="JSON", help="Metadata as a JSON map.")
    ] = None,
    runtime_env_json: Annotated[
        str | None,
        Opt(
            "--runtime-env-json",
            metavar="JSON",
            help="Runtime environment in Ray's form; env_vars and working_dir are used.",
        ),
    ] = None,
    grace: Grace = None,
    hold: Annotated[bool, Opt("--hold", help="Do not start it before `vctl job release`.")] = False,
    begin: Annotated[
        str | None, Opt("--begin", metavar="TIME", help="Earliest start: 2030-01-31T08:00, or 1h from now.")
    ] = None,
    array: Annotated[
        str | None,
        Opt(
            "--array",
            metavar="0-99[:STEP][%N]",
            help="One job for each index, at most N at once; each sees VCTL_ARRAY_INDEX.",
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        Opt(
            "--after",
            metavar="ok:ID|any:ID|notok:ID",
            help="Start only after that job succeeded (ok), ended (any) or failed (notok); repeatable.",
        ),
    ] = None,
    per_node: Annotated[
        bool, Opt("--per-node", help="Run the command in every virtual node, with RANK and WORLD_SIZE.")
    ] = False,
    label: Annotated[
        bool, Opt("--label", help="With --per-node: put the rank before each line of output.")
    ] = False,
    stdin: Annotated[
        bool, Opt("--stdin", help="Pass standard input on to the command; Ctrl-C then stops the job.")
    ] = False,
    terminal: Annotated[
        bool, Opt("--pty", help="Connect the command to this terminal, as `vctl shell` does.")
    ] = False,
    max_retries: Annotated[
        int, Opt("--max-retries", help="Number of retries after failures that --retry-on names (0).")
    ] = 0,
    retry_on: Annotated[
        str | None,
        Opt(
            "--retry-on",
            metavar="CAUSE,…",
            help="Failures to retry: NodeFailed (default), ExitCode, LaunchFailed, OutOfMemory.",
        ),
    ] = None,
    backoff: Annotated[
        str, Opt("--backoff", metavar="TIME", help="Wait before the first retry, doubled each time (1s).")
    ] = "1s",
    signal: Annotated[
        str | None,
        Opt(
            "--signal",
            metavar="SIG@TIME",
            help="Signal sent this many seconds before the time limit and before preemption: USR1@60.",
        ),
    ] = None,
    no_wait: Annotated[
        bool, Opt("-d", "--detach", "--no-wait", help="Print the submission id and return.")
    ] = False,
    dry_run: Annotated[
        bool, Opt("--dry-run", help="Show whether and where the job would start, without submitting it.")
    ] = False,
    stop_on_interrupt: Annotated[
        bool, Opt("--stop-on-interrupt", help="Ctrl-C stops the job instead of detaching from it.")
    ] = False,
    progress: WithProgress = False,
) -> Answer | int:
    """Run a command in a part of the cluster that is reserved for it.

    The job waits until everything it asks for is free at the same time, however long that takes. Its output
    is shown and its exit code is returned. Ctrl-C detaches: the job goes on.
    """
    from vctl.cli import submission
    from vctl.spec.job_request import JobRequest, entry_request
    from vctl.spec.quantities import parse_duration

    units = call.config.get("unit_resources")
    variables, directory = submission.surroundings(call, env, env_file, working_dir, runtime_env_json)
    request = JobRequest(
        argv=tuple(words),
        cluster=cluster or (None if call.job_here else call.config.get("cluster")),
        spec=submission.reservation(virtual_cluster, num_cpus, num_gpus, memory, nodes, units),
        entry=entry_request(
            entrypoint_num_cpus, entrypoint_num_gpus, entrypoint_memory, entrypoint_resources, units=units
        ),
        priority=priority,
        time_limit_s=None
        if time_limit is None
        else parse_duration(time_limit, "--time-limit", positive=True),
        name=name,
        submission_id=submission_id,
        env=variables,
        clean_env=clean_env,
        cwd=directory,
        metadata=submission.metadata(metadata, metadata_json),
        grace_s=call.config.get("kill_grace") if grace is None else parse_duration(grace, "--grace"),
        hold=hold,
        begin_at=submission.begin_at(begin),
        signal=submission.warning(signal),
        after=submission.dependencies(after),
        array=submission.array(array),
        per_node=per_node,
        max_retries=max_retries,
        retry_on=submission.causes(retry_on),
        backoff_s=parse_duration(backoff, "--backoff"),
        job_scope=call.config.get("job_scope"),
        label=label,
    )
    if dry_run:
        return _dry_run(call, request)
    if not no_wait:
        call.require_scheduler()
    if stdin or terminal:
        return _attached(call, request, terminal=terminal, no_wait=no_wait, stdin=stdin)
    job = jobs.submit(call.backend, request)
    if virtual_cluster != "-":
        call.note(submission.unread_input())
    if no_wait:
        call.warn_if_nothing_schedules()
        return done(job, job["submission_id"], job["submission_id"])
    return _follow(call, job, progress=progress, stop_on_interrupt=stop_on_interrupt)


@command(
    "job rerun",
    "vctl job rerun last",
    "vctl job rerun train-1 --no-wait",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def rerun(
    call: Call,
    job: jobs.JobRef,
    no_wait: Annotated[
        bool, Opt("-d", "--detach", "--no-wait", help="Print the submission id and return.")
    ] = False,
    stop_on_interrupt: Annotated[
        bool, Opt("--stop-on-interrupt", help="Ctrl-C stops the job instead of detaching from it.")
    ] = False,
    progress: WithProgress = False,
) -> Answer | int:
    """Submit a job again under a new id.

    The new job has the command, environment, directory, request, cluster, priority and rules of the old one, but no
    hold, begin time or dependencies.
    """
    if not no_wait:
        call.require_scheduler()
    again = jobs.rerun(call.backend, job)
    if no_wait:
        call.warn_if_nothing_schedules()
        return done(again, again["submission_id"], again["submission_id"])
    return _follow(call, again, progress=progress, stop_on_interrupt=stop_on_interrupt)


def _attached(
    call: Call, request: "JobRequest", *, terminal: bool, stdin: bool, no_wait: bool
) -> Answer | int:
    """Submit with this terminal, or this standard input, for the command."""
    import os
    from dataclasses import replace

    from vctl.errors import BadSpec, NotPermitted

    option = "--pty" if terminal else "--stdin"
    if terminal and stdin:
        raise BadSpec("--stdin: a job with a terminal reads from that terminal", fix="leave out --stdin")
    if no_wait:
        raise BadSpec(
            f"{option}: it cannot be combined with --no-wait", fix=f"leave out --no-wait, or {option}"
        )
    if call.config.get("address"):
        raise NotPermitted(
            f"{option} works on the machine of the state directory, not through a server",
            fix="run it there, or let the command read a file",
        )
    if not terminal and os.isatty(0):
        raise BadSpec("--stdin: the standard input is a terminal", fix="use --pty, or `vctl shell`")
    from vctl.cli.attach import converse
    from vctl.runtime.door import Door

    with Door(call.home) as door:
        attach = ("terminal" if terminal else "stdin", os.fspath(door.path))
        job = jobs.submit(call.backend, replace(request, attach=attach))
        if terminal:
            return converse(call, door, job["submission_id"])
        door.hand_over_stdin()
        return _follow(call, job, progress=False, stop_on_interrupt=True)


def _dry_run(call: Call, request: "JobRequest") -> Answer:
    """What the submit would lead to; nothing is changed."""
    from vctl.cli.why_view import draw_dry_run

    data = jobs.dry_run(call.backend, request)
    return single(data, data["verdict"], lambda screen: draw_dry_run(screen, data))


def _follow(call: Call, job: Data, *, progress: bool, stop_on_interrupt: bool) -> Answer | int:
    """Show the job's output, or with ``-o`` nothing but the job itself once it is over."""
    from vctl.cli import waiting

    if call.asked_output in (None, "table"):
        return waiting.follow_job(call, job, progress=progress, stop_on_interrupt=stop_on_interrupt)
    submission_id = job["submission_id"]
    code = waiting.wait_for(call, waiting.JOBS, [submission_id], timeout_s=None, progress=progress)
    return single(jobs.get_job(call.backend, submission_id), submission_id, code=code)
