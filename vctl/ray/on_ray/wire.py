"""Messages between a scheduler, its link to Ray and the agents on Ray's nodes; vctl's names in Ray.

All messages are made of tuples, texts and numbers, so that another version of Python can unmarshal them.
"""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from vctl.core import resources as rs
from vctl.core.resources import MEMORY, OBJECT_STORE_MEMORY, SCALE, Amounts
from vctl.core.values import value
from vctl.runtime import frames
from vctl.runtime.protocol import ExitRecord, LaunchRequest, RunState, Seen, StartRecord

NAMESPACE = "vctl"
"""The Ray namespace of the agents: Ray names actors within a namespace."""
FORMAT = 3
"""The version of the requests to agents and of their answers; other versions are not understood."""
MAX_CHUNK_BYTES = 1 << 18
VISIBLE = "CUDA_VISIBLE_DEVICES"
_NODE_LETTERS = 16
_WHOLE = (MEMORY, OBJECT_STORE_MEMORY)
_OF_RAY = re.compile(r"node:|accelerator_type:|bundle_group|.*_group_(\d+_)?[0-9a-f]{32,}\Z")

Packed = tuple[Any, ...]


@value(frozen=True, slots=True)
class RayNode:
    """A node as Ray reports it. `death`: the reason of its death, empty while it is alive."""

    node_id: str
    address: str
    amounts: Amounts
    labels: Mapping[str, str]
    death: str = ""


# ---- names in Ray ----


def reservation_name(state: str, name: str) -> str:
    """The name of a placement group: `state` is the id of a state directory, `name` a job and attempt."""
    return f"vctl-{state}-{name}"


def agent_name(state: str, node_id: str) -> str:
    """The name of the actor that carries out runs of one state directory on one node."""
    return f"vctl-{state}-agent-{node_id[:_NODE_LETTERS]}"


# ---- nodes and bundles ----


def node_of(entry: Mapping[str, Any]) -> RayNode:
    """Read an entry of ``ray.nodes()``, without the object store and the resources that Ray itself adds."""
    amounts = {
        name: round(amount * SCALE)
        for name, amount in entry["Resources"].items()
        if name != OBJECT_STORE_MEMORY and not _OF_RAY.match(name) and round(amount * SCALE) > 0
    }
    death = "" if entry["Alive"] else entry.get("DeathReasonMessage") or "Ray reports its death"
    labels = {str(key): str(text) for key, text in entry.get("Labels", {}).items()}
    return RayNode(entry["NodeID"], entry["NodeManagerAddress"], amounts, labels, death)


