"""The classes of a queue by what they need on one node, so that what came free is compared with few of them.

One node with 0.5 CPUs comes free, and 4,000 shapes wait. Of each resource the classes are lined up by the largest
amount that a piece of them asks for: those within what one piece can have (``Reach.largest_piece``) are the first ones
of the line. A class that may fit is in each of these parts, so the shortest of them is enough to look at.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from vctl.core.resources import Amounts
from vctl.scheduler.upper_bound import UpperBound

FEW = 64
"""Of so many classes each resource is compared; of more, only the one by which fewest may fit."""


class Needs:
    """Classes by the largest amount of each resource that one of their pieces asks for."""

    def __init__(self) -> None:
        self._amounts: dict[str, dict[str, int]] = {}
        self._lines: dict[str, tuple[list[int], list[str]]] = {}
        """Resource -> the largest amounts, the least first, and their classes, also those that ask for none of it."""

    def put(self, name: str, count: UpperBound) -> None:
        """Add a class."""
        self._amounts[name] = count.largest
        for resource in count.largest.keys() - self._lines.keys():
            others = [other for other in self._amounts if other != name]
            self._lines[resource] = [0] * len(others), others
        for resource, (amounts, names) in self._lines.items():
            at = bisect_left(amounts, amount := count.largest.get(resource, 0))
            amounts.insert(at, amount)
            names.insert(at, name)

    def drop(self, name: str) -> None:
        """Remove a class."""
        largest = self._amounts.pop(name)
        for resource, (amounts, names) in self._lines.items():
            at = names.index(name, bisect_left(amounts, largest.get(resource, 0)))
            del amounts[at], names[at]

    def within(self, largest: Amounts) -> Sequence[str]:
        """All classes that may fit where no piece can have more than these amounts; of many, maybe others."""
        shortest = list(self._amounts) if not self._lines else None
        for resource, (amounts, names) in self._lines.items():
            end = bisect_right(amounts, largest.get(resource, 0))
            if shortest is None or end < len(shortest):
                shortest = names[:end]
        if not shortest or len(shortest) > FEW:
            return shortest or ()
        asked = self._amounts
        return [
            name
            for name in shortest
            if not any(amount > largest.get(one, 0) for one, amount in asked[name].items())
        ]
