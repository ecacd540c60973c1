"""Virtual nodes of one cluster by class: those that are alike are looked at once, however many there are."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field

from vctl.core import labels as lb
from vctl.core.clusters import FLEXIBLE, PRIMARY, VNode
from vctl.core.labels import Labels
from vctl.core.nodes import Node
from vctl.core.resources import FreeCapacity, within

ClassKey = tuple[object, ...]
Filed = tuple[str, str, Labels, int, str, FreeCapacity]
"""What an index asks about a virtual node: the arguments of ``SlotIndex.put``."""
MANY = 8
"""From so many virtual nodes on they are filed together."""


@dataclass(slots=True)
class SlotClass:
    """Virtual nodes of one cluster that are interchangeable for placement: same labels, template and free state.

    ``capacity`` is that of one member; which instance indexes are free may differ between members, how many may not.
    """

    labels: Labels
    template_id: str
    capacity: FreeCapacity
    untouched: bool
    ids: list[str] = field(default_factory=list)


class SlotIndex:
    """The schedulable virtual nodes of one cluster by class, so that work does not grow with equal nodes.

    ``SlotClass.ids`` are in the order of their physical nodes, so that ties fall to the lowest node id.
    ``crowded`` are the physical nodes on which the cluster has several virtual nodes, with their ids. ``stamp`` is the
    same whenever the same virtual nodes are filed under the same classes; an index that is made anew has others.
    """

    def __init__(self, stamp: int = 0) -> None:
        self.classes: dict[ClassKey, SlotClass] = {}
        self.crowded: dict[str, frozenset[str]] = {}
        self.stamp = stamp
        self._on_node: dict[str, frozenset[str]] = {}
        self._key_of: dict[str, ClassKey] = {}
        self._order: dict[str, tuple[str, str]] = {}

    def copy(self) -> SlotIndex:
        """An independent copy, for a look at another state."""
        twin = SlotIndex()
        twin.classes = {
            key: SlotClass(group.labels, group.template_id, group.capacity, group.untouched, list(group.ids))
            for key, group in self.classes.items()
        }
        twin._on_node, twin.crowded = dict(self._on_node), dict(self.crowded)
        twin.stamp = self.stamp
        twin._key_of, twin._order = dict(self._key_of), dict(self._order)
        return twin

    def class_of(self, vnode_id: str) -> SlotClass | None:
        """The class a virtual node is filed under; None when it takes no work."""
        key = self._key_of.get(vnode_id)
        return None if key is None else self.classes[key]

    def on_node(self, node_id: str) -> list[str]:
        """The cluster's virtual nodes on a physical node, by id."""
        return sorted(self._on_node.get(node_id, ()))

    def put(
        self,
        vnode_id: str,
        node_id: str,
        labels: Labels,
        static: int,
        template_id: str,
        capacity: FreeCapacity,
    ) -> None:
        """File a virtual node under the class of its present state; ``static`` stands for what does not change."""
        key = _key(static, capacity)
        old = self._key_of.get(vnode_id)
        if old == key:
            return
        if old is not None:
            self.drop(vnode_id)
        group = self.classes.get(key)
        if group is None:
            group = self.classes[key] = SlotClass(labels, template_id, capacity.copy(), bool(key[3]))
        self._order[vnode_id] = (node_id, vnode_id)
        insort(group.ids, vnode_id, key=self._order.__getitem__)
        self._key_of[vnode_id] = key
        self.stamp ^= hash((vnode_id, node_id, key))
        self._note_node(node_id, self._on_node.get(node_id, frozenset()) | {vnode_id})

    def file(self, filed: Mapping[str, Filed | None]) -> None:
        """File virtual nodes; None: it takes no work. Of many, each class is put in order once."""
        leaving: dict[ClassKey, set[str]] = {}
        joining: dict[ClassKey, list[str]] = {}
        for vnode_id, one in filed.items():
            if one is None:
                self.drop(vnode_id)
            elif len(filed) < MANY or (old := self._key_of.get(vnode_id)) is None:
                self.put(*one)
            elif (key := _key(one[3], one[5])) != old:
                if key not in self.classes:
                    self.classes[key] = SlotClass(one[2], one[4], one[5].copy(), bool(key[3]))
                leaving.setdefault(old, set()).add(vnode_id)
                joining.setdefault(key, []).append(vnode_id)
                self._key_of[vnode_id] = key
                self.stamp ^= hash((vnode_id, one[1], old)) ^ hash((vnode_id, one[1], key))
        for key, gone in leaving.items():
            group = self.classes[key]
            group.ids = [vnode_id for vnode_id in group.ids if vnode_id not in gone]
        for key, new in joining.items():
            group = self.classes[key]
            group.ids = sorted([*group.ids, *new], key=self._order.__getitem__)
        for key in leaving:
            if not self.classes[key].ids:
                del self.classes[key]

    def drop(self, vnode_id: str) -> None:
        """Take a virtual node out (gone, or its node takes no work)."""
        key = self._key_of.pop(vnode_id, None)
        if key is None:
            return
        group = self.classes[key]
        order = self._order[vnode_id]
        self.stamp ^= hash((vnode_id, order[0], key))
        del group.ids[bisect_left(group.ids, order, key=self._order.__getitem__)]
        del self._order[vnode_id]
        if not group.ids:
            del self.classes[key]
        self._note_node(order[0], self._on_node[order[0]] - {vnode_id})

    def _note_node(self, node_id: str, here: frozenset[str]) -> None:
        for known, least in ((self._on_node, 1), (self.crowded, 2)):
            if len(here) >= least:
                known[node_id] = here
            else:
                known.pop(node_id, None)


def _key(static: int, capacity: FreeCapacity) -> ClassKey:
    """What makes virtual nodes alike: what never changes of them, and what is free; last, whether nothing is used."""
    free = tuple(sorted([item for item in capacity.free.items() if item[1]]))
    shares = (
        tuple(sorted([(n, tuple(sorted(s.values()))) for n, s in capacity.instances.items()]))
        if capacity.instances
        else ()
    )
    return static, free, shares, capacity.is_untouched()


def template_of(vnode: VNode, node: Node) -> str:
    """The template of a whole node, also of a flexible virtual node that has grown over all of one; else empty."""
    is_whole = vnode.whole or (
        vnode.kind == FLEXIBLE and within(node.total.amounts, vnode.allocation.amounts)
    )
    return node.template_id if is_whole else ""


def primary_labels(node: Node) -> dict[str, str]:
    """Labels of a physical node as a virtual node of the primary cluster."""
    return {**node.labels, lb.VNODE_ID: node.node_id, lb.VCLUSTER_ID: PRIMARY, lb.NODE_ID: node.node_id}
