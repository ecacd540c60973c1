"""From a placement with growth to the steps that lead there: who grows by what, and who lends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from vctl.core import labels as lb
from vctl.core.clusters import FLEXIBLE, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, EMPTY, SCALE, Amounts, Holding, Room, difference, merged
from vctl.scheduler.elasticity import Grow, apply_growth, flexible_parts
from vctl.scheduler.growth_ground import GrowthGround
from vctl.scheduler.growth_supply import OWN, Ladder, Need
from vctl.scheduler.placement_ground import instance_ladders, is_unit, whole_ladder
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


def growth_for(ground: GrowthGround, placed: Placed, entry: Amounts) -> tuple[list[Grow], Placed]:
    """Grow for a placement; applied to the ledger, top level first. The pieces then lie in real virtual nodes."""
    steps: list[Grow] = []
    wanted = _wanted(ground, placed.pieces)
    grown = _shared_out(ground, wanted)
    made: dict[str, str] = {}
    for level in range(len(ground.chain) - 1, -1, -1):
        for slot_id in sorted(wanted, key=lambda slot: (ground.node_of(slot), slot)):
            growth = grown.get((slot_id, level), _Growth())
            vnode_id = _grow(ground, slot_id, level, growth, made.get(slot_id, slot_id), steps)
            if vnode_id is not None:
                made[slot_id] = vnode_id
    return steps, _seated(ground.ledger, placed, made, entry)


def _wanted(ground: GrowthGround, pieces: Iterable[Piece]) -> dict[str, Holding]:
    """What the pieces take of each slot that can grow."""
    wanted: dict[str, Holding] = {}
    for piece in pieces:
        slot_id = piece.parent_vnode_id
        vnode = ground.ledger.vnodes[slot_id]
        if vnode.cluster_id != ground.chain[0] or vnode.kind == FLEXIBLE:
            wanted[slot_id] = merged(wanted.get(slot_id, EMPTY), piece.holding)
    return wanted


def _shared_out(ground: GrowthGround, wanted: Mapping[str, Holding]) -> dict[tuple[str, int], _Growth]:
    """Which source gives what, for all slots together."""
    places: dict[str, list[tuple[str, Part, Ladder, int]]] = {}
    for slot_id, holding in wanted.items():
        way = ground.way(slot_id)
        for name, amount in holding.amounts.items():
            if amount and is_unit(way, name):
                ladders = instance_ladders(way, name)
                for index, share in holding.instances[name].items():
                    places.setdefault(name, []).append((slot_id, (name, index), ladders[index], share))
            elif amount:
                places.setdefault(name, []).append((slot_id, (name, None), whole_ladder(way, name), amount))
    grown: dict[tuple[str, int], _Growth] = {}
    for name, many in places.items():
        flows = ground.limits.settle(name, [Need(ladder, 1, amount, amount) for *_, ladder, amount in many])
        assert flows is not None, (name, many)
        for (slot_id, part, ladder, _), given in zip(many, flows, strict=True):
            for source, amount in zip(ladder, given, strict=True):
                for level in range(source.depth if amount else 0):
                    lender = source.lender if level == source.depth - 1 else OWN
                    grown.setdefault((slot_id, level), _Growth()).add(lender, part, amount)
    return grown


def _grow(
    ground: GrowthGround, slot_id: str, level: int, growth: _Growth, above_id: str, steps: list[Grow]
) -> str | None:
    """One cluster of the chain on one node; returns its virtual node there when it was made in this slot."""
    ledger, cluster_id = ground.ledger, ground.chain[level]
    slot = ledger.vnodes[slot_id]
    if (
        slot.cluster_id in ground.chain[: level + 1]
    ):  # it exists: the slot itself, or one that the slot lies in
        for _ in range(level - ground.chain.index(slot.cluster_id)):
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
        _shrink(ledger, ground.limits.lenders[lender].cluster_id, parent, growth.gained[lender], steps)
    for lender in lenders or ([OWN] if own_part else []):
        lent = growth.gained[lender] if lender != OWN else {}
        gain = _holding(ledger.rooms[parent.vnode_id], _sum(own_part, lent))
        loan = (ground.limits.lenders[lender].cluster_id, _amounts(lent)) if lent else NO_LOAN
        own, own_part = _enlarge(ledger, cluster_id, own, parent, gain, loan, steps), {}
    if own is None:
        own = _enlarge(ledger, cluster_id, None, parent, EMPTY, NO_LOAN, steps)
    return own.vnode_id if slot.cluster_id not in ground.chain[: level + 1] else None


def _enlarge(
    ledger: Ledger,
    cluster_id: str,
    own: VNode | None,
    parent: VNode,
    gain: Holding,
    loan: tuple[str | None, Mapping[str, int]],
    steps: list[Grow],
) -> VNode:
    if own is not None:
        after = replace(own, holding=merged(own.holding, gain))
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
    lent = _holding(ledger.rooms[theirs.vnode_id], parts)
    steps.append(Grow(theirs, replace(theirs, holding=difference(theirs.holding, lent))))
    apply_growth(ledger, steps[-1])


def _sum(some: Mapping[Part, int], more: Mapping[Part, int]) -> dict[Part, int]:
    return {part: some.get(part, 0) + more.get(part, 0) for part in {**some, **more}}


def _amounts(parts: Mapping[Part, int]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for (name, _), amount in parts.items():
        amounts[name] = amounts.get(name, 0) + amount
    return amounts


def _holding(room: Room, parts: Mapping[Part, int]) -> Holding:
    """Amounts and instances as a holding out of a room; whole CPUs come with their cores."""
    amounts, instances = _amounts(parts), dict[str, dict[int, int]]()
    for (name, index), amount in parts.items():
        if index is not None:
            instances.setdefault(name, {})[index] = amount
    return Holding(amounts, instances, _cores(room, amounts))


def _cores(room: Room, amounts: Amounts) -> tuple[int, ...]:
    cpu = amounts.get(CPU, 0)
    if not cpu or cpu % SCALE or len(room.cores) * SCALE < cpu:
        return ()
    return tuple(sorted(room.cores)[: cpu // SCALE])


def _seated(ledger: Ledger, placed: Placed, made: Mapping[str, str], entry: Amounts) -> Placed:
    """The same pieces in the virtual nodes that there are now, with the cores that are there."""
    rooms: dict[str, Room] = {}
    pieces = []
    for piece in placed.pieces:
        slot_id = made.get(piece.parent_vnode_id, piece.parent_vnode_id)
        room = rooms.setdefault(slot_id, ledger.rooms[slot_id].copy())
        cores = tuple(sorted(room.cores)) if piece.whole else _cores(room, piece.holding.amounts)
        holding = replace(piece.holding, cores=cores)
        room.take_exactly(holding)
        pieces.append(replace(piece, parent_vnode_id=slot_id, holding=holding))
    wanted = {name: amount for name, amount in entry.items() if amount}
    home = next((piece for piece in pieces if piece.rank == placed.entry_rank), None)
    held = Room(home.holding).take(wanted) if home is not None and wanted else EMPTY
    return replace(placed, pieces=tuple(pieces), entry=held)
