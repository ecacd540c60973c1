"""What is free in the virtual nodes of one cluster, read from the tables; equal virtual nodes are read once.

It is the ledger's answer, by the ledger's rule and its ``FreeCapacity``: the total, less the virtual nodes of the
children and what processes of the cluster itself hold. A command that only reads need not load a tree for it, and
gets an answer also where tables are damaged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY
from vctl.core.labels import Labels
from vctl.core.nodes import ALIVE, fenced
from vctl.core.resources import FreeCapacity
from vctl.store.rows import allocation_of, fences, loads
from vctl.store.store import Store

COMMON = (
    "replace(replace(v.labels, '\"ray.io/vnode_id\":\"' || v.vnode_id || '\"', ''),"
    " '\"ray.io/node-id\":\"' || v.node_id || '\"', '')"
)
"""The labels of a virtual node without those in which equal ones differ (``labels.OWN``)."""
_SLOTS = (
    "SELECT group_concat(v.node_id || char(9) || v.vnode_id, char(10)), n.state, v.amounts, v.instances, v.kind,"
    f" v.whole, n.template_id, n.shrunk, n.amounts, {COMMON}, n.fences, min(v.labels)"
    " FROM vnodes v JOIN nodes n USING (node_id) WHERE v.cluster_id = ? GROUP BY 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
)
_NODES = (
    "SELECT group_concat(node_id || char(9) || node_id, char(10)), state, amounts, instances, 'physical', 1,"
    " template_id, shrunk, amounts, labels, fences, labels FROM nodes GROUP BY 2, 3, 4, 7, 8, 10, 11"
)
_PARTS = (
    "SELECT v.parent_vnode_id, v.amounts, v.instances, v.whole AND c.kind = 'logical' FROM clusters c"
    " JOIN vnodes v USING (cluster_id) WHERE c.parent_id = ?1"
    " UNION ALL SELECT vnode_id, amounts, instances, 0 FROM runs WHERE cluster_id = ?1"
)
JOB_MARK = "##"
"""It is in the id of each cluster of a job, and of each inside one: what they have stays theirs, fenced or not."""
Held = tuple[str, str]
"""The amounts and the instances of an allocation, as their columns are written."""


class EqualSlots:
    """Virtual nodes of a cluster that are equal in everything but their ids, and what is free in each of them.

    ``slots``: (node, virtual node) of each. ``used``: the parts that are in use. ``owned``: a logical child has all of
    it, so it is no longer seen in this cluster.
    """

    __slots__ = ("_labels", "capacity", "owned", "slots", "static", "used")

    def __init__(
        self,
        static: tuple[Any, ...],
        labels: str,
        used: tuple[Held, ...],
        capacity: FreeCapacity,
        *,
        owned: bool,
    ) -> None:
        self.static, self.used, self.capacity, self.owned = static, used, capacity, owned
        self.slots: list[tuple[str, str]] = []
        self._labels = labels

    @property
    def state(self) -> str:
        """The state of their physical nodes."""
        return str(self.static[0])

    @property
    def takes_work(self) -> bool:
        """Whether work of the cluster may be placed in them."""
        return self.state == ALIVE and not self.owned

    @property
    def template(self) -> str:
        """The template if they are whole nodes, else empty."""
        _, _, _, kind, whole, template_id, shrunk, of_node, *_ = self.static
        spans = kind == FLEXIBLE and not shrunk and rs.within(loads(of_node), self.capacity.total.amounts)
        return str(template_id) if whole or spans else ""

    def labels_of(self, node_id: str, slot_id: str) -> Labels:
        """The labels of one of them."""
        labels: dict[str, str] = loads(self._labels)
        if self.static[3] == "physical":
            return {**labels, lb.VNODE_ID: node_id, lb.VCLUSTER_ID: PRIMARY, lb.NODE_ID: node_id}
        own = {lb.VNODE_ID: slot_id, lb.NODE_ID: node_id}
        return {key: own.get(key, value) for key, value in labels.items()}


def alike(store: Store, cluster_id: str, apart: Collection[str] = ()) -> list[EqualSlots]:
    """All virtual nodes of a cluster, or the nodes of the primary, by what they are equal in. ``apart``: those that
    are to be told from all others."""
    used: dict[str, tuple[Held, ...]] = {}
    owned = set()
    for slot_id, amounts, instances, goes_whole in store.rows(_PARTS, cluster_id):
        used[slot_id] = (*used.get(slot_id, ()), (amounts, instances))
        if goes_whole:
            owned.add(slot_id)
    used = {slot_id: tuple(sorted(parts)) if len(parts) > 1 else parts for slot_id, parts in used.items()}
    found: dict[object, EqualSlots] = {}
    sql, *given = (_NODES,) if cluster_id == PRIMARY else (_SLOTS, cluster_id)
    for ids, *static, labels in store.rows(sql, *given):
        key = tuple(static)
        for line in ids.split("\n"):
            node_id, _, slot_id = line.partition("\t")
            parts = used.get(slot_id, ())
            which = key, parts, slot_id in owned, slot_id if slot_id in apart else ""
            group = found.get(which)
            if group is None:
                capacity = FreeCapacity(allocation_of(key[1], key[2]))
                for part in parts:
                    capacity.take_beyond(allocation_of(*part))
                if key[-1] != "[]" and JOB_MARK not in cluster_id:
                    capacity.fence(fenced(fences(key[-1])))
                group = found[which] = EqualSlots(key, labels, parts, capacity, owned=slot_id in owned)
            group.slots.append((node_id, slot_id))
    return list(found.values())
