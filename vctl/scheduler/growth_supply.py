"""The supply of growth: the sources from which a place can grow, and whether many places can grow at once.

A place is a slot, or one instance in it. Its supply lists its sources: at depth 0 the free capacity of the
cluster there; at depth d that of its d-th ancestor, or a loan of a sibling of its (d-1)-th ancestor. Taking
from depth d makes d clusters grow. Whether all places can have their needs at once is a maximum flow through
limits and loans (Edmonds and Karp, 1972).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vctl.core.values import value

OWN = -1
"""The lender of a source that is free capacity of the cluster at that depth."""
UNLIMITED = 1 << 62


class Source(NamedTuple):
    """One source of a place; ``lender`` is a number in ``Budgets.lenders`` or ``OWN``."""

    depth: int
    lender: int
    amount: int


Supply = tuple[Source, ...]
"""The sources of one place by depth, free capacity before loans."""


@value(frozen=True, slots=True)
class Lender:
    """A sibling of the cluster that grows from ``depth``, and the most that it may lend in all."""

    cluster_id: str
    depth: int
    most: Mapping[str, int]


class Need(NamedTuple):
    """A number of places with equal supplies: what they need in all, and the most that they could take."""

    supply: Supply
    places: int
    least: int
    most: int


@value(frozen=True, slots=True)
class Budgets:
    """The gain that each growing cluster may have, lowest first (no name: no limit), and the lenders."""

    limits: tuple[Mapping[str, int], ...]
    lenders: tuple[Lender, ...] = ()

    def is_limited(self, name: str) -> bool:
        """Whether places compete for a resource, because of a limit or a loan."""
        return any(name in limit for limit in self.limits) or any(name in one.most for one in self.lenders)

    def names(self) -> set[str]:
        """The resources for which places compete."""
        return {name for limit in self.limits for name in limit} | {
            name for one in self.lenders for name in one.most
        }

    def potential(self, name: str, supply: Supply) -> int:
        """The most that a place with this supply could have if no other place grew."""
        have = 0
        for depth in range(len(self.limits), 0, -1):
            for source in supply:
                if source.depth == depth:
                    most = (
                        UNLIMITED if source.lender == OWN else self.lenders[source.lender].most.get(name, 0)
                    )
                    have += min(source.amount, most)
            have = min(have, self.limits[depth - 1].get(name, UNLIMITED))
        return have + sum(source.amount for source in supply if not source.depth)

    def settle(self, name: str, needs: Sequence[Need], extra: int = 0) -> list[list[int]] | None:
        """Per need, the amounts of its sources: all needs get their least, and together ``extra`` more.

        None: impossible. Loans are used only if free capacity does not suffice.
        """
        return _Flow(self, name, needs).run(extra)

    def most(self, name: str, needs: Sequence[Need], enough: int) -> int:
        """The most that all places together could have, up to ``enough``."""
        flow = _Flow(self, name, [need._replace(least=0) for need in needs])
        flow.run(enough)
        return flow.total


def growth_of(supply: Supply, used: int, levels: int) -> list[int]:
    """The growth of each of ``levels`` clusters, lowest first, if the amount ``used`` of a place is taken."""
    grown = [used] * levels
    for source in supply:
        for level in range(source.depth, levels):
            grown[level] -= source.amount
    return [max(amount, 0) for amount in grown]


def depth_of(supply: Supply, used: int) -> int:
    """The number of clusters that grow when the amount ``used`` of a place is taken."""
    if used <= 0:
        return 0
    for source in supply:
        used -= source.amount
        if used <= 0:
            return source.depth
    return UNLIMITED


class _Flow:
    """A flow network for the amounts of one resource: a vertex per depth, lender and need, and the sink."""

    def __init__(self, budgets: Budgets, name: str, needs: Sequence[Need]) -> None:
        self.needs = needs
        levels = len(budgets.limits)
        first_place = levels + 1 + len(budgets.lenders)
        self.sink = first_place + len(needs)
        self.edges: list[list[int]] = []
        """[end, capacity left]; edge ``n ^ 1`` is the reverse of edge ``n``."""
        self.out: list[list[int]] = [[] for _ in range(self.sink + 1)]
        self.total = 0
        for level, limit in enumerate(budgets.limits):
            self._edge(level, level + 1, limit.get(name, UNLIMITED))
        self.loans: list[tuple[int, int, int]] = []
        self.supplied: list[list[int]] = []
        self.drains = []
        for number, need in enumerate(needs):
            row = []
            for source in need.supply:
                amount = source.amount * need.places
                if source.lender == OWN:
                    row.append(self._edge(source.depth, first_place + number, amount))
                else:
                    edge = self._edge(levels + 1 + source.lender, first_place + number, 0)
                    self.loans.append((edge, amount, source.lender))
                    row.append(edge)
            self.supplied.append(row)
            self.drains.append(self._edge(first_place + number, self.sink, need.least))
        self.taps = [
            (self._edge(one.depth, levels + 1 + number, 0), one.most.get(name, 0))
            for number, one in enumerate(budgets.lenders)
        ]

    def run(self, extra: int) -> list[list[int]] | None:
        least = sum(need.least for need in self.needs)
        self._fill(least)
        if self.total < least and not self._lend(least):
            return None
        if extra:
            for edge, need in zip(self.drains, self.needs, strict=True):
                self.edges[edge][1] += need.most - need.least
            self._fill(least + extra)
            if self.total < least + extra and not self._lend(least + extra):
                return None
        return [[self.edges[edge ^ 1][1] for edge in row] for row in self.supplied]

    def _lend(self, wanted: int) -> bool:
        for edge, most in self.taps:
            self.edges[edge][1] += most
        for edge, amount, _ in self.loans:
            self.edges[edge][1] += amount
        self.taps, self.loans = [], []
        self._fill(wanted)
        return self.total >= wanted

    def _edge(self, start: int, end: int, capacity: int) -> int:
        number = len(self.edges)
        self.edges += [[end, capacity], [start, 0]]
        self.out[start].append(number)
        self.out[end].append(number + 1)
        return number

    def _fill(self, wanted: int) -> None:
        """Augment along shortest paths until the flow is ``wanted`` or cannot grow."""
        while self.total < wanted:
            came: dict[int, int] = {0: -1}
            queue = deque([0])
            while queue and self.sink not in came:
                here = queue.popleft()
                for edge in self.out[here]:
                    end, capacity = self.edges[edge]
                    if capacity and end not in came:
                        came[end] = edge
                        queue.append(end)
            if self.sink not in came:
                return
            way = []
            here = self.sink
            while here:
                way.append(came[here])
                here = self.edges[came[here] ^ 1][0]
            amount = min(wanted - self.total, *(self.edges[edge][1] for edge in way))
            for edge in way:
                self.edges[edge][1] -= amount
                self.edges[edge ^ 1][1] += amount
            self.total += amount
