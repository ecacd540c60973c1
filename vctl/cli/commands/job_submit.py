"""``vctl job submit`` with all options of a job, ``vctl job rerun``, and ``vctl attach``."""

from typing import Annotated, Any

from vctl import cli, operations, ops, spec
from vctl.cli import output
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, NO_LOCAL_NODE, WithProgress
from vctl.cli.declare import command
from vctl.cli.output import Answer, done, single
from vctl.core import jobs as jb
from vctl.errors import BadSpec, VctlError
from vctl.operations import jobs
from vctl.spec.params import Arg, Given, Opt, Together

NoWait = Annotated[
    bool, Opt("-d", "--detach", "--no-wait", waits=False, help="Print the submission id and return.")
]
StopOnInterrupt = Annotated[
    bool, Opt("--stop-on-interrupt", help="Ctrl-C stops the job instead of detaching from it.")
]


@command(
    "job submit",
    "vctl job submit -- python train.py",
    "vctl job submit --num-cpus 4 --num-gpus 1 --time-limit 1h30m --no-wait -- python train.py --epochs 3",
    'vctl job submit -c team-a --virtual-cluster \'{"fixed_size_nodes": [{"nodes": [{"resources": {"GPU": 1}}'
    ', {"resources": {"GPU": 1}}], "scheduling_policy": "STRICT_SPREAD"}]}\' -- ./run.sh',
    "vctl job submit --from jobs.jsonl --no-wait",
    common=(NO_LOCAL_NODE, *CHANGES),
    own_words=True,
    waits=True,
)
def submit(
    call: Call,
    options: Annotated[Given, Together.of(jobs.submit, optional=("entrypoint",))],
    file: Annotated[
        str | None,
        Opt(
            "--from",
            metavar="FILE|-",
            complete="file",
            waits=True,
            help="Submit a job for each line, all or none: JSON with the fields of POST /api/v1/jobs.",
        ),
    ] = None,
    around: Annotated[Given, cli.submission.OPTIONS] = None,
    runtime_env_json: Annotated[
        str | None,
        Opt(
            "--runtime-env-json",
            metavar="JSON",
            help="Runtime environment in Ray's form: env_vars, working_dir; with --ray also pip, uv, py_modules.",
        ),
    ] = None,
    stdin: Annotated[
        bool,
        Opt("--stdin", lasts=True, help="Pass standard input on to the command; Ctrl-C then stops the job."),
    ] = False,
    terminal: Annotated[
        bool, Opt("--pty", lasts=True, help="Connect the command to this terminal, as `vctl shell` does.")
    ] = False,
    no_wait: NoWait = False,
    dry_run: Annotated[
        bool,
        Opt(
            "--dry-run",
            waits=False,
            help="Show whether and where the job would start, without submitting it.",
        ),
    ] = False,
    stop_on_interrupt: StopOnInterrupt = False,
    progress: WithProgress = False,
) -> Answer | int:
    """Run a command in a part of the cluster that is reserved for it.

    The job waits until everything it asks for is free at the same time, however long that takes. Its output
    is shown and its exit code is returned. Ctrl-C detaches: the job goes on. With --from, the other options hold for
    the lines without that field, no output is shown, and the exit code is the first one that is not 0.
    """
    values = dict(options or {})
    if file is None and "entrypoint" not in values:
        path = call.command.path
        raise BadSpec(
            "Missing argument 'CMD'",
            fix=f"for example `{call.command.examples[0]}`; see `vctl {path} --help`",
        )
    runtime_env = cli.submission.runtime_env_of(runtime_env_json)
    values |= cli.submission.collected(around, runtime_env)
    values |= cli.submission.for_ray(call, runtime_env, values)
    values["job_scope"] = call.config.get("job_scope")
    values.setdefault("grace_s", call.config.get("kill_grace"))
    values.setdefault("notify", call.config.get("notify"))
    if not call.current_job:
        values.setdefault("cluster", call.config.get("cluster"))
    call.note(cli.submission.small_amounts(call.written))
    if not call.is_remote:
        call.note(cli.submission.unknown_notice(values))
    if file is not None:
        unfit = {"CMD": "entrypoint" in values, "--dry-run": dry_run, "--stdin": stdin, "--pty": terminal}
        for option in (option for option, is_given in unfit.items() if is_given):
            raise BadSpec(
                f"{option}: it cannot be combined with --from", fix=f"leave out {option}, or --from"
            )
    if dry_run:
        data = jobs.dry_run(call.backend, **values)
        answer = single(data, data["verdict"], lambda screen: cli.why_view.draw_dry_run(screen, data))
        if data["launch_failure"] is not None:
            answer.code = data["launch_failure"]["exit_code"]
            cli.waiting.tell_shell_line(call, values["entrypoint"])
        return answer
    if not no_wait:
        call.require_scheduler()
    if file is not None:
        return _submit_lines(
            call, file, values, no_wait=no_wait, stop_on_interrupt=stop_on_interrupt, progress=progress
        )
    if stdin or terminal:
        return _attached(call, values, terminal=terminal, stdin=stdin, no_wait=no_wait, progress=progress)
    job = jobs.submit(call.backend, **values)
    call.note(cli.submission.unread_input())
    call.note(cli.submission.stopped_cluster(job))
    if no_wait:
        call.warn_if_nothing_schedules()
        return done(job, job["submission_id"], job["submission_id"])
    return cli.waiting.followed(
        call, cli.waiting.JOBS, job, progress=progress, stop_on_interrupt=stop_on_interrupt
    )


