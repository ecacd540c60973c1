"""What a list shows: the cluster that is named, else the one this runs in, else everything; and what is below it."""

from typing import TYPE_CHECKING, Annotated

from vctl.cli.call import Call
from vctl.cli.declare import Opt
from vctl.core.clusters import PRIMARY

if TYPE_CHECKING:
    from vctl.cli.output import Data

InCluster = Annotated[
    str | None,
    Opt(
        "-c",
        "--cluster",
        metavar="ID",
        complete="clusters",
        help="Only entries in this cluster and below (default: inside a job its cluster, else the primary).",
    ),
]


def place(call: Call, given: str | None) -> str:
    """The cluster to look at; one that is named must be there."""
    cluster = call.cluster(given)
    if given is not None:
        from vctl.ops import cluster_views

        cluster_views.get_cluster(call.store, cluster)
    return cluster


def below(call: Call, top: str, items: "list[Data]", *names: str) -> "list[Data]":
    """Items of which a named field is the cluster or one below it."""
    if top == PRIMARY:
        return items
    from vctl.ops import cluster_views
    from vctl.ops.scope import below

    is_in = below(top, cluster_views.list_clusters(call.store, all_kinds=True))
    return [item for item in items if any(item[name] and is_in(str(item[name])) for name in names)]
