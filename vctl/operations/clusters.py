"""The verbs of ``vctl vc``, for single virtual clusters and for a tree of them in a file."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from vctl import ops, spec
from vctl.operations.declare import Backend, Context, asks, operation
from vctl.spec.ids import JOB_MARK
from vctl.spec.params import Arg, Fields, Filters, Opt

if TYPE_CHECKING:
    from vctl.spec.cluster_change import ClusterChange
    from vctl.spec.documents import ClusterForm, ClusterTree, ListedCluster, RemovedCluster
    from vctl.spec.reports import TreeDiff
    from vctl.spec.tree_file import TreeCluster

Id = Annotated[str, Arg("ID", reads="cluster id", help="Id of the virtual cluster.", complete="clusters")]
NewId = Annotated[str, Arg("ID", help="Id of the new virtual cluster.")]
Members = Annotated[
    Sequence[str], Arg("NODE", longest=100_000, help="Ids of nodes of this cluster.", complete="nodes")
]
Message = Annotated[
    str | None,
    Opt("--message", metavar="TEXT", longest=100_000, help="The reason, shown with the jobs that wait."),
]
Change = Annotated["ClusterChange", Fields(lambda: spec.cluster_change.ClusterChange)]


@operation("vc create", "POST /clusters", right="administer")
@asks
def create(
    context: Context,
    cluster_id: NewId,
    *,
    change: Change,
    parent: Annotated[
        str | None, Opt(wire="parent_id", help="Parent cluster (default: the primary).")
    ] = None,
    detach: Annotated[bool, Opt("--detach", help="Inside a job: let it outlive the job.")] = False,
) -> "ClusterForm":
    """Create a virtual cluster."""
    return ops.clusters.create(context.store, cluster_id, change, parent_id=parent, detach=detach)


@operation("vc list", "GET /clusters", right="see", items="ClusterList")
def list_clusters(
    context: Context,
    *,
    filters: Filters = (),
    all_kinds: Annotated[bool, Opt(help="Also the primary and the clusters of jobs.")] = True,
) -> "list[ListedCluster]":
    """Virtual clusters, parents first."""
    return ops.cluster_views.list_clusters(context.store, filters=filters, all_kinds=all_kinds)


@operation("vc tree", "GET /clusters/{cluster:path}/tree", right="see")
def tree(context: Context, cluster_id: Id) -> "ClusterTree":
    """A virtual cluster with everything below it, nested under ``tree``."""
    return ops.cluster_views.tree(context.store, cluster_id)


@operation("vc get", "GET /clusters/{cluster:path}", right="see")
def get_cluster(context: Context, cluster_id: Id) -> "ClusterForm":
    """Show one virtual cluster."""
    return ops.cluster_views.get_cluster(context.store, cluster_id)


@operation("vc update", "PATCH /clusters/{cluster:path}", right="administer")
@asks
def update(
    context: Context,
    cluster_id: Id,
    *,
    change: Change,
    revision: Annotated[
        int | str | None,
        Opt(
            "--revision",
            pattern=r"^[0-9]{1,30}$",
            help="Refuse unless this is the current revision (default: latest).",
        ),
    ] = None,
) -> "ClusterForm":
    """Change the resources of a virtual cluster: the whole change or none of it.

    The queue settings can be changed too; of the primary cluster only they can.
    """
    return ops.clusters.update(
        context.store, cluster_id, change, revision=None if revision is None else int(revision)
    )


@operation("vc delete", "DELETE /clusters/{cluster:path}", right="administer")
def delete(
    context: Context,
    cluster_id: Id,
    *,
    drain: Annotated[
        bool, Opt("--drain", waits=True, help="Refuse new jobs, let queued and running ones end.")
    ] = False,
    force: Annotated[bool, Opt("--force", waits=True, help="Stop its jobs and tasks first.")] = False,
) -> "RemovedCluster":
    """Delete a virtual cluster; its nodes go back to its parent."""
    return ops.clusters.delete(context.store, cluster_id, drain=drain, force=force)


@operation("vc remove-nodes", "POST /clusters/{cluster:path}/remove-nodes", right="administer")
def remove_nodes(
    context: Context,
    cluster_id: Id,
    node_ids: Members,
) -> "ClusterForm":
    """Give idle nodes of a virtual cluster back to its parent, all or none."""
    return ops.clusters.remove_nodes(context.store, cluster_id, node_ids)


@operation("vc stop", "POST /clusters/{cluster:path}/stop", right="administer")
def stop(context: Context, cluster_id: Id, *, message: Message = None) -> "ClusterForm":
    """Stop admitting jobs to a virtual cluster; running jobs go on.

    Jobs submitted to it wait with the reason ClusterStopped until it is resumed. Clusters inside it still admit.
    """
    return ops.clusters.stop(context.store, cluster_id, message=message)


@operation("vc resume", "POST /clusters/{cluster:path}/resume", right="administer")
def resume(context: Context, cluster_id: Id) -> "ClusterForm":
    """Admit jobs to a virtual cluster again."""
    return ops.clusters.resume(context.store, cluster_id)


# ---- bookings ----

Amount = float | str | None


@operation("reserve", "POST /bookings", right="submit")
def reserve(
    context: Context,
    *,
    num_cpus: Annotated[
        Amount, Opt("-n", "--num-cpus", "--cpus", metavar="N", reads="text", help="CPUs on each node.")
    ] = None,
    num_gpus: Annotated[
        Amount, Opt("-g", "--num-gpus", "--gpus", metavar="N", reads="text", help="GPUs on each node.")
    ] = None,
    memory: Annotated[
        Amount, Opt("--memory", metavar="SIZE", reads="text", help="Memory on each node, such as 8GiB.")
    ] = None,
    resources: Annotated[
        Mapping[str, Any] | None,
        Opt("--resources", metavar="JSON", reads="resources", help="Other resources on each node."),
    ] = None,
    nodes: Annotated[
        int, Opt("--nodes", minimum=1, maximum=100_000, help="Machines, each with all of these (1).")
    ] = 1,
    at: Annotated[
        float | None,
        Opt(
            "--at",
            metavar="TIME",
            reads="begin",
            minimum=0,
            maximum=9e9,
            help="Begin: now (default), +2h, the next 14:00, or 2030-01-31T14:00.",
        ),
    ] = None,
    length_s: Annotated[
        float,
        Opt(
            "--for",
            metavar="TIME",
            reads="positive duration",
            minimum=0,
            maximum=1e8,
            help="How long: 90m, 2h.",
        ),
    ],
    name: Annotated[
        str | None, Opt("--name", metavar="ID", help="Name of the cluster (default: booking-1, …).")
    ] = None,
    cluster: Annotated[
        str | None,
        Opt(
            "-c",
            "--cluster",
            metavar="ID",
            complete="clusters",
            help="Book its resources (default: the primary).",
        ),
    ] = None,
    divisible: Annotated[
        bool,
        Opt(
            "--divisible",
            off="--indivisible",
            help="Each job gets resources of its own in it (default); else jobs share it.",
        ),
    ] = True,
) -> "ClusterForm":
    """Book resources for a time: a virtual cluster with a begin and an end.

    No job that could still run at the begin starts on these resources; jobs with a time limit use them before. Jobs can
    be submitted to the cluster at once, and start at the begin. At the end its jobs are stopped, with their grace.
    `vctl vc list` shows bookings, `vctl vc delete ID` cancels one.
    """
    others = context.amounts(resources, "resources") or {}
    wanted = spec.job_request.booked_spec(num_cpus, num_gpus, memory, others, nodes, context.units)
    return ops.bookings.reserve(
        context.store,
        wanted,
        begin_s=at,
        length_s=length_s,
        name=name,
        parent_id=cluster,
        divisible=divisible,
    )


# ---- trees in files ----

Clusters = Annotated[Sequence[Mapping[str, Any]], Opt(help="The wanted clusters, as a tree file has them.")]
Prune = Annotated[bool, Opt("--prune", help="Delete clusters that the file does not name.")]
Expected = Annotated[
    str | None,
    Opt(
        "--expect-revision",
        metavar="REVISION",
        longest=100_000,
        help="Refuse when clusters changed since that plan.",
    ),
]


@operation("vc export", "GET /tree-file", right="see")
def export(
    context: Context,
    cluster: Annotated[
        str | None, Arg("ID", help="Only this cluster and the clusters inside it.", complete="clusters")
    ] = None,
) -> dict[str, object]:
    """Write the logical clusters as a file for plan and apply, in YAML."""
    return ops.tree_files.export(context.store, cluster)


def export_inside(backend: Backend, cluster_id: str) -> dict[str, object]:
    """The tree file of the clusters inside a cluster; empty for the cluster of a job: no names there."""
    if JOB_MARK in cluster_id:
        return spec.tree_file.tree_document([])
    return export(backend, cluster_id)


@operation("vc plan", "POST /tree-file/plan", right="see")
def plan(
    context: Context,
    clusters: Clusters,
    *,
    prune: Prune = False,
    expect_revision: Expected = None,  # noqa: ARG001  # plan and apply accept the same body
) -> "TreeDiff":
    """Show the changes that applying a file would make, and their blockers.

    Changes nothing. With -o json, changes is empty when the clusters are as the file wants them.
    """
    return ops.tree_files.plan(context.store, _tree(context, clusters), prune=prune)


@operation("vc apply", "POST /tree-file/apply", right="service", service="the tree of logical clusters")
def apply(
    context: Context, clusters: Clusters, *, prune: Prune = False, expect_revision: Expected = None
) -> "TreeDiff":
    """Change the clusters to match a file: all changes or none."""
    return ops.tree_files.apply(
        context.store, _tree(context, clusters), prune=prune, expect_revision=expect_revision
    )


def _tree(context: Context, clusters: Sequence[Mapping[str, Any]]) -> "list[TreeCluster]":
    return spec.tree_file.parse_tree({"clusters": clusters}, units=context.units, camel_case=True)
