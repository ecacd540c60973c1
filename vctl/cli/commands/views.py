"""What a cluster has and does: the introspection commands, and vctl status."""

from collections.abc import Callable
from typing import Annotated

from vctl import cli, spec
from vctl.cli.call import Call
from vctl.cli.common import LIMIT, READS, cluster_option
from vctl.cli.declare import command
from vctl.cli.output import Answer, amounts, listing, single, single_by
from vctl.errors import BadSpec
from vctl.operations import views
from vctl.operations.declare import Operation, R
from vctl.spec.params import Arg, Opt
from vctl.spec.text import MAX_STORED

Cluster = Annotated[str | None, cluster_option("Cluster")]


@command(
    "status",
    "vctl status",
    "vctl status --watch",
    "vctl status -o json",
    "vctl status -c team-a",
    common=READS,
)
def status(call: Call, cluster: Cluster = None) -> Answer:
    """Show running jobs, waiting jobs and free resources.

    For each resource: the physical total, the part that clusters below have reserved, and the part that jobs use.
    Inside a job only its cluster is shown; -c primary shows everything.
    """
    data = views.status(call.backend, call.cluster(cluster), rows=call.rows)
    answer = single(data, "status", lambda screen: cli.status_view.draw(screen, data))
    answer.names = [cluster["cluster_id"] for cluster in data["clusters"]]
    return answer


def _shows_cluster(
    operation: Operation[[str | None], R], show: Callable[[R], Answer], *examples: str
) -> None:
    """Declare the command of a verb that shows one cluster; by default the cluster in which the command runs."""

    def run(call: Call, cluster: Cluster = None) -> Answer:
        return show(operation(call.backend, call.cluster(cluster)))

    run.__doc__ = operation.run.__doc__
    command(operation.name, *examples, common=READS)(run)


_shows_cluster(
    views.cluster_resources,
    amounts,
    "vctl cluster-resources",
    "vctl cluster-resources --cluster team-a -o json",
)
_shows_cluster(
    views.available_resources, amounts,
    "vctl available-resources", "vctl available-resources --cluster team-a --watch",
)  # fmt: skip
_shows_cluster(
    views.current_cluster, single_by("cluster_id"),
    "vctl current-cluster", "vctl current-cluster -o json",
)  # fmt: skip


@command("nodes", "vctl nodes", "vctl nodes --cluster team-a -o json", common=(LIMIT, *READS))
def nodes(call: Call, cluster: Cluster = None) -> Answer:
    """List the virtual nodes of a virtual cluster."""
    items = views.nodes(call.backend, call.cluster(cluster))
    columns, none = cli.columns.NODES_OF_A_CLUSTER, "this cluster has no nodes"
    return listing("VNodeList", call.first(items), len(items), "NodeID", columns, none, "NodeOfCluster")


@command("current-node", "vctl current-node", "vctl current-node 8c16g-00 -o json", common=READS)
def current_node(
    call: Call,
    vnode: Annotated[str | None, Arg("VNODE", help="Id of a virtual node (default: VCTL_VNODE_ID).")] = None,
) -> Answer:
    """Show the virtual node that this command runs on."""
    data = views.current_node(call.backend, views.this_node(vnode))
    return single(data, data["node_id"])


@command(
    "events",
    "vctl events",
    "vctl events --job last",
    "vctl events --since 120 -o jsonl",
    "vctl events --since 1h",
    common=(LIMIT, *READS),
)
def events(
    call: Call,
    since: Annotated[
        str, Opt("--since", metavar="SEQ", help="Only events after this number, or of the last 1h.")
    ] = "0",
    job: views.EventsOf = None,
    cluster: views.EventsIn = None,
) -> Answer:
    """Show the history of changes."""
    within = call.cluster(cluster)
    is_number = since.isascii() and since.isdecimal()
    if is_number and len(since) > len(str(MAX_STORED)) - 1:
        raise BadSpec(f"--since: {spec.fields.show(since)} is out of range", fix="write a smaller number")
    items, total = views.list_events(
        call.backend, since=int(since) if is_number else 0,
        filters=[] if is_number else [call.began("at", since)],
        job=job, cluster=within, limit=call.limit,
    )  # fmt: skip
    return listing("EventList", items, total, "seq", cli.columns.EVENTS, "no events yet")
