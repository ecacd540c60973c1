"""Playing work for a server: the function of ``vctl.ops.simulation``."""

from __future__ import annotations

from typing import Any

from vctl.operations.connection import Connection, at
from vctl.ops import simulated
from vctl.ops.simulate import Told


def run(server: Connection, wanted: simulated.Wanted, told: Told | None = None) -> dict[str, Any]:
    """The recorded history is played where it lies; a trace or a model here, on the settings of the server's queue."""
    if wanted.trace is not None or wanted.model is not None:
        from vctl.spec.queue_settings import parse_queue

        queue = parse_queue(server.get(at("clusters", "primary"))["queue"], "queue")
        return simulated.made_up(wanted, queue, told)
    body = {
        "since": None if wanted.since_ns is None else wanted.since_ns / 1e9,
        "until": None if wanted.until_ns is None else wanted.until_ns / 1e9,
        "cluster": wanted.cluster,
        "policies": list(wanted.policies),
        "nodes": list(wanted.nodes),
        "template": wanted.template,
        "limit_factor": wanted.limit_factor,
    }
    found: dict[str, Any] = server.post("/simulate", body)
    return {name: value for name, value in found.items() if name not in ("api_version", "kind", "total")}
