"""What a list shows: the cluster that is named, else the one this runs in, else everything; and what is below it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from vctl import operations, ops
from vctl.cli.call import Call
from vctl.core.clusters import PRIMARY
from vctl.operations.declare import Opt

F = TypeVar("F", bound=Mapping[str, Any])
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
        operations.clusters.get_cluster(call.backend, cluster)
    return cluster


def below(call: Call, top: str, items: "Sequence[F]", *names: str) -> "list[F]":
    """Items of which a named field is the cluster or one below it."""
    if top == PRIMARY:
        return list(items)
    is_in = ops.scope.below(top, operations.clusters.list_clusters(call.backend, all_kinds=True))
    return [item for item in items if any(item[name] and is_in(str(item[name])) for name in names)]
