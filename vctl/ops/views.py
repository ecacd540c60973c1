"""Introspection of one cluster, as Ray's ``cluster_resources()`` and ``nodes()``; events; the scheduler's heartbeat."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY
from vctl.core.nodes import LOST
from vctl.errors import NotFound, param
from vctl.ops import forms, scope
from vctl.ops.cluster_views import existing, get_cluster, resolve
from vctl.ops.forms import fields_of, parse_filters
from vctl.store import clusters, feed, job_views, locks
from vctl.store.files import command_name
from vctl.store.rows import loads
from vctl.store.store import HEARTBEAT_EVERY_S, Store

if TYPE_CHECKING:
    from vctl.ops.capacity import ClusterSlot
    from vctl.spec.documents import (
        CurrentCluster,
        CurrentNode,
        EventForm,
        NodeOfCluster,
        SchedulerForm,
        VNodeForm,
    )


FRESH_NS = int(3 * HEARTBEAT_EVERY_S * 1e9)


def cluster_resources(store: Store, cluster_id: str | None = None) -> dict[str, float]:
    """The total resources of a cluster."""
    with store.snapshot():
        return forms.amounts(ops.capacity.totals_of(store, existing(store, cluster_id))[0])


def available_resources(store: Store, cluster_id: str | None = None) -> dict[str, float]:
    """The free resources of a cluster."""
    with store.snapshot():
        return forms.amounts(ops.capacity.totals_of(store, existing(store, cluster_id))[1])


def nodes(store: Store, cluster_id: str | None = None) -> list[NodeOfCluster]:
    """The virtual nodes of a cluster; of the primary the physical nodes that no logical cluster owns."""
    with store.snapshot():
        full_id = existing(store, cluster_id)
        return [_node(slot, full_id) for _, slot in sorted(ops.capacity.slots_of(store, full_id).items())]


def _node(slot: ClusterSlot, cluster_id: str) -> NodeOfCluster:
    row, physical = slot.row, cluster_id == PRIMARY
    labels = {**loads(row["labels"]), lb.NODE_ID: row["node_id"]}
    if physical:
        labels = {**labels, lb.VNODE_ID: row["node_id"], lb.VCLUSTER_ID: PRIMARY}
    return {
        "NodeID": row["node_id"] if physical else row["vnode_id"],
        "Alive": slot.state not in LOST,
        "NodeName": row["hostname"] if physical else row["node_id"],
        "NodeType": row["template_id"] or "",
        "Resources": forms.amounts(slot.total),
        "Used": forms.amounts(slot.used),
        "Available": forms.amounts(slot.available),
        "Labels": labels,
        "ParentNodeID": None if physical else row["parent_vnode_id"],
        "Kind": "physical" if physical else row["kind"],
        "State": slot.state,
    }


def current_cluster(store: Store, cluster_id: str | None = None) -> CurrentCluster:
    """A cluster in the form of the proposal's ``VirtualClusterInfo``."""
    with store.snapshot():
        form = get_cluster(store, resolve(cluster_id))
        return {
            "cluster_id": form["cluster_id"],
            "spec": form["spec"],
            "total_resources": form["total_resources"],
            "max_resources": form["max_resources"],
            "available_resources": form["available_resources"],
            "used_object_store_memory": float(ops.objects.used_bytes(store, form["cluster_id"])),
            "nodes": [node["NodeID"] for node in nodes(store, cluster_id)],
            "children": form["children"],
            "parent": form["parent_id"],
            "state": form["state"],
        }


def current_node(store: Store, vnode_id: str) -> CurrentNode:
    """A virtual node in the form of the proposal's ``VirtualNodeInfo``."""
    from vctl.spec.ids import full_cluster_id

    vnode_id = full_cluster_id(vnode_id)  # tables show the alias
    with store.snapshot():
        row = clusters.get_vnode(store, vnode_id)
        cluster_id = PRIMARY if row is None else row["cluster_id"]
        slot = ops.capacity.slots_of(store, cluster_id).get(vnode_id)
    if slot is None:
        raise NotFound(f"there is no virtual node {vnode_id}", fix="see `vctl nodes`")
    form = _node(slot, cluster_id)
    return {
        "node_id": vnode_id,
        "physical_node_id": slot.row["node_id"],
        "labels": form["Labels"],
        "used": form["Used"],
        "available": form["Available"],
        "total": form["Resources"],
        "parent": form["ParentNodeID"],
    }


