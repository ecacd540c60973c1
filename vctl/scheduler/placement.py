"""Placement of a whole gang: its fixed groups, whole nodes, flexible minimum and entrypoint.

The problem. A gang starts with all of its pieces or not at all: those of its fixed groups, whole nodes of a
*template* (a kind of machine), a *flexible minimum* (a sum, in as many pieces as it takes), and the
*entrypoint*, a process inside one of these pieces. A fixed piece needs its amounts on a node with the right
labels; of *instances* (devices with numbers, as GPUs) it gets whole ones, or a share of one. Groups have a
policy: PACK (few nodes), SPREAD (many), STRICT_PACK (one), STRICT_SPREAD (a node for each). Taking the best
node for one piece after the other fails where the first choice leaves the free capacity in the wrong places,
and then a gang waits although it would fit. The answer must be fast on 10,000 nodes, and "no" must be a proof,
because ``why`` and the reservations rely on it.

The idea. A heuristic first, because it is nearly always right, and a complete search behind it. Both know of a
node only its *state*: what this gang could use there, and whether the present group uses it already. Nodes in
the same state are one choice with a count (``node_classes``), and equal pieces are one demand, so permutations
of equal nodes or equal pieces are never tried. What is tried, in this order:

1. The entrypoint's piece (``_questions``): a fixed piece that can hold it; if there is none, a whole node of
   each template, then the flexible part. Each option goes through all that follows, until one has a place.
2. Necessary conditions (``placement_reasons``). They are cheap, and the first that fails is the reason the user
   sees (that of the last option).
3. The order of the pieces (``Problem._line_up``): whole nodes, STRICT_PACK, STRICT_SPREAD, the rest; of these
   the group with the fewest possible places first; within a group the largest piece first.
4. One dive (``_Search._dive``): each piece goes to the state with the best score. For PACK that is a node that
   the group uses already, then the one that holds most of what is left of the group; for SPREAD an unused node.
   What decides next is ``waste``, the least first: how much else is asked for that only such nodes can hold
   (``core.demand``), then how many kinds of devices are free there for which this gang does not ask. Then the
   size: SPREAD takes the emptiest node, all others the tightest. At the end the flexible minimum is split over
   what is left (``growth_split``).
5. If the dive fails, the same search from the beginning, piece by piece and with going back (``_Search.run``).
6. Real nodes for the states of the answer, lowest id first, with exact instances and cores
   (``placement_assignment``).
7. Wishes (``_Wishes``), as a dive does not look ahead: further searches for the same gang with PACK on fewer
   nodes, SPREAD with a node for each piece, or one flexible piece. If none succeeds, the first answer stays.

Why it is complete. Step 5 tries every state that can hold the piece, and every different choice of instances
there. A branch is cut for three reasons only. *Bounds*: for each demand, the sum over all nodes of the most
copies that each could still hold if no other demand came; with fewer than are needed, no continuation exists.
The flexible minimum, the limits of growth and the nodes of a group that may use only so many (STRICT_PACK) have
such bounds, too. *Memory*: a position (the next piece, and the count of nodes in each state) from which the
rest of the gang did not fit is not entered again. *Equals*: of nodes that differ only in ``waste``, one is
enough. None of these drops a solution, so the search finds a place if there is one, unless it ends at its
budget.

What bounds it. Placing a gang is bin packing, so the worst case is exponential. A *step* is a piece that was
taken back, or a further try of the split; time is never measured, so equal input gives equal answers. After
more than ``BUDGET`` steps the answer is ``Unplaced(exhausted=True)``: "not found", not "impossible". All
options of the entrypoint share one budget. Growth runs the same search on nodes that include what growth could
bring (``gang_growth``); the limits of growth are the maximums and borrow limits of those clusters.

Invariants. The ledger (who has what, and what is free, on each node) does not change. ``Placed`` is whole:
every piece with its instances, and it fits into the ledger as it is. ``Unplaced`` without ``exhausted`` is a
proof for this free capacity. The same state gives the same place.

Example. Free are 6 CPUs on ``n1`` and 4 on ``n2``; the gang is ``PACK`` with pieces of 4, 3 and 3 CPUs. The
dive puts the 4 on ``n1``, which holds most of the gang. That leaves 2 and 4 CPUs, in which one piece of 3 fits;
two are needed, so the bound ends the dive before the next piece. The search begins again: 4 on ``n1`` breaks
the bound and is taken back (one step), 4 on ``n2`` leaves 6 and 0, and both pieces of 3 go to ``n1``. With a
budget of 0 steps the answer is "exhausted", with 1 it is this place (``tests/scheduler/test_theory.py``).

What it costs. The dive makes equal choices together where it can, and then costs the number of states times the
number of different pieces: ten times the equal nodes cost no more. It goes piece by piece where several with
instances share a node, or SPREAD has more pieces than nodes. The search adds its steps. Making real nodes costs
the number of pieces. A place found before is reused while each node has the free capacity that it had then, and
the same is asked for by others (``place_again``).

Not done. The search does not weigh places against jobs that wait behind this one, except by ``waste``. Wishes
are no promise: they end after ``WISH_BUDGET`` steps, so a PACK may lie on more nodes than the fewest possible.
Nothing moves a running job to make a place; ending one is ``preemption``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from vctl.core.clusters import FLEXIBLE, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.core.resources import EMPTY, SCALE, Amounts, FreeCapacity, maximum
from vctl.core.values import replace, value
from vctl.scheduler.candidate_nodes import CandidateNodes, candidates_now
from vctl.scheduler.explain.refusal import ENTRY_IN_MAXIMUM, NO_NODE, Refusal
from vctl.scheduler.flexible import inside
from vctl.scheduler.placement_assignment import pieces_of
from vctl.scheduler.placement_model import Bundle, Phase, Problem, SpreadRule, holds
from vctl.scheduler.placement_reasons import no_capacity_for_entry, quick_reason, search_reason
from vctl.scheduler.placement_result import Piece, Placed, Unplaced
from vctl.scheduler.placement_search import search

__all__ = ["BUDGET", "Piece", "Placed", "Unplaced", "place", "place_on"]

BUDGET = 20_000
"""The number of steps that a search may take back before it gives up."""
WISH_BUDGET = 400
"""The most of these steps for the search of a better plan (fewer nodes, wider spread) after the first."""

MOST_KNOWN = 1_000
"""The number of places that are kept for one scheduling class."""
Places = dict[int, tuple[ClusterSpec, Placed, object]]
"""Stamp of the index -> spec, place, and the edition of the demand for which it was chosen.

