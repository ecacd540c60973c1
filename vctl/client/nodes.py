"""Physical nodes of a server: the functions of ``vctl.ops.nodes``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vctl.client.connection import Connection, at
from vctl.core.nodes import SIMULATED
from vctl.core.resources import DEFAULT_UNITS, Amounts

Form = dict[str, Any]


def add(
    server: Connection,
    *,
    resources: Amounts,
    node_id: str | None = None,
    count: int = 1,
    template: str | None = None,
    labels: Mapping[str, str] | None = None,
    source: str = SIMULATED,
    units: frozenset[str] = DEFAULT_UNITS,  # noqa: ARG001  # the server's count
) -> list[Form]:
    """Declare one or many equal nodes."""
    body = {
        "resources": _document(resources),
        "node_id": node_id,
        "count": count,
        "template": template,
        "labels": None if labels is None else dict(labels),
        "source": source,
    }
    made: list[Form] = server.post("/nodes", body)["items"]
    return made


def _document(amounts: Amounts) -> dict[str, int | float]:
    from vctl.spec.quantities import resources_document

    return resources_document(amounts)


def list_nodes(server: Connection, *, filters: Sequence[str] = ()) -> list[Form]:
    """Every physical node."""
    return server.items("/nodes", filter=list(filters))


def get_node(server: Connection, node_id: str) -> Form:
    """One physical node."""
    found: Form = server.get(at("nodes", node_id))
    return found


def drain(server: Connection, node_id: str, *, reason: str | None = None) -> Form:
    """No new work on a node."""
    return _change(server, node_id, "drain", {"reason": reason})


def undrain(server: Connection, node_id: str) -> Form:
    """Take a drained node back into service."""
    return _change(server, node_id, "undrain", {})


def kill(server: Connection, node_id: str, *, reason: str | None = None) -> Form:
    """Declare a node dead."""
    return _change(server, node_id, "kill", {"reason": reason})


def heartbeat(server: Connection, node_id: str, *, timeout_s: float | None = None) -> Form:
    """A sign of life."""
    return _change(server, node_id, "heartbeat", {"timeout_s": timeout_s})


def _change(server: Connection, node_id: str, verb: str, body: Form) -> Form:
    changed: Form = server.post(at("nodes", node_id, verb), body)
    return changed


def update(
    server: Connection,
    node_id: str,
    *,
    resources: Amounts | None = None,
    labels: Mapping[str, str] | None = None,
    units: frozenset[str] = DEFAULT_UNITS,  # noqa: ARG001  # the server's count
) -> Form:
    """Change a node's totals or labels."""
    body = {
        "resources": None if resources is None else _document(resources),
        "labels": None if labels is None else dict(labels),
    }
    changed: Form = server.patch(at("nodes", node_id), body)
    return changed


def remove(server: Connection, node_id: str) -> Form:
    """Forget a node on which nothing lies."""
    gone: Form = server.delete(at("nodes", node_id))
    return gone
