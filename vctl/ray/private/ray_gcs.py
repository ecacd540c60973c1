"""Calls the GCS of a Ray as Ray's autoscaler and raylets do: reads the pending demand, drains a node, or ends one.

Run by the Python that has Ray. ``ray_gcs.py ADDRESS watch SECONDS`` writes a line of JSON every SECONDS
seconds. ``ray_gcs.py ADDRESS drain NODE REASON SECONDS TEXT`` exits with 0 if Ray accepts the drain, and with
1 otherwise. ``ray_gcs.py ADDRESS dead NODE`` tells the GCS at once of a node whose raylet was killed, as a
raylet does that ends by itself; else its resources count until the GCS has missed its health checks. Importing
``ray`` would cost a second and 40 MB more than importing its protobuf messages alone, so the messages are
imported without ``ray/__init__.py``.
"""

import importlib
import json
import os
import re
import sys
import time
from importlib.machinery import ModuleSpec, PathFinder

MYPY = False
if MYPY:
    from typing import Any

IDLE, PREEMPTED = "1", "2"
"""Ray's reasons of a drain: the node is idle (refused if it is not); the node will be taken at a deadline."""
WATCH, DRAIN, END = "watch", "drain", "dead"
_UNEXPECTED = 2
"""Ray's reason of a death: the raylet ended although nobody had asked it to."""
_DEAD, _DRAINING = 2, 4
_TIMEOUT_S = 10.0
_NOT_IN = 2


def main(words: list[str]) -> int:
    """Carry out the arguments; the exit code."""
    address, what, *more = words
    token = (("authorization", f"Bearer {os.environ.get('RAY_AUTH_TOKEN', '')}"),)
    if what == END:
        stub, messages = _stub(address, "gcs_service", "NodeInfoGcsServiceStub")
        request = messages.UnregisterNodeRequest(node_id=bytes.fromhex(more[0]))
        request.node_death_info.reason = _UNEXPECTED
        request.node_death_info.reason_message = "its raylet has ended"
        stub.UnregisterNode(request, metadata=token, timeout=_TIMEOUT_S)
        return 0
    stub, messages = _stub(address, "autoscaler", "AutoscalerStateServiceStub")
    if what == DRAIN:
        node, reason, seconds, text = more
        reply = stub.DrainNode(
            messages.DrainNodeRequest(
                node_id=bytes.fromhex(node), reason=int(reason), reason_message=text,
                deadline_timestamp_ms=int((time.time() + float(seconds)) * 1000),
            ),
            metadata=token, timeout=_TIMEOUT_S,
        )  # fmt: skip
        return 0 if reply.is_accepted else 1
    while True:
        reply = stub.GetClusterResourceState(
            messages.GetClusterResourceStateRequest(), metadata=token, timeout=_TIMEOUT_S
        )
        os.write(1, json.dumps(_read(reply.cluster_resource_state)).encode() + b"\n")
        time.sleep(float(more[0]))


class _WithoutPackage:
    """Finds ``ray`` as a namespace package, so that ``ray/__init__.py`` is not run."""

    def find_spec(self, name: str, *_: object) -> "ModuleSpec | None":
        spec = PathFinder.find_spec(name) if name == "ray" else None
        if spec is not None:
            folders, spec = spec.submodule_search_locations, ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = folders
        return spec


def _stub(address: str, file: str, service: str) -> "tuple[Any, Any]":
    sys.meta_path.insert(0, _WithoutPackage())
    grpc: Any = importlib.import_module("grpc")
    messages = importlib.import_module(f"ray.core.generated.{file}_pb2")
    services: Any = importlib.import_module(f"ray.core.generated.{file}_pb2_grpc")
    return getattr(services, service)(grpc.insecure_channel(address)), messages


def _read(state: "Any") -> "dict[str, Any]":
    requests = [
        [dict(pending.request.resources_bundle), _selector(pending.request), pending.count]
        for pending in state.pending_resource_requests
        # another node would not help with a resource of a placement group (_group_) or of one node (node:...)
        if not any("_group_" in name or ":" in name for name in pending.request.resources_bundle)
    ]
    gangs = [
        [match[1] if (match := re.search(r":([A-Z_]+)\|", gang.details)) else "",
         [dict(request.resources_bundle) for request in gang.requests]]
        for gang in state.pending_gang_resource_requests
    ]  # fmt: skip
    constraints = [
        [dict(part.request.resources_bundle), part.count]
        for constraint in state.cluster_resource_constraints
        for part in constraint.resource_requests
    ]
    nodes = {
        node.node_id.hex(): {
            "free": {} if node.status == _DRAINING else dict(node.available_resources),
            "total": dict(node.total_resources),
            "idle_s": node.idle_duration_ms / 1000,
            "labels": dict(node.labels),
        }
        for node in state.node_states
        if node.status != _DEAD
    }
    return {"requests": requests, "gangs": gangs, "constraints": constraints, "nodes": nodes}


def _selector(request: "Any") -> dict[str, str]:
    """The label selectors of a request as vctl writes them: ``a``, ``!a``, ``in(a,b)`` or ``!in(a,b)``."""
    selectors = {}
    for selector in request.label_selectors[:1]:
        for part in selector.label_constraints:
            mark = "!" if part.operator == _NOT_IN else ""
            values = list(part.label_values)
            selectors[part.label_key] = mark + (values[0] if len(values) == 1 else f"in({','.join(values)})")
    return selectors


if __name__ == "__main__":
    del sys.path[0]  # the directory of this file: its modules could shadow other ones
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(0)
