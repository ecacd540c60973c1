"""Node classes for one gang: nodes that are equal in all that the gang asks for are one state with a count.

Input: candidate nodes and the interest of a gang (resource names, selectors, templates). Output: numbered
node states, the number of nodes in each, and the free amounts of each. The search works on these numbers, so
its cost does not depend on the number of nodes. This module knows no placement policies and no moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from vctl.core import labels as lb
from vctl.core.demand import Scarcity
from vctl.core.labels import Labels, Selector
from vctl.core.resources import SCALE, Allocation, Amounts, FreeCapacity
from vctl.core.slots import SlotClass
from vctl.core.values import field, value
from vctl.scheduler.candidate_nodes import (
    CandidateNode,
    CandidateNodes,
    Way,
    free_shares,
    instance_supplies,
    is_unit,
    whole_supply,
)
from vctl.scheduler.flexible import FlexiblePart, Option
from vctl.scheduler.growth_supply import UNLIMITED, Budgets, Supply, depth_of
from vctl.scheduler.node_states import (
    NodeState,
    SlotState,
    SlotTraits,
    Vector,
    full_levels,
    kind_of,
    level_of,
    share_of,
)


@value(frozen=True, slots=True)
class Interest:
    """What a gang asks of nodes: resource names, selectors (the first matches all nodes) and templates.

    ``entry``: the request that a whole node must hold if the entrypoint is to run there (None: it runs
    elsewhere). ``want``: the flexible minimum, in the order of ``names``.
    """

    names: tuple[str, ...]
    selectors: tuple[Selector, ...]
    templates: frozenset[str]
    entry: Amounts | None = field(hash=False)
    want: Vector


def node_classes_of(candidates: CandidateNodes, interest: Interest) -> NodeClasses:
    """The node classes of candidate nodes for one gang, made once for all attempts to place it on them."""
    known = candidates.known.get(interest)
    if not isinstance(known, NodeClasses):
        candidates.known.clear()
        known = candidates.known[interest] = NodeClasses(candidates, interest)
    return known


class NodeClasses:
    """Numbered node states with the number of nodes in each, in the order of their lowest node id."""

    def __init__(self, candidates: CandidateNodes, interest: Interest) -> None:
        self.candidates, self.interest, self.names = candidates, interest, interest.names
        self.states: list[NodeState] = []
        self.traits: list[SlotTraits] = []
        self.counts: dict[int, int] = {}
        self.sources: dict[int, list[Callable[[], Iterator[CandidateNode]]]] = {}
        """State -> iterators over its real nodes by node id; read when real nodes are assigned."""
        self.largest = [0] * len(self.names)
        """The largest free amount of each resource in one slot."""
        self._state_ids: dict[NodeState, int] = {}
        self._trait_ids: dict[SlotTraits, int] = {}
        self._bulk: dict[int, int] = {}
        self._plain: dict[int, int] = {}
        self._options: dict[int, tuple[tuple[Option, int], ...]] = {}
        self.supplies: list[tuple[Supply, int]] = [((), 0)]
        """Supplies of slots and instances that can grow, each with the most that it gives."""
        self._supply_ids: dict[tuple[Supply, int], int] = {}
        self._grown: dict[object, SlotState] = {}
        """States of slots that can grow, by everything that they depend on."""
        self.scarcity: Scarcity | None = None
        self._survey()
        self.wastes_differ = len({trait.waste for trait in self.traits}) > 1

    def _survey(self) -> None:
        conditions = [c for selector in self.interest.selectors for c in selector if c.key in lb.OWN]
        named, on = (
            frozenset(value for c in conditions if c.key == key for value in c.values)
            for key in (lb.VNODE_ID, lb.NODE_ID)
        )
        candidates = self.candidates
        apart = candidates.apart(named, on)
        missing, self.scarcity = candidates.count_apart(apart), candidates.scarcity(apart)
        members: list[tuple[str, NodeState, int, Callable[[], Iterator[CandidateNode]]]] = []
        for group in candidates.classes:
            if count := len(group.ids) - missing[id(group)]:
                # no selector names these slots by id, so one placeholder stands for their ids
                labels = {**group.labels, **dict.fromkeys(lb.OWN, "\0")} if conditions else group.labels
                way, slot_id = candidates.way_of(group), group.ids[0]
                state = NodeState((self._slot(slot_id, labels, group, group.capacity, way),), 0)
                nodes = partial(candidates.candidate_nodes, group, apart)
                members.append((next(nodes())[0], state, count, nodes))
        for node_id, slots in apart.items():
            if not slots:
                continue
            state = NodeState(tuple(sorted(self.slot_state(slot) for slot in slots)), 0)
            members.append((node_id, state, 1, partial(iter, [(node_id, slots)])))
        members.sort(key=lambda member: member[0])
        for _, state, count, candidate_nodes in members:
            state_id = self.intern(state)
            self.counts[state_id] = self.counts.get(state_id, 0) + count
            self.sources.setdefault(state_id, []).append(candidate_nodes)
        for state in self.states:
            for slot in state.slots:
                self.largest = [max(pair) for pair in zip(self.largest, slot.free, strict=True)]

    def slot_state(self, slot_id: str) -> SlotState:
        """The state of one real slot before the search."""
        group = self.candidates.class_of(slot_id)
        assert group is not None, slot_id
        if (way := self.candidates.way(slot_id)) is not None:
            labels = {**group.labels, lb.NODE_ID: self.candidates.node_of(slot_id)}
            return self._slot(slot_id, labels, group, group.capacity, way)
        own = self.candidates.ledger.vnodes[slot_id].labels
        return self._slot(slot_id, own, group, self.candidates.capacity(slot_id))

    def _slot(
        self, slot_id: str, labels: Labels, group: SlotClass, capacity: FreeCapacity, way: Way | None = None
    ) -> SlotState:
        names, interest, instances = self.names, self.interest, capacity.instances
        scarcity = 0 if self.scarcity is None else self.scarcity.of(self.candidates.kind_of(slot_id))
        selectors = 1
        for i, selector in enumerate(interest.selectors):
            if i and lb.matches(selector, labels):
                selectors |= 1 << i
        template = group.template_id if group.template_id in interest.templates else ""
        if way is not None:
            if template or any(capacity.instances for _, _, capacity in way.sources):
                return self._growing(scarcity, selectors, template, group, way)
            sources = [(depth, lender, *source.free.items()) for depth, lender, source in way.sources]
            key = (scarcity, selectors, way.fresh, *sources)
            state = self._grown.get(key)
            if state is None:
                state = self._grown[key] = self._growing(scarcity, selectors, template, group, way)
            return state
        holds_entry = bool(template and interest.entry and FreeCapacity(capacity.total).fits(interest.entry))
        waste = sum(name not in names and any(instances[name].values()) for name in instances)
        units = tuple([name in instances for name in names])
        trait_id = self._trait_id(SlotTraits(selectors, template, holds_entry, units, (scarcity, waste)))
        shares_of = [free_shares(capacity, name).values() if name in instances else () for name in names]
        levels = tuple([tuple(sorted(level_of(share, 0) for share in shares)) for shares in shares_of])
        free = tuple([max(capacity.free.get(name, 0), 0) for name in names])
        return SlotState(trait_id, free, levels, bool(template) and group.untouched)

    def _growing(self, scarcity: int, selectors: int, template: str, group: SlotClass, way: Way) -> SlotState:
        """The state of a slot that can grow: its free amounts are the most that it could have."""
        budgets = self.candidates.budgets
        assert budgets is not None
        total = self.candidates.ledger.nodes[self.candidates.node_of(group.ids[0])].total
        if template and not (group.untouched and covers(budgets, way, total)):
            template = ""
        holds_entry = bool(template and self.interest.entry and FreeCapacity(total).fits(self.interest.entry))
        free, levels, supplies, units = [], [], [], []
        for name in self.names:
            whole = whole_supply(way, name)
            units.append(is_unit(way, name))
            free.append(budgets.potential(name, whole))
            kinds = self.kinds(way, name) if units[-1] else {}
            levels.append(
                tuple(sorted(level_of(s, kind) for kind in kinds.values() if (s := self.supplies[kind][1])))
            )
            supplies.append(0 if units[-1] else self._supply_id(whole, free[-1]))
        others = {name for _, _, capacity in way.sources for name in capacity.instances} - {*self.names}
        capacities = [capacity for _, _, capacity in way.sources]
        waste = sum(any(any(c.instances.get(name, {}).values()) for c in capacities) for name in others)
        trait = SlotTraits(
            selectors, template, holds_entry, tuple(units), (scarcity, waste), tuple(supplies), way.fresh
        )
        return SlotState(self._trait_id(trait), tuple(free), tuple(levels), bool(template))

    def kinds(self, way: Way, name: str) -> dict[int, int]:
        """The number of the supply of each instance of a resource."""
        budgets = self.candidates.budgets
        assert budgets is not None
        supplies = instance_supplies(way, name).items()
        return {index: self._supply_id(supply, budgets.potential(name, supply)) for index, supply in supplies}

    def _trait_id(self, trait: SlotTraits) -> int:
        trait_id = self._trait_ids.setdefault(trait, len(self.traits))
        if trait_id == len(self.traits):
            self.traits.append(trait)
        return trait_id

    def _supply_id(self, supply: Supply, potential: int) -> int:
        number = self._supply_ids.setdefault((supply, potential), len(self.supplies))
        if number == len(self.supplies):
            self.supplies.append((supply, potential))
        return number

    def intern(self, state: NodeState) -> int:
        """The number of a node state; a new state gets the next number."""
        state_id = self._state_ids.setdefault(state, len(self.states))
        if state_id == len(self.states):
            self.states.append(state)
        return state_id

    # ---- properties of a state ----

    def clean(self, state_id: int) -> int:
        """The number of the state without the mark of the phase that used it."""
        state = self.states[state_id]
        return self.intern(NodeState(state.slots, 0)) if state.used else state_id

    def free(self, state_id: int) -> Vector:
        """The free amounts of a node, all slots together."""
        slots = self.states[state_id].slots
        return (
            slots[0].free
            if len(slots) == 1
            else tuple(map(sum, zip(*(slot.free for slot in slots), strict=True)))
        )

    def bulk(self, state_id: int) -> int:
        """The free amounts of a node as one number: thousandths of the largest slot, added up."""
        if state_id not in self._bulk:
            self._bulk[state_id] = sum(self.size(slot.free) for slot in self.states[state_id].slots)
        return self._bulk[state_id]

    def size(self, amounts: Sequence[int]) -> int:
        """Amounts as one number: thousandths of the largest slot, added up over the resources."""
        size = 0
        for amount, largest in zip(amounts, self.largest, strict=True):
            if amount and largest:
                size += amount * 1000 // largest
        return size

    def plain(self, state_id: int) -> int:
        """The number of the state that differs in nothing but what others miss: it holds the same."""
        if not self.wastes_differ:
            return state_id
        if state_id not in self._plain:
            slots, used = self.states[state_id]
            traits = [self._trait_id(self.traits[slot.trait]._replace(waste=(0, 0))) for slot in slots]
            alike = [slot._replace(trait=trait) for slot, trait in zip(slots, traits, strict=True)]
            self._plain[state_id] = self.intern(NodeState(tuple(sorted(alike)), used))
        return self._plain[state_id]

    def waste(self, state_id: int) -> tuple[int, int]:
        """What others miss if the gang is on such a node: that of the slot that is missed most."""
        return max(self.traits[slot.trait].waste for slot in self.states[state_id].slots)

    def options(self, state_id: int) -> tuple[tuple[Option, int], ...]:
        """The different slots of a node as options for a flexible piece, and how often the node has each."""
        if state_id not in self._options:
            slots = Counter(self.states[state_id].slots)
            self._options[state_id] = tuple((self._option(slot), count) for slot, count in slots.items())
        return self._options[state_id]

    def by_node(self, parts: Iterable[FlexiblePart]) -> list[list[FlexiblePart]]:
        """Flexible parts in groups: those of a group lie on one node, each in a slot of its own."""
        seen: Counter[tuple[int, SlotState]] = Counter()
        nodes: dict[tuple[int, int], list[FlexiblePart]] = {}
        for part in parts:
            number = seen[part.state, part.slot] // self.states[part.state].slots.count(part.slot)
            nodes.setdefault((part.state, number), []).append(part)
            seen[part.state, part.slot] += 1
        return list(nodes.values())

    def _option(self, slot: SlotState) -> Option:
        limits, trait = self._flexible_limits(slot), self.traits[slot.trait]
        cost: tuple[int, ...] = (*trait.waste, self.size(slot.free))
        if trait.supplies:
            cost = (self.depth(slot, limits), trait.fresh, *cost)
        return Option(slot, limits, cost)

    def depth(self, slot: SlotState, request: Vector) -> int:
        """The number of cluster levels that have to grow so that a slot holds this request, too."""
        trait = self.traits[slot.trait]
        depth = 0
        for r, amount in enumerate(request if trait.supplies else ()):
            if not amount:
                continue
            if trait.units[r]:
                fitting = sorted(
                    self.reach(level, amount)
                    for level in slot.levels[r]
                    if share_of(level) >= min(amount, SCALE)
                )
                needed = max(amount // SCALE, 1)
                depth = max(depth, fitting[needed - 1] if len(fitting) >= needed else UNLIMITED)
            else:
                supply, potential = self.supplies[trait.supplies[r]]
                depth = max(depth, depth_of(supply, potential - slot.free[r] + amount))
        return depth

    def reach(self, level: int, amount: int) -> int:
        """The number of cluster levels that have to grow for an amount of one instance."""
        supply, potential = self.supplies[kind_of(level)]
        return depth_of(supply, potential - share_of(level) + min(amount, SCALE))

    def places(self, state_id: int, r: int) -> Iterator[tuple[Supply, int]]:
        """The supplies of a node's slots and instances of a resource, and the most that each gives."""
        for slot in self.states[state_id].slots:
            trait = self.traits[slot.trait]
            for number in map(kind_of, slot.levels[r]) if trait.units[r] else [trait.supplies[r]]:
                yield self.supplies[number]

    def used(self, slot: SlotState, r: int) -> Iterator[tuple[Supply, int]]:
        """What a search took from a slot that can grow: (supply, amount) of the slot or its instances."""
        trait = self.traits[slot.trait]
        if not trait.supplies:
            return
        if trait.units[r]:
            for level in slot.levels[r]:
                supply, potential = self.supplies[kind_of(level)]
                if potential > share_of(level):
                    yield supply, potential - share_of(level)
        else:
            supply, potential = self.supplies[trait.supplies[r]]
            if potential > slot.free[r]:
                yield supply, potential - slot.free[r]

    def _flexible_limits(self, slot: SlotState) -> Vector:
        units = self.traits[slot.trait].units
        limits = []
        for r, want in enumerate(self.interest.want):
            if not want or not units[r]:
                limits.append(min(slot.free[r], want))
            elif want < SCALE:
                limits.append(want if share_of(max(slot.levels[r], default=0)) >= want else 0)
            else:
                limits.append(full_levels(slot, r) * SCALE)
        return tuple(limits)


def covers(budgets: Budgets, way: Way, total: Allocation) -> bool:
    """Whether a slot could grow over the whole node."""
    for name, amount in total.amounts.items():
        if budgets.potential(name, whole_supply(way, name)) < amount:
            return False
        shares = instance_supplies(way, name) if name in total.instances else {}
        if any(budgets.potential(name, supply) < SCALE for supply in shares.values()):
            return False
    return True
