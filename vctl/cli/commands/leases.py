"""``vctl lease list`` and ``vctl demand``: what clusters have borrowed, and what nobody can give them now."""

from vctl import cli, operations, ops
from vctl.cli.call import Call
from vctl.cli.commands.objects import listed
from vctl.cli.common import LISTS
from vctl.cli.declare import command
from vctl.cli.output import Answer, listing
from vctl.cli.scoping import InCluster, below, place


@command("lease list", "vctl lease list", "vctl lease list --filter borrower_id=team-a -o json", common=LISTS)
def list_(call: Call, cluster: InCluster = None) -> Answer:
    """List the resources that clusters borrow above their minimum, oldest first."""
    return listed(call, "leases", place(call, cluster), "nothing has been borrowed")


@command("demand", "vctl demand", "vctl demand --filter cluster_id=team-a -o json", common=LISTS)
def demand(call: Call, cluster: InCluster = None) -> Answer:
    """Show the resource requests that wait, equal ones of jobs and tasks together."""
    items = ops.forms.choose(operations.views.demand(call.backend), call.filters, "demand")
    items = below(call, place(call, cluster), items, "cluster_id")
    return listing(
        "DemandList", call.first(items), len(items), "cluster_id", cli.columns.DEMAND, "nothing waits"
    )
