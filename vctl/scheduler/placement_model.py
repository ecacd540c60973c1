"""The model of one placement: demands on node classes, moves and bounds. Equal bundles are one demand.

A move puts a bundle on a node, which changes the node state. A bound is the most that one node in a state can
contribute to a demand. ``Problem`` computes both on demand; ``placement_search`` chooses the moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from operator import add
from typing import NamedTuple

from vctl.core.labels import Selector
from vctl.core.resources import SCALE, Amounts, within
from vctl.core.values import value
from vctl.scheduler.candidate_nodes import CandidateNodes
from vctl.scheduler.flexible import inside
from vctl.scheduler.growth_supply import UNLIMITED, growth_of
from vctl.scheduler.node_classes import Interest, node_classes_of
from vctl.scheduler.node_states import (
    FULL,
    NodeState,
    SlotState,
    Vector,
    full_levels,
    kind_of,
    level_of,
    share_of,
)

PLENTY = 10**9
"""More copies than any gang has: the bound of a bundle that asks for nothing."""


class BundleKind(NamedTuple):
    """One kind of bundle of a phase: its request, or a whole node of a template."""

    phase: int
    request: Vector
    selector: int = 0
    template: str = ""
    with_entry: bool = False


Share = tuple[int, int]
"""The number of a resource, and the level of the instance that is taken whole or in part."""


class BundleMove(NamedTuple):
    """A bundle put into a slot: the slot before and after, the instances taken, the new state of the node."""

    before: SlotState
    after: SlotState
    shares: tuple[Share, ...]
    target: int


@value(frozen=True, slots=True)
class SpreadRule:
    """How a phase may spread: only on distinct nodes, on at most ``limit`` nodes (0: any number)."""

    distinct: bool = False
    limit: int = 0


@value(frozen=True, slots=True)
class Bundle:
    """One fixed node or whole node of the gang, with its place in the spec (group -1: a replica set)."""

    group: int
    position: int
    amounts: Amounts
    selector: Selector = ()
    template: str = ""
    with_entry: bool = False


@value(frozen=True, slots=True)
class Phase:
    """Bundles that are placed together under one policy (WHOLE for replica sets, group -1)."""

    group: int
    policy: str
    rule: SpreadRule
    bundles: tuple[Bundle, ...]


class Problem:
    """The demands, moves and bounds of one gang on candidate nodes."""

    def __init__(
        self,
        candidates: CandidateNodes,
        phases: tuple[Phase, ...],
        flexible: Amounts,
        flexible_entry: Amounts,
        entry: Amounts,
        *,
        one_piece: bool = False,
    ) -> None:
        self.phases, self.one_piece, self.flexible = phases, one_piece, flexible
        bundles = [bundle for phase in phases for bundle in phase.bundles]
        names = {n for amounts in (flexible, *(b.amounts for b in bundles)) for n, a in amounts.items() if a}
        templates = frozenset(b.template for b in bundles if b.template)
        self.budgets = candidates.budgets
        if templates and self.budgets:  # whole nodes count against every limit
            names |= self.budgets.names()
        self.names = tuple(sorted(names))
        self.want, self.want_entry = self._vector(flexible), self._vector(flexible_entry)
        self.selectors = ((), *sorted({b.selector for b in bundles if b.selector}, key=str))
        on_whole = entry if any(b.with_entry for b in bundles) else None
        interest = Interest(self.names, self.selectors, templates, on_whole, self.want)
        self.node_classes = node_classes_of(candidates, interest)
        self.limits = tuple(
            (r, level, limit[name])
            for level, limit in enumerate(self.budgets.limits if self.budgets else ())
            for r, name in enumerate(self.names)
            if name in limit
        )
        """(resource, level of the chain, limit): how much each growing cluster may gain."""
        self._bounds: dict[int, Vector] = {}
        self._costs: dict[int, Vector] = {}
        self._depths: dict[tuple[int, int], int] = {}
        self._moves: dict[tuple[int, int], tuple[BundleMove, ...]] = {}
        self.demands: list[BundleKind] = []
        self.items: list[tuple[int, Bundle]] = []
        """Demand and bundle in the order of the search."""
        self.phase_of: list[int] = []
        self.rest: list[Vector] = []
        """Per item the sum of its request and those of all later items of its phase."""
        lines = self._demanded()
        wants = [w for w in self.want if w] + [1] * (any(self.want_entry) + self.one_piece)
        self.sums = [0] * (len(self.demands) + len(wants))
        """Per entry of ``needs``, the most that all node classes can contribute."""
        for state_id, count in self.node_classes.counts.items():
            for k, bound in enumerate(self.bounds(state_id)):
                self.sums[k] += bound * count
        self._line_up(lines)
        copies = Counter(demand_id for demand_id, _ in self.items)
        self.needs = [copies[demand_id] for demand_id in range(len(self.demands))] + wants

    def _vector(self, amounts: Amounts) -> Vector:
        return tuple(amounts.get(name, 0) for name in self.names)

    # ---- demands ----

    def _demanded(self) -> list[list[tuple[int, Bundle]]]:
        ids: dict[BundleKind, int] = {}
        lines, selector_ids = [], {selector: i for i, selector in enumerate(self.selectors)}
        for number, phase in enumerate(self.phases):
            line, last, demand_id = [], None, 0
            for bundle in phase.bundles:
                kind = (id(bundle.amounts), bundle.selector, bundle.template, bundle.with_entry)
                if kind != last:  # equal bundles mostly share their amounts
                    request = self._vector({} if bundle.template else bundle.amounts)
                    rest = (selector_ids[bundle.selector], bundle.template, bundle.with_entry)
                    demand_id, last = ids.setdefault(BundleKind(number, request, *rest), len(ids)), kind
                line.append((demand_id, bundle))
            lines.append(line)
        self.demands = list(ids)
        return lines

    def _line_up(self, lines: list[list[tuple[int, Bundle]]]) -> None:
        """Order phases and bundles: strict phases and those with few places first, then large bundles."""
        sizes = [self.node_classes.size(demand.request) for demand in self.demands]
        ranked = []
        for number, line in enumerate(lines):
            kinds = {demand_id for demand_id, _ in line}
            if len(kinds) > 1:
                line.sort(
                    key=lambda sized: (not sized[1].with_entry, -sizes[sized[0]], sized[0], sized[1].position)
                )
            places = min(self.sums[demand_id] for demand_id in kinds)
            hardness = {"WHOLE": 0, "STRICT_PACK": 1, "STRICT_SPREAD": 2}.get(self.phases[number].policy, 3)
            ranked.append((hardness, places, -sum(sizes[demand_id] for demand_id, _ in line), number))
        for *_, number in sorted(ranked):
            self.items += lines[number]
            self.phase_of += [number] * len(lines[number])
        rest: Vector = ()
        for i in range(len(self.items) - 1, -1, -1):
            request = self.demands[self.items[i][0]].request
            last = i + 1 == len(self.items) or self.phase_of[i + 1] != self.phase_of[i]
            rest = request if last else tuple(map(add, request, rest))
            self.rest.append(rest)
        self.rest.reverse()

    # ---- moves ----

    def moves(self, state_id: int, demand_id: int) -> tuple[BundleMove, ...]:
        """The different ways to put a bundle on a node in this state, that of ``FreeCapacity.pick`` first."""
        key = (state_id, demand_id)
        if key not in self._moves:
            state = self.node_classes.states[state_id]
            self._moves[key] = tuple(self._find_moves(state, self.demands[demand_id]))
        return self._moves[key]

    def _find_moves(self, state: NodeState, demand: BundleKind) -> Iterator[BundleMove]:
        slots, classes = list(dict.fromkeys(state.slots)), self.node_classes
        if self.budgets:
            slots.sort(
                key=lambda slot: (classes.depth(slot, demand.request), classes.traits[slot.trait].fresh)
            )
        for before in slots:
            for after, shares in self._takes(before, demand):
                others = list(state.slots)
                others.remove(before)
                slots_after = tuple(sorted((*others, after))) if others else (after,)
                target = classes.intern(NodeState(slots_after, demand.phase + 1))
                yield BundleMove(before, after, shares, target)

    def _takes(self, slot: SlotState, demand: BundleKind) -> Iterator[tuple[SlotState, tuple[Share, ...]]]:
        if not self._admits(slot, demand):
            return
        if demand.template:
            levels = tuple(
                tuple(sorted(level_of(0, kind_of(level)) for level in of_resource if kind_of(level)))
                for of_resource in slot.levels
            )
            yield SlotState(slot.trait, (0,) * len(self.names), levels, pristine=False), ()
            return
        units = self.node_classes.traits[slot.trait].units
        unit_resources = [r for r, amount in enumerate(demand.request) if units[r] and amount]
        choices = [list(self.instances(slot, r, demand.request[r])) for r in unit_resources]
        pristine = slot.pristine and not any(demand.request)
        for chosen in product(*choices):
            picks = zip(unit_resources, chosen, strict=True)
            shares = tuple((r, level) for r, picked in picks for level in picked)
            yield after_taking(slot, demand.request, shares, pristine=pristine), shares

    def instances(self, slot: SlotState, r: int, amount: int) -> Iterator[tuple[int, ...]]:
        """The different ways to choose instances for an amount, that of ``FreeCapacity.pick`` first."""
        levels = slot.levels[r]
        if amount < SCALE:
            fitting = sorted({level for level in levels if share_of(level) >= amount})
            if self.budgets:
                fitting.sort(key=lambda level: self.node_classes.reach(level, amount))
            for level in fitting:
                yield (level,)
            return
        full = sorted(Counter(level for level in levels if level >= FULL).items())
        if self.budgets:
            full.sort(key=lambda kind: self.node_classes.reach(kind[0], SCALE))
        yield from _picks(full, amount // SCALE)

    def _admits(self, slot: SlotState, demand: BundleKind) -> bool:
        trait = self.node_classes.traits[slot.trait]
        if demand.template:
            is_whole = slot.pristine and trait.template == demand.template
            return is_whole and (trait.holds_entry or not demand.with_entry)
        return bool(trait.selectors >> demand.selector & 1) and self._copies(slot, demand) > 0

    def _copies(self, slot: SlotState, demand: BundleKind) -> int:
        """The number of copies of a request that the free amounts and instances of a slot hold."""
        copies = PLENTY
        units = self.node_classes.traits[slot.trait].units
        for r, amount in enumerate(demand.request):
            if not amount:
                continue
            copies = min(copies, slot.free[r] // amount)
            if not units[r]:
                continue
            if amount < SCALE:
                copies = min(copies, sum(share_of(level) // amount for level in slot.levels[r]))
            elif amount % SCALE:
                return 0
            else:
                copies = min(copies, full_levels(slot, r) * SCALE // amount)
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
            options = self.node_classes.options(state_id)
            limits = [option.limits for option, _ in options]
            for r, want in enumerate(self.want):
                if want:
                    result.append(sum(option.limits[r] * count for option, count in options))
            if any(self.want_entry):
                result.append(int(any(inside(self.want_entry, m) for m in limits)))
            if self.one_piece:
                result.append(int(any(inside(self.want, m) for m in limits)))
        return tuple(result)

    def _cap(self, state_id: int, demand_id: int) -> int:
        state, demand = self.node_classes.states[state_id], self.demands[demand_id]
        distinct = self.phases[demand.phase].rule.distinct
        if distinct and state.used == demand.phase + 1:
            return 0
        copies = 0
        for slot in state.slots:
            if demand.template:
                copies += self._admits(slot, demand)
            elif self.node_classes.traits[slot.trait].selectors >> demand.selector & 1:
                copies += self._copies(slot, demand)
        return min(copies, 1) if distinct else copies

    # ---- growth ----

    def costs(self, state_id: int) -> Vector:
        """Per entry of ``limits``, the least growth of that cluster for what is used on such a node."""
        known = self._costs.get(state_id)
        if known is None:
            known = self._costs[state_id] = tuple(self._find_costs(self.node_classes.states[state_id]))
        return known

    def _find_costs(self, state: NodeState) -> Iterator[int]:
        for r, level, _ in self.limits:
            yield sum(
                growth_of(supply, used, level + 1)[level]
                for slot in state.slots
                for supply, used in self.node_classes.used(slot, r)
            )

    def depth(self, state_id: int, demand_id: int) -> int:
        """The least growth for a bundle on such a node: twice the levels, plus one if a slot must be made."""
        key = (state_id, demand_id)
        if key not in self._depths:
            demand, node_classes = self.demands[demand_id], self.node_classes
            self._depths[key] = min(
                (
                    2 * node_classes.depth(slot, demand.request) + node_classes.traits[slot.trait].fresh
                    for slot in node_classes.states[state_id].slots
                    if self._admits(slot, demand)
                ),
                default=UNLIMITED,
            )
        return self._depths[key]


def after_taking(
    slot: SlotState, request: Vector, shares: tuple[Share, ...], *, pristine: bool = False
) -> SlotState:
    """A slot after a request was taken from it, with these instances."""
    free = tuple(f - a for f, a in zip(slot.free, request, strict=True))
    levels = list(slot.levels)
    for r, level in shares:
        others = list(levels[r])
        others.remove(level)
        rest = share_of(level) - min(request[r], SCALE)
        if rest or kind_of(level):  # an instance that can grow stays, because its used amount matters
            others.append(level_of(rest, kind_of(level)))
        levels[r] = tuple(sorted(others))
    return SlotState(slot.trait, free, tuple(levels), pristine)


def _picks(counts: list[tuple[int, int]], number: int) -> Iterator[tuple[int, ...]]:
    if not number:
        yield ()
        return
    if not counts:
        return
    (level, count), rest = counts[0], counts[1:]
    for copies in range(min(count, number), -1, -1):
        for others in _picks(rest, number - copies):
            yield (level,) * copies + others


def amounts_of(problem: Problem, vector: Vector) -> dict[str, int]:
    """A vector as amounts by name, zeros left out."""
    return {name: amount for name, amount in zip(problem.names, vector, strict=True) if amount}


def holds(bundle: Bundle, entry: Amounts) -> bool:
    """Whether the piece of a bundle could hold the entrypoint's request."""
    return not bundle.template and within(entry, bundle.amounts)
