"""Step 3 of the replay: divisible clusters that lack nodes which their job clusters have already.

A writer that was interrupted, or that stored both in two steps, may leave a job cluster with its replacement while the
cluster above still lists the dead node. The job cluster is right: work runs there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vctl.core import labels as lb
from vctl.core.clusters import FIXED, LOGICAL, PRIMARY, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD
from vctl.engine.changes import VNodesChanged
from vctl.scheduler.membership import is_undivided
from vctl.store import rows
from vctl.store.store import Row, Store

Added = Counter[tuple[str, str]]
"""(cluster id, template) -> how many nodes were added."""


def repair_divisible(
    store: Store, ledger: Ledger, job_clusters: Sequence[Row], vnodes: Mapping[str, list[Row]]
) -> list[str]:
    """Add D, the nodes of job clusters missing above them, and drop as many dead ones of the same templates.

    The ledger holds the logical clusters and gets the repair too; virtual nodes of job clusters are put where they
    belong. Returns what was done; the rows of job clusters are to be read again when that is anything.
    """
    done: list[str] = []
    added: Added = Counter()
    used: set[str] = set()
    for row in job_clusters:
        parent_id = row["parent_id"]
        for held in vnodes.get(row["cluster_id"], ()):
            above = ledger.vnodes.get(held["parent_vnode_id"])
            if parent_id in ledger.clusters and not _is_of(above, parent_id, held["node_id"]):
                above = _slot(store, ledger, parent_id, held["node_id"], row["cluster_id"], added, done)
                if above is not None:
                    moved = replace(rows.vnode(held), parent_id=above.vnode_id)
                    store.emit(VNodesChanged(placed=(moved,)))
                    done.append(f"put {held['vnode_id']} into {above.vnode_id} on {above.node_id}")
            used.add(held["parent_vnode_id"] if above is None else above.vnode_id)
    for cluster_id, template in sorted(added, key=lambda key: (-_depth(ledger, key[0]), key)):
        done += _drop_dead(store, ledger, cluster_id, template, added[cluster_id, template], used)
    for cluster_id in sorted({cluster_id for cluster_id, _ in added}):
        store.event("cluster.repaired", "cluster", cluster_id, cluster_id=cluster_id)
    return done


def _is_of(vnode: VNode | None, cluster_id: str, node_id: str) -> bool:
    return vnode is not None and vnode.cluster_id == cluster_id and vnode.node_id == node_id


def _slot(
    store: Store, ledger: Ledger, cluster_id: str, node_id: str, for_id: str, added: Added, done: list[str]
) -> VNode | None:
    """The whole virtual node of a cluster on a node: as it is there, or added when the cluster above can give it."""
    if cluster_id == PRIMARY:
        return ledger.vnodes.get(node_id)
    for vnode_id in ledger.members[cluster_id]:
        if ledger.vnodes[vnode_id].whole and ledger.vnodes[vnode_id].node_id == node_id:
            return ledger.vnodes[vnode_id]
    cluster = ledger.clusters[cluster_id]
    if cluster.kind != LOGICAL or cluster.spec.flexible or cluster.spec.groups or cluster.parent_id is None:
        return None
    above = _slot(store, ledger, cluster.parent_id, node_id, cluster_id, added, done)
    if above is None or not is_undivided(ledger, above):
        return None
    rank = max((ledger.vnodes[v].rank for v in ledger.members[cluster_id]), default=-1) + 1
    vnode_id = f"{cluster_id}/{rank}"
    labels = {**above.labels, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
    vnode = replace(
        above, vnode_id=vnode_id, cluster_id=cluster_id, parent_id=above.vnode_id, kind=FIXED, labels=labels, rank=rank
    )  # fmt: skip
    ledger.assign(vnode)
    store.emit(VNodesChanged(placed=(vnode,)))
    added[cluster_id, ledger.nodes[node_id].template_id] += 1
    done.append(f"added node {node_id} to {cluster_id}: {for_id} has it already")
    return vnode


def _drop_dead(
    store: Store, ledger: Ledger, cluster_id: str, template: str, most: int, used: set[str]
) -> list[str]:
    """Take dead nodes of a template out of a cluster, as many as were added, unless something still lies on them."""
    gone = [
        vnode
        for vnode in ledger.slots(cluster_id)
        if vnode.whole
        and vnode.vnode_id not in used
        and ledger.nodes[vnode.node_id].template_id == template
        and ledger.nodes[vnode.node_id].state == DEAD
        and is_undivided(ledger, vnode)
    ][:most]
    for vnode in gone:
        ledger.release(vnode.vnode_id)
        store.emit(VNodesChanged((vnode.vnode_id,)))
    return [f"dropped dead node {vnode.node_id} from {cluster_id}" for vnode in gone]


def _depth(ledger: Ledger, cluster_id: str) -> int:
    depth, parent_id = 0, ledger.clusters[cluster_id].parent_id
    while parent_id is not None:
        depth, parent_id = depth + 1, ledger.clusters[parent_id].parent_id
    return depth
