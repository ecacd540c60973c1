"""Reasons why a gang has no place: the first necessary condition that fails, with numbers for the user.

Each check is a function from the problem to a reason or None; ``quick_reason`` runs them before the search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vctl.core.resources import SCALE, Amounts, within
from vctl.core.slots import SlotIndex
from vctl.core.values import replace
from vctl.core.wording import amount_text, amounts_text, counted, number_text
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
    checks = (_one_bundle, _totals, _nodes_of_phase, _copies, _flexible, _growth)
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
    wanted = {n: sum(b.amounts.get(n, 0) for _, b in problem.items) for n in problem.names}
    wanted = {n: a + problem.flexible.get(n, 0) for n, a in wanted.items()}
    free = amounts_of(problem, _free(problem))
    name = max(problem.names, key=lambda n: wanted[n] * 1000 // max(free.get(n, 0), 1), default="")
    templates = Counter(bundle.template for _, bundle in problem.items if bundle.template)
    whole = "".join(
        f" and {counted(number, 'whole node')} of template {t}" for t, number in sorted(templates.items())
    )
    asked, found = f"{amounts_text(wanted)}{whole} asked", amounts_text({n: free.get(n, 0) for n in wanted})
    numbers = f"{asked} for, {found} free"
    need, have = wanted.get(name, 0), free.get(name, 0)
    if tried.exhausted:
        text = f"no placement found within the search budget after {tried.steps} steps ({numbers})"
        return Unplaced(name, need, have, text, exhausted=True)
    together = f"{tried.depth} of {counted(items, 'fixed node')} fit together"
    return Unplaced(
        name, need, have, f"does not fit as a whole: {together} ({numbers}, in pieces)",
        beyond=f"only {together} ({asked}, {found} exist, in pieces)",
    )  # fmt: skip


def no_capacity_for_entry(entry: Amounts, pieces: Sequence[Amounts]) -> Unplaced:
    """The reason when the entrypoint asks for more than any fixed piece has and there is no flexible part."""
    name, need, have = _closest(entry, pieces)
    text = f"the entrypoint needs {amounts_text(entry)} in one virtual node, the largest has"
    return Unplaced(name, need, have, f"{text} {amount_text(name, have)}")


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
        _, name, need, have = max(shortages, key=lambda one: one[0])
        return name, need, have
    gaps = []
    for capacity in capacities:
        short = [(n, a, capacity.get(n, 0)) for n, a in sorted(request.items()) if a > capacity.get(n, 0)]
        if short:
            gaps.append((len(short), sum((a - h) * 1000 // a for _, a, h in short), short[0]))
    return min(gaps)[2] if gaps else ("", 0, 0)


# ---- necessary conditions, each a function from the problem to a reason or None ----


def _one_bundle(problem: Problem) -> Unplaced | None:
    for demand_id, demand in enumerate(problem.demands):
        if problem.sums[demand_id]:
            continue
        if demand.template:
            return _template_reason(problem, demand, 0)
        capacities = list(_matching(problem, demand))
        if not capacities:
            selector = ", ".join(f"{c.key}: {c}" for c in problem.selectors[demand.selector])
            none = f"a node with {selector} asked, none exists"
            return Unplaced("", SCALE, 0, f"needs a node with {selector}, 0 nodes match", beyond=none)
        return _on_no_node(amounts_of(problem, demand.request), capacities)
    return None


def _no_node() -> Unplaced:
    return Unplaced("", SCALE, 0, "no node takes work now", beyond="it has no node in service")


def _on_no_node(request: Amounts, capacities: Sequence[Amounts]) -> Unplaced:
    """The reason if no single slot has enough for a piece."""
    name, need, have = _closest(request, capacities)
    if have < need:
        return _on_one_node(name, need, have)
    asked = f"{amounts_text(request)} asked on one node, no node has all of it"
    text = f"needs {amounts_text(request)} on one node, no node has all of it free at once"
    return Unplaced(name, need, have, text, beyond=asked)


def _lack(name: str, need: int, have: int, asked: str, free: str, exist: str = "") -> Unplaced:
    return Unplaced(name, need, have, f"needs {asked}, {free}", beyond=f"{asked} asked, {exist or free}")


def _on_one_node(name: str, need: int, have: int, policy: str = "") -> Unplaced:
    wanted, where = amount_text(name, need), f"on one node{policy}"
    text = f"needs {wanted} {where}, the most free on one node is {amount_text(name, have)}"
    beyond = f"{wanted} asked {where}, the largest node has {number_text(name, have)}"
    return Unplaced(name, need, have, text, beyond=beyond)


def _template_reason(problem: Problem, demand: BundleKind, have: int) -> Unplaced | None:
    bundles = [b for _, b in problem.items if b.template == demand.template]
    need = len(bundles)
    if demand.with_entry and have == 0:
        plain = _untouched(problem, demand)
        if plain >= need:
            whole = f"{counted(plain, 'whole node')} of template {demand.template}"
            text = f"the entrypoint does not fit on any of the {whole}"
            return Unplaced("", SCALE, 0, text)
        have = plain
    whole = f"{counted(need, 'whole node')} of template {demand.template}"
    return _lack("", need * SCALE, have * SCALE, whole, f"{have} untouched", f"{have} exist")


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
    free = amounts_of(problem, _free(problem))
    wanted = {n: problem.flexible.get(n, 0) for n in problem.names}
    for _, bundle in problem.items:
        for name, amount in bundle.amounts.items():
            if amount:
                wanted[name] += amount
    return _short(wanted, free)


def _short(wanted: Amounts, free: Amounts) -> Unplaced | None:
    """A reason if there is too little of a resource in total."""
    short = [(a * 1000 // max(free.get(n, 0), 1), n) for n, a in wanted.items() if a > free.get(n, 0)]
    if not short:
        return None
    name = max(short)[1]
    need, have = wanted[name], free.get(name, 0)
    asked = amount_text(name, need)
    text = f"needs {asked} in total, {amount_text(name, have)} free"
    return Unplaced(name, need, have, text, beyond=f"{asked} asked, {number_text(name, have)} exist")


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
                asked = f"{need} distinct nodes ({phase.policy})"
                every = have == sum(problem.node_classes.counts.values())
                exist = f"{have} exist" if every else f"{have} could hold a part of it"
                return _lack("", need * SCALE, have * SCALE, asked, f"have {have}", exist)
        if phase.rule.limit == 1 and need:
            first = problem.phase_of.index(number)
            request = amounts_of(problem, problem.rest[first])
            nodes = [amounts_of(problem, problem.node_classes.free(s)) for s in problem.node_classes.counts]
            name, amount, free = _closest(request, nodes)
            if amount > free:
                return _on_one_node(name, amount, free, f" ({phase.policy})")
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
            text = f"needs {need} distinct nodes with {amounts_text(request)} free each, have {have}"
            beyond = f"{need} distinct nodes with {amounts_text(request)} each asked, {have} exist"
            return Unplaced("", need * SCALE, have * SCALE, text, beyond=beyond)
        name = min(
            request,
            key=lambda n: sum(capacity.get(n, 0) for capacity in _matching(problem, demand)) // request[n],
        )
        asked = f"{need} times {amounts_text(request)}"
        return _lack(name, need * request[name], have * request[name], asked, f"{have} fit")
    return None


def _flexible(problem: Problem) -> Unplaced | None:
    if any(problem.want_entry):
        entry = amounts_of(problem, problem.want_entry)
        capacities = [
            amounts_of(problem, option.most)
            for s in problem.node_classes.counts
            for option, _ in problem.node_classes.options(s)
        ]
        name, need, have = _closest(entry, capacities)
        if have < need:
            one = _on_one_node(name, need, have)
            return replace(
                one, message=f"the entrypoint {one.message}", beyond=f"{one.beyond} (for the command)"
            )
    for r, want in enumerate(problem.want):
        if not want:
            continue
        name = problem.names[r]
        have = sum(
            count * slots * option.most[r]
            for s, count in problem.node_classes.counts.items()
            for option, slots in problem.node_classes.options(s)
        )
        if want > have:
            asked, most = amount_text(name, want), amount_text(name, have)
            text = f"the flexible minimum needs {asked}, {most} can be had"
            beyond = f"{asked} asked as the flexible minimum, {number_text(name, have)} can be had"
            return Unplaced(name, want, have, text, beyond=beyond)
    return None


def _growth(problem: Problem) -> Unplaced | None:
    """A reason if all nodes together cannot have enough within the limits of the clusters that would grow."""
    budgets = problem.budgets
    for r, name in enumerate(problem.names):
        wanted = problem.flexible.get(name, 0) + sum(b.amounts.get(name, 0) for _, b in problem.items)
        if budgets is None or not wanted or not budgets.is_limited(name):
            continue
        needs = [
            Need(ladder, count, 0, potential * count)
            for s, count in problem.node_classes.counts.items()
            for ladder, potential in problem.node_classes.places(s, r)
        ]
        have = budgets.most(name, needs, wanted)
        if have < wanted:
            asked, most = amount_text(name, wanted), number_text(name, have)
            limits = "the limits of the clusters that would grow"
            text = f"needs {asked} in total, {most} can be had within {limits}"
            beyond = f"{asked} asked, {limits} allow {most}"
            return Unplaced(name, wanted, have, text, beyond=beyond)
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
