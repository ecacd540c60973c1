"""``vctl job``: watch and stop jobs."""

from collections.abc import Callable, Sequence
from typing import Annotated

from vctl import cli
from vctl.cli import output
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, CHOICES, LISTS, READS, Follow, Raw, Tail, Timeout, WithProgress
from vctl.cli.declare import COMMANDS, command, shows
from vctl.cli.output import Answer, Data, listing, single, single_by
from vctl.core import jobs as jb
from vctl.operations import jobs
from vctl.spec.params import Arg, Opt

WAITING, ACTIVE = (jb.PENDING,), (jb.PENDING, jb.RUNNING)
"""The states of the jobs that a pattern names, where a command can do nothing with others."""
Named = Annotated[
    Sequence[str] | None,
    Arg(
        "JOB",
        longest=1000,
        help="Only these: ids, patterns, ranges of members; an array stands for its members.",
        complete="jobs",
    ),
]


@command(
    "job list",
    "vctl job list",
    "vctl job list -a --filter status=FAILED -o json",
    "vctl job list --user ana --state FAILED,STOPPED --since 24h",
    "vctl job list sweep",
    common=(*CHOICES, *LISTS),
)
def list_(
    call: Call,
    named: Named = None,
    all_: Annotated[bool, Opt("-a", "--all", help="Include finished ones (JSON always has them).")] = False,
    cluster: Annotated[
        str | None,
        Opt("-c", "--cluster", metavar="ID", complete="clusters", help="Only jobs of this cluster."),
    ] = None,
    members: Annotated[
        bool, Opt("--members", help="List array members one by one (JSON always does).")
    ] = False,
) -> Answer:
    """List jobs: running ones first, then the queue; an array is one line.

    The table shows finished jobs last, with -a. Other forms have all jobs, the newest first. With ids, patterns or
    ranges only these, finished or not; of an array its members.
    """
    over_too = call.over_too("jobs", requested=all_ or bool(named))
    within = call.cluster(cluster)
    members = members or bool(call.filters) or bool(named) or call.output != "table"
    items, total = jobs.list_jobs(
        call.backend,
        all=over_too,
        filters=call.filters,
        limit=call.limit,
        cluster=within,
        members=members,
        forecast=call.has_place_for(cli.columns.START.at),
        by_turn=call.for_people and not (call.sort or named),
        named=named or (),
    )
    none = "no jobs" if over_too else "no jobs are waiting or running; -a shows finished ones"
    form = "JobForm" if members else "ArrayForm"
    return listing("JobList", items, total, "submission_id", cli.columns.JOBS, none, form)


shows(
    jobs.get_job, single_by("submission_id"),
    "vctl job status last", "vctl job status job-5f2c -o json", common=READS, path="job status",
)  # fmt: skip


@command(
    "job logs", "vctl job logs last", "vctl job logs --follow job-5f2c", "vctl job logs sweep", common=CHANGES
)
def logs(
    call: Call,
    job: jobs.JobRef,
    follow: Follow = False,
    tail: Tail = None,
    raw: Raw = False,
    progress: WithProgress = False,
) -> int:
    """Print the output of a job.

    That of an array is the output of its members, with the index of the member before each line.
    """
    return cli.waiting.print_log(
        call, cli.waiting.JOBS, job, follows=follow, tail=tail, progress=progress, raw=raw
    )


@command(
    "job stop",
    "vctl job stop last",
    "vctl job stop train-1 train-2 --grace 30s",
    "vctl job stop 'sweep_[2-4]'",
    common=CHANGES,
    waits=True,
)
def stop(
    call: Call,
    jobs_: jobs.Jobs,
    grace_s: jobs.Grace = None,
    no_wait: Annotated[
        bool, Opt("--no-wait", waits=False, help="Return before the processes have ended.")
    ] = False,
) -> Answer:
    """Stop jobs: SIGTERM to every process, and SIGKILL after the grace period."""
    # an unknown id stops none of them, and a job that is named twice is stopped once
    wanted = cli.matching.expanded(call, jobs_, ACTIVE)
    targets = [jobs.get_job(call.backend, ref, forecast=False) for ref in wanted]
    names = dict.fromkeys(job["submission_id"] for job in targets)
    if not no_wait and any(job["status"] == "RUNNING" for job in targets):
        call.require_scheduler()
    stopped = [jobs.stop(call.backend, name, grace_s=grace_s) for name in names]
    running = [job["submission_id"] for job in stopped if job["status"] == "RUNNING"]
    if running and not no_wait:
        for name in running:
            cli.waiting.warn_of_itself(call, name)
        cli.waiting.wait_for(call, cli.waiting.JOBS, running, timeout_s=None)
        stopped = [jobs.get_job(call.backend, job["submission_id"]) for job in stopped]
    elif running:
        call.warn_if_nothing_schedules()
    states = {"RUNNING": "stopping"}
    return each(
        stopped, lambda job: f"job {job['submission_id']} is {states.get(job['status'], job['status'])}"
    )


@command("job delete", "vctl job delete train-1", common=CHANGES)
def delete(call: Call, jobs_: jobs.Jobs) -> Answer:
    """Delete finished jobs and their logs."""
    return each(jobs.delete(call.backend, jobs_), lambda job: f"job {job['submission_id']} deleted")


def each(items: Sequence[Data], sentence: Callable[[Data], str]) -> Answer:
    """The answer about one job, or about several jobs as a list."""
    return output.each("JobList", "submission_id", items, sentence)


@command(
    "job wait",
    "vctl job wait last",
    "vctl job wait train-1 train-2 --timeout 1h",
    "vctl job wait --any sweep",
    common=CHANGES,
    waits=True,
)
def wait(
    call: Call,
    jobs_: jobs.Jobs,
    timeout_s: Timeout = None,
    any_: Annotated[
        bool, Opt("--any", help="Wait for the first that ends, also of an array; its id is printed.")
    ] = False,
    progress: WithProgress = False,
) -> Answer | int:
    """Wait until jobs end, and exit with the first exit code that is not 0.

    Of an array it tells which members did not succeed, and why.
    """
    return cli.waiting.waited(
        call, cli.waiting.JOBS, jobs_, timeout_s=timeout_s, progress=progress, first=any_
    )


@command("job hold", "vctl job hold train-1", common=CHANGES)
def hold(call: Call, jobs_: jobs.Jobs) -> Answer:
    """Keep pending jobs from starting until they are released."""
    held = [jobs.hold(call.backend, ref) for ref in cli.matching.expanded(call, jobs_, WAITING)]
    return each(held, lambda job: f"job {job['submission_id']} is held")


@command("job release", "vctl job release train-1", common=CHANGES)
def release(call: Call, jobs_: jobs.Jobs) -> Answer:
    """Release held jobs to their place in the queue."""
    released = [jobs.release(call.backend, ref) for ref in cli.matching.expanded(call, jobs_, WAITING)]
    call.warn_if_nothing_schedules()
    return each(released, lambda job: f"job {job['submission_id']} is released")


def _why(data: Data) -> Answer:
    return single(
        data, data.get("submission_id") or data["task_id"], lambda screen: cli.why_view.draw(screen, data)
    )


shows(jobs.why, _why, "vctl why last", "vctl why train-1 -o json", "vctl why task-7", common=READS)
COMMANDS["job why"] = COMMANDS["why"].called("job why")
