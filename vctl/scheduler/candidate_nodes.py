"""The candidate nodes of a placement: virtual nodes (slots) of one cluster by class, with free capacities.

The free capacity is that of the ledger now, or another one for some slots, or that of empty nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain

from vctl.core.demand import Scarcity
from vctl.core.ledger import Ledger
from vctl.core.node_kinds import NodeKind
from vctl.core.nodes import ALIVE, DRAINING
from vctl.core.resources import FreeCapacity
from vctl.core.slots import SlotClass, SlotIndex
from vctl.core.values import field, value
from vctl.scheduler.growth_supply import Budgets, Source, Supply

CandidateNode = tuple[str, tuple[str, ...]]
"""A physical node with the cluster's virtual nodes on it."""


@value(frozen=True, slots=True)
class Way:
    """The sources of a slot that can grow: (depth, lender, free capacity) of each, own free capacity first.

    ``fresh``: the slot does not exist yet.
    """

    sources: tuple[tuple[int, int, FreeCapacity], ...]
    fresh: bool


@value(frozen=True, slots=True)
class CandidateNodes:
    """Slots of one cluster by class, in the order of their first node.

    ``crowded``: the physical nodes with several slots of the cluster. ``capacity`` returns the free capacity
    of a slot; a trial must copy it before a change.
    """

    ledger: Ledger
    classes: tuple[SlotClass, ...]
    crowded: Mapping[str, Collection[str]]
    class_of: Callable[[str], SlotClass | None]
    capacity: Callable[[str], FreeCapacity]
    known: dict[object, object] = field(default_factory=dict, kw_only=True)
    """The node classes made for the last gang."""

    def node_of(self, slot_id: str) -> str:
        """The physical node of a slot."""
        return self.ledger.vnodes[slot_id].node_id

    def apart(self, named: frozenset[str], on: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """Nodes that are judged one by one -> their slots: crowded nodes, and those that a selector names."""
        nodes = {node_id: tuple(sorted(slots)) for node_id, slots in self.crowded.items()}
        for slot_id in named:
            if self.class_of(slot_id) is not None:
                nodes.setdefault(self.node_of(slot_id), (slot_id,))
        return self.called(on) | nodes

    def called(self, on: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """The slots on nodes that a selector names by id."""
        slots_on: dict[str, list[str]] = {}
        for slot_id in chain.from_iterable(group.ids for group in self.classes) if on else ():
            if (node_id := self.node_of(slot_id)) in on:
                slots_on.setdefault(node_id, []).append(slot_id)
        return {node_id: tuple(sorted(slots)) for node_id, slots in slots_on.items()}

    def candidate_nodes(self, group: SlotClass, apart: dict[str, tuple[str, ...]]) -> Iterator[CandidateNode]:
        """The members of a class on nodes that are not apart, lowest node id first."""
        for slot_id in group.ids:
            node_id = self.node_of(slot_id)
            if node_id not in apart:
                yield node_id, (slot_id,)

    def kind_of(self, slot_id: str) -> NodeKind:
        """What a slot has in common with others, whatever is used of it."""
        vnode = self.ledger.vnodes[slot_id]
        return self.ledger.kinds.of(vnode, self.ledger.nodes[vnode.node_id])

    def scarcity(self, apart: Mapping[str, Collection[str]]) -> Scarcity | None:
        """How scarce each kind of these slots is; None: all alike. ``apart``: nodes that are judged one by one."""
        ledger = self.ledger
        if not self.classes or ledger.kinds.are_alike(ledger.vnodes[self.classes[0].ids[0]].cluster_id):
            return None
        kinds = [(self.kind_of(group.ids[0]), len(group.ids)) for group in self.classes]
        kinds += [(self.kind_of(slot), 0) for slots in apart.values() for slot in slots]
        return ledger.demand.scarcity(kinds)

    def first_slot(self) -> str | None:
        """The slot with the lowest node id, if there is any."""
        return self.classes[0].ids[0] if self.classes else None

    def count_apart(self, apart: dict[str, tuple[str, ...]]) -> Counter[int]:
        """The number of members of each class (by its identity) on the nodes that are apart."""
        return Counter(id(self.class_of(slot)) for slots in apart.values() for slot in slots)

    @property
    def budgets(self) -> Budgets | None:
        """The limits of growth; None where slots do not grow."""
        return None

    def way(self, slot_id: str) -> Way | None:  # noqa: ARG002
        """The way in which a slot can grow; None: it cannot."""
        return None

    def way_of(self, group: SlotClass) -> Way | None:  # noqa: ARG002
        """The way in which the members of a class that are not on nodes apart can grow; None: they cannot."""
        return None


def candidates_in(
    ledger: Ledger, index: SlotIndex, capacities: Mapping[str, FreeCapacity] | None = None
) -> CandidateNodes:
    """The virtual nodes of an index.

    ``capacities``: free capacities that replace those of the ledger; the index must be filed with them.
    """
    changed, present, vnodes = capacities or {}, ledger.capacities, ledger.vnodes
    # the order of the dict depends on the history, the first id does not: equal states must give equal plans
    classes = sorted(index.classes.values(), key=lambda c: (vnodes[c.ids[0]].node_id, c.ids[0]))

    def capacity(slot_id: str) -> FreeCapacity:
        return changed.get(slot_id) or present[slot_id]

    return CandidateNodes(ledger, tuple(classes), index.crowded, index.class_of, capacity)


def candidates_now(ledger: Ledger, parent_id: str) -> CandidateNodes:
    """The virtual nodes of a cluster on nodes that take work, with their present free capacity."""
    return candidates_in(ledger, ledger.index(parent_id))


def candidates_of(
    ledger: Ledger, capacities: Mapping[str, FreeCapacity], states: Collection[str] = (ALIVE,)
) -> CandidateNodes:
    """These virtual nodes with these free capacities, if their nodes are in one of the states."""
    index = SlotIndex()
    ledger.file(index, capacities, states)
    return candidates_in(ledger, index, capacities)


def candidates_when_empty(ledger: Ledger, parent_id: str) -> CandidateNodes:
    """The virtual nodes of a cluster as if nothing ran on them, on alive and draining nodes."""
    vnodes = [ledger.vnodes[vnode_id] for vnode_id in ledger.members.get(parent_id, ())]
    empty = {vnode.vnode_id: FreeCapacity(vnode.allocation) for vnode in vnodes}
    return candidates_of(ledger, empty, (ALIVE, DRAINING))


# ---- the supplies of a slot that can grow ----


def is_unit(way: Way, name: str) -> bool:
    """Whether a resource has numbered instances in a source of this way."""
    return any(name in capacity.instances for _, _, capacity in way.sources)


def whole_supply(way: Way, name: str) -> Supply:
    """The sources of a resource, all instances together."""
    return tuple(
        Source(depth, lender, capacity.free[name])
        for depth, lender, capacity in way.sources
        if capacity.free.get(name, 0) > 0
    )


def instance_supplies(way: Way, name: str) -> dict[int, Supply]:
    """The sources of each instance of a resource."""
    sources: dict[int, list[Source]] = {}
    for depth, lender, capacity in way.sources:
        for index, share in free_shares(capacity, name).items():
            sources.setdefault(index, []).append(Source(depth, lender, share))
    return {index: tuple(supply) for index, supply in sources.items()}


def free_shares(capacity: FreeCapacity, name: str) -> dict[int, int]:
    """The free share of each instance; on a node that shrank, no more in total than its free amount."""
    shares = sorted((s, i) for i, s in capacity.instances.get(name, {}).items() if s > 0)
    free = capacity.free.get(name, 0)
    while shares and sum(share for share, _ in shares) > free:
        del shares[0]
    return {index: share for share, index in shares}
