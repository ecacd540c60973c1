"""One placement as small numbers: node states that are alike are one state, bundles that are alike one demand.

A ``Problem`` keeps only what the gang asks about, so most classes of nodes fall together. It knows the moves
from state to state and the bounds that every state allows; it decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from vctl.core import labels as lb
from vctl.core.labels import Labels, Selector
from vctl.core.ledger import SlotClass
from vctl.core.resources import SCALE, Amounts, Room, within
from vctl.scheduler.flexible import Option, Vector
from vctl.scheduler.placement_ground import Ground, Spot

PLENTY = 10**9
"""More copies than any gang has: what a bundle that asks for nothing fits."""


class Trait(NamedTuple):
    """What of a slot never changes during a trial and may matter to this gang."""

    selectors: int
    template: str
    holds_entry: bool
    units: tuple[bool, ...]
    waste: int


class SlotState(NamedTuple):
    """A slot: its trait, what is free, and per unit resource the free shares of its instances in order."""

    trait: int
    free: Vector
    levels: tuple[Vector, ...]
    pristine: bool


class NodeState(NamedTuple):
    """A node: its slots in order, and the phase (counted from 1) that already uses it, else 0."""

    slots: tuple[SlotState, ...]
    used: int


class Demand(NamedTuple):
    """One kind of bundle: what it asks for, or a whole node of a template; ``phase`` is the group it is in."""

    phase: int
    request: Vector
    selector: int = 0
    template: str = ""
    with_entry: bool = False


class Move(NamedTuple):
    """A bundle put into one slot of a node: the slot before and after, shares taken, and the node's new state."""

    before: SlotState
    after: SlotState
    shares: tuple[tuple[int, int], ...]
    target: int


@dataclass(frozen=True, slots=True)
class Rule:
    """How a phase may spread: on distinct nodes only, on at most ``limit`` nodes (0: any number)."""

    distinct: bool = False
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Bundle:
    """One fixed node or whole node of the gang, by its place in the spec (group -1: a replica set)."""

    group: int
    position: int
    amounts: Amounts
    selector: Selector = ()
    template: str = ""
    with_entry: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """Bundles that are placed together under one policy (WHOLE for replica sets, group -1)."""

    group: int
    policy: str
    rule: Rule
    bundles: tuple[Bundle, ...]


