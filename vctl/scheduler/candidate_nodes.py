"""The candidate nodes of one cluster as placement sees it: classes of slots, and the few nodes seen one by one.

Two ways to get it: as it is now, or as it would be if every alive or draining node were empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field

from vctl.core import labels as lb
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING
from vctl.core.resources import FreeCapacity
from vctl.core.slots import ClassKey, SlotClass, SlotIndex, template_of
from vctl.core.values import value
from vctl.scheduler.growth_supply import Budgets, Ladder, Source

CandidateNode = tuple[str, tuple[str, ...]]
"""A physical node with the cluster's virtual nodes on it."""


@value(frozen=True, slots=True)
class Way:
    """What a slot that can grow consists of: (depth, lender, free capacity) of each source, own free capacity first.

    ``fresh``: it does not exist yet. ``choice``: there are several such ways on its node, of which one can be gone.
    """

    sources: tuple[tuple[int, int, FreeCapacity], ...]
    fresh: bool
    choice: bool


@value(frozen=True, slots=True)
class CandidateNodes:
    """Slots of one cluster by class, in the order of their first node.

    ``crowded`` are the physical nodes with several slots of the cluster. ``capacity`` gives what one slot has free,
    which nobody may change; trials copy it.
    """

    ledger: Ledger
    classes: tuple[SlotClass, ...]
    crowded: Mapping[str, Collection[str]]
    class_of: Callable[[str], SlotClass | None]
    capacity: Callable[[str], FreeCapacity]
    known: dict[object, object] = field(default_factory=dict, kw_only=True)
    """What was made of them for the last gang."""

    def node_of(self, slot_id: str) -> str:
        """The physical node of a slot."""
        return self.ledger.vnodes[slot_id].node_id

    def apart(self, named: frozenset[str], on: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """Nodes to be looked at one by one: crowded ones, and those that a selector calls by id, or slots of them."""
        nodes = {node_id: tuple(sorted(slots)) for node_id, slots in self.crowded.items()}
        for slot_id in named:
            if self.class_of(slot_id) is not None:
                nodes.setdefault(self.node_of(slot_id), (slot_id,))
        return self.called(on) | nodes

    def called(self, on: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """The slots on nodes that a selector calls by id."""
        found: dict[str, list[str]] = {}
        for slot_id in (one for group in self.classes for one in group.ids) if on else ():
            if (node_id := self.node_of(slot_id)) in on:
                found.setdefault(node_id, []).append(slot_id)
        return {node_id: tuple(sorted(slots)) for node_id, slots in found.items()}

    def candidate_nodes(self, group: SlotClass, apart: dict[str, tuple[str, ...]]) -> Iterator[CandidateNode]:
        """The members of a class on nodes that are not apart, lowest node id first."""
        for slot_id in group.ids:
            node_id = self.node_of(slot_id)
            if node_id not in apart:
                yield node_id, (slot_id,)

    def first_slot(self) -> str | None:
        """The slot with the lowest node id, if there is any."""
        return self.classes[0].ids[0] if self.classes else None

    def count_apart(self, apart: dict[str, tuple[str, ...]]) -> Counter[int]:
        """How many members of each class are on nodes that are looked at one by one."""
        return Counter(id(self.class_of(slot)) for slots in apart.values() for slot in slots)

    @property
    def budgets(self) -> Budgets | None:
        """What limits growth; None where slots do not grow."""
        return None

    def way(self, slot_id: str) -> Way | None:  # noqa: ARG002
        """How a slot can grow, if it can."""
        return None

    def way_of(self, group: SlotClass) -> Way | None:  # noqa: ARG002
        """The same for the members of a class that are not looked at one by one."""
        return None


def candidates_now(ledger: Ledger, parent_id: str) -> CandidateNodes:
    """What is free in a cluster now, on nodes that take work."""
    index = ledger.index(parent_id)
    return _candidates(
        ledger, list(index.classes.values()), index.crowded, index.class_of, ledger.capacities.__getitem__
    )


def candidates_with(
    ledger: Ledger, index: SlotIndex, capacities: Mapping[str, FreeCapacity]
) -> CandidateNodes:
    """A cluster as if some of its virtual nodes had these free capacities; ``index`` is a copy in which they
    are filed so."""
    return _candidates(
        ledger, list(index.classes.values()), index.crowded, index.class_of,
        lambda slot_id: capacities.get(slot_id) or ledger.capacities[slot_id],
    )  # fmt: skip


def candidates_of(ledger: Ledger, capacities: Mapping[str, FreeCapacity]) -> CandidateNodes:
    """Some virtual nodes of a cluster, as if this were free in them."""
    index = SlotIndex()
    ledger.file(index, capacities)
    return _candidates(
        ledger, list(index.classes.values()), index.crowded, index.class_of, capacities.__getitem__
    )


def candidates_when_empty(ledger: Ledger, parent_id: str) -> CandidateNodes:
    """The same if every alive or draining node held nothing of the cluster's children and processes."""
    classes: dict[ClassKey, SlotClass] = {}
    class_of: dict[str, SlotClass] = {}
    on_node: dict[str, set[str]] = {}
    members = [ledger.vnodes[vnode_id] for vnode_id in ledger.members.get(parent_id, ())]
    for vnode in sorted(members, key=lambda vnode: (vnode.node_id, vnode.vnode_id)):
        node = ledger.nodes[vnode.node_id]
        if node.state not in (ALIVE, DRAINING):
            continue
        allocation = vnode.allocation
        template_id = template_of(vnode, node)
        key: ClassKey = (
            lb.common(vnode.labels),
            template_id,
            tuple(sorted(allocation.amounts.items())),
            tuple(sorted((name, tuple(sorted(i.values()))) for name, i in allocation.instances.items())),
        )
        group = classes.get(key)
        if group is None:
            group = classes[key] = SlotClass(
                vnode.labels, template_id, FreeCapacity(allocation), untouched=True
            )
        group.ids.append(vnode.vnode_id)
        class_of[vnode.vnode_id] = group
        on_node.setdefault(vnode.node_id, set()).add(vnode.vnode_id)
    crowded = {node_id: slots for node_id, slots in on_node.items() if len(slots) > 1}
    return _candidates(
        ledger,
        list(classes.values()),
        crowded,
        class_of.get,
        lambda slot_id: FreeCapacity(ledger.vnodes[slot_id].allocation),
    )


def _candidates(
    ledger: Ledger,
    classes: list[SlotClass],
    crowded: Mapping[str, Collection[str]],
    class_of: Callable[[str], SlotClass | None],
    capacity: Callable[[str], FreeCapacity],
) -> CandidateNodes:
    # dict order tells in which order states arose; the first id does not, so equal states give equal plans
    classes.sort(key=lambda group: (ledger.vnodes[group.ids[0]].node_id, group.ids[0]))
    return CandidateNodes(ledger, tuple(classes), crowded, class_of, capacity)


# ---- the ladders of a way ----


def is_unit(way: Way, name: str) -> bool:
    """Whether a resource has numbered instances here."""
    return any(name in capacity.instances for _, _, capacity in way.sources)


def whole_ladder(way: Way, name: str) -> Ladder:
    """The sources of a resource, instances together."""
    return tuple(
        Source(depth, lender, capacity.free[name])
        for depth, lender, capacity in way.sources
        if capacity.free.get(name, 0) > 0
    )


def instance_ladders(way: Way, name: str) -> dict[int, Ladder]:
    """The sources of each instance of a resource."""
    found: dict[int, list[Source]] = {}
    for depth, lender, capacity in way.sources:
        for index, share in free_shares(capacity, name).items():
            found.setdefault(index, []).append(Source(depth, lender, share))
    return {index: tuple(ladder) for index, ladder in found.items()}


def free_shares(capacity: FreeCapacity, name: str) -> dict[int, int]:
    """What is free of each instance; on a node that shrank no more of them than its free amount."""
    shares = sorted((s, i) for i, s in capacity.instances.get(name, {}).items() if s > 0)
    free = capacity.free.get(name, 0)
    while shares and sum(share for share, _ in shares) > free:
        del shares[0]
    return {index: share for share, index in shares}
