"""``/api/v1/tree-file``: a whole tree of clusters at once, as ``vctl vc plan|apply|export``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from vctl.http import bodies
from vctl.http.context import server_of, state
from vctl.http.documents import ERRORS, Document, good
from vctl.spec.tree_file import parse_tree

router = APIRouter(prefix="/api/v1/tree-file", tags=["clusters"], responses=ERRORS)


@router.get("", responses=good(Document), response_model=None)
def export(request: Request, cluster: str | None = None) -> Any:
    """The current clusters as a tree file: all, or one with the clusters inside it."""
    from vctl.ops import tree_files

    with state(request) as store:
        return tree_files.export(store, cluster)


@router.post("/plan", responses=good(Document), response_model=None)
def plan(request: Request, body: bodies.Tree) -> Any:
    """What applying a tree file would change, and what stands in its way."""
    from vctl.ops import tree_files

    wanted = parse_tree({"clusters": body.clusters}, units=server_of(request).units)
    with state(request) as store:
        return tree_files.plan(store, wanted, prune=body.prune)


@router.post("/apply", responses=good(Document), response_model=None)
def apply(request: Request, body: bodies.Tree) -> Any:
    """Change the clusters to match the file: all changes or none."""
    from vctl.ops import tree_files

    wanted = parse_tree({"clusters": body.clusters}, units=server_of(request).units)
    with state(request) as store:
        return tree_files.apply(store, wanted, prune=body.prune, expect_revision=body.expect_revision)
