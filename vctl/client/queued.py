"""The submit of a Python program: as ``jobs.submit``, without the form of the job, which costs more than its id."""

from typing import TypedDict

from vctl import ops
from vctl.operations import jobs
from vctl.operations.declare import Context, asks, operation


class Queued(TypedDict):
    """The part of the answer to a submit that ``Jobs.submit`` needs."""

    submission_id: str


@operation("job submit", "POST /jobs", right="submit")
@asks
def queued(context: Context, job: jobs.Request, *, environment: jobs.Environment = None) -> Queued:
    """Queue a job, durably, and return only its id. A server returns the whole form of the job."""
    return {"submission_id": ops.submitting.queue(context.store, job, context.surroundings(environment))}
