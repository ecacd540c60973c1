"""The clusters above some work as they are when nothing runs: what they borrowed is given back, siblings are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY, Cluster, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING
from vctl.core.resources import CPU, SCALE, Allocation, FreeCapacity, difference


def emptied(ledger: Ledger, cluster_id: str) -> Ledger:
    """A tree of one cluster and those above it alone, on every alive or draining node, with nothing in use."""
    empty = Ledger()
    for node in ledger.nodes.values():
        if node.state in (ALIVE, DRAINING):
            empty.put_node(replace(node, state=ALIVE))
    chain = lineage(ledger, cluster_id)
    kept = idle_parts(ledger, chain)
    for cluster in reversed(chain):
        empty.put_cluster(replace(cluster, state="ACTIVE"))
        for vnode_id, allocation in kept[cluster.cluster_id].items():
            vnode = ledger.vnodes[vnode_id]
            if vnode.parent_id in empty.vnodes:
                empty.assign(replace(vnode, allocation=allocation))
    return empty


def lineage(ledger: Ledger, cluster_id: str) -> list[Cluster]:
    """A cluster and those above it, without the primary."""
    found = []
    while cluster_id != PRIMARY:
        found.append(ledger.clusters[cluster_id])
        cluster_id = found[-1].parent_id or PRIMARY
    return found


def idle_parts(ledger: Ledger, chain: list[Cluster]) -> dict[str, dict[str, Allocation]]:
    """Per cluster its virtual nodes with what they have once nothing runs: the newest give back first."""
    kept: dict[str, dict[str, Allocation]] = {}
    inside: dict[str, list[Allocation]] = {}
    for cluster in chain:
        mine = sorted((ledger.vnodes[v] for v in ledger.members[cluster.cluster_id]), key=lambda v: v.rank)
        flexible = [vnode for vnode in mine if vnode.kind == FLEXIBLE]
        has = rs.total(vnode.allocation.amounts for vnode in flexible)
        least = cluster.spec.flexible_min
        surplus = {n: a - least.get(n, 0) for n, a in has.items() if a > least.get(n, 0)}
        allocations = {vnode.vnode_id: vnode.allocation for vnode in mine}
        for vnode in reversed(flexible):
            allocations[vnode.vnode_id] = _without(vnode, inside.get(vnode.vnode_id, ()), surplus)
        gone = {v.vnode_id for v in flexible if not any(allocations[v.vnode_id].amounts.values())}
        gone -= set(inside)
        kept[cluster.cluster_id] = {v: allocation for v, allocation in allocations.items() if v not in gone}
        for vnode_id, allocation in kept[cluster.cluster_id].items():
            inside.setdefault(ledger.vnodes[vnode_id].parent_id or "", []).append(allocation)
    return kept


def _without(vnode: VNode, inside: list[Allocation] | tuple[()], surplus: dict[str, int]) -> Allocation:
    """What is left of a flexible virtual node; what is taken off is counted off the surplus."""
    capacity = FreeCapacity(vnode.allocation)
    for allocation in inside:
        capacity.take_beyond(allocation)
    amounts: dict[str, int] = {}
    instances: dict[str, Mapping[int, int]] = {}
    for name, most in surplus.items():
        left = amount = max(min(most, capacity.free.get(name, 0)), 0)
        if name in capacity.instances:
            back: dict[int, int] = {}
            for index, share in sorted(capacity.instances[name].items(), reverse=True):
                if taken := max(min(share, left), 0):
                    back[index], left = taken, left - taken
            instances[name], amount = back, amount - left
        if amount:
            amounts[name] = amount
            surplus[name] = most - amount
    rest = vnode.allocation.amounts.get(CPU, 0) - amounts.get(CPU, 0)
    cores = sorted(capacity.cores)[: max(len(vnode.allocation.cores) - rest // SCALE, 0)]
    less = difference(vnode.allocation, Allocation(amounts, instances, tuple(cores)))
    return replace(less, instances={name: shares for name, shares in less.instances.items() if shares})
