"""From a placement with growth to the steps that lead there: who grows by what, and who lends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vctl.core.clusters import FLEXIBLE, VNode
from vctl.core.resources import CPU, EMPTY, Allocation, Amounts, FreeCapacity, difference, merged
from vctl.scheduler.candidate_nodes import instance_ladders, is_unit, whole_ladder
from vctl.scheduler.elasticity import Grow, apply_growth, enlarged, flexible_in
from vctl.scheduler.growth_candidates import GrowthCandidates
from vctl.scheduler.growth_supply import OWN, Ladder, Need
from vctl.scheduler.placement_result import Piece, Placed, seated

Part = tuple[str, int | None]
"""A resource, or one instance of it."""
Gains = dict[int, dict[Part, int]]
"""What one cluster gains on one node: from its parent (``OWN``), and from each sibling that lends."""


def growth_for(candidates: GrowthCandidates, placed: Placed, entry: Amounts) -> tuple[list[Grow], Placed]:
    """Grow for a placement; applied to the ledger, top level first. The pieces then lie in real virtual nodes."""
    steps: list[Grow] = []
    wanted = _wanted(candidates, placed.pieces)
    gains = _shared_out(candidates, wanted)
    made: dict[str, str] = {}
    for level in range(len(candidates.chain) - 1, -1, -1):
        for slot_id in sorted(wanted, key=lambda slot: (candidates.node_of(slot), slot)):
            above_id = _grows_in(candidates, slot_id, level, made)
            if above_id is None:
                continue
            vnode_id = _grow(candidates, level, above_id, gains.get((slot_id, level), {}), steps)
            if candidates.ledger.vnodes[slot_id].cluster_id not in candidates.chain[: level + 1]:
                made[slot_id] = vnode_id
    there = seated(candidates.ledger, placed, entry, made)
    assert there is not None, placed
    return steps, there


def _wanted(candidates: GrowthCandidates, pieces: Iterable[Piece]) -> dict[str, Allocation]:
    """What the pieces take of each slot that can grow."""
    wanted: dict[str, Allocation] = {}
    for piece in pieces:
        slot_id = piece.parent_vnode_id
        vnode = candidates.ledger.vnodes[slot_id]
        if vnode.cluster_id != candidates.chain[0] or vnode.kind == FLEXIBLE:
            wanted[slot_id] = merged(wanted.get(slot_id, EMPTY), piece.allocation)
    return wanted


def _shared_out(
    candidates: GrowthCandidates, wanted: Mapping[str, Allocation]
) -> dict[tuple[str, int], Gains]:
    """Which source gives what, for all slots together."""
    places: dict[str, list[tuple[str, Part, Ladder, int]]] = {}
    for slot_id, allocation in wanted.items():
        way = candidates.way(slot_id)
        for name, amount in allocation.amounts.items():
            if amount and is_unit(way, name):
                ladders = instance_ladders(way, name)
                for index, share in allocation.instances[name].items():
                    places.setdefault(name, []).append((slot_id, (name, index), ladders[index], share))
            elif amount:
                places.setdefault(name, []).append((slot_id, (name, None), whole_ladder(way, name), amount))
    gains: dict[tuple[str, int], Gains] = {}
    for name, many in places.items():
        flows = candidates.limits.settle(
            name, [Need(ladder, 1, amount, amount) for *_, ladder, amount in many]
        )
        assert flows is not None, (name, many)
        for (slot_id, part, ladder, _), given in zip(many, flows, strict=True):
            for source, amount in zip(ladder, given, strict=True):
                for level in range(source.depth if amount else 0):
                    lender = source.lender if level == source.depth - 1 else OWN
                    mine = gains.setdefault((slot_id, level), {}).setdefault(lender, {})
                    mine[part] = mine.get(part, 0) + amount
    return gains


def _grows_in(candidates: GrowthCandidates, slot_id: str, level: int, made: Mapping[str, str]) -> str | None:
    """The virtual node above a cluster of the chain in which it grows for a slot; None: it has a fixed one there."""
    vnodes, slot = candidates.ledger.vnodes, candidates.ledger.vnodes[slot_id]
    if slot.cluster_id not in candidates.chain[: level + 1]:
        return made.get(slot_id, slot_id)
    for _ in range(level - candidates.chain.index(slot.cluster_id)):  # the slot itself, or one it lies in
        if slot.kind != FLEXIBLE:
            return None
        slot = vnodes[slot.parent_id or ""]
    return slot.parent_id if slot.kind == FLEXIBLE else None


def _grow(candidates: GrowthCandidates, level: int, above_id: str, gains: Gains, steps: list[Grow]) -> str:
    """Let one cluster of the chain grow in a virtual node of the one above; returns its own there."""
    ledger, cluster_id = candidates.ledger, candidates.chain[level]
    capacity = ledger.capacities[above_id]

    def step(
        before: VNode | None, after: VNode, lender: str | None = None, lent: Amounts = EMPTY.amounts
    ) -> None:
        steps.append(Grow(before, after, lender, lent))
        apply_growth(ledger, steps[-1])

    lenders = {
        lender: candidates.limits.lenders[lender].cluster_id for lender in sorted(gains) if lender != OWN
    }
    for lender, lender_id in lenders.items():  # each from its virtual node in the same slot
        theirs = flexible_in(ledger, lender_id, above_id)
        assert theirs is not None, (lender_id, above_id)
        lent = _allocation(ledger.capacities[theirs.vnode_id], gains[lender])
        step(theirs, replace(theirs, allocation=difference(theirs.allocation, lent)))
    own = gains.get(OWN, {})
    for lender, lender_id in lenders.items():
        gain = _allocation(
            capacity,
            {part: own.get(part, 0) + gains[lender].get(part, 0) for part in {**own, **gains[lender]}},
        )
        step(
            flexible_in(ledger, cluster_id, above_id),
            enlarged(ledger, cluster_id, above_id, gain),
            lender_id,
            _amounts(gains[lender]),
        )
        own = {}
    present = flexible_in(ledger, cluster_id, above_id)
    if own or present is None:
        step(present, enlarged(ledger, cluster_id, above_id, _allocation(capacity, own)))
    return present.vnode_id if present is not None else steps[-1].after.vnode_id


def _amounts(parts: Mapping[Part, int]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for (name, _), amount in parts.items():
        amounts[name] = amounts.get(name, 0) + amount
    return amounts


def _allocation(capacity: FreeCapacity, parts: Mapping[Part, int]) -> Allocation:
    """Amounts and instances as an allocation out of free capacity; whole CPUs come with their cores."""
    amounts, instances = _amounts(parts), dict[str, dict[int, int]]()
    for (name, index), amount in parts.items():
        if index is not None:
            instances.setdefault(name, {})[index] = amount
    return Allocation(amounts, instances, capacity.pick_cores(amounts.get(CPU, 0)))
