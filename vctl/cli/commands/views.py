"""What a cluster has and does, and why something waits: the introspection commands, vctl status and vctl why."""

from typing import Annotated

from vctl import cli
from vctl.cli.call import Call
from vctl.cli.common import LIMIT, READS, cluster_option
from vctl.cli.declare import command, shows
from vctl.cli.output import Answer, Data, amounts, listing, single
from vctl.operations import jobs, views
from vctl.operations.declare import Arg

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
    data = views.status(call.backend, call.cluster(cluster))
    answer = single(data, "status", lambda screen: cli.status_view.draw(screen, data))
    answer.names = [cluster["cluster_id"] for cluster in data["clusters"]]
    return answer


@command(
    "cluster-resources",
    "vctl cluster-resources",
    "vctl cluster-resources --cluster team-a -o json",
    common=READS,
)
def cluster_resources(call: Call, cluster: Cluster = None) -> Answer:
    """Show the total resources of a virtual cluster."""
    return amounts(views.cluster_resources(call.backend, call.cluster(cluster)))


@command(
    "available-resources",
    "vctl available-resources",
    "vctl available-resources --cluster team-a --watch",
    common=READS,
)
def available_resources(call: Call, cluster: Cluster = None) -> Answer:
    """Show the free resources of a virtual cluster."""
    return amounts(views.available_resources(call.backend, call.cluster(cluster)))


@command("nodes", "vctl nodes", "vctl nodes --cluster team-a -o json", common=(LIMIT, *READS))
def nodes(call: Call, cluster: Cluster = None) -> Answer:
    """List the virtual nodes of a virtual cluster."""
    items = views.nodes(call.backend, call.cluster(cluster))
    return listing(
        "VNodeList",
        call.first(items),
        len(items),
        "NodeID",
        cli.columns.NODES_OF_A_CLUSTER,
        "this cluster has no nodes",
    )


@command("current-cluster", "vctl current-cluster", "vctl current-cluster -o json", common=READS)
def current_cluster(call: Call, cluster: Cluster = None) -> Answer:
    """Show the virtual cluster that this command runs in."""
    data = views.current_cluster(call.backend, call.cluster(cluster))
    return single(data, data["cluster_id"])


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
    common=(LIMIT, *READS),
)
def events(
    call: Call, since: views.Since = 0, job: views.EventsOf = None, cluster: views.EventsIn = None
) -> Answer:
    """Show the history of changes."""
    within = call.cluster(cluster)
    items, total = views.list_events(call.backend, since=since, job=job, cluster=within, limit=call.limit)
    return listing("EventList", items, total, "seq", cli.columns.EVENTS, "no events yet")


def _why(data: Data) -> Answer:
    return single(
        data, data.get("submission_id") or data["task_id"], lambda screen: cli.why_view.draw(screen, data)
    )


shows(jobs.why, _why, "vctl why last", "vctl why train-1 -o json", "vctl why task-7", common=READS)
