"""Turns the answer of the search, which names node states, into pieces on real nodes with exact allocations.

Nodes in one state are interchangeable; the lowest node id comes first. Works on copies of the free
capacities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush, heappushpop, merge
from itertools import islice
from operator import attrgetter

from vctl.core.clusters import FIXED, FLEXIBLE, ClusterSpec
from vctl.core.resources import CPU, SCALE, Allocation, Amounts, FreeCapacity
from vctl.core.values import field, value
from vctl.scheduler.candidate_nodes import CandidateNode, is_unit
from vctl.scheduler.node_states import SlotState, level_of
from vctl.scheduler.placement_model import Bundle, Problem, Share, amounts_of
from vctl.scheduler.placement_result import Piece
from vctl.scheduler.placement_search import Solution


@value(frozen=True, slots=True)
class Assignment:
    """The allocation of one bundle (None: the flexible part) on a real node."""

    bundle: Bundle | None
    slot_id: str
    node_id: str
    allocation: Allocation


@value(slots=True)
class _Trial:
    """The real nodes by state, and their free capacities, during an assignment.

    ``fresh``: state -> its nodes that were not touched yet. ``touched``: state -> a heap of the others in it.
    """

    problem: Problem
    fresh: dict[int, Iterator[CandidateNode]] = field(default_factory=dict)
    touched: dict[int, list[CandidateNode]] = field(default_factory=dict)
    slots: dict[str, SlotState] = field(default_factory=dict)
    capacities: dict[str, FreeCapacity] = field(default_factory=dict)

    def take_nodes(self, state_id: int, many: int) -> list[CandidateNode]:
        """Take the real nodes in this state with the lowest ids."""
        if state_id not in self.fresh:
            sources = self.problem.node_classes.sources.get(state_id, ())
            self.fresh[state_id] = merge(*(nodes() for nodes in sources))
        fresh, heap = self.fresh[state_id], self.touched.get(state_id)
        if not heap:
            nodes = list(islice(fresh, many))
        else:
            nodes = [
                heappushpop(heap, node) if (node := next(fresh, None)) else heappop(heap) for _ in range(many)
            ]
        assert len(nodes) == many, state_id
        return nodes

    def fill(self, candidate_node: CandidateNode, bundles: list[Bundle]) -> list[Assignment]:
        """Put equal bundles without instances on one node that has a single slot."""
        (slot_id,), many, amounts = candidate_node[1], len(bundles), bundles[0].amounts
        capacity, cpu = self.capacity(slot_id), amounts.get(CPU, 0)
        cores, each = sorted(capacity.cores), 0 if cpu % SCALE else cpu // SCALE
        parts = [tuple(cores[at : at + each]) for at in range(0, many * each, each)] if each else [()] * many
        allocations = [Allocation(dict(amounts), {}, part if len(part) == each else ()) for part in parts]
        in_all = {name: many * amount for name, amount in amounts.items()}
        capacity.take_exactly(
            Allocation(in_all, {}, tuple(core for part in allocations for core in part.cores))
        )
        return [
            Assignment(bundle, slot_id, candidate_node[0], allocation)
            for bundle, allocation in zip(bundles, allocations, strict=True)
        ]

    def put_nodes(self, state_id: int, candidate_nodes: list[CandidateNode]) -> None:
        heap = self.touched.setdefault(state_id, [])
        for candidate_node in candidate_nodes:
            heappush(heap, candidate_node)

    def forget_use(self) -> None:
        """Begin a new phase: touched nodes count as unused again."""
        touched, self.touched = self.touched, {}
        for state_id, candidate_nodes in touched.items():
            self.put_nodes(self.problem.node_classes.clean(state_id), candidate_nodes)

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
        """The numbers of the supplies of a slot's instances, where it can grow."""
        node_classes = self.problem.node_classes
        way = node_classes.candidates.way(slot_id)
        if way is None:
            return {}
        return {name: node_classes.kinds(way, name) for name in self.problem.names if is_unit(way, name)}


