"""Growth of a cluster, and of the clusters above it, until a gang fits into it.

The search of the placement runs on candidates that include what growth could bring (``growth_candidates``),
first without loans from siblings, then with them. ``growth_for`` turns its answer into steps: which cluster
grows where and by how much, and which sibling lends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, ClusterSpec, FixedNode, Group
from vctl.core.labels import Selector
from vctl.core.ledger import Ledger
from vctl.core.resources import CPU, EMPTY, Allocation, Amounts, FreeCapacity, difference, merged
from vctl.core.values import replace
from vctl.scheduler.candidate_nodes import instance_supplies, is_unit, whole_supply
from vctl.scheduler.elasticity import (
    Grow,
    allowance,
    apply_growth,
    enlarged,
    flexible_in,
    growing,
    lenders_to,
    level_above,
    revert_growth,
)
from vctl.scheduler.explain.refusal import GROWN_IN_TOTAL, GROWN_ON_ONE, NO_GROWTH, Refusal
from vctl.scheduler.growth_candidates import GrowthCandidates, growth_candidates
from vctl.scheduler.growth_supply import OWN, UNLIMITED, Need, Supply
from vctl.scheduler.placement import BUDGET, Placed, Unplaced, place, place_on
from vctl.scheduler.placement_result import Piece, seated
from vctl.scheduler.reach import has_idle, reach_of
from vctl.scheduler.recall import Move, idle_in_all, lend, put_back, recall, undo
from vctl.scheduler.upper_bound import UpperBound
from vctl.scheduler.work import Work, finished

PLACED = 4
"""The number of nodes apart per step in the price of a placement."""


def place_with_growth(
    ledger: Ledger,
    parent_id: str,
    spec: ClusterSpec,
    entry: Amounts,
    *,
    avoid: frozenset[str] = frozenset(),
    loose: bool = True,
) -> tuple[list[Grow], Placed] | Unplaced:
    """Let a cluster grow in the ledger until a gang fits into it; returns the steps and the place.

    ``loose``: if free capacity is not enough, idle loans go home, and clusters lend at every level (``recall``).
    Without a place the ledger stays as it was. For the other parameters see ``find_growth``.
    """

    def search(*, lends: bool) -> tuple[GrowthCandidates, Placed] | Unplaced:
        return finished(find_growth(ledger, parent_id, spec, entry, avoid=avoid, lends=lends))

    found = search(lends=False)
    chain, moves = growing(ledger, parent_id), list[Move]()
    if isinstance(found, Unplaced) and loose and chain and (top_id := level_above(ledger, parent_id)):
        if has_idle(ledger, top_id) and not reach_of(ledger, parent_id).may_hold(UpperBound(spec)):
            idle = idle_in_all(ledger, top_id, chain)  # nothing moves, as it is not enough together
            return shortage(ledger, parent_id, spec, lending=False, idle=idle) or found
        for more in _loosened(ledger, parent_id, chain):
            moves += more
            found = search(lends=not more)
            if not isinstance(found, Unplaced):
                break
    if isinstance(found, Unplaced):
        undo(ledger, moves)
        return found
    steps, placed = growth_for(*found, entry)
    return [*_needed(ledger, moves, placed, steps), *steps], placed


def _loosened(ledger: Ledger, parent_id: str, chain: Sequence[str]) -> Iterator[list[Move]]:
    """What moves in the ledger for a cluster that grows, bit by bit: loans go home, then siblings lend, then others.

    Each from the nearest clusters to those far away. An empty list: siblings lend, which the search does itself, so
    that it finds what fits into their limits. ``chain``: the clusters that grow. What comes home to one of them
    serves it, so they keep their own loans; only their limits can ask for these.
    """
    top_id = level_above(ledger, parent_id)
    if not has_idle(ledger, top_id):
        return
    levels = [ledger.clusters[one].parent_id or "" for one in chain]
    is_limited = any(allowance(ledger, ledger.clusters[one]) for one in chain)
    for level, keep in [*((level, chain) for level in levels), *[(top_id, ())] * is_limited]:
        if more := recall(ledger, level, keep):
            yield more
    if _has_lenders(ledger, chain):
        yield []
    for level in levels:
        if more := lend(ledger, level, chain):
            yield more


def place_loosely(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts
) -> tuple[list[Grow], Placed] | Unplaced | None:
    """Like ``place_with_growth`` for a cluster that cannot grow: idle loans below it go home, and clusters lend.

    None: nothing that is idle can help.
    """
    if not has_idle(ledger, parent_id) or not reach_of(ledger, parent_id).may_hold(UpperBound(spec)):
        return None
    moves: list[Move] = []
    found: Placed | Unplaced | None = None
    for loosen in (recall, lend):
        if not isinstance(found, Placed) and (more := loosen(ledger, parent_id, ())):
            moves += more
            found = place(ledger, parent_id, spec, entry)
    if not isinstance(found, Placed):
        undo(ledger, moves)
        return found
    return _needed(ledger, moves, found), found


def _needed(ledger: Ledger, moves: Sequence[Move], placed: Placed, steps: Sequence[Grow] = ()) -> list[Grow]:
    """Put back in the ledger what moved and a place does not need; returns the steps of the rest."""
    if not moves:
        return []
    for piece in placed.pieces:
        ledger.capacities[piece.parent_vnode_id].take_exactly(piece.allocation)
    kept = put_back(ledger, moves, steps)
    for piece in placed.pieces:
        ledger.capacities[piece.parent_vnode_id].give_back(piece.allocation)
    return kept


def _has_lenders(ledger: Ledger, chain: Iterable[str]) -> bool:
    return any(any(lenders_to(ledger, ledger.clusters[one])) for one in chain)


def place_or_grow(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts
) -> tuple[list[Grow], Placed] | Unplaced:
    """A place in the cluster as it is; else let the cluster grow in the ledger until there is one."""
    found = place(ledger, parent_id, spec, entry)
    if isinstance(found, Placed):
        return [], found
    if growing(ledger, parent_id):
        more = place_with_growth(ledger, parent_id, spec, entry)
    else:
        more = place_loosely(ledger, parent_id, spec, entry) or found
    if isinstance(more, Unplaced):
        return replace(more, exhausted=found.exhausted or more.exhausted)
    return more


def why_no_place(ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts) -> Unplaced | None:
    """Why a gang has no place, not even with growth; None: it has one. The ledger is left as it was."""
    answer = place_or_grow(ledger, parent_id, spec, entry)
    if isinstance(answer, Unplaced):
        return answer
    for step in reversed(answer[0]):
        revert_growth(ledger, step)
    return None


def find_growth(
    ledger: Ledger,
    parent_id: str,
    spec: ClusterSpec,
    entry: Amounts,
    *,
    avoid: frozenset[str] = frozenset(),
    budget: int = BUDGET,
    lends: bool = True,
) -> Work[tuple[GrowthCandidates, Placed] | Unplaced]:
    """The candidate nodes with growth and a place on them. The ledger must not change while the work pauses.

    ``lends``: siblings may lend, if free capacity is not enough.
    ``avoid``: physical nodes that must not be used.
    """
    found = Unplaced(Refusal(NO_GROWTH, "", 0, 0, detail=parent_id))
    for lending in (False, True)[: 1 + lends]:
        chain = growing(ledger, parent_id)
        if lending and not _has_lenders(ledger, chain):
            break
        if (short := shortage(ledger, parent_id, spec, lending=lending)) is not None:
            found = short
            continue
        candidates = yield from growth_candidates(
            ledger, parent_id, _asked(spec, entry), lending=lending, avoid=avoid
        )
        if candidates is None:
            break
        yield len(candidates.on_node) // PLACED + sum(len(group.nodes) for group in spec.groups)
        answer = place_on(candidates, spec, entry, budget=budget)
        if isinstance(answer, Placed):
            return candidates, answer
        found = replace(answer, exhausted=True) if found.exhausted else answer
    return found


def surely_grows(ledger: Ledger, cluster_id: str, count: UpperBound, entry: Amounts) -> bool:
    """Whether growth certainly makes a place, without a search: equal pieces, one level, no limit, no loan.

    False proves nothing.
    """
    chain = growing(ledger, cluster_id)
    if len(chain) != 1 or not count.is_exact(entry) or allowance(ledger, ledger.clusters[cluster_id]):
        return False
    index = ledger.index(ledger.clusters[cluster_id].parent_id or "")
    return not index.crowded and count.is_met(count.inside(index))


def one_piece(request: Amounts, selector: Selector = ()) -> ClusterSpec:
    """The spec of one fixed node with a request."""
    asked = {name: amount for name, amount in request.items() if amount}
    return ClusterSpec(groups=(Group((FixedNode(asked, selector=selector),)),), flexible=False)


def grow(
    ledger: Ledger,
    cluster_id: str,
    request: Amounts,
    selector: Selector = (),
    avoid: frozenset[str] = frozenset(),
    *,
    loose: bool = True,
) -> list[Grow] | None:
    """Let a cluster grow in the ledger until a request fits into one of its virtual nodes.

    Returns the steps, top level first. None, with the ledger as it was: limits or too little free capacity
    above forbid it.
    """
    found = place_with_growth(ledger, cluster_id, one_piece(request, selector), {}, avoid=avoid, loose=loose)
    return found[0] if isinstance(found, tuple) else None


def shortage(
    ledger: Ledger, cluster_id: str, spec: ClusterSpec, *, lending: bool, idle: Amounts = EMPTY.amounts
) -> Unplaced | None:
    """A reason if a cluster and its suppliers together have too little of a resource; None: no such resource.

    This is a cheap necessary condition. ``lending``: siblings that lend are suppliers, too. ``idle``: what could move
    besides.
    """
    chain = growing(ledger, cluster_id)
    if not chain:
        return None
    above = [ledger.clusters[one].parent_id or "" for one in chain]
    for one in chain if lending else ():
        above += [lender for lender, _ in lenders_to(ledger, ledger.clusters[one])]
    fixed = [node.resources for node in spec.fixed]
    wanted = rs.total([*fixed, spec.flexible_min])
    limit = allowance(ledger, ledger.clusters[cluster_id])
    for name, amount in sorted(wanted.items()):
        if not amount:
            continue
        own, own_most = _free(ledger, cluster_id, name)
        others = [_free(ledger, one, name) for one in above]
        gain = min(sum(free for free, _ in others) + idle.get(name, 0), limit.get(name, UNLIMITED))
        largest = max((resources.get(name, 0) for resources in fixed), default=0)
        for need, have, rule in (
            (amount, own + gain, GROWN_IN_TOTAL),
            (largest, own_most + gain, GROWN_ON_ONE),
        ):
            if have < need:
                return Unplaced(Refusal(rule, name, need, have))
    return None


def _free(ledger: Ledger, cluster_id: str, name: str) -> tuple[int, int]:
    """The free amount of a resource in a cluster, in total and on the virtual node that has most."""
    total = most = 0
    for group in ledger.index(cluster_id).classes.values():
        if (free := group.capacity.free.get(name, 0)) > 0:
            total, most = total + free * len(group.ids), max(most, free)
    return total, most


def _asked(spec: ClusterSpec, entry: Amounts) -> frozenset[str] | None:
    """The resources that a gang asks for; None: any slot may hold a part of it.

    A part may be a whole node, or a fixed node without a request.
    """
    if not all(any(node.resources.values()) for node in spec.fixed) or any(spec.replica_sets.values()):
        return None
    return spec.names(entry) or None


# ---- from a placement to the steps of growth ----

Part = tuple[str, int | None]
"""A resource, or one instance of it (name, index)."""
Gains = dict[int, dict[Part, int]]
"""The gain of one cluster on one node by source: its parent (``OWN``), or the number of a lending sibling."""


def growth_for(candidates: GrowthCandidates, placed: Placed, entry: Amounts) -> tuple[list[Grow], Placed]:
    """Let clusters grow in the ledger for a placement.

    Returns the steps, top level first, and the placement on the virtual nodes that exist then.
    """
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
    """Slot -> what the pieces take of it, for the slots that can grow."""
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
    """(slot, level) -> how much each source gives, decided for all slots together."""
    places: dict[str, list[tuple[str, Part, Supply, int]]] = {}
    for slot_id, allocation in wanted.items():
        way = candidates.way(slot_id)
        for name, amount in allocation.amounts.items():
            if amount and is_unit(way, name):
                supplies = instance_supplies(way, name)
                for index, share in allocation.instances[name].items():
                    places.setdefault(name, []).append((slot_id, (name, index), supplies[index], share))
            elif amount:
                places.setdefault(name, []).append((slot_id, (name, None), whole_supply(way, name), amount))
    gains: dict[tuple[str, int], Gains] = {}
    for name, many in places.items():
        flows = candidates.limits.settle(
            name, [Need(supply, 1, amount, amount) for *_, supply, amount in many]
        )
        assert flows is not None, (name, many)
        for (slot_id, part, supply, _), given in zip(many, flows, strict=True):
            for source, amount in zip(supply, given, strict=True):
                for level in range(source.depth if amount else 0):
                    lender = source.lender if level == source.depth - 1 else OWN
                    mine = gains.setdefault((slot_id, level), {}).setdefault(lender, {})
                    mine[part] = mine.get(part, 0) + amount
    return gains


def _grows_in(candidates: GrowthCandidates, slot_id: str, level: int, made: Mapping[str, str]) -> str | None:
    """The virtual node in which a cluster of the chain grows for a slot; None: its own one there is fixed."""
    vnodes, slot = candidates.ledger.vnodes, candidates.ledger.vnodes[slot_id]
    if slot.cluster_id not in candidates.chain[: level + 1]:
        return made.get(slot_id, slot_id)
    for _ in range(level - candidates.chain.index(slot.cluster_id)):  # from the slot up to the level
        if slot.kind != FLEXIBLE:
            return None
        slot = vnodes[slot.parent_id or ""]
    return slot.parent_id if slot.kind == FLEXIBLE else None


def _grow(candidates: GrowthCandidates, level: int, above_id: str, gains: Gains, steps: list[Grow]) -> str:
    """Let one cluster of the chain grow in a virtual node of the cluster above.

    Returns the id of its own virtual node there.
    """
    ledger, cluster_id = candidates.ledger, candidates.chain[level]
    capacity = ledger.capacities[above_id]

    def step(grow: Grow) -> None:
        steps.append(grow)
        apply_growth(ledger, grow)

    gain: Counter[Part] = Counter()
    for number, parts in sorted(gains.items()):
        gain.update(parts)
        if number != OWN:  # a sibling lends from its own virtual node in that slot
            lender_id = candidates.limits.lenders[number].cluster_id
            theirs = flexible_in(ledger, lender_id, above_id)
            assert theirs is not None, (lender_id, above_id)
            lent = _allocation(ledger.capacities[theirs.vnode_id], parts)
            step(
                Grow(theirs, replace(theirs, allocation=difference(theirs.allocation, lent)), lends=lender_id)
            )
    present = flexible_in(ledger, cluster_id, above_id)
    if gain or present is None:
        step(Grow(present, enlarged(ledger, cluster_id, above_id, _allocation(capacity, gain))))
    return present.vnode_id if present is not None else steps[-1].after.vnode_id


def _allocation(capacity: FreeCapacity, parts: Mapping[Part, int]) -> Allocation:
    """Amounts and instances as an allocation out of free capacity, with cores for whole CPUs."""
    amounts, instances = dict[str, int](), dict[str, dict[int, int]]()
    for (name, index), amount in parts.items():
        amounts[name] = amounts.get(name, 0) + amount
        if index is not None:
            instances.setdefault(name, {})[index] = amount
    return Allocation(amounts, instances, capacity.pick_cores(amounts.get(CPU, 0)))
