"""Turns an assignment of node states into pieces on real nodes, lowest node id first, on copies of their free capacity.

Decides nothing that matters to another gang: nodes in one state are interchangeable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge

from vctl.core.clusters import FIXED, FLEXIBLE, ClusterSpec
from vctl.core.resources import CPU, SCALE, Allocation, Amounts, FreeCapacity
from vctl.core.values import value
from vctl.scheduler.candidate_nodes import CandidateNode, is_unit
from vctl.scheduler.node_classes import SlotState, level_of
from vctl.scheduler.placement_model import Bundle, Problem, Share, amounts_of
from vctl.scheduler.placement_result import Piece
from vctl.scheduler.placement_search import Found


@value(frozen=True, slots=True)
class Assignment:
    """What one bundle (None: the flexible part) takes on a real node."""

    bundle: Bundle | None
    slot_id: str
    node_id: str
    allocation: Allocation


@dataclass(slots=True)
class _Trial:
    problem: Problem
    fresh: dict[int, Iterator[CandidateNode]] = field(default_factory=dict)
    head: dict[int, CandidateNode] = field(default_factory=dict)
    touched: dict[int, list[CandidateNode]] = field(default_factory=dict)
    slots: dict[str, SlotState] = field(default_factory=dict)
    capacities: dict[str, FreeCapacity] = field(default_factory=dict)

    def take_node(self, state_id: int) -> CandidateNode:
        """The real node in this state with the lowest id."""
        head, heap = self._peek(state_id), self.touched.get(state_id)
        if heap and (head is None or heap[0] < head):
            return heappop(heap)
        assert head is not None, state_id
        del self.head[state_id]
        return head

    def put_node(self, state_id: int, candidate_node: CandidateNode) -> None:
        heappush(self.touched.setdefault(state_id, []), candidate_node)

    def forget_use(self) -> None:
        """A new phase begins: touched nodes count as unused again."""
        touched, self.touched = self.touched, {}
        for state_id, candidate_nodes in touched.items():
            for candidate_node in candidate_nodes:
                self.put_node(self.problem.node_classes.clean(state_id), candidate_node)

    def slot_in(self, candidate_node: CandidateNode, state: SlotState) -> str:
        """The slot of a node that is in this state, the lowest id first."""
        if len(candidate_node[1]) == 1:
            return candidate_node[1][0]
        return next(slot for slot in candidate_node[1] if self.state_of(slot) == state)

    def state_of(self, slot_id: str) -> SlotState:
        if slot_id not in self.slots:
            self.slots[slot_id] = self.problem.node_classes.slot_state(slot_id)
        return self.slots[slot_id]

    def capacity(self, slot_id: str) -> FreeCapacity:
        if slot_id not in self.capacities:
            self.capacities[slot_id] = self.problem.node_classes.candidates.capacity(slot_id).copy()
        return self.capacities[slot_id]

    def kinds(self, slot_id: str) -> dict[str, dict[int, int]]:
        """The numbers of the ladders of a slot's instances, where it can grow."""
        node_classes = self.problem.node_classes
        way = node_classes.candidates.way(slot_id)
        if way is None:
            return {}
        return {name: node_classes.kinds(way, name) for name in self.problem.names if is_unit(way, name)}

    def _peek(self, state_id: int) -> CandidateNode | None:
        if state_id not in self.head:
            if state_id not in self.fresh:
                self.fresh[state_id] = merge(
                    *(nodes() for nodes in self.problem.node_classes.sources.get(state_id, ()))
                )
            candidate_node = next(self.fresh[state_id], None)
            if candidate_node is None:
                return None
            self.head[state_id] = candidate_node
        return self.head[state_id]


def assign(problem: Problem, found: Found) -> list[Assignment]:
    """Real nodes and exact allocations for every item of the problem in order, then for the flexible parts."""
    trial = _Trial(problem)
    assigned = []
    for i, (state_id, move) in enumerate(found.trail):
        if i and problem.phase_of[i] != problem.phase_of[i - 1]:
            trial.forget_use()
        candidate_node = trial.take_node(state_id)
        slot_id = trial.slot_in(candidate_node, move.before)
        bundle = problem.items[i][1]
        capacity = trial.capacity(slot_id)
        allocation = (
            _take_whole(capacity)
            if bundle.template
            else _take(capacity, problem, bundle.amounts, move.shares, trial.kinds(slot_id))
        )
        trial.slots[slot_id] = move.after
        trial.put_node(move.target, candidate_node)
        assigned.append(Assignment(bundle, slot_id, candidate_node[0], allocation))
    for part in found.parts:
        candidate_node = trial.take_node(part.state)
        slot_id = trial.slot_in(candidate_node, part.slot)
        capacity, amounts = trial.capacity(slot_id), amounts_of(problem, part.amounts)
        if part.shares:
            allocation = _take(capacity, problem, amounts, part.shares, trial.kinds(slot_id))
        else:
            allocation = capacity.take(amounts)
        assigned.append(Assignment(None, slot_id, candidate_node[0], allocation))
    return assigned


def _take_whole(capacity: FreeCapacity) -> Allocation:
    capacity.take_exactly(capacity.total)
    return capacity.total


def _take(
    capacity: FreeCapacity,
    problem: Problem,
    request: Amounts,
    shares: Iterable[Share],
    kinds: Mapping[str, Mapping[int, int]],
) -> Allocation:
    """``FreeCapacity.take`` with the instances that the search chose."""
    instances: dict[str, dict[int, int]] = {}
    for r, level in shares:
        name = problem.names[r]
        mine, own = instances.setdefault(name, {}), kinds.get(name, {})
        index = min(
            i
            for i, share in capacity.instances[name].items()
            if i not in mine and level_of(share, own.get(i, 0)) == level
        )
        mine[index] = min(request[name], SCALE)
    allocation = Allocation(dict(request), instances, capacity.pick_cores(request.get(CPU, 0)))
    capacity.take_exactly(allocation)
    return allocation


def pieces_of(assigned: list[Assignment], spec: ClusterSpec) -> tuple[Piece, ...]:
    """Pieces by rank. Equal bundles of a group are dealt out by node id, so ranks follow the nodes."""
    fixed: dict[tuple[int, str, int], Assignment] = {}
    alike: dict[tuple[object, ...], list[Assignment]] = {}
    kinds: dict[int, tuple[object, ...]] = {}  # equal bundles mostly share their amounts
    for one in assigned:
        if one.bundle is not None:
            b = one.bundle
            amounts = kinds.get(id(b.amounts))
            if amounts is None:
                amounts = kinds[id(b.amounts)] = tuple(sorted(b.amounts.items()))
            alike.setdefault((b.group, b.template, amounts, b.selector), []).append(one)
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
            Piece(FIXED, rank, group, one.slot_id, one.node_id, one.allocation, labels, whole=bool(template))
        )
    flexible = sorted((c for c in assigned if c.bundle is None), key=lambda c: (c.node_id, c.slot_id))
    for rank, one in enumerate(flexible, len(pieces)):
        pieces.append(Piece(FLEXIBLE, rank, -1, one.slot_id, one.node_id, one.allocation, {}, whole=False))
    return tuple(pieces)


def _first(assigned: Assignment) -> tuple[object, ...]:
    """Instances and cores in order, so that equal bundles on one node are always numbered alike."""
    return tuple(
        sorted((n, tuple(sorted(i))) for n, i in assigned.allocation.instances.items())
    ), assigned.allocation.cores
