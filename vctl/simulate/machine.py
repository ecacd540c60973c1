"""The nodes of a simulation: equal nodes, or those of a ledger in which nothing runs."""

from __future__ import annotations

from collections import Counter

from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, Node
from vctl.core.resources import Amounts
from vctl.core.values import replace


def equal_nodes(count: int, each: Amounts) -> Ledger:
    """A ledger with ``count`` nodes of equal resources, all in the primary."""
    ledger = Ledger()
    total = rs.whole_node({name: amount for name, amount in each.items() if amount})
    for number in range(1, count + 1):
        node_id = f"n{number:05}"
        ledger.put_node(Node(node_id, "node", total, node_id, {}))
    return ledger


def resized(ledger: Ledger, count: int, template_id: str | None = None) -> int:
    """Add or remove nodes of one template, by default the commonest, until the ledger has ``count`` nodes.

    Only nodes without virtual nodes of a cluster are removed. Returns the number of nodes: more than
    ``count`` if too few could be removed, fewer if there is no node to copy.
    """
    kinds = Counter(node.template_id for node in ledger.nodes.values() if node.schedulable)
    kind = template_id or max(sorted(kinds), key=lambda name: kinds[name], default=None)
    models = [node for node in ledger.nodes.values() if node.template_id == kind]
    for node in sorted(models, key=lambda node: node.node_id, reverse=True):
        if len(ledger.nodes) > count and not ledger.children[node.node_id]:
            ledger.remove_node(node.node_id)
    number = 0
    while models and len(ledger.nodes) < count:
        number += 1
        node_id = f"{kind}-more-{number:05}"
        if node_id not in ledger.nodes:
            ledger.put_node(replace(models[0], node_id=node_id, hostname=node_id, state=ALIVE))
    return len(ledger.nodes)


def with_policy(ledger: Ledger, changes: dict[str, object], cluster_id: str | None = None) -> None:
    """Change these settings of the queue of every cluster, or of one cluster; its other settings stay."""
    for cluster in list(ledger.clusters.values()):
        if cluster_id is None or cluster.cluster_id == cluster_id:
            queue = replace(cluster.queue, **changes)  # type: ignore[arg-type]  # names and types come from parse_queue
            if cluster.cluster_id == PRIMARY:
                ledger.set_primary_queue(queue)
            else:
                ledger.put_cluster(replace(cluster, queue=queue))
