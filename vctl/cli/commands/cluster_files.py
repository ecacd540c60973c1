"""``vctl vc plan|apply|export``: the whole tree of logical clusters in one file."""

from typing import TYPE_CHECKING, Annotated

from vctl.cli.call import Call
from vctl.cli.common import CHANGES, NO_LOCAL_NODE
from vctl.cli.declare import command
from vctl.cli.output import Answer, single
from vctl.operations.declare import Arg, Opt

if TYPE_CHECKING:
    from vctl.spec.tree_file import TreeCluster

File = Annotated[
    str,
    Opt("-f", "--file", metavar="FILE|-", complete="file", help="The wanted clusters, as YAML or JSON."),
]
Prune = Annotated[bool, Opt("--prune", help="Delete clusters that the file does not name.")]


@command(
    "vc plan",
    "vctl vc plan -f tree.yaml",
    "vctl vc plan -f tree.yaml --prune -o json",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def plan(call: Call, file: File, prune: Prune = False) -> Answer:
    """Show the changes that applying a file would make, and their blockers.

    Changes nothing. With -o json, changes is empty when the clusters are as the file wants them.
    """
    from vctl.cli import tree_changes
    from vctl.ops import tree_files

    data = tree_files.plan(call.store, _clusters(call, file), prune=prune)
    guarded = tree_changes.command(file, data["revision"], prune=prune)
    answer = single(data, "plan", lambda screen: tree_changes.draw(screen, data, next_command=guarded))
    answer.rows, answer.names = data["changes"], [change["cluster_id"] for change in data["changes"]]
    return answer


@command(
    "vc apply",
    "vctl vc apply -f tree.yaml",
    "vctl vc apply -f tree.yaml --expect-revision 5d41402abc4b2a76",
    common=(NO_LOCAL_NODE, *CHANGES),
)
def apply(
    call: Call,
    file: File,
    prune: Prune = False,
    expect_revision: Annotated[
        str | None,
        Opt("--expect-revision", metavar="REVISION", help="Refuse when clusters changed since that plan."),
    ] = None,
) -> Answer:
    """Change the clusters to match a file: all changes or none."""
    from vctl.cli import tree_changes
    from vctl.ops import tree_files

    data = tree_files.apply(call.store, _clusters(call, file), prune=prune, expect_revision=expect_revision)
    answer = single(data, "apply", lambda screen: tree_changes.draw(screen, data))
    answer.rows, answer.names = data["changes"], [change["cluster_id"] for change in data["changes"]]
    return answer


def _clusters(call: Call, file: str) -> "list[TreeCluster]":
    from vctl.spec.source import read_file
    from vctl.spec.tree_file import parse_tree

    return parse_tree(read_file(file, "a tree file", "--file"), units=call.config.get("unit_resources"))


@command("vc export", "vctl vc export", "vctl vc export team-a -o json", common=CHANGES)
def export(
    call: Call,
    cluster_id: Annotated[
        str | None, Arg("ID", help="Only this cluster and the clusters inside it.", complete="clusters")
    ] = None,
) -> Answer:
    """Write the logical clusters as a file for plan and apply, in YAML."""
    from vctl.cli.yaml import dump
    from vctl.ops import tree_files

    data = tree_files.export(call.store, cluster_id)
    return single(data, "export", lambda _: dump(data).splitlines())
