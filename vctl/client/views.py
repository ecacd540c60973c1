"""Introspection of a server: the functions of ``vctl.ops.views`` and ``leases``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vctl.errors import NotFound
from vctl.operations.connection import Connection, at

Form = dict[str, Any]


def cluster_resources(server: Connection, cluster_id: str | None = None) -> dict[str, float]:
    """Total of a cluster."""
    found: dict[str, float] = server.get("/cluster-resources", cluster=cluster_id)
    return found


def available_resources(server: Connection, cluster_id: str | None = None) -> dict[str, float]:
    """What is free in a cluster."""
    found: dict[str, float] = server.get("/available-resources", cluster=cluster_id)
    return found


def nodes(server: Connection, cluster_id: str | None = None) -> list[Form]:
    """The virtual nodes of a cluster."""
    return server.items("/cluster-nodes", cluster=cluster_id)


def current_cluster(server: Connection, cluster_id: str | None = None) -> Form:
    """A cluster as a job in it sees it."""
    found: Form = server.get("/current-cluster", cluster=cluster_id)
    return found


def current_node(server: Connection, vnode_id: str | None) -> Form:
    """A virtual node as a process on it sees it."""
    if not vnode_id:
        raise NotFound(
            "not inside a job, so there is no current node", fix="run it in a job, or use `vctl nodes`"
        )
    found: Form = server.get(at("vnodes", vnode_id))
    return found


def vnodes(server: Connection) -> list[Form]:
    """Every virtual node of every cluster but the primary."""
    return server.items("/vnodes")


def events(
    server: Connection,
    *,
    since: int = 0,
    limit: int | None = None,
    job: str | None = None,
    cluster: str | None = None,
) -> list[Form]:
    """History, oldest first."""
    return list_events(server, since=since, limit=limit, job=job, cluster=cluster)[0]


def list_events(
    server: Connection,
    *,
    since: int = 0,
    limit: int | None = None,
    job: str | None = None,
    cluster: str | None = None,
    filters: Sequence[str] = (),
) -> tuple[list[Form], int]:
    """History, oldest first, and how much there is."""
    found = server.get("/events", since=since, limit=limit, job=job, cluster=cluster, filter=list(filters))
    return found["items"], found["total"]


def summary(server: Connection, kind: str) -> dict[str, int]:
    """How many jobs there are in each state, or events of each kind."""
    found: dict[str, int] = server.get(at("summary", kind))
    return found


def list_leases(server: Connection) -> list[Form]:
    """What clusters have borrowed above their minimum."""
    return server.items("/leases")


def demand(server: Connection) -> list[Form]:
    """What is asked for and not there."""
    return server.items("/demand")


def status(server: Connection, cluster_id: str | None = None) -> Form:
    """What runs, what waits and what is free."""
    found: Form = server.get("/status", cluster=cluster_id)
    return found


def scheduler(server: Connection) -> Form:
    """Whether a scheduler is at work."""
    found: Form = server.get("/scheduler")
    return found
