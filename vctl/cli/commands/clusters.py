"""``vctl vc``: create, change and show virtual clusters."""

from collections.abc import Mapping
from typing import Annotated, Any

from vctl import cli, spec
from vctl.cli import queue_options
from vctl.cli.call import Call
from vctl.cli.commands.objects import listed
from vctl.cli.common import CHANGES, INTERRUPTED, LISTS, NO_LOCAL_NODE, READS, STATE, InCluster, place
from vctl.cli.declare import command
from vctl.cli.output import Answer, done, single
from vctl.operations import clusters
from vctl.operations.declare import Arg, Given, Opt, Together

Text = str | None
CONTENTS = Together(replica_sets=Annotated[Text, clusters.REPLICAS], spec=Annotated[Text, clusters.SPEC])
LIMITS = Together(borrow_limit=Annotated[Text, clusters.BORROW], lending_limit=Annotated[Text, clusters.LEND])


def _full(cluster_id: str) -> str:
    """``primary##train``, as screens show it, is an id too; what names the primary itself is judged below."""
    return spec.ids.full_cluster_id(cluster_id) if spec.ids.JOB_MARK in cluster_id else cluster_id


@command(
    "vc create",
    "vctl vc create team-a --divisible --replica-sets '{\"8c16g\": 2}'",
    'vctl vc create small --spec \'{"flexible_resource_min": {"CPU": 2}}\' --parent team-a',
    common=(NO_LOCAL_NODE, *CHANGES),
)
def create(
    call: Call,
    cluster_id: clusters.NewId,
    divisible: Annotated[bool, clusters.DIVISIBLE] = False,
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
    data = clusters.create(
        call.backend,
        cluster_id,
        divisible=divisible,
        **_contents(contents or {}),
        parent=call.cluster(parent),
        **_limits(limits or {}),
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
    cluster_id: clusters.Id,
    divisible: Annotated[bool | None, clusters.SAME] = None,
    contents: Annotated[Given, CONTENTS] = None,
    revision: Annotated[int | None, clusters.REVISION] = None,
    limits: Annotated[Given, LIMITS] = None,
    queue: Annotated[Given, queue_options.OPTIONS] = None,
) -> Answer:
    """Change the resources of a virtual cluster: the whole change or none of it.

    The queue settings can be changed too; of the primary cluster only they can.
    """
    data = clusters.update(
        call.backend,
        _full(cluster_id),
        divisible=divisible,
        **_contents(contents or {}),
        revision=revision,
        **_limits(limits or {}),
        queue=queue_options.queue_of(queue),
    )
    told = "" if data["kind"] == "primary" else f", revision {data['revision']}"  # the primary has none
    return done(data, cluster_id, f"virtual cluster {cluster_id} updated{told}")


def _contents(given: Mapping[str, str]) -> dict[str, Any]:
    """What a cluster consists of: ``spec``, ``replica_sets``, or neither."""
    if len(given) > 1:
        from vctl.errors import BadSpec

        raise BadSpec("--replica-sets cannot be combined with --spec", fix="keep one of the two")
    names = {"spec": "a cluster spec", "replica_sets": "a map of templates"}
    return {name: _document(text, names[name], name) for name, text in given.items()}


def _limits(given: Mapping[str, str]) -> dict[str, Any]:
    """``borrow_limit`` and ``lending_limit``, as far as they were given."""
    return {name: _document(text, "a map of resources", name) for name, text in given.items()}


def _document(text: str, what: str, name: str) -> Any:
    return spec.source.read_document(text, what, "--" + name.replace("_", "-"))


@command(
    "vc stop", "vctl vc stop team-a", "vctl vc stop team-a --message 'upgrade until noon'", common=CHANGES
)
def stop(call: Call, cluster_id: clusters.Id, message: clusters.Message = None) -> Answer:
    """Stop admitting jobs to a virtual cluster; running jobs go on.

    Jobs submitted to it wait with the reason ClusterStopped until it is resumed. Clusters inside it still admit.
    """
    data = clusters.stop(call.backend, _full(cluster_id), message=message)
    return done(data, cluster_id, f"virtual cluster {cluster_id} is STOPPED")


@command("vc resume", "vctl vc resume team-a", common=CHANGES)
def resume(call: Call, cluster_id: clusters.Id) -> Answer:
    """Admit jobs to a virtual cluster again."""
    data = clusters.resume(call.backend, _full(cluster_id))
    return done(data, cluster_id, f"virtual cluster {cluster_id} is ACTIVE")


@command("vc delete", "vctl vc delete team-a", "vctl vc delete team-a --drain", common=CHANGES)
def delete(
    call: Call,
    cluster_id: clusters.Id,
    drain: Annotated[bool, Opt("--drain", help="Refuse new jobs, let queued and running ones end.")] = False,
    force: Annotated[bool, Opt("--force", help="Stop its jobs and tasks first.")] = False,
    no_wait: Annotated[bool, Opt("--no-wait", help="Return before it is empty.")] = False,
) -> Answer:
    """Delete a virtual cluster; its nodes go back to its parent."""
    data = clusters.delete(call.backend, _full(cluster_id), drain=drain, force=force)
    if data["state"] != "REMOVED" and not no_wait:
        if cli.waiting.until_removed(call, cluster_id):
            data["state"] = "REMOVED"
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
    cluster_id: clusters.Id,
    nodes: Annotated[list[str], Arg("NODE", help="Ids of nodes of this cluster.", complete="nodes")],
) -> Answer:
    """Give idle nodes of a virtual cluster back to its parent, all or none."""
    data = clusters.remove_nodes(call.backend, _full(cluster_id), nodes)
    counted = "node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return done(data, cluster_id, f"{counted} removed from virtual cluster {cluster_id}")


@command("vc list", "vctl vc list", "vctl vc list --filter kind=logical -o json", common=(STATE, *LISTS))
def list_(call: Call, cluster: InCluster = None) -> Answer:
    """List virtual clusters of every kind: inside a job its own and those below it."""
    return listed(call, "clusters", place(call, cluster), "no virtual clusters")


@command("vc get", "vctl vc get team-a", "vctl vc get primary -o json", common=READS)
def get(call: Call, cluster_id: clusters.Id) -> Answer:
    """Show one virtual cluster."""
    return single(clusters.get_cluster(call.backend, cluster_id), cluster_id)


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
    data = clusters.tree(call.backend, call.cluster(cluster_id))
    branches = cli.tree.flatten(data)
    answer = single(data, data["cluster_id"], lambda screen: cli.tree.draw(screen, branches))
    answer.names = [branch["cluster_id"] for branch in branches]
    return answer
