"""What is displaced from nodes finds a place wherever there is one: random small trees against brute force."""

from __future__ import annotations

import random

from tests.scheduler import candidates as g
from tests.scheduler.brute_relocation import Brute, Undecided
from tests.specification import spec
from vctl.core import resources as rs
from vctl.core.clusters import FIXED, FLEXIBLE, LOGICAL, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.labels import matches
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, DRAINING
from vctl.core.values import replace
from vctl.scheduler.minimum import lacks
from vctl.scheduler.replacement import below, move, units
from vctl.scheduler.reshape import reshape

pytestmark = spec("12.node-death", "6.complete")

KINDS = ("whole", "fixed", "flexible", "both")


def random_spec(pick: random.Random, kind: str, templates: list[str]) -> ClusterSpec:
    """A cluster of whole nodes, of fixed slices, of a flexible part, or of both kinds of slices."""
    if kind == "whole":
        return g.spec(whole={pick.choice(templates): pick.choice([1, 1, 2])})
    groups = []
    if kind != "flexible":
        bundles = [
            f"{pick.choice([1, 1, 2, 3])}c {pick.choice([0, 0, 0, 0.5, 1])}g"
            + pick.choice(["", "", " @zone=a", " @zone!=a"])
            for _ in range(pick.choice([1, 2, 2]))
        ]
        groups = [f"{pick.choice(g.POLICIES)}: {', '.join(bundles)}"]
    least = f"{pick.choice([1, 2, 3, 4])}c {pick.choice([0, 0, 0, 1])}g"
    return g.spec(*groups, flexible=None if kind == "fixed" else least)


def random_tree(seed: int) -> Ledger:
    """Up to three levels of clusters on two to four nodes, some of the rest in use."""
    pick = random.Random(seed)
    kinds = [
        pick.choice(["4c 1g", "4c 1g", "4c 2g", "2c", "3c 1g"]) for _ in range(pick.choice([2, 3, 3, 4]))
    ]
    labels = {f"n{i}": f"zone={pick.choice('ab')}" for i in range(1, 5) if pick.random() < 0.7}
    world = g.ledger(kinds, labels)
    templates = sorted({node.template_id for node in world.nodes.values()})
    for number in range(pick.choice([1, 2, 3, 4, 4, 5])):
        parents = [one for one in world.clusters if len(world.upward(one)) < 3]
        parent_id = pick.choice(parents[-2:] if pick.random() < 0.7 else parents)
        asked = random_spec(pick, pick.choice(KINDS), templates)
        trial = world.copy()
        cluster_id = f"c{number}"
        trial.put_cluster(Cluster(cluster_id, parent_id, LOGICAL, asked))
        if reshape(trial, cluster_id, ClusterSpec(flexible=False), asked, [], {}) is None:
            world = trial
    return world


def lost(world: Ledger, node_id: str) -> list[VNode]:
    """What must move off a node, outermost first: all of it, and of a draining node its slices with their contents."""
    found: list[VNode] = []
    whole = [world.vnodes[node_id]]
    for vnode in whole:
        for child in (world.vnodes[one] for one in world.children[vnode.vnode_id]):
            is_kept = world.nodes[node_id].state == DRAINING and child.whole and vnode not in found
            whole.append(child)
            found += [] if is_kept else [child]
    return found


def repaired(world: Ledger, node_ids: list[str]) -> Ledger:
    """The tree after all moves."""
    world = world.copy()
    for _ in range(50):
        if (found := move(world, units(world, node_ids, {}), {})) is None:
            return world
        world.rearrange(found.removed, found.placed)
        check(world)
    raise AssertionError("it does not end")


