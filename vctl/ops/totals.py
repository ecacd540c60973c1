"""What a cluster has and what is free in it, from the tables: one pass over what lies in it."""

from __future__ import annotations

from dataclasses import dataclass

from vctl.core.clusters import LOGICAL, PRIMARY
from vctl.core.nodes import ALIVE, LOST
from vctl.store import clusters, nodes
from vctl.store.rows import loads
from vctl.store.store import Row, Store

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
