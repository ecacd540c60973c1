"""Search for the place of a gang: depth first over node states, with bounds and a memory of failed states.

The first dive follows a heuristic (best fit for PACK, emptiest node for SPREAD). If it fails, the search goes
back and tries every other move, so within its budget it finds a place whenever there is one. Equal nodes are
one candidate, so permutations are tried once. The budget counts the moves taken back and the steps of
``growth_split``, never time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vctl.core.values import field, value
from vctl.scheduler.flexible import FlexiblePart
from vctl.scheduler.growth_split import split
from vctl.scheduler.node_states import NodeState
from vctl.scheduler.placement_model import BundleMove, Problem, after_taking


class Repeat(NamedTuple):
    """Successive items with the same move: each on a node of its own, or all on one node."""

    state_id: int
    move: BundleMove
    many: int = 1
    together: bool = False


@value(frozen=True, slots=True)
class Solution:
    """The answer: the moves of the items in the order of ``Problem.items``, then the flexible parts."""

    moves: tuple[Repeat, ...]
    parts: tuple[FlexiblePart, ...]
    exact: bool


@value(slots=True)
class Tried:
    """The outcome of a search: its answer or None, the steps, and whether it stopped at its budget.

    ``depth``: the largest number of items that were placed at once.
    """

    solution: Solution | None
    steps: int
    exhausted: bool = False
    depth: int = 0


@value(slots=True)
class _Frame:
    """One item of the search: the moves that are still to be tried, and the state before the item."""

    moves: Iterator[tuple[int, BundleMove]]
    counts: dict[int, int] | None
    used: int
    applied: tuple[int, BundleMove] | None = None
    opened: bool = False


@value(slots=True)
class _Search:
    problem: Problem
    budget: int
    counts: dict[int, int] = field(init=False)
    sums: list[int] = field(init=False)
    needs: list[int] = field(init=False)
    grown: list[int] = field(init=False)
    """Per entry of ``Problem.limits``, the growth of that cluster for the items that are placed."""
    used: int = 0
    steps: int = 0
    depth: int = 0
    failed: set[object] = field(default_factory=set)
    frames: list[_Frame] = field(default_factory=list)

    def _begin(self) -> None:
        self.used = self.steps = 0
        self.counts = dict(self.problem.node_classes.counts)
        self.needs = list(self.problem.needs)
        self.sums = list(self.problem.sums)
        self.grown = [0] * len(self.problem.limits)

    def run(self) -> Tried:
        """Search until an assignment is found, there is none, or the budget is spent."""
        self._begin()
        if not self._within_bounds(0):
            return Tried(None, 0)
        moves = self._dive()
        if moves is not None and (parts := self._finish()) is not None:
            solution = Solution(moves, tuple(parts), bool(self.steps))
            return Tried(solution, self.steps, depth=len(self.problem.items))
        self._begin()
        deeper = True
        while True:
            if deeper:
                self.depth = max(self.depth, len(self.frames))
                if len(self.frames) < len(self.problem.items):
                    self._enter()
                elif (parts := self._finish()) is not None:
                    moves = tuple(Repeat(*frame.applied) for frame in self.frames if frame.applied)
                    solution = Solution(moves, tuple(parts), bool(self.steps))
                    return Tried(solution, self.steps, depth=self.depth)
                elif not self._undo():
                    return self._failed()
            deeper = self._advance()
            if self.steps > self.budget or not (deeper or self._leave()):
                return self._failed()

    def _failed(self) -> Tried:
        return Tried(None, self.steps, exhausted=self.steps > self.budget, depth=self.depth)

    # ---- the first dive ----

    def _dive(self) -> tuple[Repeat, ...] | None:
        """The heuristic's choice for every item; equal choices are made together.

        None when an item has no choice or a choice breaks a bound: then the search goes item by item.
        """
        problem, i = self.problem, 0
        moves: list[Repeat] = []
        while i < len(problem.items):
            if i and problem.phase_of[i] != problem.phase_of[i - 1]:
                self.counts, self.used = self._clean_counts(), 0
            scored = self._scored(i, first=True)
            if not scored:
                return None
            state_id, demand_id = min(scored)[1], problem.items[i][0]
            move = problem.moves(state_id, demand_id)[0]
            run = self._repeated(i, state_id, move, alone=len(scored) == 1)
            nodes = 1 if run.together else run.many
            self.used += nodes * self._opens(i, state_id)
            self._shift(state_id, run.move.target, nodes)
            self.needs[demand_id] -= run.many
            i += run.many
            if not self._within_bounds(i):
                return None
            moves.append(run)
        return tuple(moves)

    def _repeated(self, i: int, state_id: int, move: BundleMove, *, alone: bool) -> Repeat:
        """A choice, repeated as often as the heuristic would make it again.

        The heuristic repeats it while nodes in this state are left, if a taken node ranks behind them; or
        while the taken node has free capacity, if it is the only used node that has.
        """
        problem = self.problem
        demand_id, number = problem.items[i][0], problem.phase_of[i]
        phase, room = problem.phases[number], problem.bounds(move.target)[demand_id]
        packs = phase.policy in ("PACK", "STRICT_PACK")
        if packs and room and self._is_only_used(state_id, move.target, demand_id):
            many = 1 + min(room, self._alike(i) - 1)
            return Repeat(state_id, self._moved(move, demand_id, many), many, together=many > 1)
        ranks_behind = not room or (phase.policy == "SPREAD" and self._opens(i, state_id))
        if phase.rule.limit or move.target == state_id or not ranks_behind or (packs and not alone):
            return Repeat(state_id, move)
        return Repeat(state_id, move, min(self.counts[state_id], self._alike(i)))

    def _is_only_used(self, state_id: int, target: int, demand_id: int) -> bool:
        """Whether this node alone, of those that the phase uses, can take a bundle, and in one way only."""
        problem, states = self.problem, self.problem.node_classes.states
        mark = problem.demands[demand_id].phase + 1
        return self._is_plain(target, demand_id) and not any(
            states[s].used == mark and problem.bounds(s)[demand_id] and (s != state_id or many > 1)
            for s, many in self.counts.items()
        )

    def _is_plain(self, state_id: int, demand_id: int) -> bool:
        """Whether a bundle goes on such a node in one way only: one slot without growth, and no instances."""
        problem, demand = self.problem, self.problem.demands[demand_id]
        slots = problem.node_classes.states[state_id].slots
        if len(slots) > 1 or problem.budgets or demand.template or not any(demand.request):
            return False
        units = problem.node_classes.traits[slots[0].trait].units
        return not any(units[r] for r, amount in enumerate(demand.request) if amount)

    def _moved(self, move: BundleMove, demand_id: int, many: int) -> BundleMove:
        """The move that stands for the same move made several times on one node."""
        demand, slot, target = self.problem.demands[demand_id], move.after, move.target
        for _ in range(many - 1):  # also number the states in between, as a search step by step does
            slot = after_taking(slot, demand.request, ())
            target = self.problem.node_classes.intern(NodeState((slot,), demand.phase + 1))
        return BundleMove(move.before, slot, (), target)

    def _alike(self, i: int) -> int:
        """The number of successive items of the same demand from item ``i`` on."""
        items = self.problem.items
        many = 1
        while i + many < len(items) and items[i + many][0] == items[i][0]:
            many += 1
        return many

    # ---- one step ----

    def _enter(self) -> None:
        """Open the next item. At the beginning of a phase no node counts as used."""
        i, problem = len(self.frames), self.problem
        saved, used = None, self.used
        if i and problem.phase_of[i] != problem.phase_of[i - 1]:
            saved, self.used = self.counts, 0
            self.counts = self._clean_counts()
        self.frames.append(_Frame(self._candidates(i), saved, used))

    def _clean_counts(self) -> dict[int, int]:
        """The nodes without the marks of the phase that used them."""
        counts: dict[int, int] = {}
        for state_id, count in self.counts.items():
            clean = self.problem.node_classes.clean(state_id)
            counts[clean] = counts.get(clean, 0) + count
        return counts

    def _advance(self) -> bool:
        """Try the moves of the last item until one keeps every bound and leads to no known failed state."""
        frame = self.frames[-1]
        for state_id, move in frame.moves:
            if self.steps > self.budget:
                return False
            self._apply(frame, state_id, move)
            if self._within_bounds(len(self.frames)) and (
                not self.failed or self._key(len(self.frames)) not in self.failed
            ):
                return True
            self._take_back(frame)
        return False

    def _leave(self) -> bool:
        """Close the last item, which has no moves left: note its state as failed, take back the item before.

        False: there is no item before.
        """
        frame = self.frames.pop()
        self.failed.add(self._key(len(self.frames)))
        if frame.counts is not None:
            self.counts, self.used = frame.counts, frame.used
        return self._undo()

    def _undo(self) -> bool:
        if not self.frames:
            return False
        self._take_back(self.frames[-1])
        return True

    def _apply(self, frame: _Frame, state_id: int, move: BundleMove) -> None:
        frame.applied = (state_id, move)
        frame.opened = self._opens(len(self.frames) - 1, state_id)
        self.used += frame.opened
        self._shift(state_id, move.target)
        self.needs[self.problem.items[len(self.frames) - 1][0]] -= 1

    def _take_back(self, frame: _Frame) -> None:
        assert frame.applied is not None
        state_id, move = frame.applied
        self.used -= frame.opened
        self._shift(move.target, state_id)
        self.needs[self.problem.items[len(self.frames) - 1][0]] += 1
        frame.applied = None
        self.steps += 1

    def _opens(self, i: int, state_id: int) -> bool:
        """Whether item ``i`` would be the first of its phase on a node in this state."""
        return self.problem.node_classes.states[state_id].used != self.problem.phase_of[i] + 1

    def _shift(self, source: int, target: int, many: int = 1) -> None:
        counts, sums = self.counts, self.sums
        if counts[source] == many:
            del counts[source]
        else:
            counts[source] -= many
        counts[target] = counts.get(target, 0) + many
        before, after = self.problem.bounds(source), self.problem.bounds(target)
        for k, bound in enumerate(before):
            sums[k] += many * (after[k] - bound)
        if self.grown:
            less, more = self.problem.costs(source), self.problem.costs(target)
            self.grown = [g + many * (b - a) for g, a, b in zip(self.grown, less, more, strict=True)]

    # ---- bounds ----

    def _within_bounds(self, i: int) -> bool:
        """Whether the bounds allow the items after the first ``i``.

        If a phase may open no more nodes, its used nodes must suffice for the rest of it.
        """
        for need, bound in zip(self.needs, self.sums, strict=True):
            if 0 < need > bound:
                return False
        if any(g > limit for g, (_, _, limit) in zip(self.grown, self.problem.limits, strict=True)):
            return False
        problem = self.problem
        if not 0 < i < len(problem.items) or problem.phase_of[i] != problem.phase_of[i - 1]:
            return True
        limit = problem.phases[problem.phase_of[i]].rule.limit
        if not limit:
            return True
        mark = problem.phase_of[i] + 1
        more = limit - self.used
        used = [(s, count) for s, count in self.counts.items() if problem.node_classes.states[s].used == mark]
        for r, need in enumerate(problem.rest[i]):
            if need:
                have = sum(problem.node_classes.free(s)[r] * count for s, count in used)
                if more:
                    have += more * max(problem.node_classes.free(s)[r] for s in self.counts)
                if have < need:
                    return False
        return True

    def _key(self, i: int) -> object:
        """The key of the state before item ``i``: equal keys have equal continuations."""
        problem = self.problem
        if i == len(problem.items):
            return None
        rule = problem.phases[problem.phase_of[i]].rule
        fresh = i and problem.phase_of[i] != problem.phase_of[i - 1]
        if (rule.distinct or rule.limit) and not fresh:
            return i, self.used if rule.limit else 0, frozenset(self._plain(self.counts).items())
        return i, 0, frozenset(self._plain(self._clean_counts()).items())

    def _plain(self, counts: dict[int, int]) -> dict[int, int]:
        """The nodes without what others miss, which does not matter for what fits."""
        if not self.problem.node_classes.wastes_differ:
            return counts
        plain_counts: dict[int, int] = {}
        for state_id, count in counts.items():
            plain = self.problem.node_classes.plain(state_id)
            plain_counts[plain] = plain_counts.get(plain, 0) + count
        return plain_counts

    def _finish(self) -> list[FlexiblePart] | None:
        problem = self.problem
        if problem.budgets is None and not any(problem.want):
            return []
        parts, used = split(problem, self.counts, max(self.budget - self.steps, 0) + 1)
        # without growth the first split belongs to the heuristic, so it is no step
        self.steps += max(used - (problem.budgets is None), 0)
        return parts

    # ---- the order of candidates: the heuristic ----

    def _candidates(self, i: int) -> Iterator[tuple[int, BundleMove]]:
        demand_id, plain = self.problem.items[i][0], self.problem.node_classes.plain
        # of nodes that differ only in what others miss, the best one: on the others the search ends alike
        best: dict[int, int] = {}
        for _, state_id in sorted(self._scored(i)):
            best.setdefault(plain(state_id), state_id)
        return (
            (state_id, move) for state_id in best.values() for move in self.problem.moves(state_id, demand_id)
        )

    def _scored(self, i: int, *, first: bool = False) -> list[tuple[tuple[int, ...], int]]:
        """The node states on which item ``i`` fits, with their scores: the least is the best.

        ``first``: only the best is needed, so states that certainly rank behind it may be missing.
        """
        problem, node_classes = self.problem, self.problem.node_classes
        demand_id, number = problem.items[i][0], problem.phase_of[i]
        phase = problem.phases[number]
        mark, rest = number + 1, problem.rest[i]
        full = phase.rule.limit and self.used >= phase.rule.limit
        scored: list[tuple[tuple[int, ...], int]] = []
        fitting = [state_id for state_id in self.counts if problem.bounds(state_id)[demand_id]]
        if full or (first and phase.policy in ("PACK", "STRICT_PACK")):
            used_ones = [state_id for state_id in fitting if node_classes.states[state_id].used == mark]
            fitting = used_ones if used_ones or full else fitting
        for state_id in fitting:
            used = node_classes.states[state_id].used == mark
            bulk, waste = node_classes.bulk(state_id), node_classes.waste(state_id)
            depth = problem.depth(state_id, demand_id) if problem.budgets else 0
            if phase.policy == "SPREAD":
                score: tuple[int, ...] = (used, depth, *waste, -bulk)
            elif phase.policy in ("PACK", "STRICT_PACK"):
                filled = 0 if used else -_fill(node_classes.free(state_id), rest)
                score = (not used, depth, filled, *waste, bulk)
            else:
                score = (depth, *waste, bulk)
            scored.append((score, state_id))
        return scored


def _fill(free: tuple[int, ...], rest: tuple[int, ...]) -> int:
    """How much of the rest of a phase fits on a node, in thousandths; the scarcest resource counts."""
    return min((min(f, r) * 1000 // r for f, r in zip(free, rest, strict=True) if r), default=1000)


def search(problem: Problem, budget: int) -> Tried:
    """Find an assignment of the gang, or prove that there is none, within ``budget`` steps."""
    return _Search(problem, budget).run()
