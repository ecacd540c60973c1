"""Physical nodes: register this machine, declare simulated nodes, and take nodes in and out of service."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vctl import engine, spec
from vctl.core import nodes as nd
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY
from vctl.core.nodes import MADE_BY, MADE_BY_COMMAND, Node
from vctl.core.resources import CPU, DEFAULT_UNITS, GPU, MEMORY, SCALE, Allocation, Amounts, whole_node
from vctl.core.values import replace
from vctl.core.wording import cluster_text, listed
from vctl.engine.lifecycle import NODE
from vctl.errors import BadSpec, Conflict, NotFound, param
from vctl.ops import forms
from vctl.ops.forms import parse_filters
from vctl.store import clusters, objects, observed, provider, rows, upkeep
from vctl.store import nodes as table
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.ops.capacity import ClusterSlot
    from vctl.spec.documents import NodeForm

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MAX_NUMBERED_AT_ONCE = 1 << 22
"""The most CPUs and devices of the nodes that one request adds: each has a number, which takes memory."""


def author(store: Store) -> str:
    """Name of the user who asks: of a shared service, else the one who runs this process."""
    return own_name() if store.identity is None else store.identity.name


def own_name() -> str:
    """Name of the user who runs this process."""
    return user_name(os.getuid())


@cache
def user_name(uid: int) -> str:
    """The name of a user; the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def join(store: Store) -> None:
    """Register this machine as a node, for a command that needs nodes, unless the settings forbid it."""
    if store.local_node:
        ensure_local(store)


class _RolledBack(Exception):
    """Raised to roll a transaction back."""


@contextmanager
def rolled_back(store: Store) -> Iterator[None]:
    """A transaction whose changes can be seen inside, and are rolled back at its end."""
    with suppress(_RolledBack), store.together():
        yield
        raise _RolledBack


@contextmanager
def as_if_joined(store: Store) -> Iterator[None]:
    """Inside, a state directory without nodes has this machine as a node; it is removed at the end."""
    if not store.local_node or table.exist(store):
        yield
        return
    with rolled_back(store):
        ensure_local(store)
        yield


