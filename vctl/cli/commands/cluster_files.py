"""``vctl vc plan|apply|export``: the whole tree of logical clusters in one file."""

from typing import TYPE_CHECKING, Annotated, Any

from vctl import cli, spec
from vctl.cli.call import Call
from vctl.cli.common import CHANGES, NO_LOCAL_NODE
from vctl.cli.declare import command
from vctl.cli.output import Answer, single
from vctl.errors import BadSpec
from vctl.operations import clusters
from vctl.spec.ids import JOB_MARK
from vctl.spec.params import Arg, Opt

if TYPE_CHECKING:
    from vctl.spec.reports import TreeDiff

File = Annotated[
    str, Opt("-f", "--file", metavar="FILE|-", complete="file", help="The wanted clusters, as YAML or JSON.")
]


@command(
    "vc plan",
    "vctl vc plan -f tree.yaml",
    "vctl vc plan -f tree.yaml --prune -o json",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def plan(call: Call, file: File, prune: clusters.Prune = False) -> Answer:
    """Show the changes that applying a file would make, and their blockers.

    Changes nothing. With -o json, changes is empty when the clusters are as the file wants them.
    """
    data = clusters.plan(call.backend, _clusters(call, file), prune=prune)
    return _changes(data, "plan", cli.tree_changes.command(file, data["revision"], prune=prune))


@command(
    "vc apply",
    "vctl vc apply -f tree.yaml",
    "vctl vc apply -f tree.yaml --expect-revision 5d41402abc4b2a76",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def apply(
    call: Call, file: File, prune: clusters.Prune = False, expect_revision: clusters.Expected = None
) -> Answer:
    """Change the clusters to match a file: all changes or none."""
    target = _clusters(call, file)
    data = clusters.apply(call.backend, target, prune=prune, expect_revision=expect_revision)
    return _changes(data, "apply")


def _changes(data: "TreeDiff", name: str, next_command: str | None = None) -> Answer:
    answer = single(data, name, lambda screen: cli.tree_changes.draw(screen, data, next_command))
    answer.rows, answer.names = data["changes"], [change["cluster_id"] for change in data["changes"]]
    return answer


def _clusters(call: Call, file: str) -> Any:
    document = spec.source.read_file(file, "a tree file", "--file")
    spec.tree_file.parse_tree(document, units=call.config.get("unit_resources"))
    return document["clusters"]  # type: ignore[index]  # it was read


@command("vc export", "vctl vc export", "vctl vc export team-a -o json", common=CHANGES)
def export(
    call: Call,
    cluster: Annotated[
        str | None, Arg("ID", help="Only this cluster and the clusters inside it.", complete="clusters")
    ] = None,
) -> Answer:
    """Write the logical clusters as a file for plan and apply, in YAML.

    Inside a job these are the clusters inside the cluster of the job.
    """
    if cluster is not None and cluster.endswith((".yaml", ".yml", ".json")):
        raise BadSpec(f"ID: {cluster} is a file", fix=f"vctl vc export > {cluster}")
    within = call.cluster(cluster)
    if cluster is None and JOB_MARK in within:
        call.note("The cluster of this job has no clusters with names; `vctl vc export primary` writes all")
    data = (clusters.export_inside if cluster is None else clusters.export)(call.backend, within)
    return single(data, "export", lambda _: cli.yaml.dump(data).splitlines())