class Problem:
    """The states, demands, moves and bounds of one gang on one ground; tables fill as they are asked."""

    def __init__(
        self,
        ground: Ground,
        phases: tuple[Phase, ...],
        flexible: Amounts,
        flexible_entry: Amounts,
        entry: Amounts,
        *,
        one_piece: bool = False,
    ) -> None:
        self.ground, self.phases, self.one_piece = ground, phases, one_piece
        self.flexible_amounts, self._entry = flexible, entry
        bundles = [bundle for phase in phases for bundle in phase.bundles]
        self.names = tuple(
            sorted(
                {n for b in bundles for n, a in b.amounts.items() if a}
                | {n for n, a in flexible.items() if a}
            )
        )
        self.want = self._vector(flexible)
        self.want_entry = self._vector(flexible_entry)
        self.selectors: list[Selector] = [()]
        self.selectors += sorted({b.selector for b in bundles if b.selector}, key=str)
        self._templates = {b.template for b in bundles if b.template}
        self._wants_entry = any(b.with_entry for b in bundles)
        self._traits: dict[Trait, int] = {}
        self.traits: list[Trait] = []
        self._state_ids: dict[NodeState, int] = {}
        self.states: list[NodeState] = []
        self.most: list[int] = [0] * len(self.names)
        self._bulk: list[int | None] = []
        self._bounds: dict[int, Vector] = {}
        self._moves: dict[tuple[int, int], tuple[Move, ...]] = {}
        self._options: dict[SlotState, Vector] = {}
        self.counts: dict[int, int] = {}
        self.sources: dict[int, list[Iterator[Spot]]] = {}
        self._survey()
        self.demands: list[Demand] = []
        self._line_up()

    # ---- the ground ----

    def _survey(self) -> None:
        named = frozenset(
            value
            for selector in self.selectors
            for condition in selector
            if condition.key == lb.VNODE_ID
            for value in condition.values
        )
        ground = self.ground
        apart = self.apart = ground.apart(named)
        missing = Counter(id(ground.class_of(slot)) for slots in apart.values() for slot in slots)
        found: list[tuple[str, NodeState, int, Iterator[Spot]]] = []
        for group in ground.classes:
            if count := len(group.ids) - missing[id(group)]:
                # no selector calls these by id, so any other id stands for theirs
                labels = {**group.labels, lb.VNODE_ID: "\0"} if named else group.labels
                slot = self._slot(labels, group, group.room)
                first = next(ground.spots(group, apart))[0]
                found.append((first, NodeState((slot,), 0), count, ground.spots(group, apart)))
        for node_id, slots in apart.items():
            state = NodeState(tuple(sorted(self.slot_state(slot) for slot in slots)), 0)
            found.append((node_id, state, 1, iter([(node_id, slots)])))
        for _, state, count, spots in sorted(found, key=lambda one: one[0]):
            state_id = self._intern(state)
            self.counts[state_id] = self.counts.get(state_id, 0) + count
            self.sources.setdefault(state_id, []).append(spots)
            for r in range(len(self.names)):
                self.most[r] = max(self.most[r], *(slot.free[r] for slot in state.slots))

    def slot_state(self, slot_id: str) -> SlotState:
        """The state of one real slot before the trial."""
        group = self.ground.class_of(slot_id)
        assert group is not None, slot_id
        return self._slot(self.ground.ledger.vnodes[slot_id].labels, group, self.ground.room(slot_id))

    def _slot(self, labels: Labels, group: SlotClass, room: Room) -> SlotState:
        selectors = sum(1 << i for i, selector in enumerate(self.selectors) if lb.matches(selector, labels))
        template = group.template_id if group.template_id in self._templates else ""
        trait = Trait(
            selectors,
            template,
            bool(template and self._wants_entry and Room(room.total).fits(self._entry)),
            tuple(name in room.instances for name in self.names),
            sum(1 for name, i in room.instances.items() if name not in self.names and any(i.values())),
        )
        trait_id = self._traits.setdefault(trait, len(self.traits))
        if trait_id == len(self.traits):
            self.traits.append(trait)
        levels = tuple(
            tuple(sorted(level for level in room.instances.get(name, {}).values() if level > 0))
            for name in self.names
        )
        free = tuple(max(room.free.get(name, 0), 0) for name in self.names)
        return SlotState(trait_id, free, levels, bool(template) and group.untouched)

    def _intern(self, state: NodeState) -> int:
        state_id = self._state_ids.setdefault(state, len(self.states))
        if state_id == len(self.states):
            self.states.append(state)
            self._bulk.append(None)
        return state_id

    def _vector(self, amounts: Mapping[str, int]) -> Vector:
        return tuple(amounts.get(name, 0) for name in self.names)

    # ---- what is asked ----

    def _line_up(self) -> None:
        """Order phases and bundles: those with the fewest places first, then the big ones."""
        ids: dict[Demand, int] = {}
        lines: list[tuple[tuple[int, ...], int, list[tuple[int, Bundle]]]] = []
        for number, phase in enumerate(self.phases):
            line = []
            for bundle in phase.bundles:
                selector = self.selectors.index(bundle.selector)
                amounts = {} if bundle.template else bundle.amounts
                demand = Demand(number, self._vector(amounts), selector, bundle.template, bundle.with_entry)
                demand_id = ids.setdefault(demand, len(ids))
                if demand_id == len(self.demands):
                    self.demands.append(demand)
                line.append((demand_id, bundle))
            line.sort(key=lambda one: (not one[1].with_entry, -self._size(one[0]), one[0], one[1].position))
            places = min((self.places(demand_id) for demand_id, _ in line), default=0)
            hardness = {"WHOLE": 0, "STRICT_PACK": 1, "STRICT_SPREAD": 2}.get(phase.policy, 3)
            size = sum(self._size(demand_id) for demand_id, _ in line)
            lines.append(((hardness, places, -size, number), number, line))
        self.items: list[tuple[int, Bundle]] = []
        self.phase_of: list[int] = []
        for _, number, line in sorted(lines, key=lambda one: one[0]):
            self.items += line
            self.phase_of += [number] * len(line)
        self.rest: list[Vector] = [()] * len(self.items)
        """Per item what it and all later ones of its phase ask for together."""
        nothing = (0,) * len(self.names)
        for i in range(len(self.items) - 1, -1, -1):
            last = i + 1 == len(self.items) or self.phase_of[i + 1] != self.phase_of[i]
            request = self.demands[self.items[i][0]].request
            later = nothing if last else self.rest[i + 1]
            self.rest[i] = tuple(a + b for a, b in zip(request, later, strict=True))
        amounts_wanted = Counter(demand_id for demand_id, _ in self.items)
        self.needs = [amounts_wanted[d] for d in range(len(self.demands))] + [w for w in self.want if w]
        self.needs += [1] * (any(self.want_entry) + self.one_piece)

    def _size(self, demand_id: int) -> int:
        request = self.demands[demand_id].request
        return sum(a * 1000 // most for a, most in zip(request, self.most, strict=True) if most)

    def places(self, demand_id: int) -> int:
        """How many copies of a demand the ground holds, were there nothing else."""
        return sum(count * self._cap(state_id, demand_id) for state_id, count in self.counts.items())

    # ---- moves ----

    def moves(self, state_id: int, demand_id: int) -> tuple[Move, ...]:
        """Every different way to put a bundle on a node in this state; the way ``Room.pick`` would go is first."""
        key = (state_id, demand_id)
        if key not in self._moves:
            self._moves[key] = tuple(self._find_moves(self.states[state_id], self.demands[demand_id]))
        return self._moves[key]

    def _find_moves(self, state: NodeState, demand: Demand) -> Iterator[Move]:
        for i, before in enumerate(state.slots):
            if before in state.slots[:i]:
                continue
            for after, shares in self._takes(before, demand):
                others = state.slots[:i] + state.slots[i + 1 :]
                slots = tuple(sorted((*others, after))) if others else (after,)
                yield Move(before, after, shares, self._intern(NodeState(slots, demand.phase + 1)))

    def _takes(
        self, slot: SlotState, demand: Demand
    ) -> Iterator[tuple[SlotState, tuple[tuple[int, int], ...]]]:
        if not self._admits(slot, demand):
            return
        if demand.template:
            nothing = tuple(() for _ in self.names)
            yield SlotState(slot.trait, (0,) * len(self.names), nothing, pristine=False), ()
            return
        units = self.traits[slot.trait].units
        shared = [r for r, amount in enumerate(demand.request) if units[r] and 0 < amount < SCALE]
        fitting = [sorted({x for x in slot.levels[r] if x >= demand.request[r]}) for r in shared]
        free = tuple(f - a for f, a in zip(slot.free, demand.request, strict=True))
        pristine = slot.pristine and not any(demand.request)
        for chosen in product(*fitting):
            levels = list(slot.levels)
            for r, amount in enumerate(demand.request):
                if units[r] and amount >= SCALE:
                    levels[r] = levels[r][: len(levels[r]) - amount // SCALE]
            for r, level in zip(shared, chosen, strict=True):
                left = list(levels[r])
                left.remove(level)
                if level > demand.request[r]:
                    left.append(level - demand.request[r])
                levels[r] = tuple(sorted(left))
            yield (
                SlotState(slot.trait, free, tuple(levels), pristine),
                tuple(zip(shared, chosen, strict=True)),
            )

    def _admits(self, slot: SlotState, demand: Demand) -> bool:
        trait = self.traits[slot.trait]
        if demand.template:
            return (
                slot.pristine
                and trait.template == demand.template
                and (trait.holds_entry or not demand.with_entry)
            )
        return bool(trait.selectors >> demand.selector & 1) and self._copies(slot, demand) > 0

    def _copies(self, slot: SlotState, demand: Demand) -> int:
        """How many copies of a request the free amounts and instances of a slot hold."""
        copies = PLENTY
        units = self.traits[slot.trait].units
        for r, amount in enumerate(demand.request):
            if not amount:
                continue
            copies = min(copies, slot.free[r] // amount)
            if not units[r]:
                continue
            if amount < SCALE:
                copies = min(copies, sum(level // amount for level in slot.levels[r]))
            elif amount % SCALE:
                return 0
            else:
                copies = min(copies, slot.levels[r].count(SCALE) * SCALE // amount)
        return copies

    # ---- bounds ----

    def bounds(self, state_id: int) -> Vector:
        """Per entry of ``needs``, the most that one node in this state can contribute."""
        if state_id not in self._bounds:
            self._bounds[state_id] = self._find_bounds(state_id)
        return self._bounds[state_id]

    def _find_bounds(self, state_id: int) -> Vector:
        result = [self._cap(state_id, demand_id) for demand_id in range(len(self.demands))]
        if any(self.want):
            most = [option.most for option in self.options(state_id)]
            result += [max(m[r] for m in most) for r, want in enumerate(self.want) if want]
            if any(self.want_entry):
                result.append(int(any(_within(self.want_entry, m) for m in most)))
            if self.one_piece:
                result.append(int(any(_within(self.want, m) for m in most)))
        return tuple(result)

    def _cap(self, state_id: int, demand_id: int) -> int:
        state, demand = self.states[state_id], self.demands[demand_id]
        distinct = self.phases[demand.phase].rule.distinct
        if distinct and state.used == demand.phase + 1:
            return 0
        copies = 0
        for slot in state.slots:
            if self._admits(slot, demand):
                copies += 1 if demand.template else self._copies(slot, demand)
        return min(copies, 1) if distinct else copies

    def options(self, state_id: int) -> tuple[Option[SlotState], ...]:
        """The slots of a node that could take its flexible piece, and at most how much."""
        slots = self.states[state_id].slots
        return tuple(
            Option(slot, self._flexible_most(slot), self._cost(slot)) for slot in dict.fromkeys(slots)
        )

    def _flexible_most(self, slot: SlotState) -> Vector:
        if slot not in self._options:
            units = self.traits[slot.trait].units
            most = []
            for r, want in enumerate(self.want):
                if not want or not units[r]:
                    most.append(min(slot.free[r], want))
                elif want < SCALE:
                    most.append(want if max(slot.levels[r], default=0) >= want else 0)
                else:
                    most.append(slot.levels[r].count(SCALE) * SCALE)
            self._options[slot] = tuple(most)
        return self._options[slot]

    def _cost(self, slot: SlotState) -> tuple[int, ...]:
        return (self.traits[slot.trait].waste, self._slot_bulk(slot))

    # ---- what the heuristic looks at ----

    def clean(self, state_id: int) -> int:
        """The same node once no phase marks it as used."""
        state = self.states[state_id]
        return self._intern(NodeState(state.slots, 0)) if state.used else state_id

    def bulk(self, state_id: int) -> int:
        """How much is free on a node, in thousandths of the largest slot, over all resources asked for."""
        bulk = self._bulk[state_id]
        if bulk is None:
            bulk = self._bulk[state_id] = sum(map(self._slot_bulk, self.states[state_id].slots))
        return bulk

    def waste(self, state_id: int) -> int:
        """How many unit resources nobody asked for are free on a node: using it would keep them from others."""
        return max(self.traits[slot.trait].waste for slot in self.states[state_id].slots)

    def free(self, state_id: int) -> Vector:
        """What is free on a node, its slots together."""
        slots = self.states[state_id].slots
        return (
            slots[0].free if len(slots) == 1 else tuple(map(sum, zip(*(s.free for s in slots), strict=True)))
        )

    def _slot_bulk(self, slot: SlotState) -> int:
        return sum(f * 1000 // most for f, most in zip(slot.free, self.most, strict=True) if most)


def _within(small: Vector, large: Vector) -> bool:
    return all(a <= b for a, b in zip(small, large, strict=True))


def amounts_of(problem: Problem, vector: Vector) -> dict[str, int]:
    """A vector as amounts by name, zeros left out."""
    return {name: amount for name, amount in zip(problem.names, vector, strict=True) if amount}


def holds(bundle: Bundle, entry: Amounts) -> bool:
    """Whether the piece of a bundle could hold the entrypoint's request."""
    return not bundle.template and within(entry, bundle.amounts)
