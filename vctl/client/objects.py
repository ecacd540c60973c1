"""Objects of a server: the functions of ``vctl.ops.objects`` and ``object_views``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from vctl.operations.connection import Connection

Form = dict[str, Any]
_WHERE = ("VCTL_SUBMISSION_ID", "VCTL_NODE_ID", "VCTL_CLUSTER_ID")


def list_objects(
    server: Connection, *, filters: Sequence[str] = (), limit: int | None = None, job: str | None = None
) -> tuple[list[Form], int]:
    """Objects, by job and name, and how many there are without the limit."""
    found = server.get("/objects", filter=list(filters), limit=limit, job=job)
    return found["items"], found["total"]


def get_object(server: Connection, ref: str, *, job: str | None = None) -> Form:
    """One object, by ``JOB/NAME`` or by its name."""
    found: Form = server.get("/object", ref=ref, job=job)
    return found


def put(server: Connection, name: str, *, environment: Mapping[str, str] | None = None) -> Form:
    """Make what lies in ``$VCTL_OBJECT_DIR`` under a name an object."""
    around = os.environ if environment is None else environment
    found: Form = server.post(
        "/objects", {"name": name, "inside": {n: around[n] for n in _WHERE if n in around}}
    )
    return found
