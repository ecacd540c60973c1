"""``vctl job``: watch and stop jobs."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

from vctl.cli import output
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, CHOICES, CHOSEN_BY, LISTS, READS, Grace, WithProgress
from vctl.cli.declare import command
from vctl.cli.output import Answer, Data, listing, single
from vctl.operations.declare import Arg, Opt

JobRef = Annotated[str, Arg("JOB", help="Submission id, number, unique prefix, or last.", complete="jobs")]
JobRefs = Annotated[
    list[str], Arg("JOB", help="Submission ids, numbers, unique prefixes, or last.", complete="jobs")
]


@command(
    "job list",
    "vctl job list",
    "vctl job list -a --filter status=FAILED -o json",
    "vctl job list --user ana --state FAILED,STOPPED --since 24h",
    common=(*CHOICES, *LISTS),
)
def list_(
    call: Call,
    all_: Annotated[bool, Opt("-a", "--all", help="Include finished ones (JSON always has them).")] = False,
    cluster: Annotated[
        str | None,
        Opt("-c", "--cluster", metavar="ID", complete="clusters", help="Only jobs of this cluster."),
    ] = None,
    members: Annotated[
        bool, Opt("--members", help="List array members one by one (JSON always does).")
    ] = False,
) -> Answer:
    """List jobs, newest first; an array is one line."""
    from vctl.cli.columns import JOBS
    from vctl.ops import jobs

    filtered = bool(call.filters)
    chosen = call.choose(**CHOSEN_BY["jobs"])
    over_too = all_ or filtered or chosen or call.output not in ("table", "name")
    within = call.cluster(cluster)
    items, total = jobs.list_jobs(
        call.store, all=over_too, filters=call.filters, limit=call.limit, cluster=within,
        members=members or bool(call.filters) or call.output != "table",
    )  # fmt: skip
    none = "no jobs" if over_too else "no jobs are waiting or running; -a shows finished ones"
    return listing("JobList", items, total, "submission_id", JOBS, none)


@command("job status", "vctl job status last", "vctl job status job-5f2c -o json", common=READS)
def status(call: Call, job: JobRef) -> Answer:
    """Show one job: its state, the reason it waits, the resources it holds."""
    from vctl.ops import jobs

    data = jobs.get_job(call.store, job)
    return single(data, data["submission_id"])


@command("job logs", "vctl job logs last", "vctl job logs --follow job-5f2c", common=CHANGES)
def logs(
    call: Call,
    job: JobRef,
    follow: Annotated[
        bool, Opt("-f", "--follow", help="Follow the output until the job ends, and return its exit code.")
    ] = False,
    tail: Annotated[int | None, Opt("-n", "--tail", help="Only the last N lines.")] = None,
    progress: WithProgress = False,
) -> int:
    """Print the output of a job."""
    from vctl.ops import jobs

    if follow:
        from vctl.cli import waiting

        return waiting.follow_job(call, jobs.get_job(call.store, job), progress=progress)
    written = False
    for block in jobs.log_blocks(call.store, job, tail=tail):
        written = written or bool(block)
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()
    if not written:
        call.note(_why_silent(jobs.get_job(call.store, job)))
    return 0


def _why_silent(job: Data) -> str | None:
    """Why a job that has not started has no output."""
    if job["status"] != "PENDING":
        return None
    why = job["message"] or job["state_reason"]
    return f"job {job['submission_id']} has not started, so it has no output: {why}; vctl why {job['submission_id']}"


@command("job stop", "vctl job stop last", "vctl job stop train-1 train-2 --grace 30s", common=CHANGES)
def stop(
    call: Call,
    jobs_: JobRefs,
    grace: Grace = None,
    no_wait: Annotated[bool, Opt("--no-wait", help="Return before the processes have ended.")] = False,
) -> Answer:
    """Stop jobs: SIGTERM to every process, and SIGKILL after the grace period."""
    from vctl.ops import jobs
    from vctl.spec.quantities import parse_duration

    grace_s = None if grace is None else parse_duration(grace, "--grace")
    names = [jobs.get_job(call.store, ref)["submission_id"] for ref in jobs_]  # a mistake stops none of them
    stopped = [jobs.stop(call.store, name, grace_s=grace_s) for name in names]
    running = [job["submission_id"] for job in stopped if job["status"] == "RUNNING"]
    if running and not no_wait:
        from vctl.cli import waiting

        waiting.wait_for(call, waiting.JOBS, running, timeout_s=None)
        stopped = [jobs.get_job(call.store, job["submission_id"]) for job in stopped]
    elif running:
        call.warn_if_nothing_schedules()
    return each(stopped, lambda job: f"job {job['submission_id']} is {_now(job)}")


def _now(job: Data) -> str:
    return "stopping" if job["status"] == "RUNNING" else str(job["status"])


@command("job delete", "vctl job delete train-1", common=CHANGES)
def delete(
    call: Call,
    jobs_: JobRefs,
) -> Answer:
    """Delete finished jobs and their logs."""
    from vctl.ops import jobs

    return each(jobs.delete(call.store, *jobs_), lambda job: f"job {job['submission_id']} deleted")


def each(items: Sequence[Data], sentence: Callable[[Data], str], *, code: int = 0) -> Answer:
    """One job: itself. Several: a list."""
    return output.each("JobList", "submission_id", items, sentence, code=code)


@command("job wait", "vctl job wait last", "vctl job wait train-1 train-2 --timeout 1h", common=CHANGES)
def wait(
    call: Call,
    jobs_: JobRefs,
    timeout: Annotated[
        str | None, Opt("--timeout", metavar="TIME", help="Give up after this time (exit 7).")
    ] = None,
    progress: WithProgress = False,
) -> Answer | int:
    """Wait until jobs end, and exit with the first exit code that is not 0."""
    from vctl.cli import waiting
    from vctl.ops import jobs
    from vctl.spec.quantities import parse_duration

    timeout_s = None if timeout is None else parse_duration(timeout, "--timeout")
    names = [jobs.get_job(call.store, ref)["submission_id"] for ref in jobs_]
    code = waiting.wait_for(call, waiting.JOBS, names, timeout_s=timeout_s, progress=progress)
    if call.asked_output is None:
        return code
    over = [jobs.get_job(call.store, ref) for ref in jobs_]
    return each(over, lambda job: f"{job['submission_id']} {_now(job)}", code=code)