def _assign(problem: Problem, solution: Solution) -> list[Assignment]:
    """Real nodes and exact allocations for the items of the problem in order, then for the flexible parts."""
    trial, capacity_of = _Trial(problem), problem.node_classes.candidates.capacity
    assigned: list[Assignment] = []
    for state_id, move, many, together in solution.moves:
        i = len(assigned)
        if i and problem.phase_of[i] != problem.phase_of[i - 1]:
            trial.forget_use()
        nodes = trial.take_nodes(state_id, 1 if together else many)
        if together:
            assigned += trial.fill(nodes[0], [bundle for _, bundle in problem.items[i : i + many]])
            trial.put_nodes(move.target, nodes)
            continue
        allocations: dict[tuple[int, ...], tuple[FreeCapacity, FreeCapacity, Allocation]] = {}
        for candidate_node, (_, bundle) in zip(nodes, problem.items[i : i + many], strict=True):
            slot_id = trial.slot_in(candidate_node, move.before)
            free = trial.capacities.get(slot_id) or capacity_of(slot_id)
            key = (id(free.free), id(free.instances), id(free.cores), id(free.total), id(bundle.amounts))
            same = allocations.get(key) if problem.budgets is None else None
            if same is not None:
                _, after, allocation = same
                trial.capacities[slot_id] = after.copy()
            else:
                before, capacity = free.copy(), trial.capacity(slot_id)
                if bundle.template:
                    capacity.take_exactly(allocation := capacity.total)
                else:
                    allocation = _take(capacity, problem, bundle.amounts, move.shares, trial.kinds(slot_id))
                allocations[key] = before, capacity.copy(), allocation
            if len(candidate_node[1]) > 1:
                trial.slots[slot_id] = move.after
            assigned.append(Assignment(bundle, slot_id, candidate_node[0], allocation))
        trial.put_nodes(move.target, nodes)
    for parts in problem.node_classes.by_node(solution.parts):
        ((node_id, slots),) = trial.take_nodes(parts[0].state, 1)
        for part in parts:
            slot_id = trial.slot_in((node_id, slots), part.slot)
            slots = tuple(slot for slot in slots if slot != slot_id)
            capacity, amounts = trial.capacity(slot_id), amounts_of(problem, part.amounts)
            if part.shares:
                allocation = _take(capacity, problem, amounts, part.shares, trial.kinds(slot_id))
            else:
                allocation = capacity.take(amounts)
            assigned.append(Assignment(None, slot_id, node_id, allocation))
    return assigned


def _take(
    capacity: FreeCapacity,
    problem: Problem,
    request: Amounts,
    shares: Iterable[Share],
    kinds: Mapping[str, Mapping[int, int]],
) -> Allocation:
    """Take a request with the instances that the search chose."""
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


def pieces_of(problem: Problem, solution: Solution, spec: ClusterSpec) -> tuple[Piece, ...]:
    """The pieces of an answer in order of rank. Equal bundles of a group are ranked by node id."""
    assigned = _assign(problem, solution)
    fixed: list[tuple[tuple[int, str, int], Assignment]] = []
    alike: dict[tuple[object, ...], list[Assignment]] = {}
    kinds: dict[int, tuple[object, ...]] = {}  # equal bundles mostly share their amounts
    for part in assigned:
        if (b := part.bundle) is not None:
            amounts = kinds.get(id(b.amounts))
            if amounts is None:
                amounts = kinds[id(b.amounts)] = tuple(sorted(b.amounts.items()))
            alike.setdefault((b.group, b.template, amounts, b.selector), []).append(part)
    for many in alike.values():
        positions = sorted((c.bundle.group, c.bundle.template, c.bundle.position) for c in many if c.bundle)
        is_spread = len({part.slot_id for part in many}) == len(many)
        many.sort(key=attrgetter("node_id", "slot_id") if is_spread else _by_allocation)
        fixed += zip(positions, many, strict=True)
    if len(alike) > 1:
        fixed.sort(key=lambda ranked: (ranked[0][0] < 0, ranked[0]))
    pieces = []
    for rank, ((group, template, position), part) in enumerate(fixed):
        labels = {} if template else spec.groups[group].nodes[position].labels
        pieces.append(
            Piece(
                FIXED, rank, group, part.slot_id, part.node_id, part.allocation, labels, whole=bool(template)
            )
        )
    flexible = sorted((c for c in assigned if c.bundle is None), key=lambda c: (c.node_id, c.slot_id))
    for rank, part in enumerate(flexible, len(pieces)):
        pieces.append(Piece(FLEXIBLE, rank, -1, part.slot_id, part.node_id, part.allocation, {}, whole=False))
    return tuple(pieces)


def _by_allocation(assigned: Assignment) -> tuple[object, ...]:
    """A sort key with instances and cores, so that equal bundles on one node always get the same ranks."""
    held = assigned.allocation
    instances: tuple[object, ...] = ()
    if held.instances:
        instances = tuple(sorted((name, tuple(sorted(i))) for name, i in held.instances.items()))
    return assigned.node_id, assigned.slot_id, instances, held.cores
