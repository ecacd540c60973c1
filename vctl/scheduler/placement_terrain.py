"""The ground in small numbers: nodes that are alike for one gang are one state with a count.

Keeps only what the gang asks about, so most classes of nodes fall together. Knows no policies and no moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vctl.core import labels as lb
from vctl.core.labels import Labels, Selector
from vctl.core.resources import SCALE, Amounts, Room
from vctl.core.slots import SlotClass
from vctl.scheduler.flexible import Option, Vector
from vctl.scheduler.placement_ground import Ground, Spot


class Trait(NamedTuple):
    """What of a slot never changes during a trial and may matter to this gang.

    ``selectors`` has a bit per selector that matches; ``units`` says per resource whether it has instances
    here; ``waste`` counts free unit resources that nobody asked for.
    """

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


@dataclass(frozen=True, slots=True)
class Interest:
    """What a gang asks about: resource names, selectors (the first matches all), templates.

    ``entry`` is what a whole node must hold if the entrypoint is to run there (None: it runs elsewhere);
    ``want`` is the flexible minimum by name.
    """

    names: tuple[str, ...]
    selectors: tuple[Selector, ...]
    templates: frozenset[str]
    entry: Amounts | None
    want: Vector


class Terrain:
    """Node states by number with how many nodes are in each, in the order of their lowest node id."""

    def __init__(self, ground: Ground, interest: Interest) -> None:
        self.ground, self.interest, self.names = ground, interest, interest.names
        self.states: list[NodeState] = []
        self.traits: list[Trait] = []
        self.counts: dict[int, int] = {}
        self.sources: dict[int, list[Iterator[Spot]]] = {}
        """Real nodes by state, each by node id; read once, when a plan is carved."""
        self.most = [0] * len(self.names)
        """The largest free amount of each resource in one slot."""
        self._state_ids: dict[NodeState, int] = {}
        self._trait_ids: dict[Trait, int] = {}
        self._bulk: dict[int, int] = {}
        self._options: dict[int, tuple[Option[SlotState], ...]] = {}
        self._survey()

    def _survey(self) -> None:
        conditions = (c for selector in self.interest.selectors for c in selector if c.key == lb.VNODE_ID)
        named = frozenset(value for condition in conditions for value in condition.values)
        ground = self.ground
        apart = ground.apart(named)
        missing = Counter(id(ground.class_of(slot)) for slots in apart.values() for slot in slots)
        found: list[tuple[str, NodeState, int, Iterator[Spot]]] = []
        for group in ground.classes:
            if count := len(group.ids) - missing[id(group)]:
                # no selector calls these by id, so any other id stands for theirs
                labels = {**group.labels, lb.VNODE_ID: "\0"} if named else group.labels
                state = NodeState((self._slot(labels, group, group.room),), 0)
                first = next(ground.spots(group, apart))[0] if apart else ground.node_of(group.ids[0])
                found.append((first, state, count, ground.spots(group, apart)))
        for node_id, slots in apart.items():
            state = NodeState(tuple(sorted(self.slot_state(slot) for slot in slots)), 0)
            found.append((node_id, state, 1, iter([(node_id, slots)])))
        found.sort(key=lambda one: one[0])
        for _, state, count, spots in found:
            state_id = self.intern(state)
            self.counts[state_id] = self.counts.get(state_id, 0) + count
            self.sources.setdefault(state_id, []).append(spots)
        for state in self.states:
            for slot in state.slots:
                self.most = [max(pair) for pair in zip(self.most, slot.free, strict=True)]

    def slot_state(self, slot_id: str) -> SlotState:
        """The state of one real slot before the trial."""
        group = self.ground.class_of(slot_id)
        assert group is not None, slot_id
        return self._slot(self.ground.ledger.vnodes[slot_id].labels, group, self.ground.room(slot_id))

    def _slot(self, labels: Labels, group: SlotClass, room: Room) -> SlotState:
        names, interest, instances = self.names, self.interest, room.instances
        selectors = 1
        for i, selector in enumerate(interest.selectors):
            if i and lb.matches(selector, labels):
                selectors |= 1 << i
        template = group.template_id if group.template_id in interest.templates else ""
        holds_entry = bool(template and interest.entry and Room(room.total).fits(interest.entry))
        waste = 0
        for name, shares in instances.items():
            waste += name not in names and any(shares.values())
        trait = Trait(selectors, template, holds_entry, tuple([name in instances for name in names]), waste)
        trait_id = self._trait_ids.setdefault(trait, len(self.traits))
        if trait_id == len(self.traits):
            self.traits.append(trait)
        levels = tuple([_levels(room, name) if name in instances else () for name in names])
        free = tuple([max(room.free.get(name, 0), 0) for name in names])
        return SlotState(trait_id, free, levels, bool(template) and group.untouched)

    def intern(self, state: NodeState) -> int:
        """The number of a node state."""
        state_id = self._state_ids.setdefault(state, len(self.states))
        if state_id == len(self.states):
            self.states.append(state)
        return state_id

    # ---- what can be asked of a state ----

    def clean(self, state_id: int) -> int:
        """The same node once no phase marks it as used."""
        state = self.states[state_id]
        return self.intern(NodeState(state.slots, 0)) if state.used else state_id

    def free(self, state_id: int) -> Vector:
        """What is free on a node, its slots together."""
        slots = self.states[state_id].slots
        return slots[0].free if len(slots) == 1 else sums(slot.free for slot in slots)

    def bulk(self, state_id: int) -> int:
        """How much is free on a node, in thousandths of the largest slot, over all resources asked for."""
        if state_id not in self._bulk:
            self._bulk[state_id] = sum(map(self.slot_bulk, self.states[state_id].slots))
        return self._bulk[state_id]

    def slot_bulk(self, slot: SlotState) -> int:
        """The same for one slot."""
        return self.size(slot.free)

    def size(self, amounts: Sequence[int]) -> int:
        """Amounts in thousandths of the largest slot."""
        size = 0
        for amount, most in zip(amounts, self.most, strict=True):
            if amount and most:
                size += amount * 1000 // most
        return size

    def waste(self, state_id: int) -> int:
        """How many unit resources nobody asked for are free on a node, and would be kept from others."""
        return max(self.traits[slot.trait].waste for slot in self.states[state_id].slots)

    def options(self, state_id: int) -> tuple[Option[SlotState], ...]:
        """The slots of a node that could take its flexible piece, and at most how much."""
        if state_id not in self._options:
            self._options[state_id] = tuple(
                Option(slot, self._flexible_most(slot), (self.traits[slot.trait].waste, self.slot_bulk(slot)))
                for slot in dict.fromkeys(self.states[state_id].slots)
            )
        return self._options[state_id]

    def _flexible_most(self, slot: SlotState) -> Vector:
        units = self.traits[slot.trait].units
        most = []
        for r, want in enumerate(self.interest.want):
            if not want or not units[r]:
                most.append(min(slot.free[r], want))
            elif want < SCALE:
                most.append(want if max(slot.levels[r], default=0) >= want else 0)
            else:
                most.append(slot.levels[r].count(SCALE) * SCALE)
        return tuple(most)


def _levels(room: Room, name: str) -> Vector:
    """What is free of each instance, in order; on a node that shrank no more of them than its free amount."""
    levels = sorted([share for share in room.instances[name].values() if share > 0])
    free = room.free.get(name, 0)
    while levels and sum(levels) > free:
        del levels[0]
    return tuple(levels)


def sums(vectors: Iterator[Vector]) -> Vector:
    """Vectors added up."""
    return tuple(map(sum, zip(*vectors, strict=True)))


def inside(small: Vector, large: Vector) -> bool:
    """Whether a vector is at most another in every place."""
    return all(a <= b for a, b in zip(small, large, strict=True))
