"""The index of the virtual nodes of one cluster by class: a search considers equal virtual nodes once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from vctl.core import labels as lb
from vctl.core.clusters import FLEXIBLE, PRIMARY, VNode
from vctl.core.labels import Labels
from vctl.core.nodes import Node
from vctl.core.resources import FreeCapacity, within
from vctl.core.values import field, value

ClassKey = tuple[object, ...]
Filed = tuple[str, Labels, int, str, FreeCapacity]
"""The entry of a virtual node: its node, its labels, the number of its kind (labels, template, most amounts), its
template if it is a whole node (else empty), and its free capacity."""


@value(slots=True)
class SlotClass:
    """Interchangeable virtual nodes of one cluster: same labels (but system labels), template and free state.

    ``capacity`` is that of one member. Members may have different instance indexes free, but equally many.
    """

    labels: Labels
    template_id: str
    capacity: FreeCapacity
    untouched: bool
    ids: list[str] = field(default_factory=list)


class SlotIndex:
    """The schedulable virtual nodes of one cluster by class, so that a search costs no more with equal nodes.

    ``SlotClass.ids`` are in the order of their physical nodes, so that node ids break ties.
    ``crowded``: physical node -> the cluster's virtual nodes there, if it has several. ``stamp`` is the same
    whenever the same virtual nodes are filed under the same classes; a new index has other stamps.
    """

    def __init__(self, stamp: int = 0) -> None:
        self.classes: dict[ClassKey, SlotClass] = {}
        self.crowded: dict[str, frozenset[str]] = {}
        self.stamp = stamp
        self.unfiled: dict[str, None] = {}
        """Changed virtual nodes, which are filed anew before the next use of the index."""
        self._on_node: dict[str, frozenset[str]] = {}
        self._key_of: dict[str, ClassKey] = {}
        self._order: dict[str, tuple[str, str]] = {}

    def copy(self) -> SlotIndex:
        """An independent copy, for a trial with another state."""
        copy = SlotIndex()
        copy.classes = {
            key: SlotClass(group.labels, group.template_id, group.capacity, group.untouched, list(group.ids))
            for key, group in self.classes.items()
        }
        copy._on_node, copy.crowded = dict(self._on_node), dict(self.crowded)
        copy.stamp = self.stamp
        copy._key_of, copy._order = dict(self._key_of), dict(self._order)
        return copy

    def class_of(self, vnode_id: str) -> SlotClass | None:
        """The class of a virtual node; None if it takes no work."""
        key = self._key_of.get(vnode_id)
        return None if key is None else self.classes[key]

    def on_node(self, node_id: str) -> list[str]:
        """The cluster's virtual nodes on a physical node, by id."""
        return sorted(self._on_node.get(node_id, ()))

    def file(self, filed: Mapping[str, Filed | None]) -> None:
        """File virtual nodes under the classes of these entries; None: it takes no work and is dropped."""
        leaving: dict[ClassKey, list[str]] = {}
        joining: dict[ClassKey, list[str]] = {}
        alike: dict[tuple[int, ...], ClassKey] = {}
        # drop first: a class ends with its last member, and another virtual node may be about to join it
        for vnode_id in [vnode_id for vnode_id, one in filed.items() if one is None]:
            self.drop(vnode_id)
        for vnode_id, one in filed.items():
            if one is None:
                continue
            node_id, labels, static, template_id, capacity = one
            identity = (
                static,
                id(capacity.free),
                id(capacity.instances),
                id(capacity.cores),
                id(capacity.total),
            )
            key = alike.get(identity)
            if key is None or capacity.missing_cores:
                key = alike[identity] = _key(static, capacity)
                if key not in self.classes:
                    self.classes[key] = SlotClass(labels, template_id, capacity.copy(), bool(key[3]))
            old = self._key_of.get(vnode_id)
            if old is key or old == key:
                continue
            if old is None:
                self._order[vnode_id] = (node_id, vnode_id)
                self._note_node(node_id, self._on_node.get(node_id, frozenset()) | {vnode_id})
            else:
                leaving.setdefault(old, []).append(vnode_id)
            joining.setdefault(key, []).append(vnode_id)
            self._key_of[vnode_id] = key
        order = self._order
        for key, removed in leaving.items():
            self._mark(key, removed)
            _take_out(self.classes[key].ids, sorted(removed, key=order.__getitem__), order)
        for key, new in joining.items():
            self._mark(key, new)
            _put_in(self.classes[key].ids, sorted(new, key=order.__getitem__), order)
        for key in leaving:
            if not self.classes[key].ids:
                del self.classes[key]

    def drop(self, vnode_id: str) -> None:
        """Remove a virtual node: it is gone, or its node takes no work."""
        self.unfiled.pop(vnode_id, None)
        key = self._key_of.pop(vnode_id, None)
        if key is None:
            return
        ids, node_id = self.classes[key].ids, self._order[vnode_id][0]
        self._mark(key, [vnode_id])
        _take_out(ids, [vnode_id], self._order)
        del self._order[vnode_id]
        if not ids:
            del self.classes[key]
        self._note_node(node_id, self._on_node[node_id] - {vnode_id})

    def _mark(self, key: ClassKey, vnode_ids: Iterable[str]) -> None:
        """Toggle in the stamp that these virtual nodes are filed under this class."""
        mark = hash(key)
        for vnode_id in vnode_ids:
            self.stamp ^= hash((mark, self._order[vnode_id]))

    def _note_node(self, node_id: str, vnode_ids: frozenset[str]) -> None:
        for known, least in ((self._on_node, 1), (self.crowded, 2)):
            if len(vnode_ids) >= least:
                known[node_id] = vnode_ids
            else:
                known.pop(node_id, None)


