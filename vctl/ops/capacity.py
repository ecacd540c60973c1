"""Sums of clusters: what each has, what of it is free, and numbers that add up along the tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.core.nodes import ALIVE, DEAD, LOST
from vctl.ops import forms
from vctl.store import clusters, nodes
from vctl.store.rows import loads
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import ClusterUse


@dataclass(slots=True)
class Capacity:
    """The three sums of one cluster."""

    total: Sums = field(default_factory=dict)
    reserved: Sums = field(default_factory=dict)
    used: Sums = field(default_factory=dict)

    def form(self) -> ClusterUse:
        """The documented form; every resource that the cluster has is in each of them."""
        none = dict.fromkeys(self.total, 0)
        return {
            "total": forms.amounts({**none, **self.total}),
            "reserved": forms.amounts({**none, **self.reserved}),
            "used": forms.amounts({**none, **self.used}),
        }


def capacities(store: Store) -> dict[str, Capacity]:
    """Every cluster's sums, in one pass over what exists; queues do not matter."""
    lives: dict[str, bool] = {}
    found: dict[str, Capacity] = {PRIMARY: Capacity()}
    for node in nodes.all_rows(store):
        lives[node["node_id"]] = node["state"] != DEAD
        if lives[node["node_id"]]:
            _add(found[PRIMARY].total, loads(node["amounts"]))
    rows = clusters.parents_first(clusters.all_rows(store))
    for row in rows:
        found[row["cluster_id"]] = Capacity()
    for vnode in clusters.all_vnode_rows(store):
        if lives.get(vnode["node_id"]) and vnode["cluster_id"] in found:
            _add(found[vnode["cluster_id"]].total, loads(vnode["amounts"]))
    for row in reversed(rows):  # children first
        own, parent = found[row["cluster_id"]], found.get(row["parent_id"], Capacity())
        if row["kind"] == LOGICAL:
            for run in clusters.run_allocations(store, row["cluster_id"]):
                if lives.get(run["node_id"]):
                    _add(own.used, loads(run["amounts"]))
        else:
            own.used = dict(own.total)
        _add(parent.reserved, own.total)
        _add(parent.used, own.used)
    return found


def _add(sums: Sums, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount


Sums = dict[str, int]


@dataclass(slots=True)
class Slot:
    """One virtual node of a cluster as readers see it: what it has and what of it is free."""

    row: Row
    state: str
    total: Sums
    free: Sums


def slots_of(store: Store, cluster_id: str) -> dict[str, Slot]:
    """The virtual nodes of a cluster by id. Whole nodes that a logical child owns have left the view."""
    slots: dict[str, Slot] = {}
    if cluster_id == PRIMARY:
        for row in nodes.all_rows(store):
            total = loads(row["amounts"])
            slots[row["node_id"]] = Slot(row, row["state"], total, dict(total))
    else:
        states = clusters.node_states(store, cluster_id)
        for row in clusters.vnode_rows(store, cluster_id):
            total = loads(row["amounts"])
            slots[row["vnode_id"]] = Slot(row, states[row["node_id"]], total, dict(total))
    for held in clusters.child_allocations(store, cluster_id):
        if held["whole"] and held["kind"] == LOGICAL:
            slots.pop(held["parent_vnode_id"], None)
        elif (slot := slots.get(held["parent_vnode_id"])) is not None:
            _take(slot.free, held["amounts"])
    for held in clusters.run_allocations(store, cluster_id):
        if (slot := slots.get(held["vnode_id"])) is not None:
            _take(slot.free, held["amounts"])
    return slots


def _take(free: Sums, amounts: str) -> None:
    if amounts != "{}":
        for name, amount in loads(amounts).items():
            free[name] = free.get(name, 0) - amount


def totals_of(store: Store, cluster_id: str) -> tuple[Sums, Sums]:
    """Sums over the virtual nodes of a cluster: (total on nodes that live, free on nodes that take work)."""
    total: Sums = {}
    free: Sums = {}
    for slot in slots_of(store, cluster_id).values():
        if slot.state in LOST:
            continue
        for name, amount in slot.total.items():
            total[name] = total.get(name, 0) + amount
            free.setdefault(name, 0)
        if slot.state == ALIVE:
            for name, amount in slot.free.items():
                free[name] = free.get(name, 0) + amount
    return total, free
