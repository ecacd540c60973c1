"""Step 3 of the replay: repairs divisible clusters that lack nodes which their job clusters already have.

A writer that was interrupted, or that stored both clusters in two steps, may leave a job cluster with a
replacement node while the cluster above still has the dead node. The job cluster is right: work runs there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from vctl.core import labels as lb
from vctl.core.clusters import FIXED, LOGICAL, PRIMARY, Cluster, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD
from vctl.core.values import replace
from vctl.engine.changes import ClusterRepaired, VNodesChanged
from vctl.scheduler.membership import is_undivided

Added = Counter[tuple[str, str]]
"""(cluster id, template) -> how many nodes were added."""
Repair = Callable[..., None]
"""A function that takes a line for users and the changes of a repair."""


def repair_divisible(
    ledger: Ledger, job_clusters: Iterable[Cluster], vnodes: Mapping[str, list[VNode]], repair: Repair
) -> list[ClusterRepaired]:
    """Add nodes of job clusters to the clusters above that lack them; drop as many dead ones by template.

    ``ledger`` has the logical clusters, and is repaired too. Virtual nodes of job clusters are put into the
    right virtual nodes of their parents. Returns one ``ClusterRepaired`` for each cluster that got a node.
    """
    added: Added = Counter()
    used: set[str] = set()
    for cluster in job_clusters:
        parent_id, members = cluster.parent_id, vnodes.get(cluster.cluster_id, [])
        for number, held in enumerate(members):
            above = ledger.vnodes.get(held.parent_id or "")
            if parent_id in ledger.clusters and not _is_of(above, parent_id, held.node_id):
                above = _slot(ledger, parent_id, held.node_id, cluster.cluster_id, added, repair)
                if above is not None:
                    moved = members[number] = replace(held, parent_id=above.vnode_id)
                    action = f"put {held.vnode_id} into {above.vnode_id} on {above.node_id}"
                    repair(action, VNodesChanged(placed=(moved,)))
            used.add(members[number].parent_id or "")
    for cluster_id, template in sorted(added, key=lambda key: (-_depth(ledger, key[0]), key)):
        for vnode in _dead(ledger, cluster_id, template, used)[: added[cluster_id, template]]:
            ledger.release(vnode.vnode_id)
            repair(f"dropped dead node {vnode.node_id} from {cluster_id}", VNodesChanged((vnode.vnode_id,)))
    return [ClusterRepaired(cluster_id) for cluster_id in sorted({cluster_id for cluster_id, _ in added})]


def _is_of(vnode: VNode | None, cluster_id: str, node_id: str) -> bool:
    return vnode is not None and vnode.cluster_id == cluster_id and vnode.node_id == node_id


def _slot(
    ledger: Ledger, cluster_id: str, node_id: str, for_id: str, added: Added, repair: Repair
) -> VNode | None:
    """A cluster's whole virtual node on a node; a missing one is added if the cluster above can give it."""
    if cluster_id == PRIMARY:
        return ledger.vnodes.get(node_id)
    for vnode_id in ledger.members[cluster_id]:
        if ledger.vnodes[vnode_id].whole and ledger.vnodes[vnode_id].node_id == node_id:
            return ledger.vnodes[vnode_id]
    cluster = ledger.clusters[cluster_id]
    if cluster.kind != LOGICAL or cluster.spec.flexible or cluster.spec.groups or cluster.parent_id is None:
        return None
    above = _slot(ledger, cluster.parent_id, node_id, cluster_id, added, repair)
    if above is None or not is_undivided(ledger, above):
        return None
    rank = max((ledger.vnodes[v].rank for v in ledger.members[cluster_id]), default=-1) + 1
    vnode_id = f"{cluster_id}/{rank}"
    labels = {**above.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
    vnode = replace(
        above, vnode_id=vnode_id, cluster_id=cluster_id, parent_id=above.vnode_id, kind=FIXED, labels=labels, rank=rank
    )  # fmt: skip
    ledger.assign(vnode)
    added[cluster_id, ledger.nodes[node_id].template_id] += 1
    repair(f"added node {node_id} to {cluster_id}: {for_id} has it already", VNodesChanged(placed=(vnode,)))
    return vnode


def _dead(ledger: Ledger, cluster_id: str, template: str, used: Collection[str]) -> list[VNode]:
    """The dead nodes of a template in a cluster, without those on which something still lies."""
    return [
        vnode
        for vnode in ledger.slots(cluster_id)
        if vnode.whole
        and vnode.vnode_id not in used
        and ledger.nodes[vnode.node_id].template_id == template
        and ledger.nodes[vnode.node_id].state == DEAD
        and is_undivided(ledger, vnode)
    ]


def _depth(ledger: Ledger, cluster_id: str) -> int:
    depth, parent_id = 0, ledger.clusters[cluster_id].parent_id
    while parent_id is not None:
        depth, parent_id = depth + 1, ledger.clusters[parent_id].parent_id
    return depth