MOST_CLUSTERS = 10
"""The most clusters of which a batch says that they are stopped."""


def _submit_lines(
    call: Call, file: str, values: dict[str, Any], *, no_wait: bool, stop_on_interrupt: bool, progress: bool
) -> Answer | int:
    """Submit a job for each line of a file, which this process reads."""
    directory = values.pop("cwd", None)
    lines = [_with_options(line, values) for line in spec.source.read_lines(file, "a job", "--from")]
    try:
        submitted = jobs.submit_many(call.backend, lines, cwd=directory)
    except VctlError as error:
        if "line" in error.details:  # it is about a field, not about an option
            fields = {name: param.wire for param in jobs.submit.params for name in param.references}
            error.spelled(fields, for_good=True)
        raise
    names = submitted["submission_ids"]
    of_clusters = {line.get("cluster"): name for line, name in zip(lines, names, strict=True)}
    for name in list(of_clusters.values())[:MOST_CLUSTERS]:
        call.note(cli.submission.stopped_cluster(jobs.get_job(call.backend, name, forecast=False)))
    if no_wait:
        call.warn_if_nothing_schedules()
        answer = Answer(submitted, rows=[{"submission_id": name} for name in names], names=names)
        answer.sentences = names
        return answer
    return cli.waiting.all_followed(call, names, progress=progress, stop_on_interrupt=stop_on_interrupt)


def _with_options(line: Any, values: dict[str, Any]) -> Any:
    """The job of a line, with the options for the fields that it does not have, and for its variables and metadata."""
    if not isinstance(line, dict):
        return line
    both = {
        field: {**values.get(field, {}), **line[field]}
        for field in ("env", "metadata")
        if isinstance(line.get(field), dict)
    }
    return {**{field: default for field, default in values.items() if default is not None}, **line, **both}


@command(
    "job rerun",
    "vctl job rerun last",
    "vctl job rerun sweep --failed --time-limit 2h --no-wait",
    "vctl job rerun train-1 --memory 32GiB --env LR=0.01",
    common=(NO_LOCAL_NODE, *CHANGES),
    waits=True,
)
def rerun(
    call: Call,
    jobs_: jobs.Jobs,
    options: Annotated[Given, Together.of(jobs.rerun, but=("ref", "entrypoint"))],
    around: Annotated[Given, cli.submission.OPTIONS] = None,
    no_wait: NoWait = False,
    stop_on_interrupt: StopOnInterrupt = False,
    progress: WithProgress = False,
) -> Answer | int:
    """Submit jobs again under new ids; with --failed, what did not succeed, in place.

    The new job has the command, environment, directory, request, cluster, priority and rules of the old one, but no
    hold, begin time or dependencies. The options of a submit that are given here replace its own; variables and
    metadata are put on top of its own. With --failed, the members of an array that failed or were stopped run again
    under their own indices in the same array, and their logs go on.
    """
    values = {**(options or {}), **cli.submission.collected(around, {})}
    call.note(cli.submission.small_amounts(call.written))
    if not no_wait:
        call.require_scheduler()
    names = cli.matching.expanded(call, jobs_, jb.NOT_SUCCEEDED if values.get("failed") else ())
    again = [jobs.rerun(call.backend, name, **values) for name in names]
    submitted = [str(job["submission_id"]) for job in again]
    for note in {cli.submission.stopped_cluster(job): None for job in again}:
        call.note(note)
    if no_wait:
        call.warn_if_nothing_schedules()
        if len(again) == 1:
            return done(again[0], submitted[0], submitted[0])
        return output.each("JobList", "submission_id", again, lambda job: job["submission_id"])
    if len(again) == 1:
        return cli.waiting.followed(
            call, cli.waiting.JOBS, again[0], progress=progress, stop_on_interrupt=stop_on_interrupt
        )
    return cli.waiting.all_followed(call, submitted, progress=progress, stop_on_interrupt=stop_on_interrupt)


