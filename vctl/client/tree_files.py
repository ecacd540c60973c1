"""Trees of clusters of a server: the functions of ``vctl.ops.tree_files``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vctl.operations.connection import Connection

if TYPE_CHECKING:
    from vctl.spec.tree_file import TreeCluster

Form = dict[str, Any]


def plan(server: Connection, wanted: Sequence[TreeCluster], *, prune: bool = False) -> Form:
    """What ``apply`` would change."""
    found: Form = server.post("/tree-file/plan", {**_document(wanted), "prune": prune})
    return found


def apply(
    server: Connection,
    wanted: Sequence[TreeCluster],
    *,
    prune: bool = False,
    expect_revision: str | None = None,
) -> Form:
    """Make the tree what the file wants."""
    body = {**_document(wanted), "prune": prune, "expect_revision": expect_revision}
    done: Form = server.post("/tree-file/apply", body)
    return done


def _document(wanted: Sequence[TreeCluster]) -> dict[str, object]:
    from vctl.spec.tree_file import tree_document

    return tree_document(wanted)


def export(server: Connection, cluster_id: str | None = None) -> dict[str, object]:
    """The file of the clusters there are."""
    found: dict[str, object] = server.get("/tree-file", cluster=cluster_id)
    return found
