"""Verbs that only read: the resources and jobs of a cluster, the history, leases and demand."""

import os
from typing import TYPE_CHECKING, Annotated

from vctl import ops
from vctl.errors import NotFound
from vctl.operations.declare import Context, operation
from vctl.spec.params import Arg, Filters, Limit, Opt

if TYPE_CHECKING:
    from vctl.spec.documents import (
        CurrentCluster,
        CurrentNode,
        DemandForm,
        EventForm,
        GpuForm,
        LeaseForm,
        NodeOfCluster,
        ReportForm,
        SchedulerForm,
        VNodeForm,
    )
    from vctl.spec.reports import Status

Cluster = Annotated[str | None, Opt(help="Cluster (default: the primary).")]
Since = Annotated[
    int, Opt("--since", metavar="SEQ", minimum=0, maximum=2**62, help="Only events after this number.")
]
EventsOf = Annotated[
    str | None, Opt("--job", metavar="JOB", complete="jobs", help="Only events of this job.")
]
EventsIn = Annotated[
    str | None, Opt("-c", "--cluster", metavar="ID", complete="clusters", help="Only events of this cluster.")
]


MAX_ROWS = 1000


@operation("status", "GET /status", right="see")
def status(
    context: Context,
    cluster: Cluster = None,
    rows: Annotated[
        int | None,
        Opt(minimum=0, maximum=MAX_ROWS, help="The most running jobs, and the most waiting jobs."),
    ] = None,
) -> "Status":
    """Show running jobs, waiting jobs and free resources."""
    return ops.overview.status(context.store, cluster, rows)


@operation("scheduler", "GET /scheduler", right="see")
def scheduler(context: Context) -> "SchedulerForm":
    """Whether a scheduler is running, and its last heartbeat."""
    return ops.views.scheduler(context.store)


@operation("cluster-resources", "GET /cluster-resources", right="see")
def cluster_resources(context: Context, cluster: Cluster = None) -> dict[str, float]:
    """Show the total resources of a virtual cluster."""
    return ops.views.cluster_resources(context.store, cluster)


@operation("available-resources", "GET /available-resources", right="see")
def available_resources(context: Context, cluster: Cluster = None) -> dict[str, float]:
    """Show the free resources of a virtual cluster."""
    return ops.views.available_resources(context.store, cluster)


@operation("cluster-nodes", "GET /cluster-nodes", right="see", items="VNodeList")
def nodes(context: Context, cluster: Cluster = None) -> "list[NodeOfCluster]":
    """The virtual nodes of a cluster, as ``vctl nodes`` shows them."""
    return ops.views.nodes(context.store, cluster)


@operation("gpus", "GET /gpus", right="see", items="GpuList")
def list_gpus(context: Context, *, filters: Filters = ()) -> "list[GpuForm]":
    """Show each GPU with who has booked it, and what runs there, booked or not."""
    return ops.gpus.list_gpus(context.store, filters=filters)


@operation("current-cluster", "GET /current-cluster", right="see")
def current_cluster(context: Context, cluster: Cluster = None) -> "CurrentCluster":
    """Show the current virtual cluster."""
    return ops.views.current_cluster(context.store, cluster)


@operation("vnodes", "GET /vnodes", right="see", items="VNodeList")
def vnodes(context: Context) -> "list[VNodeForm]":
    """Every virtual node of every cluster but the primary."""
    return ops.views.vnodes(context.store)


@operation("vnode", "GET /vnodes/{vnode:path}", right="see")
def current_node(
    context: Context, vnode_id: Annotated[str, Arg("VNODE", help="Id of a virtual node.")]
) -> "CurrentNode":
    """One virtual node as a process on it sees it."""
    return ops.views.current_node(context.store, vnode_id)


def this_node(given: str | None = None) -> str:
    """The given virtual node, else the virtual node of this process. Raises NotFound outside of jobs."""
    if not (node_id := given or os.environ.get("VCTL_VNODE_ID")):
        raise NotFound(
            "not inside a job, so there is no current node", fix="run it in a job, or use `vctl nodes`"
        )
    return node_id


@operation("leases", "GET /leases", right="see", items="LeaseList")
def list_leases(context: Context) -> "list[LeaseForm]":
    """Resources that clusters borrow above their minimum."""
    return ops.leases.list_leases(context.store)


@operation("report", "GET /report", right="see", items="ReportList")
def report(
    context: Context,
    *,
    since: Annotated[
        str,
        Opt(
            "--since", metavar="TIME", longest=100, help="From this time on: 7d ago, 16:00, 2030-01-31 (7d)."
        ),
    ] = "7d",
    until: Annotated[
        str | None, Opt("--until", metavar="TIME", longest=100, help="Up to this time (now).")
    ] = None,
    by: Annotated[
        str, Opt("--by", choices=("user", "cluster", "job"), help="One line for each (user).")
    ] = "user",
) -> "list[ReportForm]":
    """Show what users, clusters or jobs held, waited for and wasted in a time."""
    return ops.report.report(context.store, since=since, until=until, by=by)


@operation("demand", "GET /demand", right="see", items="DemandList")
def demand(context: Context) -> "list[DemandForm]":
    """Resource requests that wait."""
    return ops.leases.demand(context.store)


@operation("events", "GET /events", right="see", items="EventList")
def list_events(
    context: Context,
    *,
    filters: Filters = (),
    since: Since = 0,
    limit: Limit = None,
    job: EventsOf = None,
    cluster: EventsIn = None,
) -> "tuple[list[EventForm], int]":
    """History, oldest first: after a number, or the newest ones."""
    return ops.views.list_events(
        context.store, since=since, limit=limit, job=job, cluster=cluster, filters=filters
    )


@operation("summary", "GET /summary/{kind}", right="see")
def summary(
    context: Context,
    kind: Annotated[str, Arg("RES", choices=("jobs", "events"), help="The objects to count.")],
) -> dict[str, int]:
    """The number of jobs in each state, or of events of each kind."""
    return ops.views.summary(context.store, kind)
