"""The classes of a queue by what they need on one node, so that what came free is compared with few of them.

One node with 0.5 CPUs comes free, and 4,000 shapes wait. Of each resource the classes are lined up by what their
largest piece asks for: those within the free amount of a node are the first ones of the line. A class that may fit
there is in each of these parts, so the shortest of them is enough to look at. The nodes are compared one by one
(``Reach.largest_pieces``): where one has CPUs and another one memory, nothing that asks for both fits.

In a cluster that cannot grow, what came free helps a class only if some part of its gang fits there: the same lines, by
what each part asks for at least.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable

from vctl.core.resources import Amounts

FEW = 64
"""If by no resource so few classes may fit on a node, it is not asked which ones do."""


class Needs:
    """Classes by amounts: those of their largest piece (``UpperBound.largest``), or of any (``UpperBound.least``)."""

    def __init__(self) -> None:
        self._amounts: dict[str, Amounts] = {}
        self._lines: dict[str, tuple[list[int], list[str]]] = {}
        """Resource -> the largest amounts, the least first, and their classes, also those that ask for none of it."""

    def put(self, name: str, needed: Amounts) -> None:
        """Add a class."""
        self._amounts[name] = needed
        for resource in needed.keys() - self._lines.keys():
            others = [other for other in self._amounts if other != name]
            self._lines[resource] = [0] * len(others), others
        for resource, (amounts, names) in self._lines.items():
            at = bisect_left(amounts, amount := needed.get(resource, 0))
            amounts.insert(at, amount)
            names.insert(at, name)

    def drop(self, name: str) -> None:
        """Remove a class."""
        needed = self._amounts.pop(name)
        for resource, (amounts, names) in self._lines.items():
            at = names.index(name, bisect_left(amounts, needed.get(resource, 0)))
            del amounts[at], names[at]

    def within(self, nodes: Iterable[Amounts]) -> Collection[str]:
        """All classes whose amounts fit on one of these nodes; if there are many, maybe others."""
        found: dict[str, None] = {}
        for free in nodes:
            ends = [(bisect_right(line[0], free.get(name, 0)), name) for name, line in self._lines.items()]
            end, name = min(ends, default=(len(self._amounts), ""))
            if end > FEW:
                return self._amounts
            for one in self._lines[name][1][:end] if ends else self._amounts:
                for resource, amount in self._amounts[one].items():
                    if amount > free.get(resource, 0):
                        break
                else:
                    found[one] = None
        return found
