"""From a placement with growth to the steps that lead there: who grows by what, and who lends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from vctl.core import labels as lb
from vctl.core.clusters import FLEXIBLE, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, EMPTY, SCALE, Allocation, Amounts, FreeCapacity, difference, merged
from vctl.scheduler.candidate_nodes import instance_ladders, is_unit, whole_ladder
from vctl.scheduler.elasticity import Grow, apply_growth, flexible_parts
from vctl.scheduler.growth_candidates import GrowthCandidates
from vctl.scheduler.growth_supply import OWN, Ladder, Need
from vctl.scheduler.placement_result import Piece, Placed

Part = tuple[str, int | None]
"""A resource, or one instance of it."""
NO_LOAN: tuple[str | None, Mapping[str, int]] = (None, {})


@dataclass(slots=True)
class _Growth:
    """What one cluster gains on one node: from its parent, and from each sibling that lends."""

    gained: dict[int, dict[Part, int]] = field(default_factory=dict)

    def add(self, lender: int, part: Part, amount: int) -> None:
        mine = self.gained.setdefault(lender, {})
        mine[part] = mine.get(part, 0) + amount


def growth_for(candidates: GrowthCandidates, placed: Placed, entry: Amounts) -> tuple[list[Grow], Placed]:
    """Grow for a placement; applied to the ledger, top level first. The pieces then lie in real virtual nodes."""
    steps: list[Grow] = []
    wanted = _wanted(candidates, placed.pieces)
    grown = _shared_out(candidates, wanted)
    made: dict[str, str] = {}
    for level in range(len(candidates.chain) - 1, -1, -1):
        for slot_id in sorted(wanted, key=lambda slot: (candidates.node_of(slot), slot)):
            growth = grown.get((slot_id, level), _Growth())
            vnode_id = _grow(candidates, slot_id, level, growth, made.get(slot_id, slot_id), steps)
            if vnode_id is not None:
                made[slot_id] = vnode_id
    return steps, _seated(candidates.ledger, placed, made, entry)


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
) -> dict[tuple[str, int], _Growth]:
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
    grown: dict[tuple[str, int], _Growth] = {}
    for name, many in places.items():
        flows = candidates.limits.settle(
            name, [Need(ladder, 1, amount, amount) for *_, ladder, amount in many]
        )
        assert flows is not None, (name, many)
        for (slot_id, part, ladder, _), given in zip(many, flows, strict=True):
            for source, amount in zip(ladder, given, strict=True):
                for level in range(source.depth if amount else 0):
                    lender = source.lender if level == source.depth - 1 else OWN
                    grown.setdefault((slot_id, level), _Growth()).add(lender, part, amount)
    return grown


def _grow(
    candidates: GrowthCandidates, slot_id: str, level: int, growth: _Growth, above_id: str, steps: list[Grow]
) -> str | None:
    """One cluster of the chain on one node; returns its virtual node there when it was made in this slot."""
    ledger, cluster_id = candidates.ledger, candidates.chain[level]
    slot = ledger.vnodes[slot_id]
    if (
        slot.cluster_id in candidates.chain[: level + 1]
    ):  # it exists: the slot itself, or one that the slot lies in
        for _ in range(level - candidates.chain.index(slot.cluster_id)):
            if slot.kind != FLEXIBLE:
                return None
            slot = ledger.vnodes[slot.parent_id or ""]
        own: VNode | None = slot
        if slot.kind != FLEXIBLE:
            return None
    else:
        own = None
    parent = ledger.vnodes[above_id] if own is None else ledger.vnodes[own.parent_id or ""]
    own_part = growth.gained.get(OWN, {})
    lenders = sorted(lender for lender in growth.gained if lender != OWN)
    for lender in lenders:
        _shrink(ledger, candidates.limits.lenders[lender].cluster_id, parent, growth.gained[lender], steps)
    for lender in lenders or ([OWN] if own_part else []):
        lent = growth.gained[lender] if lender != OWN else {}
        gain = _allocation(ledger.capacities[parent.vnode_id], _sum(own_part, lent))
        loan = (candidates.limits.lenders[lender].cluster_id, _amounts(lent)) if lent else NO_LOAN
        own, own_part = _enlarge(ledger, cluster_id, own, parent, gain, loan, steps), {}
    if own is None:
        own = _enlarge(ledger, cluster_id, None, parent, EMPTY, NO_LOAN, steps)
    return own.vnode_id if slot.cluster_id not in candidates.chain[: level + 1] else None


def _enlarge(
    ledger: Ledger,
    cluster_id: str,
    own: VNode | None,
    parent: VNode,
    gain: Allocation,
    loan: tuple[str | None, Mapping[str, int]],
    steps: list[Grow],
) -> VNode:
    if own is not None:
        after = replace(own, allocation=merged(own.allocation, gain))
    else:
        rank = max((ledger.vnodes[v].rank for v in ledger.members[cluster_id]), default=-1) + 1
        vnode_id = f"{cluster_id}/{rank}"
        labels = {**parent.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
        after = VNode(
            vnode_id, cluster_id, parent.node_id, parent.vnode_id, FLEXIBLE, gain, labels, rank=rank
        )
    steps.append(Grow(own, after, *loan))
    apply_growth(ledger, steps[-1])
    return after


def _shrink(
    ledger: Ledger, lender_id: str, parent: VNode, parts: Mapping[Part, int], steps: list[Grow]
) -> None:
    """A sibling lends from its virtual node in the same slot."""
    theirs = next(one for one in flexible_parts(ledger, lender_id) if one.parent_id == parent.vnode_id)
    lent = _allocation(ledger.capacities[theirs.vnode_id], parts)
    steps.append(Grow(theirs, replace(theirs, allocation=difference(theirs.allocation, lent))))
    apply_growth(ledger, steps[-1])


def _sum(some: Mapping[Part, int], more: Mapping[Part, int]) -> dict[Part, int]:
    return {part: some.get(part, 0) + more.get(part, 0) for part in {**some, **more}}


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
    return Allocation(amounts, instances, _cores(capacity, amounts))


def _cores(capacity: FreeCapacity, amounts: Amounts) -> tuple[int, ...]:
    cpu = amounts.get(CPU, 0)
    if not cpu or cpu % SCALE or len(capacity.cores) * SCALE < cpu:
        return ()
    return tuple(sorted(capacity.cores)[: cpu // SCALE])


def _seated(ledger: Ledger, placed: Placed, made: Mapping[str, str], entry: Amounts) -> Placed:
    """The same pieces in the virtual nodes that there are now, with the cores that are there."""
    capacities: dict[str, FreeCapacity] = {}
    pieces = []
    for piece in placed.pieces:
        slot_id = made.get(piece.parent_vnode_id, piece.parent_vnode_id)
        capacity = capacities.setdefault(slot_id, ledger.capacities[slot_id].copy())
        cores = tuple(sorted(capacity.cores)) if piece.whole else _cores(capacity, piece.allocation.amounts)
        allocation = replace(piece.allocation, cores=cores)
        capacity.take_exactly(allocation)
        pieces.append(replace(piece, parent_vnode_id=slot_id, allocation=allocation))
    wanted = {name: amount for name, amount in entry.items() if amount}
    home = next((piece for piece in pieces if piece.rank == placed.entry_rank), None)
    held = FreeCapacity(home.allocation).take(wanted) if home is not None and wanted else EMPTY
    return replace(placed, pieces=tuple(pieces), entry=held)
