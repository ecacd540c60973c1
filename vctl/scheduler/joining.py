"""Placing more for a cluster that has flexible virtual nodes already: at most one of them on each physical node."""

from __future__ import annotations

from vctl.core.clusters import FLEXIBLE, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.scheduler.elasticity import Grow, flexible_parts, revert_growth
from vctl.scheduler.gang_growth import place_with_growth
from vctl.scheduler.placement import Placed, Unplaced, place


def place_more(ledger: Ledger, cluster_id: str, spec: ClusterSpec) -> Placed | Unplaced:
    """Place pieces so that a flexible one can join what the cluster has on that node, or there is none yet.

    A parent may have several virtual nodes on one physical node; then the others of them will not do.
    """
    parent_id = ledger.clusters[cluster_id].parent_id
    assert parent_id is not None
    barred: list[str] = []
    try:
        while True:
            placed = place(ledger, parent_id, spec, {})
            if isinstance(placed, Unplaced):
                return placed
            apart = cannot_join(ledger, cluster_id, placed)
            if not apart:
                return placed
            for slot_id in apart:
                barred.append(f"barred:{slot_id}")
                ledger.charge(barred[-1], slot_id, _all_free(ledger, slot_id))
    finally:
        for run_id in barred:
            ledger.discharge(run_id)


def grow_more(ledger: Ledger, cluster_id: str, spec: ClusterSpec) -> tuple[list[Grow], Placed] | Unplaced:
    """The same where the parent grows for it first; applied to the ledger. A reason leaves the ledger as it was."""
    parent_id = ledger.clusters[cluster_id].parent_id
    assert parent_id is not None
    barred: set[str] = set()
    while True:
        found = place_with_growth(ledger, parent_id, spec, {}, barred=frozenset(barred))
        if isinstance(found, Unplaced):
            return found
        steps, placed = found
        apart = [ledger.vnodes[slot_id] for slot_id in cannot_join(ledger, cluster_id, placed)]
        if not apart:
            return steps, placed
        made = {step.after.vnode_id: step.after for step in steps}
        for step in reversed(steps):
            revert_growth(ledger, step)
        for slot in apart:  # what was made there would be made in the next one above that exists
            slot_id = slot.vnode_id
            while slot_id not in ledger.vnodes:
                slot_id = made[slot_id].parent_id or ""
            barred.add(slot_id)


def cannot_join(ledger: Ledger, cluster_id: str, placed: Placed) -> list[str]:
    """Slots of flexible pieces on nodes where the cluster has a flexible virtual node in another slot."""
    there = {part.node_id: part.parent_id for part in flexible_parts(ledger, cluster_id)}
    return [
        piece.parent_vnode_id
        for piece in placed.pieces
        if piece.kind == FLEXIBLE and there.get(piece.node_id, piece.parent_vnode_id) != piece.parent_vnode_id
    ]


def _all_free(ledger: Ledger, slot_id: str) -> Allocation:
    capacity = ledger.capacities[slot_id]
    return Allocation(
        {name: amount for name, amount in capacity.free.items() if amount > 0},
        {n: {i: s for i, s in shares.items() if s > 0} for n, shares in capacity.instances.items()},
        tuple(sorted(capacity.cores)),
    )
