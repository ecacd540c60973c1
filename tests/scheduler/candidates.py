"""Small worlds for placement tests: amounts, nodes and specs in a few characters."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from vctl.core import resources as rs
from vctl.core.clusters import FIXED, LOGICAL, PRIMARY, Cluster, ClusterSpec, FixedNode, Group, VNode
from vctl.core.labels import VCLUSTER_ID, VNODE_ID, Condition
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.resources import SCALE, Allocation
from vctl.scheduler import plan as pl

POLICIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
NAMES = {"c": "CPU", "g": "GPU", "m": "memory"}


def amounts(text: str) -> dict[str, int]:
    """'4c 0.5g' -> amounts in 1/10000."""
    return {NAMES.get(word[-1], word[-1]): round(float(word[:-1]) * SCALE) for word in text.split()}


def ledger(nodes: str | Sequence[str], labels: Mapping[str, str] | None = None) -> Ledger:
    """Nodes n1, n2, … from '4c 1g, 2c'; their template is their text, labels are given per node as 'k=v'."""
    result = Ledger()
    for number, text in enumerate(nodes.split(",") if isinstance(nodes, str) else nodes, 1):
        own = (
            dict([(labels or {}).get(f"n{number}", "").split("=")]) if f"n{number}" in (labels or {}) else {}
        )
        template = text.strip().replace(" ", "")
        result.put_node(Node(f"n{number}", template, rs.whole_node(amounts(text)), labels=own))
    return result


def run(world: Ledger, start: pl.Start, run_id: str) -> None:
    """Carry out a start: its process has a name of its own then."""
    with pl.unnoted(world):
        pl.apply(world, start)
        world.discharge(start.run_id)
        world.charge(run_id, start.vnode_id, start.allocation)


def slice_cluster(world: Ledger, cluster_id: str, slots: str) -> None:
    """A logical cluster with one virtual node per word: 'n1=2c, n1=1c 1g'; ids v1, v2, …"""
    world.put_cluster(Cluster(cluster_id, PRIMARY, LOGICAL, ClusterSpec(flexible=False)))
    for rank, text in enumerate(slots.split(","), 1):
        node_id, _, want = text.strip().partition("=")
        assign(world, cluster_id, f"{cluster_id}-v{rank}", node_id, amounts(want), rank)


def assign(
    world: Ledger, cluster_id: str, vnode_id: str, node_id: str, want: Mapping[str, int], rank: int = 0
) -> None:
    """One virtual node of a cluster on a physical node."""
    allocation: Allocation = world.capacities[node_id].copy().take(want)
    labels = {**world.vnodes[node_id].labels, VNODE_ID: vnode_id, VCLUSTER_ID: cluster_id}
    world.assign(VNode(vnode_id, cluster_id, node_id, node_id, FIXED, allocation, labels, rank=rank))


def use(world: Ledger, vnode_id: str, want: str) -> None:
    """A process that holds something."""
    allocation = world.capacities[vnode_id].copy().take(amounts(want))
    world.charge(f"run-{len(world.charges)}", vnode_id, allocation)


def selector(text: str) -> tuple[Condition, ...]:
    """'zone=a', 'zone!=a', 'zone', '!zone' or ''."""
    if not text:
        return ()
    if "!=" in text:
        key, value = text.split("!=")
        return (Condition(key, "!in", (value,)),)
    if "=" in text:
        key, value = text.split("=")
        return (Condition(key, "in", tuple(value.split("|"))),)
    return (Condition(text.lstrip("!"), "!exists" if text.startswith("!") else "exists"),)


def group(text: str) -> Group:
    """'STRICT_SPREAD: 1c, 1c 1g @zone=a'."""
    policy, _, nodes = text.partition(":")
    bundles = []
    for bundle in nodes.split(","):
        want, _, condition = bundle.partition("@")
        bundles.append(FixedNode(amounts(want), {}, selector(condition.strip())))
    return Group(tuple(bundles), policy)


def spec(
    *groups: str,
    flexible: str | None = None,
    most: str | None = None,
    whole: Mapping[str, int] | None = None,
) -> ClusterSpec:
    """A cluster spec; ``flexible`` None means that it has no flexible part."""
    return ClusterSpec(
        flexible_min=amounts(flexible or ""),
        flexible_max=None if most is None else amounts(most),
        groups=tuple(group(text) for text in groups),
        replica_sets=whole or {},
        flexible=flexible is not None,
    )


def random_groups(pick: random.Random, count: int, bundle: Callable[[random.Random], str]) -> list[str]:
    """So many bundles in groups of random sizes; in half of the groups all are alike."""
    groups = []
    while count:
        size = pick.randint(1, count)
        count -= size
        bundles = [bundle(pick) for _ in range(size)]
        if pick.random() < 0.5:
            bundles = [bundles[0]] * size
        groups.append(f"{pick.choice(POLICIES)}: " + ", ".join(bundles))
    return groups
