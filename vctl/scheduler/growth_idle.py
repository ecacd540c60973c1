"""The clusters above some work as they are when nothing runs: what they borrowed is given back, siblings are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vctl.core import resources as rs
from vctl.core.clusters import FLEXIBLE, PRIMARY, Cluster, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE, DRAINING
from vctl.core.resources import CPU, SCALE, Holding, Room, difference


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
        for vnode_id, holding in kept[cluster.cluster_id].items():
            vnode = ledger.vnodes[vnode_id]
            if vnode.parent_id in empty.vnodes:
                empty.carve(replace(vnode, holding=holding))
    return empty


def lineage(ledger: Ledger, cluster_id: str) -> list[Cluster]:
    """A cluster and those above it, without the primary."""
    found = []
    while cluster_id != PRIMARY:
        found.append(ledger.clusters[cluster_id])
        cluster_id = found[-1].parent_id or PRIMARY
    return found


def idle_parts(ledger: Ledger, chain: list[Cluster]) -> dict[str, dict[str, Holding]]:
    """Per cluster its virtual nodes with what they have once nothing runs: the newest give back first."""
    kept: dict[str, dict[str, Holding]] = {}
    inside: dict[str, list[Holding]] = {}
    for cluster in chain:
        mine = sorted((ledger.vnodes[v] for v in ledger.members[cluster.cluster_id]), key=lambda v: v.rank)
        flexible = [vnode for vnode in mine if vnode.kind == FLEXIBLE]
        has = rs.total(vnode.holding.amounts for vnode in flexible)
        least = cluster.spec.flexible_min
        surplus = {n: a - least.get(n, 0) for n, a in has.items() if a > least.get(n, 0)}
        holdings = {vnode.vnode_id: vnode.holding for vnode in mine}
        for vnode in reversed(flexible):
            holdings[vnode.vnode_id] = _without(vnode, inside.get(vnode.vnode_id, ()), surplus)
        gone = {v.vnode_id for v in flexible if not any(holdings[v.vnode_id].amounts.values())}
        gone -= set(inside)
        kept[cluster.cluster_id] = {v: holding for v, holding in holdings.items() if v not in gone}
        for vnode_id, holding in kept[cluster.cluster_id].items():
            inside.setdefault(ledger.vnodes[vnode_id].parent_id or "", []).append(holding)
    return kept


def _without(vnode: VNode, inside: list[Holding] | tuple[()], surplus: dict[str, int]) -> Holding:
    """What is left of a flexible virtual node; what is taken off is counted off the surplus."""
    room = Room(vnode.holding)
    for holding in inside:
        room.take_beyond(holding)
    amounts: dict[str, int] = {}
    instances: dict[str, Mapping[int, int]] = {}
    for name, most in surplus.items():
        left = amount = max(min(most, room.free.get(name, 0)), 0)
        if name in room.instances:
            back: dict[int, int] = {}
            for index, share in sorted(room.instances[name].items(), reverse=True):
                if taken := max(min(share, left), 0):
                    back[index], left = taken, left - taken
            instances[name], amount = back, amount - left
        if amount:
            amounts[name] = amount
            surplus[name] = most - amount
    rest = vnode.holding.amounts.get(CPU, 0) - amounts.get(CPU, 0)
    cores = sorted(room.cores)[: max(len(vnode.holding.cores) - rest // SCALE, 0)]
    less = difference(vnode.holding, Holding(amounts, instances, tuple(cores)))
    return replace(less, instances={name: shares for name, shares in less.instances.items() if shares})
