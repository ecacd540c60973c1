"""What a cluster could have at most: whether a search for a place is worth its while.

The problem. When one job ends, what it held may help any job of any cluster that can grow, and all of them have been
refused before. To search a place for each of their shapes costs as much as the first time, although one or two will
start and use up what came free.

The idea. Work of a cluster can only use what is free in the cluster, in those around it up to the level from which it
grows, and what borrowers and lenders below that level have idle (``recall``). Wherever it comes from, it stays on its
node. So the sum of all this on one node bounds what one piece can get there, and the sum over all nodes what a gang
can get. A shape for which that is too little certainly has no place, so its verdict stands without a search.

Invariant. The bound only errs upwards: it knows no selectors, instances, lending limits, or parts of idle loans that
have to stay. ``tests/scheduler/test_reach.py`` compares it with the search.

Example. 1,000 nodes in 20 elastic clusters, all in use; a job ends and a node of 8 CPUs comes free. 4,400 shapes of the
20 queues may fit into 8 CPUs. The job whose turn it is takes 7.5, and the sum on that node is 0.5: the next 4,000
shapes are refused by a comparison each.

What it costs. One pass over the classes of free capacity of these clusters after each change, and one comparison per
shape with the distinct amounts of the nodes that have anything free. Clusters with the same sources share the pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from vctl.core import resources as rs
from vctl.core.ledger import Ledger
from vctl.core.resources import Amounts
from vctl.core.slots import SlotClass, SlotIndex
from vctl.core.values import value
from vctl.scheduler.elasticity import allowance, growing, is_below
from vctl.scheduler.upper_bound import UpperBound

MOST_DERIVED = 10_000
FEW = 64
"""The most distinct amounts among which those are sought that no other exceeds."""


@value(frozen=True, slots=True)
class FreeByNode:
    """What some clusters have free, by node and in total."""

    stamps: tuple[int, ...]
    nodes: tuple[tuple[Amounts, int], ...]
    """Free amounts of a node, and how many nodes have them."""
    peaks: tuple[Amounts, ...]
    """Amounts of nodes such that no other node has more of everything."""
    of: Mapping[str, Amounts]
    """The sums of each cluster that has anything free."""
    total: Amounts

    def holds(self, count: UpperBound) -> bool:
        """Whether enough nodes hold the pieces of a gang, each kind as if it were the only one."""
        for kind, wanted in zip(count.kinds, count.requested, strict=True):
            for free in self.peaks:
                for name, amount in kind:
                    if free.get(name, 0) < amount:
                        break
                else:
                    break  # this one holds a piece
            else:
                return False
            left = wanted - 1
            for free, many in self.nodes if left else ():
                left -= many * min([free.get(name, 0) // amount for name, amount in kind])
                if left < 0:
                    break
            if wanted > 1 and left >= 0:
                return False
        return True


@value(frozen=True, slots=True)
class Reach:
    """What one cluster could have at most, in the state of a ledger."""

    edition: int
    supply: FreeByNode
    total: Amounts

    @property
    def largest_pieces(self) -> Iterator[Amounts]:
        """What one piece can have on each node of which no other one has more of everything."""
        for free in self.supply.peaks or ({},):
            yield {name: min(amount, self.total.get(name, 0)) for name, amount in free.items()}

    def may_hold(self, count: UpperBound) -> bool:
        """Whether a gang may have a place. False is certain."""
        total = self.total
        for name, amount in count.needed.items():
            if amount > total.get(name, 0):
                return False
        return self.supply.holds(count)


def reach_of(ledger: Ledger, cluster_id: str) -> Reach:
    """What a cluster could have at most now; found again only after a change of the ledger."""
    known = ledger.derived.get(key := ("reach", cluster_id))
    if isinstance(known, Reach) and known.edition == ledger.edition:
        return known
    chain = growing(ledger, cluster_id)
    levels = [cluster_id, *(ledger.clusters[one].parent_id or "" for one in chain)]
    idle = _with_idle(ledger, levels[-1])
    supply = _supply(ledger, idle if idle.issuperset(levels) else idle.union(levels))
    limit = allowance(ledger, ledger.clusters[cluster_id]) if chain else {}
    total = supply.total if not limit else _limited(ledger, cluster_id, supply, limit)
    found = ledger.derived[key] = Reach(ledger.edition, supply, total)
    return found


def has_idle(ledger: Ledger, top_id: str) -> bool:
    """Whether borrowers and lenders below a cluster have anything free."""
    return any(one != top_id for one in _supply(ledger, _with_idle(ledger, top_id)).of)


def _limited(ledger: Ledger, cluster_id: str, supply: FreeByNode, limit: Amounts) -> dict[str, int]:
    """What a cluster has inside, and what its limits let it gain from outside."""
    inside = rs.total(
        amounts
        for one, amounts in supply.of.items()
        if one == cluster_id or is_below(ledger, one, cluster_id)
    )
    found = {}
    for name, amount in supply.total.items():
        own = inside.get(name, 0)
        found[name] = own + min(amount - own, limit.get(name, amount))
    return found


def _with_idle(ledger: Ledger, top_id: str) -> frozenset[str]:
    """A cluster, and the borrowers and lenders below it."""
    known = ledger.derived.get(key := ("with idle", top_id))
    if isinstance(known, tuple) and known[0] == ledger.edition:
        found: frozenset[str] = known[1]
        return found
    some = {one for one in {*ledger.borrowers, *ledger.lenders} if is_below(ledger, one, top_id)}
    found = frozenset({top_id, *some})
    ledger.derived[key] = (ledger.edition, found)
    return found


def _supply(ledger: Ledger, sources: frozenset[str]) -> FreeByNode:
    """What clusters have free; added up again only if that has changed."""
    known = ledger.derived.get(key := ("supply", sources))
    if isinstance(known, tuple) and known[0] == ledger.edition:
        supply: FreeByNode = known[1]
        return supply
    indexes = {one: ledger.index(one) for one in sorted(sources)}
    stamps = tuple([index.stamp for index in indexes.values()])
    if isinstance(known, tuple) and known[1].stamps == stamps:
        supply = known[1]
        ledger.derived[key] = (ledger.edition, supply)
        return supply
    found: list[tuple[int, str, SlotIndex, list[tuple[dict[str, int], SlotClass]]]] = []
    for one, index in indexes.items():
        some = [(free, group) for group in index.classes.values() if (free := _positive(group.capacity.free))]
        if some:
            found.append((sum(len(group.ids) for _, group in some), one, index, some))
    found.sort(key=lambda each: each[:2], reverse=True)
    of = {
        one: rs.total(
            {name: amount * len(group.ids) for name, amount in free.items()} for free, group in some
        )
        for _, one, _, some in found
    }
    nodes = _by_node(ledger, [(index, some) for _, _, index, some in found])
    if len(ledger.derived) > MOST_DERIVED:
        ledger.derived.clear()
    supply = FreeByNode(
        stamps, tuple(nodes), tuple(_peaks([free for free, _ in nodes])), of, rs.total(of.values())
    )
    ledger.derived[key] = (ledger.edition, supply)
    return supply


def _positive(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _by_node(
    ledger: Ledger, sources: Sequence[tuple[SlotIndex, list[tuple[dict[str, int], SlotClass]]]]
) -> list[tuple[Amounts, int]]:
    """The free amounts of nodes. Of the first source, which has most slots, the nodes are counted by class."""
    if not sources:
        return []
    index, some = sources[0]
    apart: dict[str, dict[str, int]] = {node_id: {} for node_id in index.crowded}
    for _, others in sources[1:]:
        for free, group in others:
            for slot_id in group.ids:
                _add(apart.setdefault(ledger.vnodes[slot_id].node_id, {}), free)
    counts = {id(group): len(group.ids) for _, group in some}
    free_of = {id(group): free for free, group in some}
    for node_id, sums in apart.items():
        for slot_id in index.on_node(node_id):
            if (number := id(index.class_of(slot_id))) in counts:
                counts[number] -= 1
                _add(sums, free_of[number])
    found: dict[tuple[tuple[str, int], ...], int] = {}
    for amounts, many in [
        *((free_of[n], many) for n, many in counts.items()),
        *((s, 1) for s in apart.values()),
    ]:
        if many and amounts:
            alike = tuple(sorted(amounts.items()))
            found[alike] = found.get(alike, 0) + many
    return [(dict(alike), many) for alike, many in found.items()]


def _add(sums: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        sums[name] = sums.get(name, 0) + amount


def _peaks(amounts: Collection[Amounts]) -> Iterable[Amounts]:
    """Those that no other one exceeds in everything; of too many, all."""
    if len(amounts) > FEW:
        return amounts
    return [
        one for one in amounts if not any(one is not other and rs.within(one, other) for other in amounts)
    ]
