"""``vctl vc``: create, change and show virtual clusters."""

from collections.abc import Mapping
from typing import Annotated, Any

from vctl.cli import queue_options
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, CHOSEN_BY, INTERRUPTED, LISTS, NO_LOCAL_NODE, READS, STATE
from vctl.cli.declare import command
from vctl.cli.output import Answer, done, listing, single
from vctl.cli.scoping import InCluster, below, place
from vctl.operations.declare import Arg, Given, Opt, Together

Id = Annotated[str, Arg("ID", help="Id of the virtual cluster.", complete="clusters")]

NewId = Annotated[str, Arg("ID", help="Id of the new virtual cluster.")]
Replicas = Annotated[
    str | None,
    Opt(
        "--replica-sets", metavar="JSON|@FILE|-", help='Whole nodes by template, final counts: {"8c16g": 2}.'
    ),
]
SpecOption = Annotated[
    str | None,
    Opt(
        "--spec",
        metavar="JSON|@FILE|-",
        help="Resource spec instead of whole nodes: minimum, maximum, fixed nodes.",
    ),
]
BorrowLimit = Annotated[
    str | None,
    Opt("--borrow-limit", metavar="JSON", help="Limit of borrowing above its minimum; {} for no limit."),
]
LendingLimit = Annotated[
    str | None,
    Opt("--lending-limit", metavar="JSON", help="Limit of lending from its unused minimum; {} for none."),
]

CONTENTS = Together(replica_sets=Replicas, spec=SpecOption)
LIMITS = Together(borrow_limit=BorrowLimit, lending_limit=LendingLimit)


def _full(cluster_id: str) -> str:
    """``primary##train``, as screens show it, is an id too; what names the primary itself is judged below."""
    from vctl.spec.ids import JOB_MARK, full_cluster_id

    return full_cluster_id(cluster_id) if JOB_MARK in cluster_id else cluster_id


@command(
    "vc create",
    "vctl vc create team-a --divisible --replica-sets '{\"8c16g\": 2}'",
    'vctl vc create small --spec \'{"flexible_resource_min": {"CPU": 2}}\' --parent team-a',
    common=(NO_LOCAL_NODE, *CHANGES),
)
def create(
    call: Call,
    cluster_id: NewId,
    divisible: Annotated[
        bool,
        Opt(
            "--divisible", off="--indivisible", help="Holds child clusters, one per job (else jobs share it)."
        ),
    ] = False,
    contents: Annotated[Given, CONTENTS] = None,
    parent: Annotated[
        str | None,
        Opt(
            "--parent",
            metavar="ID",
            complete="clusters",
            help="Parent cluster (default: inside a job the cluster of the job, else the primary).",
        ),
    ] = None,
    limits: Annotated[Given, LIMITS] = None,
    queue: Annotated[Given, queue_options.OPTIONS] = None,
) -> Answer:
    """Create a virtual cluster."""
    from vctl.ops import clusters

    data = clusters.create(
        call.store,
        cluster_id,
        divisible=divisible,
        **_contents(call, cluster_id, contents or {}),
        parent_id=call.cluster(parent),
        **_limits(call, limits or {}),
        queue=queue_options.queue_of(queue),
    )
    made = str(data["cluster_id"])  # inside a job qualified by the cluster it lies in
    return done(data, made, f"virtual cluster {made} created, revision {data['revision']}")