@command(
    "job edit",
    "vctl job edit train-1 --priority 10 --time-limit 2h",
    "vctl job edit train-1 --num-cpus 8 --env EPOCHS=3 -c team-a",
    "vctl job edit sweep --max-running 4 --time-limit none",
    common=CHANGES,
)
def edit(
    call: Call,
    options: Annotated[Given, Together.of(jobs.edit, but=("ref",))],
    jobs_: jobs.Jobs,
    around: Annotated[Given, cli.submission.OPTIONS] = None,
) -> Answer:
    """Change what waiting jobs ask for, or the time limit of running ones.

    A waiting job is judged with its new request as at its submit, and nothing changes if it is refused. none takes away
    what an option gave: a time limit, a begin time, dependencies. Of an array, what waits is changed.
    """
    values = {**(options or {}), **cli.submission.collected(around, {})}
    call.note(cli.submission.small_amounts(call.written))
    names = cli.matching.expanded(call, jobs_, (jb.PENDING, jb.RUNNING))
    edited = [jobs.edit(call.backend, name, **values) for name in names]
    return output.each("JobList", "submission_id", edited, lambda job: f"job {job['submission_id']} changed")


def _attached(
    call: Call, values: dict[str, Any], *, terminal: bool, stdin: bool, no_wait: bool, progress: bool
) -> Answer | int:
    """Submit with this terminal, or this standard input, for the command."""
    import os

    from vctl.core.values import replace
    from vctl.errors import NotPermitted

    option = "--pty" if terminal else "--stdin"
    if terminal and stdin:
        raise BadSpec("--stdin: a job with a terminal reads from that terminal", fix="leave out --stdin")
    if no_wait:
        raise BadSpec(
            f"{option}: it cannot be combined with --no-wait", fix=f"leave out --no-wait, or {option}"
        )
    if call.config.get("address"):
        raise NotPermitted(
            f"{call.command.path if call.command.path == 'shell' else option} works on the machine of the state"
            " directory, not through a server",
            fix="run it there" if terminal else "run it there, or let the command read a file",
        )
    if not terminal and os.isatty(0):
        raise BadSpec("--stdin: the standard input is a terminal", fix="use --pty, or `vctl shell`")
    from vctl.runtime.attach_socket import AttachSocket

    context = operations.declare.Context(call.store, call.config)
    request = jobs.JOB_FIELDS.read(context, values)
    environment = context.surroundings(None)

    with AttachSocket(call.home) as listener:
        attach = ("terminal" if terminal else "stdin", os.fspath(listener.path))
        job = ops.submitting.submit(call.store, replace(request, attach=attach), environment=environment)
        if terminal:
            return cli.attach.converse(call, listener, job["submission_id"])
        listener.hand_over_stdin()
        return cli.waiting.followed(call, cli.waiting.JOBS, job, progress=progress, stop_on_interrupt=True)


@command(
    "attach",
    "vctl attach last",
    "vctl attach train -- nvidia-smi",
    "vctl attach sweep_7 -- py-spy top --pid 4711",
    common=CHANGES,
    own_words=True,
    lasts=True,
)
def attach(
    call: Call,
    job: jobs.JobRef,
    words: Annotated[
        list[str] | None, Arg("CMD", help="A command and its arguments, after --.", complete="command")
    ] = None,
) -> int:
    """Open a shell beside a running job, or run a command there.

    It starts on the node of the job with its directory and the variables that its main process began with, and sees
    the devices of the job. It holds no resources of its own, and ends when the job ends. Without CMD it is the shell
    that the variable SHELL names. The exit code is that of the command.
    """
    import os

    from vctl.errors import NotPermitted

    if call.config.get("address"):
        raise NotPermitted(
            "attach works on the machine of the state directory, not through a server", fix="run it there"
        )
    call.require_scheduler()
    words = words[1:] if words and words[0] == "--" else words
    return cli.attach.beside(call, job, words or [os.environ.get("SHELL") or "/bin/sh"])