def bundle(amounts: Amounts) -> dict[str, float]:
    """The bundle of a placement group for one virtual node; Ray's amounts have the same resolution."""
    return {
        name: float(amount // SCALE) if name in _WHOLE else amount / SCALE
        for name, amount in sorted(amounts.items())
        if amount > 0
    }


Part = tuple[str, str, Amounts]
"""A virtual node, its node, and the amounts to reserve for it."""


def missing(parts: Iterable[Part], reserved: Iterable[Part]) -> list[Part]:
    """The parts that are still to reserve, for virtual nodes that grew or were moved from a dead node."""
    has: dict[tuple[str, str], Amounts] = {}
    for vnode_id, node_id, amounts in reserved:
        has[vnode_id, node_id] = rs.add(has.get((vnode_id, node_id), {}), amounts)
    rest: list[Part] = []
    for vnode_id, node_id, amounts in parts:
        difference = rs.subtract(amounts, has.get((vnode_id, node_id), {}))
        if lacking := {name: amount for name, amount in difference.items() if amount > 0}:
            rest.append((vnode_id, node_id, lacking))
    return rest


def group_of(name: str, parts: Iterable[Part], own: Collection[str]) -> Packed:
    """A placement group: name, (node, bundle) of each part, (index, virtual node) of each part in ``own``."""
    listed = list(parts)
    bundles = [(node_id, bundle(amounts)) for _, node_id, amounts in listed]
    return (name, bundles, [(index, part[0]) for index, part in enumerate(listed) if part[0] in own])


DeviceIndices = Mapping[str, tuple[str, int]]
"""Number of a planned GPU -> its virtual node, and an index into the GPUs that Ray has reserved for that."""
Chosen = Mapping[str, str]
"""Number of a planned GPU -> id of the GPU that Ray has reserved for it."""


def indices_of(
    planned: Iterable[tuple[str, str]], others: Iterable[DeviceIndices]
) -> dict[str, tuple[str, int]]:
    """An index for each planned GPU of a virtual node: as in ``others``, else the first free one."""
    in_use = {(vnode_id, gpu): index for indices in others for gpu, (vnode_id, index) in indices.items()}
    chosen = {}
    for vnode_id, gpu in planned:
        if (vnode_id, gpu) not in in_use:
            used = {index for (owner, _), index in in_use.items() if owner == vnode_id}
            in_use[vnode_id, gpu] = next(index for index in range(len(used) + 1) if index not in used)
        chosen[gpu] = vnode_id, in_use[vnode_id, gpu]
    return chosen


def chosen_of(indices: DeviceIndices, ids: Mapping[str, list[str]]) -> dict[str, str]:
    """The GPUs at these indices. ``ids``: virtual node -> ids of the GPUs that Ray has reserved for it."""
    return {
        gpu: ids[vnode_id][index]
        for gpu, (vnode_id, index) in indices.items()
        if index < len(ids.get(vnode_id, ()))
    }


def planned_in(env: Mapping[str, str]) -> list[str]:
    """The GPUs that were planned for a run."""
    return [gpu for gpu in env.get(VISIBLE, "").split(",") if gpu]


def devices(env: Mapping[str, str], chosen: Chosen) -> dict[str, str]:
    """The environment of a run, with the planned GPUs replaced by those that Ray has reserved."""
    own = [chosen[gpu] for gpu in planned_in(env) if gpu in chosen]
    return {**env, VISIBLE: ",".join(own)} if own else dict(env)


def with_devices(shown: str, chosen: Chosen) -> str:
    """The document for a keeper (rays.py), with the planned GPUs replaced by those that Ray has reserved."""
    if not (shown and chosen):
        return shown
    document = json.loads(shown)
    for node in document["nodes"]:
        node["gpus"] = [chosen[gpu] for gpu in node["gpus"] if gpu in chosen]
    return json.dumps(document)


# ---- messages ----


def framed(message: Packed) -> bytes:
    """A marshalled message after its length."""
    return frames.frame(marshal.dumps(message))


def unframed(received: bytearray) -> Iterator[Packed]:
    """The complete messages at the beginning of the received bytes; they are removed from the bytes."""
    while (body := frames.cut(received)) is not None:
        yield marshal.loads(body)


def packed_request(request: LaunchRequest) -> Packed:
    """A launch request for an agent, which adds the log path, home and supervisor of its node."""
    return (
        request.run_id,
        request.argv,
        dict(request.env),
        request.cwd,
        request.grace_s,
        request.log_max_bytes,
    )


def request_of(packed: Packed, *, log_path: str, supervisor: int) -> LaunchRequest:
    """The launch request on the node."""
    run_id, argv, env, cwd, grace_s, log_max_bytes = packed
    return LaunchRequest(
        run_id, tuple(argv), env, cwd, log_path, supervisor=supervisor, grace_s=grace_s, log_max_bytes=log_max_bytes
    )  # fmt: skip


def packed_seen(seen: Seen) -> Packed:
    """The observation of a run as its agent sends it."""
    start, end = seen.start, seen.exit
    began = start and (
        start.pid, start.pid_started, start.supervisor, start.supervisor_started, start.boot_id, start.started_at
    )  # fmt: skip
    ended = end and (
        end.exit_code, end.signal, end.launch_errno, end.message, end.stopped, end.ended_at, end.max_rss_kib,
        end.user_us, end.system_us,
    )  # fmt: skip
    return (seen.state.value, began, ended, seen.problem)


def seen_of(packed: Packed) -> Seen:
    """The observation of a run that an agent has sent."""
    state, start, end, problem = packed
    return Seen(RunState(state), start and StartRecord(*start), end and ExitRecord(*end), problem)