def check(world: Ledger) -> None:
    """The rules of the tree, from its virtual nodes alone."""
    for vnode_id, vnode in world.vnodes.items():
        inside = [world.vnodes[one] for one in world.children[vnode_id]]
        assert {one.node_id for one in inside} <= {vnode.node_id}
        used = rs.total(one.allocation.amounts for one in inside)
        held = [one for where, one in world.charges.values() if where == vnode_id]
        used = rs.add(used, rs.total(one.amounts for one in held))
        assert rs.within(used, vnode.allocation.amounts), vnode
        shares: dict[tuple[str, int], int] = {}
        for one in [*(child.allocation for child in inside), *held]:
            for name, parts in one.instances.items():
                assert sum(parts.values()) == one.amounts.get(name, 0)
                for index, share in parts.items():
                    shares[name, index] = shares.get((name, index), 0) + share
        for (name, index), share in shares.items():
            assert share <= vnode.allocation.instances[name][index]
        assert all(one.allocation == vnode.allocation for one in inside if one.whole)
    for cluster in world.clusters.values():
        members = sorted(
            (world.vnodes[one] for one in world.members[cluster.cluster_id]), key=lambda one: one.rank
        )
        places = [one.parent_id for one in members if one.kind == FLEXIBLE]
        assert len(places) == len(set(places))
        fixed = [one for one in members if one.kind == FIXED and not one.whole]
        assert len(fixed) == len(cluster.spec.fixed)
        for group in cluster.spec.groups:
            mine, fixed = fixed[: len(group.nodes)], fixed[len(group.nodes) :]
            nodes = {one.node_id for one in mine}
            assert group.policy != "STRICT_SPREAD" or len(nodes) == len(mine)
            assert group.policy != "STRICT_PACK" or len(nodes) == 1
            for asked, vnode in zip(group.nodes, mine, strict=True):
                assert rs.shape_of(vnode.allocation.amounts) == rs.shape_of(asked.resources)
                assert matches(asked.selector, world.vnodes[vnode.parent_id or ""].labels)


def is_whole(world: Ledger, node_ids: list[str]) -> bool:
    """Whether nothing is left that must move, and no minimum lacks anything."""
    left = [vnode for one in node_ids for vnode in lost(world, one)]
    return not left and not any(lacks(world, one, {}) for one in world.clusters if one != PRIMARY)


def decided(seed: int) -> tuple[bool, bool] | None:
    """What brute force says and what became of the tree; None: no node has anything, or there are too many ways."""
    world = random_tree(seed)
    pick = random.Random(seed)
    full = [one for one in sorted(world.nodes) if world.children[one]]
    if not full:
        return None
    node_ids = pick.sample(full, min(len(full), pick.choice([1, 1, 1, 2])))
    check(world)
    for node_id in node_ids:
        state = pick.choice([DEAD, DEAD, DRAINING])
        world.put_node(replace(world.nodes[node_id], state=state))
    for vnode_id in sorted(world.vnodes):  # some of the rest is in use
        held = g.amounts(pick.choice(["1c", "2c", "1g"]))
        if world.vnodes[vnode_id].node_id not in node_ids and pick.random() < 0.2:
            if world.capacities[vnode_id].fits(held):
                world.charge(f"run:{vnode_id}", vnode_id, world.capacities[vnode_id].copy().take(held))
    gone = [vnode for one in node_ids for vnode in lost(world, one)]
    if not gone:
        return None
    after = repaired(world, node_ids)
    try:
        could = Brute(world, gone).fits()
        for left in (vnode for one in node_ids for vnode in lost(after, one)):
            inside = [left, *below(after, left.vnode_id)]
            assert not Brute(after, inside).fits(), f"{left.vnode_id} has a place, and stays"
    except Undecided:
        return None
    return could, is_whole(after, node_ids)


def test_a_tree_is_whole_again_wherever_there_is_room() -> None:
    """Also what is left has no place alone. 500 random cases, both answers among them."""
    answers: list[bool] = []
    for seed in range(10_000):
        if (found := decided(seed)) is not None:
            could, did = found
            assert could == did, f"seed {seed}: brute force says {could}"
            answers.append(could)
        if len(answers) == 500:
            break
    assert min(answers.count(True), answers.count(False)) > 100
