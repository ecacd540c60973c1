"""``vctl job hold|release|edit``: changing jobs that are not over."""

from typing import Annotated

from vctl.cli.call import Call
from vctl.cli.commands.jobs import JobRefs, each
from vctl.cli.common import CHANGES
from vctl.cli.declare import command
from vctl.cli.output import Answer
from vctl.operations.declare import Opt

NO_LIMIT = ("none", "unlimited")


@command("job hold", "vctl job hold train-1", common=CHANGES)
def hold(call: Call, jobs_: JobRefs) -> Answer:
    """Keep pending jobs from starting until they are released."""
    from vctl.ops import job_edits

    held = [job_edits.hold(call.store, ref) for ref in jobs_]
    return each(held, lambda job: f"job {job['submission_id']} is held")


@command("job release", "vctl job release train-1", common=CHANGES)
def release(call: Call, jobs_: JobRefs) -> Answer:
    """Release held jobs to their place in the queue."""
    from vctl.ops import job_edits

    released = [job_edits.release(call.store, ref) for ref in jobs_]
    call.warn_if_nothing_schedules()
    return each(released, lambda job: f"job {job['submission_id']} is released")


@command(
    "job edit",
    "vctl job edit train-1 --priority 10 --time-limit 2h",
    "vctl job edit train-1 --time-limit none",
    common=CHANGES,
)
def edit(
    call: Call,
    jobs_: JobRefs,
    priority: Annotated[int | None, Opt("--priority", help="Higher priorities go first.")] = None,
    name: Annotated[str | None, Opt("--name", help="Display name.")] = None,
    time_limit: Annotated[
        str | None,
        Opt(
            "--time-limit", metavar="TIME", help="Counted from the start of the job, such as 1h30m; or none."
        ),
    ] = None,
) -> Answer:
    """Change pending jobs, or the time limit of running ones.

    Priority and name can be changed while a job is pending; the time limit until the job ends.
    """
    from vctl.ops import job_edits
    from vctl.spec.quantities import parse_duration

    changes: dict[str, object] = {}
    if priority is not None:
        changes["priority"] = priority
    if name is not None:
        changes["name"] = name
    if time_limit is not None:
        unlimited = time_limit in NO_LIMIT
        changes["time_limit_s"] = (
            None if unlimited else parse_duration(time_limit, "--time-limit", positive=True)
        )
    edited = [job_edits.edit(call.store, ref, changes) for ref in jobs_]
    return each(edited, lambda job: f"job {job['submission_id']} changed")
