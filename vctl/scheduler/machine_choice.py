"""The choice of machines for pieces of waiting work: those that waste least, and of these the fewest.

Waste is what the machines have above the pieces, unit resources before everything else. The candidates are
counts by template that keep necessary conditions; whether a candidate holds the pieces, a placement decides.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import lcm
from typing import NamedTuple

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE
from vctl.core.labels import Selector
from vctl.core.nodes import Template
from vctl.core.resources import SCALE, Amounts
from vctl.core.values import value
from vctl.scheduler.plan import Start, TaskStart

MOST_CHOICES = 8
"""The most candidates of one choice."""
MOST_STEPS = 4_000
"""The steps of the search for candidates."""
MOST_ROWS = 24
"""The most conditions that the search keeps in view."""

Cost = tuple[int, int, int]
"""Unit resources of the machines, their other resources in comparable shares, and their number."""


@value(frozen=True, slots=True)
class MachinePiece:
    """One piece of waiting work: its request, and the templates whose machines may hold it.

    ``divisible``: the amounts may be on several machines.
    """

    amounts: tuple[tuple[str, int], ...]
    templates: frozenset[str]
    divisible: bool = False


def pieces_on(
    new: Mapping[str, Template], starts: Iterable[Start | TaskStart], templates: Sequence[Template]
) -> tuple[list[MachinePiece], int]:
    """What starts put on new nodes, and how much of it must be on different nodes. ``new``: node -> template."""
    pieces: list[MachinePiece] = []
    apart = 0

    def add(amounts: Amounts, selector: Selector, *, divisible: bool = False) -> None:
        names = frozenset(template.name for template in templates if lb.matches(selector, template.labels))
        pieces.append(MachinePiece(tuple(sorted(i for i in amounts.items() if i[1])), names, divisible))

    for start in starts:
        if isinstance(start, TaskStart) or start.cluster is None:
            if start.node_id in new:
                add(start.allocation.amounts, start.task.selector if isinstance(start, TaskStart) else ())
            continue
        groups = start.job.spec.groups
        fixed = [(number, node) for number, group in enumerate(groups) for node in group.nodes]
        together: dict[int, list[Amounts]] = defaultdict(list)
        spread: Counter[int] = Counter()
        for vnode in start.vnodes:
            if vnode.node_id not in new:
                continue
            amounts = vnode.allocation.amounts
            if vnode.whole:
                names = frozenset({new[vnode.node_id].name})
                pieces.append(MachinePiece(tuple(sorted(amounts.items())), names))
            elif vnode.kind == FLEXIBLE:
                add(amounts, (), divisible=True)
            elif groups[(number := fixed[vnode.rank][0])].policy == "STRICT_PACK":
                together[number].append(amounts)
            else:
                spread[number] += groups[number].policy == "STRICT_SPREAD"
                add(amounts, fixed[vnode.rank][1].selector)
        for many in together.values():
            add(rs.total(many), ())
        apart = max(apart, *spread.values(), 0)
    return pieces, apart


class _Row(NamedTuple):
    """A condition: the sum of count times weight over the templates must reach the need."""

    weights: tuple[int, ...]
    need: int


class Prices:
    """What the machines of some templates cost."""

    def __init__(self, templates: Sequence[Template], units: frozenset[str]) -> None:
        self.templates, self.units = templates, units
        largest: dict[str, int] = {}
        for template in templates:
            largest = rs.maximum(largest, template.resources)
        largest = {name: amount for name, amount in largest.items() if amount}
        common = lcm(*largest.values())
        self.weights = {name: common // amount for name, amount in largest.items()}
        """Resource -> the share of the largest machine that one unit of its amount is, in common fractions."""

    def of(self, amounts: Mapping[str, int]) -> tuple[int, int]:
        """Amounts as (unit resources, shares of the largest machine added up over the resources)."""
        units = sum(amount for name, amount in amounts.items() if name in self.units)
        return units, sum(amount * self.weights.get(name, 0) for name, amount in amounts.items())

    def waste(self, template: Template, request: Mapping[str, int]) -> tuple[int, int, str]:
        """The rank of a template for one request: what a machine has above it, unit resources first."""
        surplus = {n: max(amount - request.get(n, 0), 0) for n, amount in template.resources.items()}
        return self.of(surplus)[0], self.of(template.resources)[1], template.name

    def cost(self, counts: Mapping[str, int]) -> Cost:
        """The cost of a number of machines by template."""
        parts = [(self.of(template.resources), counts.get(template.name, 0)) for template in self.templates]
        units, shares = (sum(price[i] * count for price, count in parts) for i in (0, 1))
        return units, shares, sum(counts.values())

    def choices(
        self, pieces: Collection[MachinePiece], apart: int, available: Mapping[str, int], limit: int, below: Cost
    ) -> list[dict[str, int]]:  # fmt: skip
        """Counts by template that may hold the pieces and cost less than ``below``, the best first.

        ``apart``: how many of the pieces must be on different machines. ``available``: how many machines of each
        template there may be, ``limit``: of all of them.
        """
        kinds = [kind for kind in self.templates if available.get(kind.name, 0)]
        kinds.sort(key=lambda kind: self.of(kind.resources), reverse=True)  # the finest fill what is left
        rows = {_Row((1,) * len(kinds), max(apart, 1)): "", **_rows(kinds, pieces, self.units)}
        search = _Search(self, kinds, [available[kind.name] for kind in kinds], rows, limit, below)
        if kinds:
            search.run((), (0, 0, 0), [row.need for row in rows])
        names = [kind.name for kind in kinds]
        return [{name: n for name, n in zip(names, counts, strict=True) if n} for _, counts in search.choices]


class _Search:
    """Depth first over the counts of one template after the other, within a cost and a number of steps."""

    def __init__(
        self, prices: Prices, kinds: Sequence[Template], available: Sequence[int], rows: dict[_Row, str],
        limit: int, below: Cost,
    ) -> None:  # fmt: skip
        self.price_of = [prices.of(kind.resources) for kind in kinds]
        self.available, self.limit, self.below = available, limit, below
        self.rows = list(rows)
        named = ((i, name) for i, name in enumerate(rows.values()) if name)
        self.missing = [(i, name in prices.units, prices.weights.get(name, 0)) for i, name in named]
        """The conditions on whole amounts: what they still need, the machines to come must have at least."""
        self.choices: list[tuple[Cost, tuple[int, ...]]] = []
        self.steps = 0

    def run(self, counts: tuple[int, ...], cost: Cost, needs: list[int]) -> None:
        """Fill ``choices`` with the best counts that begin with these."""
        at = len(counts)
        if at == len(self.available):
            if all(need <= 0 for need in needs):
                insort(self.choices, (cost, counts))
                if len(self.choices) >= MOST_CHOICES:
                    del self.choices[MOST_CHOICES:]
                    self.below = self.choices[-1][0]
            return
        weights = [row.weights[at] for row in self.rows]
        is_last = at + 1 == len(self.available)
        units, shares = self.price_of[at]
        limit = min(self.available[at], self.limit - cost[2])
        first = 0
        if is_last:  # the least that closes every condition; more of it is waste
            for need, weight in zip(needs, weights, strict=True):
                if need > 0:
                    first = max(first, -(-need // weight) if weight else limit + 1)
        for count in range(first, (min(first, limit) if is_last else limit) + 1):
            self.steps += 1
            now = (cost[0] + count * units, cost[1] + count * shares, cost[2] + count)
            rest = [need - count * weight for need, weight in zip(needs, weights, strict=True)]
            if self.steps > MOST_STEPS or not self._least(now, rest) < self.below:
                return
            self.run((*counts, count), now, rest)

    def _least(self, cost: Cost, needs: list[int]) -> Cost:
        """The least cost with which the missing amounts can be had; it never falls with more machines."""
        units, shares, number = cost
        for i, is_unit, weight in self.missing:
            if (need := needs[i]) > 0:
                units += need * is_unit
                shares += need * weight
        return units, shares, number


def _rows(
    kinds: Sequence[Template], pieces: Collection[MachinePiece], units: frozenset[str]
) -> dict[_Row, str]:
    """Conditions that machines for the pieces must keep; those on whole amounts name their resource.

    Pieces that may be on some templates only must be held by these; of pieces of at least some size, so many
    fit on one machine.
    """
    rows: dict[_Row, str] = {}
    count_of = Counter(pieces)
    every = frozenset(kind.name for kind in kinds)
    everywhere = {every: None} | {piece.templates & every: None for piece in count_of}
    for among in everywhere:
        inside = [(piece, n) for piece, n in count_of.items() if piece.templates & every <= among]
        for name in sorted({name for piece, _ in inside for name, _ in piece.amounts}):
            sizes = [(dict(piece.amounts).get(name, 0), n, piece.divisible) for piece, n in inside]
            whole = tuple(kind.resources.get(name, 0) if kind.name in among else 0 for kind in kinds)
            total = sum(size * n for size, n, _ in sizes)
            rows.setdefault(_Row(whole, total), name if among == every else "")
            for least in {size for size, _, divisible in sizes if size and not divisible}:
                fits = tuple(_copies(have, least, is_unit=name in units) for have in whole)
                many = sum(n for size, n, divisible in sizes if size >= least and not divisible)
                rows.setdefault(_Row(fits, many), "")
    for piece, n in count_of.items():
        if piece.amounts and not piece.divisible:
            rows.setdefault(_Row(tuple(_held(kinds, piece, units)), n), "")
    ordered = sorted(rows.items(), key=lambda row: not row[1])  # stable: whole amounts first
    return dict(ordered[:MOST_ROWS])


def _held(kinds: Iterable[Template], piece: MachinePiece, units: frozenset[str]) -> Iterator[int]:
    """How many copies of a piece an empty machine of each template holds."""
    for kind in kinds:
        copies = [
            _copies(kind.resources.get(name, 0), amount, is_unit=name in units)
            for name, amount in piece.amounts
            if amount
        ]
        yield min(copies, default=0) if kind.name in piece.templates else 0


def _copies(have: int, amount: int, *, is_unit: bool) -> int:
    if is_unit and amount < SCALE:  # shares of one instance each
        return have // SCALE * (SCALE // amount)
    return have // amount
