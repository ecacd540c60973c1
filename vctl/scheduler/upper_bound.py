"""How many of a gang's fixed pieces fit where: a condition that every placement meets, cheap enough to ask often.

Counts amounts alone, each kind of piece for itself: so "too few" is certain, "enough" is only a reason to look.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import ge

from vctl.core.clusters import ClusterSpec
from vctl.core.resources import CPU, MEMORY, OBJECT_STORE_MEMORY, Amounts, within
from vctl.core.slots import SlotClass, SlotIndex

PLAIN = frozenset({CPU, MEMORY, OBJECT_STORE_MEMORY})
"""Resources without numbered instances, whatever the configuration says."""


class UpperBound:
    """What one gang asks about free capacity."""

    def __init__(self, spec: ClusterSpec) -> None:
        wanted: dict[tuple[tuple[str, int], ...], int] = {}
        for group in spec.groups:
            last: Amounts | None = None
            amounts: tuple[tuple[str, int], ...] = ()
            for node in group.nodes:
                if node.resources is not last:  # equal bundles are mostly one and the same
                    last = node.resources
                    amounts = tuple(sorted(item for item in last.items() if item[1]))
                wanted[amounts] = wanted.get(amounts, 0) + 1
        self.kinds = [amounts for amounts in wanted if amounts]
        self.wanted = [wanted[amounts] for amounts in self.kinds]
        self.total: dict[str, int] = {}
        """What all of them ask for together."""
        for kind, count in zip(self.kinds, self.wanted, strict=True):
            for name, amount in kind:
                self.total[name] = self.total.get(name, 0) + count * amount
        self._known: tuple[int, list[int]] | None = None
        one_thing = len(self.kinds) == 1 and len(self.kinds[0]) == 1
        self._only = self.kinds[0][0] if one_thing else None
        self._is_plain = (
            len(wanted) == len(self.kinds) == 1
            and not any(spec.replica_sets.values())
            and not (spec.flexible and any(spec.flexible_min.values()))
            and all(group.policy in ("PACK", "SPREAD") for group in spec.groups)
            and not any(node.selector for node in spec.fixed)
            and PLAIN.issuperset(name for name, _ in self.kinds[0])
        )

    def is_exact(self, entry: Amounts) -> bool:
        """Whether "enough" is certain, too: equal pieces that may go anywhere, and the entrypoint inside one."""
        return self._is_plain and within(entry, dict(self.kinds[0]))

    def of(self, free: Amounts) -> list[int]:
        """How many pieces of each kind go into what is free."""
        if self._only is not None:
            name, amount = self._only
            have = free.get(name, 0)
            return [have // amount if have > 0 else 0]
        return [min([max(free.get(name, 0), 0) // amount for name, amount in kind]) for kind in self.kinds]

    def within(self, classes: Iterable[SlotClass]) -> list[int]:
        """The same for all virtual nodes of these classes together."""
        totals = [0] * len(self.kinds)
        for group in classes:
            for i, fit in enumerate(self.of(group.capacity.free)):
                totals[i] += fit * len(group.ids)
        return totals

    def inside(self, index: SlotIndex) -> list[int]:
        """The same for all of an index: counted once as long as nothing in it changes."""
        if self._known is None or self._known[0] != index.stamp:
            self._known = (index.stamp, self.within(index.classes.values()))
        return self._known[1]

    def is_met(self, totals: list[int]) -> bool:
        """Whether as many pieces fit as the gang has."""
        return all(map(ge, totals, self.wanted))
