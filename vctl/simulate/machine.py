"""The machine of a simulation: made of equal nodes, or a ledger in which nothing runs with more or fewer nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.resources import Amounts


def equal_nodes(count: int, each: Amounts, units: frozenset[str] = rs.DEFAULT_UNITS) -> Ledger:
    """``count`` nodes that have the same, all in the primary."""
    ledger = Ledger()
    total = rs.whole_node({name: amount for name, amount in each.items() if amount}, units)
    for number in range(1, count + 1):
        node_id = f"n{number:05}"
        ledger.put_node(Node(node_id, "node", total, node_id, {}))
    return ledger


def resized(ledger: Ledger, count: int, template_id: str | None = None) -> int:
    """Give a machine ``count`` nodes by adding or removing nodes of one template, the commonest by default.

    Only nodes that no cluster has are removed. Returns how many nodes there are then: more than ``count`` when not
    enough could go, fewer when there is no node to copy.
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
            ledger.put_node(replace(models[0], node_id=node_id, hostname=node_id))
    return len(ledger.nodes)


def with_policy(ledger: Ledger, changes: dict[str, object], cluster_id: str | None = None) -> None:
    """Serve every queue, or that of one cluster, with these settings changed; weights and limits stay theirs."""
    for one in list(ledger.clusters.values()):
        if cluster_id is None or one.cluster_id == cluster_id:
            queue = replace(one.queue, **changes)  # type: ignore[arg-type]  # names and types come from parse_queue
            if one.cluster_id == PRIMARY:
                ledger.set_primary_queue(queue)
            else:
                ledger.put_cluster(replace(one, queue=queue))
