"""``vctl why``: why a job waits, and what would start it now."""

from typing import Annotated

from vctl.cli.call import Call
from vctl.cli.common import READS
from vctl.cli.declare import command
from vctl.cli.output import Answer, single
from vctl.operations.declare import Arg


@command("why", "vctl why last", "vctl why train-1 -o json", "vctl why task-7", common=READS)
def why(
    call: Call,
    job: Annotated[
        str,
        Arg("JOB", help="Submission id, number, unique prefix, last, or a task.", complete="jobs"),
    ],
) -> Answer:
    """Explain why a job or a task waits, and which changes would start it now.

    Shows the jobs ahead in the queue, the resources that each node lacks and their holders, and the smallest changes
    that would start the job now. Each change was tested with the scheduler on a copy of the state.
    """
    from vctl.cli.why_view import draw
    from vctl.ops import why as ops

    data = ops.why(call.store, job)
    return single(data, data.get("submission_id") or data["task_id"], lambda screen: draw(screen, data))
