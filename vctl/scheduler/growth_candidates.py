"""The candidate nodes of a placement with growth: what a cluster could have on each node if it grew.

Nodes on which only the cluster above the growing ones has something are counted by class. All other nodes are
listed one by one, with the sources of each slot (``Way``). A slot that does not exist yet has the id of the
virtual node above in which it would be made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from vctl.core import labels as lb
from vctl.core.clusters import FLEXIBLE, VNode
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation, FreeCapacity
from vctl.core.slots import SlotClass, template_of
from vctl.core.values import field, replace, value
from vctl.scheduler.candidate_nodes import CandidateNodes, Way, instance_supplies, is_unit, whole_supply
from vctl.scheduler.elasticity import allowance, flexible_parts, growing, lenders_to
from vctl.scheduler.growth_supply import OWN, Budgets, Lender
from vctl.scheduler.work import Work

AT_ONCE, STEPS = 64, 16
"""The number of nodes between two pauses of the work, and their price in steps."""
NEW = "\0"
"""The id of a virtual node that is not made yet: no selector can name it."""


@value(frozen=True, slots=True)
class GrowthCandidates(CandidateNodes):
    """Slots with what growth could add. ``classes``: the slots of the nodes that are counted by class."""

    chain: tuple[str, ...]
    """The clusters that can grow, lowest first."""
    limits: Budgets
    on_node: Mapping[str, tuple[str, ...]]
    """Node that is listed by itself -> its slots."""
    ways: Mapping[str, Way]
    alike: Mapping[str, SlotClass]
    """Virtual node of the cluster above the growing ones on these nodes -> the class that would count it."""

    @property
    def budgets(self) -> Budgets:
        """The limits of growth."""
        return self.limits

    def way(self, slot_id: str) -> Way:
        """The way in which a slot can grow."""
        known = self.ways.get(slot_id)
        return _fresh(len(self.chain), self.ledger.capacities[slot_id]) if known is None else known

    def way_of(self, group: SlotClass) -> Way:
        """The way in which the members of a class can grow that are not listed one by one."""
        return _fresh(len(self.chain), group.capacity)

    def apart(self, named: frozenset[str], on: frozenset[str]) -> dict[str, tuple[str, ...]]:  # noqa: ARG002
        """Nodes that are judged one by one -> their slots: ``on_node``, and nodes that a selector names."""
        return {**self.called(on), **self.on_node}

    def count_apart(self, apart: dict[str, tuple[str, ...]]) -> Counter[int]:
        """The number of members of each class (by its identity) on the nodes that are apart."""
        count = Counter(id(group) for group in self.alike.values())
        others = (slots for node_id, slots in apart.items() if node_id not in self.on_node)
        count.update(id(self.class_of(slot)) for slots in others for slot in slots)
        return count

    def first_slot(self) -> str | None:
        """The slot with the lowest node id, if there is any."""
        firsts = [(node_id, slots[0]) for node_id, slots in self.on_node.items() if slots]
        for group in self.classes:
            firsts += [(self.node_of(v), v) for v in group.ids if self.node_of(v) not in self.on_node][:1]
        return min(firsts)[1] if firsts else None


def growth_candidates(
    ledger: Ledger,
    cluster_id: str,
    asked: frozenset[str] | None = None,
    *,
    lending: bool,
    avoid: frozenset[str] = frozenset(),
) -> Work[GrowthCandidates | None]:
    """The slots of a cluster as growth could make them; None if it cannot grow.

    ``avoid``: physical nodes that must not be used. Slots that could have none of the resources ``asked`` are
    left out (None: no slot is).
    """
    chain = growing(ledger, cluster_id)
    if not chain:
        return None
    top_id = ledger.clusters[chain[-1]].parent_id
    assert top_id is not None
    view = _View(ledger, chain, asked)
    view.see_members()
    if lending:
        view.see_lenders()
    index = ledger.index(top_id)
    view.nodes |= {one: [[] for _ in chain] for one in index.crowded if one not in view.nodes}
    for node_id in avoid:
        view.node(node_id).clear()
    classes: dict[int, SlotClass] = {}
    for one in index.classes.values():
        labels = {**one.labels, lb.VNODE_ID: NEW, lb.VCLUSTER_ID: cluster_id}
        classes[id(one)] = replace(one, labels=labels)
    alike: dict[str, SlotClass] = {}
    for number, (node_id, levels) in enumerate(view.nodes.items()):
        if number % AT_ONCE == 0:
            yield STEPS
        above = index.on_node(node_id)
        alike |= {slot: classes[id(group)] for slot in above if (group := index.class_of(slot)) is not None}
        if levels:
            view.see(node_id, [*levels, [ledger.vnodes[slot] for slot in above]])
    budgets = Budgets(tuple(allowance(ledger, ledger.clusters[one]) for one in chain), tuple(view.lenders))
    slots: dict[str, SlotClass] = {}

    def class_of(slot_id: str) -> SlotClass | None:
        if slot_id in slots:
            return slots[slot_id]
        group = index.class_of(slot_id)
        return None if group is None else classes[id(group)]

    for first in range(0, len(names := list(view.ways)), AT_ONCE):
        yield STEPS
        slots |= {one: _slot_class(ledger, chain, one) for one in names[first : first + AT_ONCE]}
    return GrowthCandidates(
        ledger,
        tuple(sorted(classes.values(), key=lambda g: (ledger.vnodes[g.ids[0]].node_id, g.ids[0]))),
        {},
        class_of,
        lambda slot: view.capacity(slot, budgets),
        tuple(chain),
        budgets,
        {node_id: tuple(sorted(view.on_node.get(node_id, ()))) for node_id in view.nodes},
        view.ways,
        alike,
    )  # fmt: skip


@value(slots=True)
class _View:
    """Collects by node the virtual nodes of growing clusters, sibling loans, and slots that could grow."""

    ledger: Ledger
    chain: list[str]
    asked: frozenset[str] | None
    nodes: dict[str, list[list[VNode]]] = field(default_factory=dict)
    """Physical node -> the virtual nodes of each cluster there, lowest first."""
    loans: dict[str, list[tuple[int, FreeCapacity]]] = field(default_factory=dict)
    """Virtual node -> (number of a lender, its free capacity) for each that could lend in it."""
    lenders: list[Lender] = field(default_factory=list)
    ways: dict[str, Way] = field(default_factory=dict)
    on_node: dict[str, list[str]] = field(default_factory=dict)

    def node(self, node_id: str) -> list[list[VNode]]:
        if node_id not in self.nodes:
            self.nodes[node_id] = [[] for _ in self.chain]
        return self.nodes[node_id]

    def see_members(self) -> None:
        for level, one in enumerate(self.chain):
            for vnode_id in self.ledger.members[one]:
                vnode = self.ledger.vnodes[vnode_id]
                here = self.node(vnode.node_id)
                if self.ledger.nodes[vnode.node_id].schedulable:
                    here[level].append(vnode)

    def see_lenders(self) -> None:
        for level, one in enumerate(self.chain):
            for sibling, most in lenders_to(self.ledger, self.ledger.clusters[one]):
                for part in flexible_parts(self.ledger, sibling):
                    if self.ledger.capacities[part.parent_id or ""].is_overdrawn():
                        continue  # the node shrank below its use, so nothing on it can be lent
                    capacity = self.ledger.capacities[part.vnode_id]
                    self.loans.setdefault(part.parent_id or "", []).append((len(self.lenders), capacity))
                    self.node(part.node_id)
                self.lenders.append(Lender(sibling, level + 1, most))

    def see(self, node_id: str, levels: list[list[VNode]]) -> None:
        """List the slots of a node. ``levels``: its virtual nodes by cluster, lowest cluster first."""
        taken: set[str | None] = set()
        """The virtual nodes in which the cluster below has its flexible one: there is at most one in each."""
        for level, vnodes in enumerate(levels):
            for vnode in vnodes:
                if level and (vnode.vnode_id in taken or not self._is_in_view(vnode)):
                    continue
                sources = self._sources(level, vnode)
                if self._is_useful(sources):
                    self.ways[vnode.vnode_id] = Way(sources, level > 0)
                    self.on_node.setdefault(node_id, []).append(vnode.vnode_id)
            taken = {vnode.parent_id for vnode in vnodes if vnode.kind == FLEXIBLE}

    def _is_useful(self, sources: tuple[tuple[int, int, FreeCapacity], ...]) -> bool:
        return self.asked is None or any(
            capacity.free.get(name, 0) > 0 for name in self.asked for _, _, capacity in sources
        )

    def _is_in_view(self, vnode: VNode) -> bool:
        return self.ledger.index(vnode.cluster_id).class_of(vnode.vnode_id) is not None

    def _sources(self, level: int, vnode: VNode) -> tuple[tuple[int, int, FreeCapacity], ...]:
        capacities = self.ledger.capacities
        found: list[tuple[int, int, FreeCapacity]] = []
        while True:
            found.append((level, OWN, capacities[vnode.vnode_id]))
            if level:
                found += [
                    (level, lender, capacity) for lender, capacity in self.loans.get(vnode.vnode_id, ())
                ]
            if level == len(self.chain) or vnode.kind != FLEXIBLE:
                return tuple(found)
            vnode, level = self.ledger.vnodes[vnode.parent_id or ""], level + 1

    def capacity(self, slot_id: str, budgets: Budgets) -> FreeCapacity:
        """The most that a slot could have, as one free capacity."""
        way = self.ways.get(slot_id) or _fresh(len(self.chain), self.ledger.capacities[slot_id])
        vnode = self.ledger.vnodes[slot_id]
        names = {name for _, _, capacity in way.sources for name in capacity.free}
        amounts, instances = {}, {}
        for name in names:
            amounts[name] = budgets.potential(name, whole_supply(way, name))
            if is_unit(way, name):
                shares = {i: budgets.potential(name, one) for i, one in instance_supplies(way, name).items()}
                instances[name] = {index: share for index, share in shares.items() if share}
        total = self.ledger.nodes[vnode.node_id].total
        if amounts != {name: amount for name, amount in total.amounts.items() if amount}:
            return FreeCapacity(Allocation(amounts, instances))
        return FreeCapacity(Allocation(amounts, instances, total.cores))


def _fresh(depth: int, capacity: FreeCapacity) -> Way:
    return Way(((depth, OWN, capacity),), fresh=True)


def _slot_class(ledger: Ledger, chain: list[str], slot_id: str) -> SlotClass:
    """The class of one slot on a node that is listed by itself."""
    vnode, capacity = ledger.vnodes[slot_id], ledger.capacities[slot_id]
    labels, untouched = vnode.labels, capacity.is_untouched()
    if vnode.cluster_id != chain[0]:
        labels, untouched = {**labels, lb.VNODE_ID: NEW, lb.VCLUSTER_ID: chain[0]}, True
    node = ledger.nodes[vnode.node_id]
    grows = vnode.kind == FLEXIBLE and vnode.cluster_id in chain and not node.shrunk
    return SlotClass(
        labels, node.template_id if grows else template_of(vnode, node), capacity, untouched, [slot_id]
    )
