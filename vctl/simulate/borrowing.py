"""The nodes of a simulation (equal nodes, or those of a ledger in which nothing runs) and its leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from vctl.core import resources as rs
from vctl.core.clusters import PRIMARY
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, Node
from vctl.core.resources import Amounts
from vctl.core.values import replace
from vctl.scheduler.elasticity import Grow, apply_growth
from vctl.scheduler.leasing import above_minimum, free_part, give_back, newest_first, restore


class Loans:
    """The leases of the clusters of a ledger; ``settle`` gives back the idle ones."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.leases: dict[int, Lease] = {}
        self._number = 0

    def grow(self, step: Grow, now_ns: int) -> None:
        """Apply a step of growth; the part above the cluster's minimum becomes a lease for each lender."""
        apply_growth(self.ledger, step)
        over = above_minimum(self.ledger, step)
        cluster = self.ledger.clusters[step.after.cluster_id]
        if not over or cluster.parent_id is None:
            return
        loan = {n: min(a, step.lent.get(n, 0)) for n, a in over.items() if step.lent.get(n, 0)}
        rest = {n: a - loan.get(n, 0) for n, a in over.items() if a > loan.get(n, 0)}
        for lender_id, lent in ((step.lender_id, loan), (cluster.parent_id, rest)):
            if lender_id is not None and lent:
                self._number += 1
                self.leases[self._number] = Lease(
                    self._number, cluster.cluster_id, lender_id, step.after.vnode_id, step.after.node_id, lent, now_ns
                )  # fmt: skip

    def settle(self, nominated: Container[str] = ()) -> None:
        """Give back the idle parts of leases, level by level: a parent may have borrowed what its child had.

        ``nominated``: virtual nodes with a part that is nominated for a job; their leases stay as they are.
        """
        waiting = newest_first(self.leases.values())
        while waiting:
            lease = waiting.pop(0)
            if self.leases.get(lease.lease_id) != lease or lease.vnode_id in nominated:
                continue
            part = free_part(self.ledger, lease, self.leases.values())
            if not part.amounts:
                continue
            above = self.ledger.vnodes[lease.vnode_id].parent_id
            done = give_back(self.ledger, lease, part)
            restore(self.ledger, lease, done)
            if done.left:
                self.leases[lease.lease_id] = replace(lease, amounts=done.left)
            else:
                del self.leases[lease.lease_id]
            waiting += newest_first([up for up in self.leases.values() if up.vnode_id == above])


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
    for one in list(ledger.clusters.values()):
        if cluster_id is None or one.cluster_id == cluster_id:
            queue = replace(one.queue, **changes)  # type: ignore[arg-type]  # names and types come from parse_queue
            if one.cluster_id == PRIMARY:
                ledger.set_primary_queue(queue)
            else:
                ledger.put_cluster(replace(one, queue=queue))
