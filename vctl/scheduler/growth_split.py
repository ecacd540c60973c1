"""Splits a flexible minimum over the slots of node states, also where slots grow within limits.

With limits, the amount that one slot takes may leave less for others. Resources do not compete, so each is
spread by itself: as in ``flexible`` if the limits allow that, else by a maximum flow, else by a search slot
by slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from vctl.core.resources import SCALE
from vctl.core.values import field, replace, value
from vctl.scheduler.flexible import (
    FlexiblePart,
    Host,
    Option,
    SlotCount,
    hosts,
    inside,
    split_over,
)
from vctl.scheduler.growth_supply import Need, Supply
from vctl.scheduler.node_states import NodeState, SlotState, Vector
from vctl.scheduler.placement_model import Problem, Share, after_taking

StateCounts = Mapping[int, int]
"""Node state -> the number of nodes in it."""
FLOW_STEPS = 5
"""The price of one check of the limits in steps."""
MOST_COPIES = 128
"""The most equal slots that are listed one by one."""


def is_affordable(problem: Problem, counts: StateCounts, parts: Sequence[FlexiblePart]) -> bool:
    """Whether the limits allow what a search has taken, together with these flexible parts."""
    if problem.budgets is None:
        return True
    after = _after(problem, counts, parts)
    return all(_allows(problem, after, r) for r in range(len(problem.names)))


def split(problem: Problem, counts: StateCounts, tries: int) -> tuple[list[FlexiblePart] | None, int]:
    """Pieces that sum to the flexible minimum, or None; and the number of steps taken.

    One piece in the tightest slot that fits all of it, else several, on one node if one fits all of it; one
    piece holds the entrypoint. The search ends after ``tries`` steps. Where slots grow, the pieces keep the
    limits.
    """
    want = problem.want
    if not any(want):
        return ([] if is_affordable(problem, counts, ()) else None), 0
    of_state = {
        s: [(s, count * slots, option) for option, slots in problem.node_classes.options(s)]
        for s, count in sorted(counts.items())
    }
    slots = [one for here in of_state.values() for one in here]
    whole = [(option.cost, state, option) for state, _, option in slots if inside(want, option.limits)]
    steps = 0
    for _, state, option in sorted(whole, key=lambda one: one[:2]):
        for part in _with_instances(problem, FlexiblePart(state, option.slot, want)):
            if is_affordable(problem, counts, [part]):
                return [part], steps
            steps += 1
            if steps >= tries:
                return None, steps
    if problem.one_piece:
        return None, steps
    for state, here in of_state.items():
        one_node = [(state, number // counts[state], option) for _, number, option in here]
        if len(problem.node_classes.states[state].slots) > 1 and _is_enough(one_node, want):
            parts, taken = _spread(problem, counts, one_node, tries - steps)
            steps += taken
            if parts is not None or steps >= tries:
                return parts, steps
    parts, taken = _spread(problem, counts, slots, tries - steps)
    return parts, steps + taken


def _is_enough(slots: Sequence[SlotCount], want: Vector) -> bool:
    """Whether these slots together have enough of each resource, if it may be split in any way."""
    return all(sum(n * option.limits[r] for _, n, option in slots) >= w for r, w in enumerate(want))


def _spread(
    problem: Problem, counts: StateCounts, slots: Sequence[SlotCount], tries: int
) -> tuple[list[FlexiblePart] | None, int]:
    """Pieces on these slots, for each slot that may hold the entrypoint; and the number of steps taken."""
    steps = 0
    useful = [one for one in slots if any(one[2].limits)]
    for host, others in hosts(useful, problem.want, problem.want_entry):
        spread = _Spread(problem, counts, others, host, tries - steps)
        parts = spread.run()
        steps += spread.steps
        if parts is not None or steps >= tries:
            return parts, steps
    return None, steps


def _with_instances(problem: Problem, part: FlexiblePart, r: int = 0) -> Iterator[FlexiblePart]:
    """The part with every different choice of instances from resource ``r`` on, the least growth first."""
    if r == len(part.amounts) or problem.budgets is None:
        yield part
    elif not part.amounts[r] or not problem.node_classes.traits[part.slot.trait].units[r]:
        yield from _with_instances(problem, part, r + 1)
    else:
        for picked in problem.instances(part.slot, r, part.amounts[r]):
            more = tuple((r, level) for level in picked)
            yield from _with_instances(problem, replace(part, shares=part.shares + more), r + 1)


def _after(problem: Problem, counts: StateCounts, parts: Sequence[FlexiblePart]) -> dict[int, int]:
    """The counts after these parts were taken from the nodes."""
    after, node_classes = dict(counts), problem.node_classes
    for on_node in node_classes.by_node(parts):
        state = node_classes.states[on_node[0].state]
        slots = list(state.slots)
        for part in on_node:
            slots.remove(part.slot)
        slots += [after_taking(part.slot, part.amounts, part.shares) for part in on_node]
        target = node_classes.intern(NodeState(tuple(sorted(slots)), state.used))
        after[on_node[0].state] -= 1
        after[target] = after.get(target, 0) + 1
    return {state_id: count for state_id, count in after.items() if count}


def _allows(problem: Problem, counts: StateCounts, r: int) -> bool:
    """Whether the limits allow what is taken of one resource."""
    budgets, name = problem.budgets, problem.names[r]
    if budgets is None or not budgets.is_limited(name):
        return True
    rows = [(number, limit) for number, (of, _, limit) in enumerate(problem.limits) if of == r]
    for number, limit in rows:
        if sum(problem.costs(state_id)[number] * count for state_id, count in counts.items()) > limit:
            return False
    if not any(name in one.most for one in budgets.lenders):
        return True
    return budgets.settle(name, list(_taken(problem, _slots_of(problem, counts), r))) is not None


def _slots_of(problem: Problem, counts: StateCounts) -> Counter[SlotState]:
    """The slots of all nodes, each with its number."""
    slots: Counter[SlotState] = Counter()
    for state_id, count in counts.items():
        for slot in problem.node_classes.states[state_id].slots:
            slots[slot] += count
    return slots


def _taken(problem: Problem, slots: Mapping[SlotState, int], r: int) -> Iterator[Need]:
    for slot, count in slots.items():
        for supply, used in problem.node_classes.used(slot, r) if count else ():
            yield Need(supply, count, used * count, used * count)


@value(slots=True)
class _Spread:
    """Decides how much each slot takes, beside the one that holds the entrypoint."""

    problem: Problem
    counts: StateCounts
    slots: list[SlotCount]
    host: Host | None
    tries: int
    steps: int = 0
    is_cut: bool = False
    """Whether some slots were left out, so that a failure is no proof."""
    copies: list[tuple[int, Option]] = field(default_factory=list)
    amounts: list[list[int]] = field(default_factory=list)
    shares: list[list[Share]] = field(default_factory=list)
    unlisted: list[FlexiblePart] = field(default_factory=list)
    """Pieces in slots that ``copies`` does not list, without the resources that are spread anew."""

    def run(self) -> list[FlexiblePart] | None:
        problem, want = self.problem, self.problem.want
        self.steps += 1
        guess = split_over(self.slots, want, problem.want_entry, self.host)
        if guess is None or problem.budgets is None:
            return guess
        guess = [next(_with_instances(problem, part)) for part in guess]
        bad = self._refused(guess)
        if not bad:
            return guess
        self._expand()
        self._take_over(guess, bad)
        for r in bad:
            spread = self._flow(r) or self._search(r)
            if spread is None:
                self.steps += self.tries if self.is_cut else 0  # spends the budget: it is no proof
                return None
            for i, (amount, picked) in enumerate(spread):
                self.amounts[i][r] = amount
                self.shares[i] += [(r, level) for level in picked]
        parts = [
            FlexiblePart(state, option.slot, tuple(amounts), tuple(shares))
            for (state, option), amounts, shares in zip(self.copies, self.amounts, self.shares, strict=True)
            if any(amounts)
        ]
        parts += self.unlisted
        return None if self._refused(parts) else parts

    def _refused(self, parts: Sequence[FlexiblePart]) -> list[int]:
        after = _after(self.problem, self.counts, parts)
        return [r for r in range(len(self.problem.names)) if not _allows(self.problem, after, r)]

    def _expand(self) -> None:
        """List the slots one by one in ``copies``, the host first."""
        most = max(-(-want // SCALE) for want in self.problem.want) + 1
        self.copies = [self.host] if self.host else []
        for state, count, option in self.slots:
            self.copies += [(state, option)] * min(count, most, MOST_COPIES)
            self.is_cut |= min(count, most) > MOST_COPIES
        self.amounts = [[0] * len(self.problem.want) for _ in self.copies]
        self.shares = [[] for _ in self.copies]

    def _take_over(self, guess: list[FlexiblePart], bad: list[int]) -> None:
        """Keep the guess for the resources whose limits allow it."""
        free = list(range(len(self.copies)))
        for part in guess:
            own = [i for i in free if self.copies[i][0] == part.state and self.copies[i][1].slot == part.slot]
            amounts = [0 if r in bad else amount for r, amount in enumerate(part.amounts)]
            shares = [share for share in part.shares if share[0] not in bad]
            if own:
                free.remove(own[0])
                self.amounts[own[0]], self.shares[own[0]] = amounts, shares
            elif any(amounts):  # more equal slots than ``copies`` lists
                self.unlisted.append(replace(part, amounts=tuple(amounts), shares=tuple(shares)))

    # ---- one resource ----

    def _flow(self, r: int) -> list[tuple[int, tuple[int, ...]]] | None:
        """The spread by a maximum flow, which is exact about loans and limits.

        None: the resource has instances, there is no such flow, or more than one piece gets a fraction of a
        unit.
        """
        problem, node_classes, budgets = self.problem, self.problem.node_classes, self.problem.budgets
        assert budgets is not None
        if any(node_classes.traits[option.slot.trait].units[r] for _, option in self.copies):
            return None
        entry = problem.want_entry[r] if self.host else 0
        needs, rest = [], _slots_of(problem, self.counts)
        for i, (_, option) in enumerate(self.copies):
            rest[option.slot] -= 1
            used, supply = self._used(option.slot, r)
            least = used + (entry if i == 0 and self.host else 0)
            needs.append(Need(supply, 1, least, used + option.limits[r]))
        needs += list(_taken(problem, rest, r))
        self.steps += FLOW_STEPS
        flows = budgets.settle(name=problem.names[r], needs=needs, extra=problem.want[r] - entry)
        if flows is None:
            return None
        found = [
            sum(flow) - self._used(option.slot, r)[0]
            for flow, (_, option) in zip(flows, self.copies, strict=False)
        ]
        apart = [amount - (entry if i == 0 and self.host else 0) for i, amount in enumerate(found)]
        if min(sum(a % SCALE > 0 for a in found), sum(a % SCALE > 0 for a in apart)) > 1:
            return None
        return [(amount, ()) for amount in found]

    def _used(self, slot: SlotState, r: int) -> tuple[int, Supply]:
        node_classes = self.problem.node_classes
        supplies = node_classes.traits[slot.trait].supplies
        supply, potential = node_classes.supplies[supplies[r]] if supplies else ((), 0)
        return potential - slot.free[r] if supplies else 0, supply

    def _search(self, r: int) -> list[tuple[int, tuple[int, ...]]] | None:
        """The spread by a search slot by slot, the largest amounts first."""
        taken: list[tuple[int, tuple[int, ...]]] = []
        ways = [self._ways(r, 0, self.problem.want[r])]
        while ways:
            self.steps += FLOW_STEPS
            if self.steps > self.tries:
                return None
            one = next(ways[-1], None)
            if one is None:
                ways.pop()
                if taken:
                    taken.pop()
                continue
            taken.append(one)
            rest = self.problem.want[r] - sum(amount for amount, _ in taken)
            if rest > self._most(r, len(taken)) or not self._is_allowed(r, taken):
                taken.pop()
            elif not rest:
                return taken + [(0, ())] * (len(self.copies) - len(taken))
            elif len(taken) < len(self.copies):
                ways.append(self._ways(r, len(taken), rest))
            else:
                taken.pop()
        return None

    def _most(self, r: int, since: int) -> int:
        return sum(option.limits[r] for _, option in self.copies[since:])

    def _is_allowed(self, r: int, taken: list[tuple[int, tuple[int, ...]]]) -> bool:
        parts = []
        for (state, option), (amount, picked) in zip(self.copies, taken, strict=False):
            vector = tuple(amount if i == r else 0 for i in range(len(self.problem.names)))
            parts.append(FlexiblePart(state, option.slot, vector, tuple((r, level) for level in picked)))
        return _allows(self.problem, _after(self.problem, self.counts, parts), r)

    def _ways(self, r: int, i: int, rest: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """The amounts that one slot may take of the rest, each with its instances."""
        option = self.copies[i][1]
        entry = self.problem.want_entry[r] if i == 0 and self.host else 0
        most = min(option.limits[r], rest)
        fractions = {0, rest % SCALE, entry % SCALE}
        amounts = {a for f in fractions for a in range(f, most + 1, SCALE) if a >= entry}
        is_unit = self.problem.node_classes.traits[option.slot.trait].units[r]
        for amount in sorted(amounts, reverse=True):
            if is_unit and amount:
                if amount < SCALE or amount % SCALE == 0:
                    yield from ((amount, picked) for picked in self.problem.instances(option.slot, r, amount))
            else:
                yield amount, ()
