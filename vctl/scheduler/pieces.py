"""From the pieces of a placement to virtual nodes with ids and labels."""

from __future__ import annotations

from collections.abc import Sequence

from vctl.core import labels as lb
from vctl.core.clusters import VNode
from vctl.core.ledger import Ledger
from vctl.scheduler.placement import Piece


def vnodes_of(ledger: Ledger, cluster_id: str, pieces: Sequence[Piece]) -> tuple[VNode, ...]:
    """The virtual nodes that placed pieces become: parent's labels, own labels, system labels."""
    made = []
    for piece in pieces:
        vnode_id = f"{cluster_id}/{piece.rank}"
        inherited = ledger.vnodes[piece.parent_vnode_id].labels
        labels = {**inherited, **piece.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
        made.append(
            VNode(
                vnode_id,
                cluster_id,
                piece.node_id,
                piece.parent_vnode_id,
                piece.kind,
                piece.holding,
                labels,
                piece.whole,
                piece.rank,
            )
        )
    return tuple(made)
