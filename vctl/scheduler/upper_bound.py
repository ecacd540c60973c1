"""An upper bound on the number of pieces of a gang that fit: cheap enough to be asked before each search.

It counts amounts alone, for each kind of fixed piece as if it were the only kind. So "too few" is certain,
and "enough" only means that a search may find a place. The flexible minimum and whole nodes do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from operator import ge

from vctl.core.clusters import ClusterSpec
from vctl.core.resources import CPU, MEMORY, OBJECT_STORE_MEMORY, Amounts, within
from vctl.core.slots import SlotClass, SlotIndex

PLAIN = frozenset({CPU, MEMORY, OBJECT_STORE_MEMORY})
"""Resources without numbered instances, whatever the configuration says."""


class UpperBound:
    """The fixed pieces of one gang by kind, and how many of each kind fit into free capacity."""

    def __init__(self, spec: ClusterSpec) -> None:
        requested: dict[tuple[tuple[str, int], ...], int] = {}
        for group in spec.groups:
            last: Amounts | None = None
            amounts: tuple[tuple[str, int], ...] = ()
            for node in group.nodes:
                if node.resources is not last:  # equal bundles mostly share their resources
                    last = node.resources
                    amounts = tuple(sorted(item for item in last.items() if item[1]))
                requested[amounts] = requested.get(amounts, 0) + 1
        self.kinds = [amounts for amounts in requested if amounts]
        self.requested = [requested[amounts] for amounts in self.kinds]
        self.total: dict[str, int] = {}
        """The sum of all fixed pieces."""
        for kind, count in zip(self.kinds, self.requested, strict=True):
            for name, amount in kind:
                self.total[name] = self.total.get(name, 0) + count * amount
        self.needed: dict[str, int] = dict(self.total)
        """That sum and the flexible minimum."""
        for name, amount in spec.flexible_min.items():
            if amount:
                self.needed[name] = self.needed.get(name, 0) + amount
        self._known: tuple[int, list[int]] | None = None
        is_single = len(self.kinds) == 1 and len(self.kinds[0]) == 1
        self._only = self.kinds[0][0] if is_single else None
        self._has_others = (
            spec.flexible
            or not self.kinds
            or len(requested) > len(self.kinds)
            or any(spec.replica_sets.values())
        )
        self._is_plain = (
            len(requested) == len(self.kinds) == 1
            and not any(spec.replica_sets.values())
            and not (spec.flexible and any(spec.flexible_min.values()))
            and all(group.policy in ("PACK", "SPREAD") for group in spec.groups)
            and not any(node.selector for node in spec.fixed)
            and PLAIN.issuperset(name for name, _ in self.kinds[0])
        )

    def is_exact(self, entry: Amounts) -> bool:
        """Whether "enough" is certain, too: all pieces are equal, may go anywhere, hold the entrypoint."""
        return self._is_plain and within(entry, dict(self.kinds[0]))

    @cached_property
    def largest(self) -> Amounts:
        """A piece that no other one exceeds in everything. Empty: no piece asks for anything."""
        return dict(max(self.kinds, key=lambda kind: sum(amount for _, amount in kind), default=()))

    @cached_property
    def least(self) -> Amounts:
        """What each part of the gang asks for at least on one node. Empty: a part may ask for nothing."""
        if self._has_others:
            return {}
        first, *others = map(dict, self.kinds)
        for other in others:
            first = {name: min(amount, other[name]) for name, amount in first.items() if name in other}
        return first

    def of(self, free: Amounts) -> list[int]:
        """The number of pieces of each kind that fit into these free amounts."""
        if self._only is not None:
            name, amount = self._only
            have = free.get(name, 0)
            return [have // amount if have > 0 else 0]
        return [min([max(free.get(name, 0), 0) // amount for name, amount in kind]) for kind in self.kinds]

    def within(self, classes: Iterable[SlotClass]) -> list[int]:
        """The number of pieces of each kind that fit into all virtual nodes of these classes."""
        totals = [0] * len(self.kinds)
        for group in classes:
            for i, fit in enumerate(self.of(group.capacity.free)):
                totals[i] += fit * len(group.ids)
        return totals

    def inside(self, index: SlotIndex) -> list[int]:
        """Like ``within`` for all classes of an index; computed again only if the index has changed."""
        if self._known is None or self._known[0] != index.stamp:
            self._known = (index.stamp, self.within(index.classes.values()))
        return self._known[1]

    def is_met(self, totals: list[int]) -> bool:
        """Whether these numbers are at least those of the gang."""
        return all(map(ge, totals, self.requested))
