"""Kinds of virtual nodes: what equal virtual nodes of a cluster have in common, whatever is used of them."""

from __future__ import annotations

from collections.abc import Iterable

from vctl.core import clusters as cl
from vctl.core import labels as lb
from vctl.core.clusters import VNode
from vctl.core.labels import Labels
from vctl.core.nodes import Node
from vctl.core.resources import Amounts, shape_of
from vctl.core.slots import ClassKey, template_of


class NodeKind:
    """The labels of a virtual node, its template if it is a whole node, and the most that it could ever hold.

    ``number`` is compared and hashed instead of these; it is valid in one cluster.
    """

    __slots__ = ("amounts", "labels", "number", "template_id", "trait")

    def __init__(self, number: int, labels: Labels, template_id: str, amounts: Amounts) -> None:
        self.number, self.labels, self.template_id, self.amounts = number, labels, template_id, amounts
        self.trait: tuple[object, int] = (None, 0)
        """The registry that numbered its trait last (``demand``), and the number."""


class NodeKinds:
    """The kinds of virtual nodes by cluster."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[VNode, Node, NodeKind]] = {}
        """vnode id -> its kind, and the values for which that is known."""
        self._kinds: dict[str, dict[ClassKey, NodeKind]] = {}

    def copy(self, cluster_ids: Iterable[str] | None = None) -> NodeKinds:
        """An independent copy, for these clusters (None: all)."""
        copy = NodeKinds()
        copy._of = dict(self._of)
        for cluster_id in self._kinds if cluster_ids is None else cluster_ids:
            copy._kinds[cluster_id] = dict(self._kinds.get(cluster_id, {}))
        return copy

    def of(self, vnode: VNode, node: Node) -> NodeKind:
        """The kind of a virtual node on this node."""
        known = self._of.get(vnode.vnode_id)
        if known is not None and known[0] is vnode and known[1] is node:
            return known[2]
        # a slice stays as it is; everything else is as large as its node, or may become so
        largest = vnode.allocation if vnode.kind == cl.FIXED and not vnode.whole else node.total
        kinds = self._kinds.setdefault(vnode.cluster_id, {})
        key = (lb.common(vnode.labels), template_of(vnode, node), shape_of(largest.amounts))
        if (kind := kinds.get(key)) is None:
            kind = kinds[key] = NodeKind(len(kinds), dict(key[0]), key[1], largest.amounts)
        self._of[vnode.vnode_id] = (vnode, node, kind)
        return kind

    def are_alike(self, cluster_id: str) -> bool:
        """Whether all virtual nodes of a cluster were ever of one kind."""
        return len(self._kinds.get(cluster_id, ())) < 2

    def forget(self, vnode_id: str) -> None:
        """Forget a virtual node that is gone."""
        self._of.pop(vnode_id, None)

    def forget_cluster(self, cluster_id: str) -> None:
        """Forget a cluster that is gone."""
        self._kinds.pop(cluster_id, None)
