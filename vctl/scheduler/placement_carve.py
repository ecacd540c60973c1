"""Turns an assignment of node states into pieces on real nodes, lowest node id first, on copies of rooms.

Decides nothing that matters to another gang: nodes in one state are interchangeable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge

from vctl.core.clusters import FIXED, FLEXIBLE, ClusterSpec
from vctl.core.resources import CPU, SCALE, Amounts, Holding, Room
from vctl.scheduler.placement_ground import Spot, is_unit
from vctl.scheduler.placement_model import Bundle, Problem, Share, amounts_of
from vctl.scheduler.placement_result import Piece
from vctl.scheduler.placement_search import Found
from vctl.scheduler.placement_terrain import SlotState, level_of


@dataclass(frozen=True, slots=True)
class Carved:
    """What one bundle (None: the flexible part) takes on a real node."""

    bundle: Bundle | None
    slot_id: str
    node_id: str
    holding: Holding


@dataclass(slots=True)
class _Trial:
    problem: Problem
    fresh: dict[int, Iterator[Spot]] = field(default_factory=dict)
    head: dict[int, Spot] = field(default_factory=dict)
    touched: dict[int, list[Spot]] = field(default_factory=dict)
    slots: dict[str, SlotState] = field(default_factory=dict)
    rooms: dict[str, Room] = field(default_factory=dict)

    def take_node(self, state_id: int) -> Spot:
        """The real node in this state with the lowest id."""
        head, heap = self._peek(state_id), self.touched.get(state_id)
        if heap and (head is None or heap[0] < head):
            return heappop(heap)
        assert head is not None, state_id
        del self.head[state_id]
        return head

    def put_node(self, state_id: int, spot: Spot) -> None:
        heappush(self.touched.setdefault(state_id, []), spot)

    def forget_use(self) -> None:
        """A new phase begins: touched nodes count as unused again."""
        touched, self.touched = self.touched, {}
        for state_id, spots in touched.items():
            for spot in spots:
                self.put_node(self.problem.terrain.clean(state_id), spot)

    def slot_in(self, spot: Spot, state: SlotState) -> str:
        """The slot of a node that is in this state, the lowest id first."""
        if len(spot[1]) == 1:
            return spot[1][0]
        return next(slot for slot in spot[1] if self.state_of(slot) == state)

    def state_of(self, slot_id: str) -> SlotState:
        if slot_id not in self.slots:
            self.slots[slot_id] = self.problem.terrain.slot_state(slot_id)
        return self.slots[slot_id]

    def room(self, slot_id: str) -> Room:
        if slot_id not in self.rooms:
            self.rooms[slot_id] = self.problem.terrain.ground.room(slot_id).copy()
        return self.rooms[slot_id]

    def kinds(self, slot_id: str) -> dict[str, dict[int, int]]:
        """The numbers of the ladders of a slot's instances, where it can grow."""
        terrain = self.problem.terrain
        way = terrain.ground.way(slot_id)
        if way is None:
            return {}
        return {name: terrain.kinds(way, name) for name in self.problem.names if is_unit(way, name)}

    def _peek(self, state_id: int) -> Spot | None:
        if state_id not in self.head:
            if state_id not in self.fresh:
                self.fresh[state_id] = merge(*self.problem.terrain.sources.get(state_id, ()))
            spot = next(self.fresh[state_id], None)
            if spot is None:
                return None
            self.head[state_id] = spot
        return self.head[state_id]


def carve(problem: Problem, found: Found) -> list[Carved]:
    """Real nodes and exact holdings for every item of the problem in order, then for the flexible parts."""
    trial = _Trial(problem)
    carved = []
    for i, (state_id, move) in enumerate(found.trail):
        if i and problem.phase_of[i] != problem.phase_of[i - 1]:
            trial.forget_use()
        spot = trial.take_node(state_id)
        slot_id = trial.slot_in(spot, move.before)
        bundle = problem.items[i][1]
        room = trial.room(slot_id)
        holding = (
            _take_whole(room)
            if bundle.template
            else _take(room, problem, bundle.amounts, move.shares, trial.kinds(slot_id))
        )
        trial.slots[slot_id] = move.after
        trial.put_node(move.target, spot)
        carved.append(Carved(bundle, slot_id, spot[0], holding))
    for part in found.parts:
        spot = trial.take_node(part.state)
        slot_id = trial.slot_in(spot, part.slot)
        room, amounts = trial.room(slot_id), amounts_of(problem, part.amounts)
        if part.shares:
            holding = _take(room, problem, amounts, part.shares, trial.kinds(slot_id))
        else:
            holding = room.take(amounts)
        carved.append(Carved(None, slot_id, spot[0], holding))
    return carved


def _take_whole(room: Room) -> Holding:
    room.take_exactly(room.total)
    return room.total


def _take(
    room: Room,
    problem: Problem,
    request: Amounts,
    shares: Iterable[Share],
    kinds: Mapping[str, Mapping[int, int]],
) -> Holding:
    """``Room.take`` with the instances that the search chose."""
    instances: dict[str, dict[int, int]] = {}
    for r, level in shares:
        name = problem.names[r]
        mine, own = instances.setdefault(name, {}), kinds.get(name, {})
        index = min(
            i
            for i, share in room.instances[name].items()
            if i not in mine and level_of(share, own.get(i, 0)) == level
        )
        mine[index] = min(request[name], SCALE)
    cpu = request.get(CPU, 0)
    cores = sorted(room.cores)[: cpu // SCALE] if cpu % SCALE == 0 and len(room.cores) * SCALE >= cpu else []
    holding = Holding(dict(request), instances, tuple(cores))
    room.take_exactly(holding)
    return holding


def pieces_of(carved: list[Carved], spec: ClusterSpec) -> tuple[Piece, ...]:
    """Pieces by rank. Equal bundles of a group are dealt out by node id, so ranks follow the nodes."""
    fixed: dict[tuple[int, str, int], Carved] = {}
    alike: dict[tuple[object, ...], list[Carved]] = {}
    for one in carved:
        if one.bundle is not None:
            b = one.bundle
            kind = (b.group, b.template, tuple(sorted(b.amounts.items())), b.selector)
            alike.setdefault(kind, []).append(one)
    for many in alike.values():
        places = sorted((c.bundle.group, c.bundle.template, c.bundle.position) for c in many if c.bundle)
        fixed.update(zip(places, sorted(many, key=lambda c: (c.node_id, c.slot_id, _first(c))), strict=True))
    groups = sorted(key for key in fixed if key[0] >= 0)
    whole = sorted((key for key in fixed if key[0] < 0), key=lambda key: (key[1], key[2]))
    pieces = []
    for rank, key in enumerate(groups + whole):
        group, template, position = key
        one, labels = fixed[key], {} if template else spec.groups[group].nodes[position].labels
        pieces.append(
            Piece(FIXED, rank, group, one.slot_id, one.node_id, one.holding, labels, whole=bool(template))
        )
    flexible = sorted((c for c in carved if c.bundle is None), key=lambda c: (c.node_id, c.slot_id))
    for rank, one in enumerate(flexible, len(pieces)):
        pieces.append(Piece(FLEXIBLE, rank, -1, one.slot_id, one.node_id, one.holding, {}, whole=False))
    return tuple(pieces)


def _first(carved: Carved) -> tuple[object, ...]:
    """Instances and cores in order, so that equal bundles on one node are always numbered alike."""
    return tuple(
        sorted((n, tuple(sorted(i))) for n, i in carved.holding.instances.items())
    ), carved.holding.cores