Specs of one class may differ in labels of their virtual nodes.
"""

_RULES = {"STRICT_SPREAD": SpreadRule(distinct=True), "STRICT_PACK": SpreadRule(limit=1)}


def place(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts, *, budget: int = BUDGET
) -> Placed | Unplaced:
    """The place of the gang of a spec in the present free capacity of a cluster, or why there is none.

    ``entry``: the request of the entrypoint, which runs in the first piece that can hold it.
    """
    return place_on(candidates_now(ledger, parent_id), spec, entry, budget=budget)


def place_again(
    ledger: Ledger, parent_id: str, spec: ClusterSpec, entry: Amounts, known: Places
) -> Placed | Unplaced:
    """Like ``place``, but reuses the place found before for equal free capacity.

    ``known``: the places of a scheduling class, which this updates.
    """
    stamp, edition = ledger.index(parent_id).stamp, ledger.demand.edition
    if (before := known.get(stamp)) is not None and before[2] == edition:
        if (before[0] is spec or before[0] == spec) and (placed := _repeated(ledger, before[1])) is not None:
            return placed
    answer = place(ledger, parent_id, spec, entry)
    if isinstance(answer, Placed) and _is_repeatable(answer):
        if len(known) >= MOST_KNOWN:
            known.clear()
        known[stamp] = (spec, answer, ledger.demand.edition)
    return answer


def _is_repeatable(placed: Placed) -> bool:
    """Whether every piece has the allocation of ``FreeCapacity.choice``, so that it can be chosen again."""
    apart = len({piece.parent_vnode_id for piece in placed.pieces}) == len(placed.pieces)
    return apart and not (placed.exact and any(piece.allocation.instances for piece in placed.pieces))


def _repeated(ledger: Ledger, known: Placed) -> Placed | None:
    """A known place in equal free capacity; other instances and cores may be free now than then."""
    pieces = []
    for piece in known.pieces:
        capacity, amounts = ledger.capacities[piece.parent_vnode_id], piece.allocation.amounts
        if not capacity.fits(amounts):
            return None
        choice = piece.allocation if piece.whole else capacity.choice(amounts)
        pieces.append(piece if choice == piece.allocation else replace(piece, allocation=choice))
    if all(map(operator.is_, pieces, known.pieces)):
        return known
    return _with_entry(tuple(pieces), known.entry.amounts, exact=known.exact)


def place_on(
    candidates: CandidateNodes, spec: ClusterSpec, entry: Amounts, *, budget: int = BUDGET
) -> Placed | Unplaced:
    """The place of the gang of a spec on these candidate nodes, or why there is none."""
    entry = {name: amount for name, amount in entry.items() if amount}
    fixed = any(group.nodes for group in spec.groups) or any(spec.replica_sets.values())
    if not entry and not fixed and not (spec.flexible and any(spec.flexible_min.values())):
        return _place_empty_gang(candidates, spec)
    worst: Unplaced | None = None
    for question in _questions(spec, entry):
        answer, steps = _answer(candidates, spec, question, entry, budget)
        if isinstance(answer, Placed):
            return answer
        # the last reason says most, but an earlier search that ended at its budget makes it no proof
        worst = replace(answer, exhausted=True) if worst and worst.exhausted else answer
        budget = max(budget - steps, 0)
    return worst or no_capacity_for_entry(entry, [node.resources for g in spec.groups for node in g.nodes])


@value(frozen=True, slots=True)
class _Question:
    """One option for the entrypoint: the phases, the flexible minimum, and its part to keep in one piece."""

    phases: tuple[Phase, ...]
    flexible: Amounts
    flexible_entry: Amounts


def _questions(spec: ClusterSpec, entry: Amounts) -> Iterator[_Question]:
    """The options for the entrypoint: a bundle that can hold it; else a whole node, or the flexible part."""
    phases = _phases(spec, "")
    minimum = spec.flexible_min if spec.flexible else {}
    if not entry or any(holds(bundle, entry) for phase in phases for bundle in phase.bundles):
        yield _Question(phases, minimum, {})
        return
    for template in sorted(t for t, count in spec.replica_sets.items() if count):
        yield _Question(_phases(spec, template), minimum, {})
    if spec.flexible:
        yield _Question(phases, maximum(minimum, entry), entry)


def _phases(spec: ClusterSpec, entry_template: str) -> tuple[Phase, ...]:
    phases = []
    for number, group in enumerate(spec.groups):
        bundles = tuple(
            Bundle(number, i, node.resources, node.selector) for i, node in enumerate(group.nodes)
        )
        if bundles:
            phases.append(Phase(number, group.policy, _RULES.get(group.policy, SpreadRule()), bundles))
    whole = tuple(
        Bundle(-1, position, {}, (), template, position == 0 and template == entry_template)
        for template, count in sorted(spec.replica_sets.items())
        for position in range(count)
    )
    return (*phases, Phase(-1, "WHOLE", SpreadRule(), whole)) if whole else tuple(phases)


def _above_maximum(spec: ClusterSpec, question: _Question) -> Unplaced | None:
    """A reason when the entrypoint would make the flexible part exceed its maximum."""
    for name, need in sorted(question.flexible_entry.items()):
        have = need if spec.flexible_max is None else spec.flexible_max.get(name, need)
        if need > have:
            return Unplaced(Refusal(ENTRY_IN_MAXIMUM, name, need, have))
    return None


def _place_empty_gang(candidates: CandidateNodes, spec: ClusterSpec) -> Placed | Unplaced:
    """The place of a gang that asks for nothing; if it is flexible, its process still needs a node."""
    if not spec.flexible:
        return Placed((), 0, EMPTY, exact=False)
    slot_id = candidates.first_slot()
    if slot_id is None:
        return Unplaced(Refusal(NO_NODE, "", SCALE, 0))
    piece = Piece(FLEXIBLE, 0, -1, slot_id, candidates.node_of(slot_id), EMPTY, {}, whole=False)
    return Placed((piece,), 0, EMPTY, exact=False)


def _answer(
    candidates: CandidateNodes, spec: ClusterSpec, question: _Question, entry: Amounts, budget: int
) -> tuple[Placed | Unplaced, int]:
    if reason := _above_maximum(spec, question):
        return reason, 0
    problem = Problem(candidates, question.phases, question.flexible, question.flexible_entry, entry)
    if reason := quick_reason(problem):
        return reason, 0
    tried = search(problem, budget)
    if tried.solution is None:
        return search_reason(problem, tried), tried.steps
    pieces = pieces_of(problem, tried.solution, spec)
    better = _Wishes(candidates, spec, question, entry, min(budget, WISH_BUDGET)).improve(problem, pieces)
    exact = tried.solution.exact or better is not None
    return _with_entry(better or pieces, entry, exact=exact), tried.steps


def _with_entry(pieces: tuple[Piece, ...], entry: Amounts, *, exact: bool) -> Placed:
    if not entry:
        return Placed(pieces, 0, EMPTY, exact)
    for piece in pieces:
        if piece.allocation.amounts == entry:
            return Placed(pieces, piece.rank, piece.allocation, exact)
        capacity = FreeCapacity(piece.allocation)
        if capacity.fits(entry):
            return Placed(pieces, piece.rank, capacity.take(entry), exact)
    raise AssertionError((pieces, entry))


@value(slots=True)
class _Wishes:
    """Improves a plan within a small budget: PACK on fewer nodes, SPREAD on more, one flexible piece."""

    candidates: CandidateNodes
    spec: ClusterSpec
    question: _Question
    entry: Amounts
    budget: int

    def improve(self, problem: Problem, pieces: tuple[Piece, ...]) -> tuple[Piece, ...] | None:
        """Better pieces, or None when no better plan is found."""
        best: tuple[Piece, ...] | None = None
        phases, nodes = list(self.question.phases), sum(problem.node_classes.counts.values())
        for number, phase in enumerate(phases):
            if phase.policy not in ("PACK", "SPREAD"):
                continue
            count, used = len(phase.bundles), _nodes_of(best or pieces, phase.group)
            if phase.policy == "SPREAD":
                rules = [SpreadRule(distinct=True)] if used < count <= nodes else []
            else:
                rules = [SpreadRule(limit=limit) for limit in range(_fewest_nodes(problem, number), used)]
            for rule in rules:
                phases[number] = replace(phase, rule=rule)
                if better := self._try(tuple(phases), one_piece=False):
                    best, used = better, _nodes_of(better, phase.group)
                    break
            # later improvements do not make this phase worse
            rule = SpreadRule(distinct=used == count) if phase.policy == "SPREAD" else SpreadRule(limit=used)
            phases[number] = replace(phase, rule=rule)
        if sum(piece.kind == FLEXIBLE for piece in best or pieces) > 1 and any(
            inside(problem.want, option.limits)
            for state_id in problem.node_classes.counts
            for option, _ in problem.node_classes.options(state_id)
        ):
            best = self._try(tuple(phases), one_piece=True) or best
        return best

    def _try(self, phases: tuple[Phase, ...], *, one_piece: bool) -> tuple[Piece, ...] | None:
        if self.budget <= 0:
            return None
        flexible, flexible_entry = self.question.flexible, self.question.flexible_entry
        problem = Problem(self.candidates, phases, flexible, flexible_entry, self.entry, one_piece=one_piece)
        tried = search(problem, self.budget)
        self.budget -= tried.steps + 1
        return None if tried.solution is None else pieces_of(problem, tried.solution, self.spec)


def _nodes_of(pieces: tuple[Piece, ...], group: int) -> int:
    return len({piece.node_id for piece in pieces if piece.group == group})


def _fewest_nodes(problem: Problem, number: int) -> int:
    """A lower bound of the nodes of a phase: the emptiest nodes that have enough of each resource."""
    fewest, classes = 1, problem.node_classes
    for r, need in enumerate(problem.rest[problem.phase_of.index(number)]):
        nodes, rest = 0, need
        of_state = ((classes.free(s)[r], count) for s, count in classes.counts.items())
        for free, count in sorted(of_state, reverse=True):
            if rest <= 0 or not free:
                break
            used = min(count, -(-rest // free))
            nodes, rest = nodes + used, rest - used * free
        fewest = max(fewest, nodes)
    return fewest
