"""``vctl why``: why a job waits, and what would start it now."""

from vctl import cli
from vctl.cli.common import READS
from vctl.cli.declare import shows
from vctl.cli.output import Answer, Data, single
from vctl.operations import jobs


def _why(data: Data) -> Answer:
    return single(
        data, data.get("submission_id") or data["task_id"], lambda screen: cli.why_view.draw(screen, data)
    )


shows(jobs.why, _why, "vctl why last", "vctl why train-1 -o json", "vctl why task-7", common=READS)
