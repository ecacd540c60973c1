"""The minimum of a cluster: what it lacks of it, and the words for that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, LOGICAL, REMOVING, Cluster, VNode
from vctl.core.nodes import DEAD, DRAINING
from vctl.core.resources import Amounts
from vctl.core.values import value
from vctl.core.wording import amount_text, cluster_text, listed, number_text

if TYPE_CHECKING:
    from vctl.core.ledger import Ledger  # `vctl status` reads minimums from the tables, and loads no ledger

MOST_NAMED = 3
_WORDS = {DEAD: "died", DRAINING: "drains"}


def lacks(ledger: Ledger, cluster_id: str, lent: Amounts) -> dict[str, int]:
    """The part of the flexible minimum of a cluster that it neither has on living nodes nor lends."""
    cluster = ledger.clusters[cluster_id]
    if not any(cluster.spec.flexible_min.values()):
        return {}
    vnodes = (ledger.vnodes[vnode_id] for vnode_id in ledger.members[cluster_id])
    return _lacks(cluster, (vnode for vnode in vnodes if ledger.nodes[vnode.node_id].state != DEAD), lent)


def _lacks(cluster: Cluster, vnodes: Iterable[VNode], lent: Amounts) -> dict[str, int]:
    if cluster.state == REMOVING:
        return {}
    has = rs.total([*(vnode.allocation.amounts for vnode in vnodes if vnode.kind == FLEXIBLE), lent])
    return rs.beyond(cluster.spec.flexible_min, has)


@value(frozen=True, slots=True)
class BelowMinimum:
    """A logical cluster that has less than its minimum: its fixed and whole virtual nodes and its flexible minimum.

    ``nodes``: the nodes on which it lost the rest, with their states; none if it had lent that to siblings.
    """

    cluster_id: str
    has: Amounts
    minimum: Amounts
    nodes: tuple[tuple[str, str], ...]

    @property
    def amounts(self) -> str:
        """What it has of the resources of which it has too little."""
        lacking = [name for name, amount in sorted(self.minimum.items()) if amount > self.has.get(name, 0)]
        return " and ".join(
            f"{number_text(name, self.has.get(name, 0))} of {amount_text(name, self.minimum[name])}"
            for name in lacking
        )

    @property
    def since(self) -> str:
        """What became of the nodes, such as ``nodes n1, n2 died``; empty if there are none."""
        parts = []
        for state, word in _WORDS.items():
            named = [node_id for node_id, node_state in self.nodes if node_state == state]
            if named:
                parts.append(f"node{'s' * (len(named) > 1)} {listed(named, MOST_NAMED)} {word}")
        return " and ".join(parts)

    @property
    def text(self) -> str:
        """The sentence that commands show."""
        since = f" since {self.since}" if self.nodes else ""
        return f"{cluster_text(self.cluster_id)} is below its minimum: it has {self.amounts}{since}"


def below_minimum(
    cluster: Cluster, vnodes: Iterable[VNode], states: Mapping[str, str], used: Collection[str], lent: Amounts
) -> BelowMinimum | None:
    """What a cluster lacks of its minimum; None: nothing. A slice on a draining node counts while it is in use.

    ``vnodes``: those of the cluster. ``states``: those of nodes that are dead or draining. ``used``: virtual nodes on
    draining nodes in which something runs. ``lent``: what siblings have of its minimum.
    """
    if cluster.kind != LOGICAL:
        return None

    def is_lost(vnode: VNode) -> bool:
        state = states.get(vnode.node_id)
        return state == DEAD or (state == DRAINING and not vnode.whole and vnode.vnode_id not in used)

    lost: list[VNode] = []
    others: list[VNode] = []
    for vnode in vnodes:
        (lost if is_lost(vnode) else others).append(vnode)
    fixed_lost, fixed = (
        [vnode.allocation.amounts for vnode in some if vnode.kind != FLEXIBLE] for some in (lost, others)
    )
    lacking = rs.total([*fixed_lost, _lacks(cluster, others, lent)])
    if not any(lacking.values()):
        return None
    minimum = rs.total([cluster.spec.flexible_min, *fixed_lost, *fixed])
    nodes = tuple((node_id, states[node_id]) for node_id in sorted({vnode.node_id for vnode in lost}))
    return BelowMinimum(cluster.cluster_id, rs.subtract(minimum, lacking), minimum, nodes)