def vnodes(store: Store) -> list[VNodeForm]:
    """Every virtual node of every cluster but the primary; ``load`` is the demand of tasks that are bound to it."""
    from vctl.store import tasks

    load: dict[str, dict[str, int]] = {}
    for task in tasks.bound(store):
        load[task["vnode_id"]] = rs.add(load.get(task["vnode_id"], {}), loads(task["request"]))
    return [
        {
            "vnode_id": row["vnode_id"],
            "cluster_id": row["cluster_id"],
            "node_id": row["node_id"],
            "parent_id": row["parent_vnode_id"],
            "kind": row["kind"],
            "whole": bool(row["whole"]),
            "rank": row["rank"],
            "resources": forms.amounts(loads(row["amounts"])),
            "load": forms.amounts(load.get(row["vnode_id"], {})),
            "instances": {name: forms.amounts(held) for name, held in loads(row["instances"]).items()},
            "cores": loads(row["cores"]),
            "labels": loads(row["labels"]),
        }
        for row in clusters.all_vnode_rows(store)
    ]


def list_events(
    store: Store,
    *,
    since: int = 0,
    limit: int | None = None,
    job: str | None = None,
    cluster: str | None = None,
    filters: Sequence[str] = (),
) -> tuple[list[EventForm], int]:
    """Events, oldest first, and their number; with a limit the newest, or after ``since`` the next ones."""
    where: list[str] = ["seq > ?"]
    values: list[object] = [since]
    if job is not None:
        from vctl.ops.jobs import resolve_named

        where.append("job_id = ?")
        values.append(resolve_named(store, job, param("job")))
    if cluster is not None:
        within, more = scope.of_events(store, cluster)
        where.append(within)
        values += more
    parsed = parse_filters(filters, fields_of("EventForm"))
    remaining = [part for part in parsed if part[0] not in feed.FILTERED]
    with store.snapshot():
        narrowed, more = feed.condition(store, [part for part in parsed if part not in remaining])
        condition = " AND ".join([*where, narrowed])
        values += more
        if remaining:
            every = [forms.event(row) for row in feed.matching(store, condition, values, -1)]
            listed = [form for form in every if forms.matches(form, remaining)]
            count = len(listed) if limit is None else limit
            return listed[:count] if since else listed[max(len(listed) - count, 0) :], len(listed)
        rows = feed.matching(store, condition, values, -1 if limit is None else limit, first=bool(since))
        if limit is None or len(rows) < limit:
            total = len(rows)
        else:
            everywhere = job is cluster is None and not since
            counted = feed.count_kinds(store, parsed) if everywhere else None
            total = feed.count(store, condition, values) if counted is None else counted
    return [forms.event(row) for row in rows], total


def summary(store: Store, kind: str) -> dict[str, int]:
    """The number of jobs in each state, or of events of each kind."""
    return job_views.counts_by_status(store) if kind == "jobs" else feed.counts(store)


def scheduler(store: Store) -> SchedulerForm:
    """Whether a scheduler is running, its last heartbeat, and the duration of its last round."""
    form = _heard(store)
    if store.address and store.identity is not None:
        form["service"], form["user"] = store.address, store.identity.name
    return form


def _heard(store: Store) -> SchedulerForm:
    starter = locks.scheduler_is_starting(store.home)
    holder = locks.holder(store.home)  # read both before the heartbeat, which a scheduler writes after them
    heartbeat = store.read_heartbeat()
    starting = starter or _has_yet_to_beat(holder, heartbeat)
    if heartbeat is None:
        return {
            "running": False, "starting": starting, "last_beat": None, "last_round_ms": None, "rounds": 0,
            "pid": None, "kind": None,
        }  # fmt: skip
    fresh = store.clock() - int(heartbeat["last_beat_ns"]) <= FRESH_NS
    return {
        # from a PID namespace of its own, a job sees the lock and not the process
        "running": fresh and (holder is not None or command_name(int(heartbeat["pid"])) != "gone"),
        "starting": starting,
        "last_beat": heartbeat["last_beat"],
        "last_round_ms": heartbeat["last_round_ms"],
        "rounds": heartbeat["rounds"],
        "pid": heartbeat["pid"],
        "kind": heartbeat["kind"],
    }


def _has_yet_to_beat(holder: locks.LockHolder | None, heartbeat: Mapping[str, Any] | None) -> bool:
    """Whether a scheduler took its lock a moment ago and has not written its first heartbeat yet."""
    if holder is None or holder.kind not in (locks.FOREGROUND, locks.BACKGROUND):
        return False
    is_of_another = heartbeat is None or heartbeat["pid"] != holder.pid
    return is_of_another and time.time_ns() - holder.since_ns <= FRESH_NS