@command(
    "vc update",
    "vctl vc update team-a --replica-sets '{\"8c16g\": 3}'",
    "vctl vc update team-a --replica-sets @team-a.json --revision 1763640000000000000",
    "vctl vc update primary --queue-order fair --queue-discipline backfill",
    "vctl vc update primary --preemption requeue --min-runtime 10m --preemption-grace 1m",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def update(
    call: Call,
    cluster_id: Id,
    divisible: Annotated[
        bool | None, Opt("--divisible", off="--indivisible", help="Must equal the current value.")
    ] = None,
    contents: Annotated[Given, CONTENTS] = None,
    revision: Annotated[
        int | None, Opt("--revision", help="Refuse unless this is the current revision (default: latest).")
    ] = None,
    limits: Annotated[Given, LIMITS] = None,
    queue: Annotated[Given, queue_options.OPTIONS] = None,
) -> Answer:
    """Change the resources of a virtual cluster: the whole change or none of it.

    The queue settings can be changed too; of the primary cluster only they can.
    """
    from vctl.ops import clusters

    data = clusters.update(
        call.store,
        _full(cluster_id),
        divisible=divisible,
        **_contents(call, cluster_id, contents or {}),
        revision=revision,
        **_limits(call, limits or {}),
        queue=queue_options.queue_of(queue),
    )
    told = "" if data["kind"] == "primary" else f", revision {data['revision']}"  # the primary has none
    return done(data, cluster_id, f"virtual cluster {cluster_id} updated{told}")


def _contents(call: Call, cluster_id: str, given: Mapping[str, str]) -> dict[str, Any]:
    """What a cluster consists of: ``spec``, ``replica_sets``, or neither."""
    if len(given) > 1:
        from vctl.errors import BadSpec

        raise BadSpec("--replica-sets cannot be combined with --spec", fix="keep one of the two")
    from vctl.spec.cluster_spec import parse_cluster_spec, parse_replica_sets
    from vctl.spec.source import read_document

    found: dict[str, Any] = {}
    if "spec" in given:
        document = read_document(given["spec"], "a cluster spec", "--spec")
        found["spec"] = parse_cluster_spec(document, units=call.config.get("unit_resources"), logical=True)
    if "replica_sets" in given:
        path = "--replica-sets"
        document = read_document(given["replica_sets"], "a map of templates", path)
        found["replica_sets"] = parse_replica_sets(document, path, cluster_id=cluster_id)
    return found


def _limits(call: Call, given: Mapping[str, str]) -> dict[str, Any]:
    """``borrow_limit`` and ``lending_limit``, as far as they were given."""
    from vctl.spec.quantities import parse_resources
    from vctl.spec.source import read_document

    units = call.config.get("unit_resources")
    paths = {name: "--" + name.replace("_", "-") for name in given}
    return {
        name: parse_resources(read_document(given[name], "a map of resources", path), path, units)
        for name, path in paths.items()
    }


@command(
    "vc stop", "vctl vc stop team-a", "vctl vc stop team-a --message 'upgrade until noon'", common=CHANGES
)
def stop(
    call: Call,
    cluster_id: Id,
    message: Annotated[
        str | None, Opt("--message", metavar="TEXT", help="The reason, shown with the jobs that wait.")
    ] = None,
) -> Answer:
    """Stop admitting jobs to a virtual cluster; running jobs go on.

    Jobs submitted to it wait with the reason ClusterStopped until it is resumed. Clusters inside it still admit.
    """
    from vctl.ops import admission

    data = admission.stop(call.store, _full(cluster_id), message=message)
    return done(data, cluster_id, f"virtual cluster {cluster_id} is STOPPED")


@command("vc resume", "vctl vc resume team-a", common=CHANGES)
def resume(call: Call, cluster_id: Id) -> Answer:
    """Admit jobs to a virtual cluster again."""
    from vctl.ops import admission

    data = admission.resume(call.store, _full(cluster_id))
    return done(data, cluster_id, f"virtual cluster {cluster_id} is ACTIVE")


@command("vc delete", "vctl vc delete team-a", "vctl vc delete team-a --drain", common=CHANGES)
def delete(
    call: Call,
    cluster_id: Id,
    drain: Annotated[bool, Opt("--drain", help="Refuse new jobs, let queued and running ones end.")] = False,
    force: Annotated[bool, Opt("--force", help="Stop its jobs and tasks first.")] = False,
    no_wait: Annotated[bool, Opt("--no-wait", help="Return before it is empty.")] = False,
) -> Answer:
    """Delete a virtual cluster; its nodes go back to its parent."""
    from vctl.ops import clusters

    data = clusters.delete(call.store, _full(cluster_id), drain=drain, force=force)
    if data["state"] != "REMOVED" and not no_wait:
        from vctl.cli import waiting

        if waiting.until_removed(call, cluster_id):
            data = {**data, "state": "REMOVED"}
    word = "deleted" if data["state"] == "REMOVED" else "will be deleted when it is empty"
    answer = done(data, cluster_id, f"virtual cluster {cluster_id} {word}")
    if data["state"] != "REMOVED" and not no_wait:
        answer.code = INTERRUPTED
    return answer


@command(
    "vc remove-nodes",
    "vctl vc remove-nodes team-a 8c16g-00",
    "vctl vc remove-nodes team-a n1 n2",
    common=CHANGES,
)
def remove_nodes(
    call: Call,
    cluster_id: Id,
    nodes: Annotated[list[str], Arg("NODE", help="Ids of nodes of this cluster.", complete="nodes")],
) -> Answer:
    """Give idle nodes of a virtual cluster back to its parent, all or none."""
    from vctl.ops import membership

    data = membership.remove_nodes(call.store, _full(cluster_id), nodes)
    counted = "node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return done(data, cluster_id, f"{counted} removed from virtual cluster {cluster_id}")


@command(
    "vc list",
    "vctl vc list",
    "vctl vc list --filter kind=logical -o json",
    common=(STATE, *LISTS),
)
def list_(call: Call, cluster: InCluster = None) -> Answer:
    """List virtual clusters of every kind: inside a job its own and those below it."""
    from vctl.cli.columns import CLUSTERS
    from vctl.ops import cluster_views

    call.choose(**CHOSEN_BY["clusters"])
    items = cluster_views.list_clusters(call.store, filters=call.filters, all_kinds=True)
    items = below(call, place(call, cluster), items, "cluster_id")
    return listing(
        "ClusterList", call.first(items), len(items), "cluster_id", CLUSTERS, "no virtual clusters"
    )


@command(
    "vc get",
    "vctl vc get team-a",
    "vctl vc get primary -o json",
    common=READS,
)
def get(call: Call, cluster_id: Id) -> Answer:
    """Show one virtual cluster."""
    from vctl.ops import cluster_views

    return single(cluster_views.get_cluster(call.store, cluster_id), cluster_id)


@command("vc tree", "vctl vc tree", "vctl vc tree team-a", common=READS)
def tree(
    call: Call,
    cluster_id: Annotated[
        str | None,
        Arg(
            "ID",
            help="Top of the tree (default: inside a job its cluster, else the primary).",
            complete="clusters",
        ),
    ] = None,
) -> Answer:
    """Show virtual clusters as a tree, with the used resources of each."""
    from vctl.cli import tree as drawing
    from vctl.ops import cluster_views

    data = cluster_views.tree(call.store, call.cluster(cluster_id))
    branches = drawing.flatten(data)
    answer = single(data, data["cluster_id"], lambda screen: drawing.draw(screen, branches))
    answer.names = [branch["cluster_id"] for branch in branches]
    return answer