def ensure_local(store: Store, *, register: bool = True) -> None:
    """Register this machine, once for each boot; the node of an earlier boot becomes dead.

    Without ``register``, only the nodes of earlier boots change. The machine is registered only while there is
    no other node and no scheduler has worked on a Ray cluster. A machine that was registered before stays a
    node next to others, also after a restart. A node that was declared dead stays dead until it is removed or
    the machine restarts.
    """
    known = table.local(store)
    register = register and not table.only_others(store)
    boot_id = Path(BOOT_ID).read_text().strip()
    current = [row for row in known if row["boot_id"] == boot_id]
    if len(current) == len(known) and (current or not register):
        return
    machine = None
    if register and not table.is_registered(store, boot_id) and not store.recall(nd.RAY):
        from vctl.runtime.detect import detect

        machine = detect()
    with store.transaction():
        for row in table.local(store):
            if row["boot_id"] != boot_id:
                table.move(store, row["node_id"], "die", reason="the machine restarted", author="vctl")
        if machine is None or table.is_registered(store, boot_id) or table.only_others(store):
            return
        amounts = {CPU: machine.cpus, MEMORY: machine.memory_bytes * SCALE}
        if machine.gpus:
            amounts[GPU] = len(machine.gpus) * SCALE
        node_id = _free_id(store, f"{_clean(machine.hostname)}-{boot_id.replace('-', '')[:8]}")
        # GPUs keep their own numbers, which need not start at 0 when this process may not see them all
        instances = {GPU: {gpu.index: SCALE for gpu in machine.gpus}} if machine.gpus else {}
        node = Node(
            node_id, machine.template_id, Allocation(amounts, instances, machine.cpu_ids), machine.hostname,
            dict(machine.labels), nd.LOCAL, nd.ALIVE, boot_id,
        )  # fmt: skip
        devices = {"gpus": [{"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name} for gpu in machine.gpus]}
        table.insert(store, node, devices=devices)


def _free_id(store: Store, preferred: str) -> str:
    number, node_id = 1, preferred
    while table.get(store, node_id) is not None:
        number += 1
        node_id = f"{preferred}-{number}"
    return node_id


def _clean(hostname: str) -> str:
    cleaned = "".join(
        letter if (letter.isalnum() and letter.isascii()) or letter in ".-_" else "-" for letter in hostname
    )
    return cleaned.strip(".-_")[:48] or "node"


def add(
    store: Store,
    *,
    resources: Amounts,
    node_id: str | None = None,
    count: int = 1,
    template: str | None = None,
    labels: Mapping[str, str] | None = None,
    source: str = nd.SIMULATED,
    units: frozenset[str] = DEFAULT_UNITS,
) -> list[NodeForm]:
    """Declare one or several equal nodes. With ``count`` the ids are ``<node id or template>-<number>``."""
    if source != nd.SIMULATED:
        raise BadSpec(
            "only simulated nodes are added by hand",
            fix=f"add {param('simulated')} nodes; this machine registers itself",
        )
    numbered = count * sum(resources.get(name, 0) // SCALE for name in {CPU, *units})
    if numbered > MAX_NUMBERED_AT_ONCE:
        raise spec.fields.refuse(
            param("count"),
            f"these nodes have {numbered} CPUs and devices together, at most {MAX_NUMBERED_AT_ONCE} are accepted",
            "add them in several steps",
        )
    if not any(resources.values()):
        raise spec.fields.refuse(
            param("resources"), "nothing is in it", 'write for example \'{"CPU": 8, "memory": "16GiB"}\''
        )
    name = spec.text.check_line(template, param("template")) if template else template_of(resources)
    total = whole_node(resources, units)
    with store.transaction():
        ids = [node_id] if node_id and count == 1 else _numbered(store, node_id or name, count)
        for fresh in ids:
            if not spec.ids.is_id(fresh):
                where, more = ("node_id", "") if node_id else ("template", f", or give {param('node_id')}")
                problem, fix = f"{fresh!r} is not a node id", f"use 1 to 128 of A-Z a-z 0-9 . _ -{more}"
                raise spec.fields.refuse(param(where), problem, fix)
            if table.get(store, fresh) is not None:
                raise Conflict(f"node {fresh} exists already", fix="choose another id, or `vctl node update`")
            table.insert(store, Node(fresh, name, total, fresh, dict(labels or {}), source))
        slots = _slots(store)
        return [slots[fresh].form() for fresh in ids]


def template_of(resources: Amounts) -> str:
    """A type name from the resources, such as ``8c16g`` or ``8c16g2gpu``."""
    cpus = resources.get(CPU, 0) / SCALE
    memory = resources.get(MEMORY, 0) // SCALE // (1 << 30)
    gpus = resources.get(GPU, 0) // SCALE
    return f"{cpus:g}c" + (f"{memory}g" if memory else "") + (f"{gpus}gpu" if gpus else "")


def _numbered(store: Store, stem: str, count: int) -> list[str]:
    in_use = set(table.ids_like(store, f"{stem}-"))
    number, width = 0, len(str(max(count + len(in_use), 100) - 1))
    ids: list[str] = []
    while len(ids) < count:
        fresh = f"{stem}-{number:0{width}d}"
        if fresh not in in_use:
            ids.append(fresh)
        number += 1
    return ids


def _slots(store: Store) -> dict[str, ClusterSlot]:
    """What each physical node has and has free, by id."""
    from vctl.ops.capacity import slots_of  # submits and lists of jobs need this module, but not that one

    return slots_of(store, PRIMARY, owned=True)


def list_nodes(store: Store, *, filters: Sequence[str] = ()) -> list[NodeForm]:
    """Every physical node of any cluster, with its free resources."""
    parsed = parse_filters(filters, ("node_id", "state", "source", "template_id", "hostname", "created_at"))
    with store.snapshot():
        every = [slot.form() for slot in _slots(store).values()]
    return [form for form in every if forms.matches(form, parsed)]


def get_node(store: Store, node_id: str) -> NodeForm:
    """One physical node."""
    with store.snapshot():
        row = _row(store, node_id)
        return _slots(store)[row["node_id"]].form()


def _row(store: Store, node_id: str) -> Row:
    row = table.get(store, node_id)
    if row is not None:
        return row
    like = table.ids_like(store, node_id) if node_id else []
    if len(like) == 1:
        named = table.get(store, like[0])
        assert named is not None
        return named
    if like:
        raise BadSpec(f"node {node_id} is ambiguous: {', '.join(like[:5])}", fix="write more of the id")
    raise NotFound(f"there is no node {node_id!r}", fix="see `vctl node list`")


def _move(store: Store, node_id: str, event: str, reason: str | None = None) -> NodeForm:
    """Move a node by a command. Without effect if it is there already, unless a drain gives a new reason."""
    with store.transaction():
        row = _row(store, node_id)
        if row["state"] not in THERE[event] or (event == "drain" and reason not in (None, row["reason"])):
            if event not in NODE.moves_from(row["state"]):
                raise Conflict(
                    f"node {row['node_id']} is {row['state']} and cannot {event}",
                    fix="a machine that restarts is a new node",
                )
            table.move(store, row["node_id"], event, reason=reason, author=author(store))
            if event == "drain":
                settle_drained(store, row["node_id"])
        return get_node(store, row["node_id"])


THERE = {"drain": (nd.DRAINING, nd.DRAINED), "undrain": (nd.ALIVE,), "die": (nd.DEAD,)}
"""For each command the states in which it has nothing to do, so that a script may repeat the command."""


def settle_drained(store: Store, node_id: str) -> None:
    """Move a draining node that is not used any more to DRAINED; inside a transaction."""
    row = table.get(store, node_id)
    if row is not None and row["state"] == nd.DRAINING and not clusters.node_is_used(store, node_id):
        table.move(store, node_id, "empty", reason=row["reason"], author=row["author"])


def drain(store: Store, node_id: str, *, reason: str | None = None) -> NodeForm:
    """Give a node no new work; its running work goes on."""
    return _move(store, node_id, "drain", reason)


def undrain(store: Store, node_id: str) -> NodeForm:
    """Take a drained node back into service."""
    return _move(store, node_id, "undrain")


def kill(store: Store, node_id: str, *, reason: str | None = None) -> NodeForm:
    """Declare a node dead; its work fails."""
    return _move(store, node_id, "die", reason or "declared dead")


def update(
    store: Store,
    node_id: str,
    *,
    resources: Amounts | None = None,
    labels: Mapping[str, str | None] | None = None,
    units: frozenset[str] = DEFAULT_UNITS,
) -> NodeForm:
    """Change the totals or the labels of a node. Only the named ones are replaced; None removes a label."""
    with store.transaction():
        row = _row(store, node_id)
        node = rows.node(row)
        if node.state == nd.DEAD:
            raise Conflict(f"node {node.node_id} is DEAD", fix="add the machine as a new node")
        total = node.total
        if resources is not None:
            amounts = {name: amount for name, amount in {**total.amounts, **resources}.items() if amount}
            cores = total.cores if node.source == nd.LOCAL else None
            total = whole_node(amounts, units | set(node.total.instances), cores)
            devices = rows.loads(row["devices"])
            known = {GPU: [gpu["index"] for gpu in devices.get("gpus", ())], **devices.get("numbers", {})}
            used = table.numbers_in_use(store, node.node_id)
            total = nd.renumbered(total, node.total, known, used)
            for name in {*total.instances, *node.total.instances}:
                had = [
                    *known.get(name, ()),
                    *node.total.instances.get(name, ()),
                    *total.instances.get(name, ()),
                ]
                known[name] = list(dict.fromkeys(had))
            observed.remember_devices(store, node.node_id, {**devices, "numbers": known})
        merged = {key: text for key, text in {**node.labels, **(labels or {})}.items() if text is not None}
        shrunk = node.shrunk or (
            clusters.node_is_used(store, node.node_id) and not rs.FreeCapacity(total).fits_exactly(node.total)
        )
        if merged != node.labels and clusters.node_is_used(store, node.node_id):
            _relabel(store, replace(node, labels=merged))
        store.emit(engine.changes.NodeChanged(replace(node, total=total, labels=merged, shrunk=shrunk)))
        if total != node.total:
            _resize_whole(store, node.node_id, total)
        return get_node(store, node.node_id)


def _relabel(store: Store, node: Node) -> None:
    from vctl.scheduler.replacement import relabelled  # here: a list of nodes need not load the scheduler

    if placed := relabelled(clusters.load_ledger(store), node):
        store.emit(engine.changes.VNodesChanged(placed=placed))


def _resize_whole(store: Store, node_id: str, total: Allocation) -> None:
    """Resize the virtual nodes that are the whole node; a flexible one leases what exceeds its minimum."""
    resized = tuple(replace(vnode, allocation=total) for vnode in upkeep.whole_of(store, node_id))
    if resized:
        store.emit(engine.changes.VNodesChanged(placed=resized, node_id=node_id))
    if grown := sorted({vnode.cluster_id for vnode in resized if vnode.kind == FLEXIBLE}):
        # here, because a list of nodes does not need the scheduler
        from vctl.ops.cluster_changes import settle_leases

        ledger = clusters.load_ledger(store)
        for cluster_id in grown:
            settle_leases(store, ledger, cluster_id)


def _how_to_empty(store: Store, row: Row) -> str:
    node_id = row["node_id"]
    if row["state"] != nd.DEAD or not (holders := clusters.on_node(store, node_id)):
        return f"vctl node drain {node_id}, and remove it when it is empty"
    return f"it has a part of {listed([cluster_text(holder) for holder in holders], 5)}: make it smaller, or delete it"


def remove(store: Store, node_id: str) -> NodeForm:
    """Remove an unused node."""
    form = get_node(store, node_id)
    with store.transaction():
        row = _row(store, node_id)
        if clusters.node_is_used(store, row["node_id"]):
            raise Conflict(f"node {row['node_id']} is in use", fix=_how_to_empty(store, row))
        if (booked := clusters.booked_on(store, row["node_id"])) and row["state"] != nd.DEAD:
            raise Conflict(
                f"node {row['node_id']} is booked for {', '.join(booked)}",
                fix="cancel that with `vctl vc delete`; `vctl node kill` gives the node up",
                details={"bookings": booked},
            )
        object_ids = [
            f"{copy['submission_id']}/{copy['name']}" for copy in objects.are_on(store, row["node_id"])
        ]
        if object_ids and row["state"] != nd.DEAD:
            raise Conflict(
                f"node {row['node_id']} keeps objects of running jobs: {', '.join(object_ids[:5])}",
                fix="wait for these jobs; `vctl node kill` gives the objects up",
                details={"objects": object_ids},
            )
        if row["state"] == nd.RELEASING:
            provider.drop(store, row["node_id"])  # the provider is not asked any more to end the machine
        elif rows.loads(row["labels"]).get(MADE_BY) == MADE_BY_COMMAND:
            from vctl.engine.rules.machines import ending  # here, because a list of nodes does not need it

            for change in ending(row["node_id"], row["template_id"], store.clock(), new_request_id):
                store.emit(change)
            return form
        store.emit(engine.changes.NodeRemoved(row["node_id"]))
    return form


def new_request_id() -> str:
    """A new id for a request to a node provider."""
    return os.urandom(8).hex()


def heartbeat(store: Store, node_id: str, *, timeout_s: float | None = None) -> NodeForm:
    """Record a heartbeat. ``timeout_s``: declare the node dead after that time without a heartbeat."""
    with store.transaction():
        row = _row(store, node_id)
        if row["state"] == nd.DEAD:
            raise Conflict(f"node {row['node_id']} is DEAD", fix="add the machine as a new node")
        observed.heartbeat(store, row["node_id"], timeout_s)
        return get_node(store, row["node_id"])