Order = dict[str, tuple[str, str]]


def _take_out(ids: list[str], removed: list[str], order: Order) -> None:
    """Remove ids from a sorted list, neighbours together: a gang mostly gets neighbours."""
    at = bisect_left(ids, order[removed[0]], key=order.__getitem__)
    if ids[at : at + len(removed)] == removed:
        del ids[at : at + len(removed)]
        return
    half = len(removed) // 2
    _take_out(ids, removed[:half], order)
    _take_out(ids, removed[half:], order)


def _put_in(ids: list[str], new: list[str], order: Order) -> None:
    """Insert ids into a sorted list, future neighbours together."""
    at = bisect_left(ids, order[new[0]], key=order.__getitem__)
    if at == len(ids) or order[new[-1]] < order[ids[at]]:
        ids[at:at] = new
        return
    half = len(new) // 2
    _put_in(ids, new[:half], order)
    _put_in(ids, new[half:], order)


def _key(static: int, capacity: FreeCapacity) -> ClassKey:
    """The key of a class: the static number, the free amounts and shares, and whether nothing is used."""
    free = tuple(sorted([item for item in capacity.free.items() if item[1]]))
    shares = (
        tuple(sorted([(n, tuple(sorted(s.values()))) for n, s in capacity.instances.items()]))
        if capacity.instances
        else ()
    )
    return static, free, shares, capacity.is_untouched()


def template_of(vnode: VNode, node: Node) -> str:
    """The template of a whole node, or of a flexible virtual node that has grown over one; else empty.

    A flexible virtual node on a node that shrank does not count: it may have the whole total beside others.
    """
    is_whole = vnode.whole or (
        vnode.kind == FLEXIBLE and not node.shrunk and within(node.total.amounts, vnode.allocation.amounts)
    )
    return node.template_id if is_whole else ""


def primary_labels(node: Node) -> dict[str, str]:
    """Labels of a physical node as a virtual node of the primary cluster."""
    return {**node.labels, lb.VNODE_ID: node.node_id, lb.VCLUSTER_ID: PRIMARY, lb.NODE_ID: node.node_id}
