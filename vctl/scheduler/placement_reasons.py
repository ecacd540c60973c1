"""Refusals of a gang that has no place: the first necessary condition that fails, with its numbers.

Each check is a function from the problem to a reason or None; ``quick_reason`` runs them before the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from vctl.core.resources import SCALE, Amounts, within
from vctl.core.slots import SlotIndex
from vctl.scheduler.explain import refusal as rules
from vctl.scheduler.explain.refusal import Refusal
from vctl.scheduler.growth_supply import Need
from vctl.scheduler.node_states import full_levels, share_of
from vctl.scheduler.placement_model import BundleKind, Problem, amounts_of
from vctl.scheduler.placement_result import Unplaced
from vctl.scheduler.placement_search import Tried
from vctl.scheduler.upper_bound import UpperBound

Shortage = tuple[str, int, int]
"""Resource, need and have, both in 1/10000."""


def quick_reason(problem: Problem) -> Unplaced | None:
    """The reason of the first necessary condition that fails. None does not prove that there is a place."""
    if not problem.node_classes.counts:
        return _no_node()
    checks = (_single_bundles, _totals, _nodes_of_phase, _copies, _flexible, _growth)
    return next((reason for check in checks if (reason := check(problem))), None)


def plain_reason(index: SlotIndex, count: UpperBound) -> Unplaced | None:
    """``quick_reason`` of a gang for which counting is exact (``UpperBound.is_exact``), without a model of the gang.

    None: it may have a place, or the numbers of the reason need the model.
    """
    if not index.classes:
        return _no_node()
    totals = count.inside(index)
    if count.is_met(totals):
        return None
    request = dict(count.kinds[0])
    slots = [
        ({name: max(group.capacity.free.get(name, 0), 0) for name in request}, len(group.ids))
        for group in index.classes.values()
    ]
    if not any(totals):
        return _on_no_node(request, [free for free, _ in slots])
    return _short(count.total, {n: sum(free[n] * many for free, many in slots) for n in request})


def search_reason(problem: Problem, tried: Tried) -> Unplaced:
    """The reason when every necessary condition holds and the search still found no place."""
    items = len(problem.items)
    requested = _requested(problem)
    free = amounts_of(problem, _free(problem))
    name = max(problem.names, key=lambda n: requested[n] * 1000 // max(free.get(n, 0), 1), default="")
    refusal = Refusal(
        rules.WITHIN_BUDGET if tried.exhausted else rules.TOGETHER,
        name,
        requested.get(name, 0),
        free.get(name, 0),
        of=requested,
        free={n: free.get(n, 0) for n in requested},
        whole=Counter(bundle.template for _, bundle in problem.items if bundle.template),
        count=tried.steps if tried.exhausted else items,
        fit=tried.depth,
    )
    return Unplaced(refusal, exhausted=tried.exhausted)


def no_capacity_for_entry(entry: Amounts, pieces: Sequence[Amounts]) -> Unplaced:
    """The reason when the entrypoint asks for more than any fixed piece has and there is no flexible part."""
    name, need, have = _closest(entry, pieces)
    return _refused(rules.ENTRY_IN_PIECE, name, need, have, of=entry)


def _closest(request: Amounts, capacities: Sequence[Amounts]) -> Shortage:
    """The resource with the largest gap on every virtual node; if each resource alone fits somewhere, the gap
    of the virtual node that lacks least. An empty name when some virtual node holds the whole request.
    """
    if any(within(request, capacity) for capacity in capacities):
        return "", 0, 0
    shortages = []
    for name, need in sorted(request.items()):
        have = max((capacity.get(name, 0) for capacity in capacities), default=0)
        if need > have:
            shortages.append((need * 1000 // max(have, 1), name, need, have))
    if shortages:
        _, name, need, have = max(shortages, key=lambda shortage: shortage[0])
        return name, need, have
    gaps = []
    for capacity in capacities:
        short = [(n, a, capacity.get(n, 0)) for n, a in sorted(request.items()) if a > capacity.get(n, 0)]
        if short:
            gaps.append((len(short), sum((a - h) * 1000 // a for _, a, h in short), short[0]))
    return min(gaps)[2] if gaps else ("", 0, 0)


# ---- necessary conditions, each a function from the problem to a reason or None ----


def _single_bundles(problem: Problem) -> Unplaced | None:
    for demand_id, demand in enumerate(problem.demands):
        if problem.sums[demand_id]:
            continue
        if demand.template:
            return _template_reason(problem, demand, 0)
        capacities = list(_matching(problem, demand))
        if not capacities:
            return _refused(rules.NO_MATCH, "", SCALE, 0, selector=problem.selectors[demand.selector])
        return _on_no_node(amounts_of(problem, demand.request), capacities)
    return None


def _refused(rule: str, name: str, need: int, have: int, **more: Any) -> Unplaced:
    return Unplaced(Refusal(rule, name, need, have, **more))


def _no_node() -> Unplaced:
    return _refused(rules.NO_NODE, "", SCALE, 0)


def _on_no_node(request: Amounts, capacities: Sequence[Amounts]) -> Unplaced:
    """The refusal if no single slot has enough for a piece."""
    name, need, have = _closest(request, capacities)
    if have < need:
        return _refused(rules.ON_ONE, name, need, have)
    return _refused(rules.ALL_ON_ONE, name, need, have, of=request)


def _too_few(rule: str, need: int, have: int, **more: Any) -> Unplaced:
    return _refused(rule, "", need * SCALE, have * SCALE, count=need, fit=have, **more)


def _template_reason(problem: Problem, demand: BundleKind, have: int) -> Unplaced | None:
    bundles = [b for _, b in problem.items if b.template == demand.template]
    need = len(bundles)
    if demand.with_entry and have == 0:
        plain = _untouched(problem, demand)
        if plain >= need:
            return _refused(rules.ENTRY_ON_WHOLE, "", SCALE, 0, whole={demand.template: plain})
        have = plain
    return _too_few(rules.WHOLE_NODES, need, have, whole={demand.template: need})


def _untouched(problem: Problem, demand: BundleKind) -> int:
    slots = (
        (slot, count)
        for s, count in problem.node_classes.counts.items()
        for slot in problem.node_classes.states[s].slots
        if slot.pristine
    )
    return sum(
        count for slot, count in slots if problem.node_classes.traits[slot.trait].template == demand.template
    )


def _totals(problem: Problem) -> Unplaced | None:
    return _short(_requested(problem), amounts_of(problem, _free(problem)))


def _requested(problem: Problem) -> dict[str, int]:
    """What all pieces and the flexible minimum ask for together."""
    requested = {n: problem.flexible.get(n, 0) for n in problem.names}
    for _, bundle in problem.items:
        for name, amount in bundle.amounts.items():
            if amount:
                requested[name] += amount
    return requested


def _short(requested: Amounts, free: Amounts) -> Unplaced | None:
    short = [(a * 1000 // max(free.get(n, 0), 1), n) for n, a in requested.items() if a > free.get(n, 0)]
    if not short:
        return None
    name = max(short)[1]
    return _refused(rules.IN_TOTAL, name, requested[name], free.get(name, 0))


def _nodes_of_phase(problem: Problem) -> Unplaced | None:
    for number, phase in enumerate(problem.phases):
        demands = [d for d, demand in enumerate(problem.demands) if demand.phase == number]
        need = sum(problem.needs[d] for d in demands)
        if phase.rule.distinct and need:
            have = sum(
                count
                for s, count in problem.node_classes.counts.items()
                if any(problem.bounds(s)[d] for d in demands)
            )
            if have < need:
                every = have == sum(problem.node_classes.counts.values())
                rule = rules.DISTINCT if every else rules.DISTINCT_ABLE
                return _too_few(rule, need, have, detail=phase.policy)
        if phase.rule.limit == 1 and need:
            first = problem.phase_of.index(number)
            request = amounts_of(problem, problem.rest[first])
            nodes = [amounts_of(problem, problem.node_classes.free(s)) for s in problem.node_classes.counts]
            name, amount, free = _closest(request, nodes)
            if amount > free:
                return _refused(rules.ON_ONE, name, amount, free, detail=phase.policy)
    return None


def _copies(problem: Problem) -> Unplaced | None:
    for demand_id, demand in enumerate(problem.demands):
        need, have = problem.needs[demand_id], problem.sums[demand_id]
        if have >= need:
            continue
        if demand.template:
            return _template_reason(problem, demand, have)
        request = amounts_of(problem, demand.request)
        if problem.phases[demand.phase].rule.distinct:
            return _too_few(rules.DISTINCT_PIECES, need, have, of=request)
        name = min(
            request,
            key=lambda n: sum(capacity.get(n, 0) for capacity in _matching(problem, demand)) // request[n],
        )
        more = {"of": request, "count": need, "fit": have}
        return _refused(rules.PIECES, name, need * request[name], have * request[name], **more)
    return None


def _flexible(problem: Problem) -> Unplaced | None:
    if any(problem.want_entry):
        entry = amounts_of(problem, problem.want_entry)
        capacities = [
            amounts_of(problem, option.limits)
            for s in problem.node_classes.counts
            for option, _ in problem.node_classes.options(s)
        ]
        name, need, have = _closest(entry, capacities)
        if have < need:
            return _refused(rules.ENTRY_ON_ONE, name, need, have)
    for r, want in enumerate(problem.want):
        if not want:
            continue
        name = problem.names[r]
        have = sum(
            count * slots * option.limits[r]
            for s, count in problem.node_classes.counts.items()
            for option, slots in problem.node_classes.options(s)
        )
        if want > have:
            return _refused(rules.MINIMUM, name, want, have)
    return None


def _growth(problem: Problem) -> Unplaced | None:
    """A reason if all nodes together cannot have enough within the limits of the clusters that would grow."""
    if (budgets := problem.budgets) is None:
        return None
    for r, (name, requested) in enumerate(_requested(problem).items()):
        if not requested or not budgets.is_limited(name):
            continue
        needs = [
            Need(supply, count, 0, potential * count)
            for s, count in problem.node_classes.counts.items()
            for supply, potential in problem.node_classes.places(s, r)
        ]
        have = budgets.most(name, needs, requested)
        if have < requested:
            return _refused(rules.GROWTH_LIMITS, name, requested, have)
    return None


def _free(problem: Problem) -> tuple[int, ...]:
    free = [0] * len(problem.names)
    for state_id, count in problem.node_classes.counts.items():
        for r, amount in enumerate(problem.node_classes.free(state_id)):
            free[r] += amount * count
    return tuple(free)


def _matching(problem: Problem, demand: BundleKind) -> Iterator[Amounts]:
    """The free amounts of each slot state that the selector of a demand admits.

    Of a unit resource: the largest share, or all whole instances if the demand is for whole ones.
    """
    for state_id in problem.node_classes.counts:
        for slot in problem.node_classes.states[state_id].slots:
            trait = problem.node_classes.traits[slot.trait]
            if trait.selectors >> demand.selector & 1:
                free = dict(zip(problem.names, slot.free, strict=True))
                for r, amount in enumerate(demand.request):
                    if trait.units[r] and amount:
                        largest = share_of(max(slot.levels[r], default=0))
                        share = largest if amount < SCALE else full_levels(slot, r) * SCALE
                        free[problem.names[r]] = share
                yield free
