"""``vctl report``: what users, clusters or jobs held, waited for and wasted."""

from typing import Annotated

from vctl import cli, ops
from vctl.cli.call import Call
from vctl.cli.common import LISTS
from vctl.cli.declare import command
from vctl.cli.output import Answer, listing
from vctl.cli.table import Column
from vctl.operations import views
from vctl.spec.params import Given, Together

_WHOSE = {
    "user": Column("USER", "user"),
    "cluster": cli.columns.cluster("CLUSTER", "cluster_id"),
    "job": Column("SUBMISSION", "submission_id"),
}


@command(
    "report",
    "vctl report",
    "vctl report --since 30d --by cluster",
    "vctl report --since 2030-01-01 --until 2030-02-01 --by job -o csv",
    common=LISTS,
)
def report(call: Call, options: Annotated[Given, Together.of(views.report)]) -> Answer:
    """Show what users, clusters or jobs held, waited for and wasted in a time.

    Hours count from the start to the end of each attempt. LOST: of attempts that failed, were preempted or were tried
    again. Waits are those of jobs that first started in the time: the median, the mean and the longest.
    """
    given = options or {}
    items = ops.forms.choose(views.report(call.backend, **given), call.filters, "ReportForm")
    whose = _WHOSE[given.get("by", "user")]
    none = "nothing held, ended or started anything in this time"
    key = {"cluster": "cluster_id", "job": "submission_id"}.get(given.get("by", ""), "user")
    return listing("ReportList", call.first(items), len(items), key, [whose, *cli.columns.REPORT], none)
