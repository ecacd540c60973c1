"""Placement with growth against brute force (specification, sections 4, 5, 6, 9)."""

from __future__ import annotations

import copy
import random

import pytest

from tests.scheduler import brute, brute_growth, candidates
from tests.specification import spec
from tests.world import differences, unbalanced
from vctl.core import labels as lb
from vctl.core.clusters import FIXED, FLEXIBLE, LOGICAL, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node
from vctl.core.resources import CPU, SCALE, Allocation, total
from vctl.scheduler.elasticity import apply_growth, growth_fits, held, revert_growth
from vctl.scheduler.feasibility import ever
from vctl.scheduler.gang_growth import place_with_growth
from vctl.scheduler.placement import Placed, place

pytestmark = spec("6.complete", "9.growth")

CPU_STEPS = [0.5, 1, 1, 1.5, 2, 2, 3]


def random_tree(pick: random.Random) -> tuple[Ledger, str]:
    """Two or three nodes; two or three levels, each with a sibling here and there, partly used."""
    nodes = [
        f"{pick.choice([2, 3, 4, 4, 5, 6])}c {pick.choice([0, 1, 2, 2])}g" for _ in range(pick.randint(2, 3))
    ]
    labels = {f"n{i}": f"zone={pick.choice('ab')}" for i in range(1, 4) if pick.random() < 0.6}
    world = candidates.ledger(nodes, labels)
    parent, cluster_id = PRIMARY, ""
    for depth in range(pick.choice([1, 2, 2, 3])):
        cluster_id = "abc"[depth]
        add_cluster(world, pick, cluster_id, parent, flexible=pick.random() < 0.92)
        for name in (f"{cluster_id}x", f"{cluster_id}y"):
            if pick.random() < 0.6:
                add_cluster(world, pick, name, parent, flexible=True, lends=pick.random() < 0.85)
        parent = cluster_id
    for vnode_id in sorted(world.vnodes):
        for _ in range(pick.randint(0, 2)):
            held_ = candidates.amounts(pick.choice(["0.5c", "1c", "1.5c", "2c", "0.5g", "0.25g", "1g"]))
            if pick.random() < 0.4 and world.capacities[vnode_id].fits(held_):
                world.charge(
                    f"run-{len(world.charges)}", vnode_id, world.capacities[vnode_id].copy().take(held_)
                )
    return world, cluster_id


def add_cluster(
    world: Ledger, pick: random.Random, cluster_id: str, parent: str, *, flexible: bool, lends: bool = False
) -> None:
    most = pick.choice([None, None, None, None, None, "8c", "6c 2g", "5c 1.5g", "3.5c", "2g"])
    borrow = pick.choice([None, None, None, None, None, "4c", "4c 2g", "1.5c"])
    spec = ClusterSpec({}, None if most is None else candidates.amounts(most), flexible=flexible)
    world.put_cluster(Cluster(cluster_id, parent, LOGICAL, spec))
    for rank in range(pick.randint(2, 3) if lends else pick.randint(0 if flexible else 1, 3)):
        slots = sorted(world.members[parent])
        if not slots:
            return
        slot = world.vnodes[pick.choice(slots)]
        want = candidates.amounts(
            f"{pick.choice([0, 0.5, 1, 1, 2])}c {pick.choice([0, 0, 0, 0.5, 0.25, 1])}g"
        )
        if lends:
            want = {n: a for n, a in world.capacities[slot.vnode_id].free.items() if a > 0}
            want["CPU"] = max(want.get("CPU", 0) - pick.choice([0, 0, 0, HALF, SCALE]), 0)
            if pick.random() < 0.5:
                want.pop("GPU", None)
            if any(a % SCALE for n, a in want.items() if n == "GPU" and a > SCALE):
                continue
        want = {name: amount for name, amount in want.items() if amount}
        is_flexible = flexible and (lends or pick.random() < 0.7)
        there = any(
            world.vnodes[v].kind == FLEXIBLE and world.vnodes[v].parent_id == slot.vnode_id
            for v in world.members[cluster_id]
        )
        if (is_flexible and there) or not world.capacities[slot.vnode_id].fits(want):
            continue
        after = {n: held(world, cluster_id).get(n, 0) + a for n, a in want.items()}
        if is_flexible and any(a > (spec.flexible_max or {}).get(n, a) for n, a in after.items()):
            continue
        vnode_id = f"{cluster_id}/{rank}"
        own = {"tier": pick.choice("xy")} if not is_flexible and pick.random() < 0.5 else {}
        tags = {**slot.labels, **own, lb.VNODE_ID: vnode_id, lb.VCLUSTER_ID: cluster_id}
        kind = FLEXIBLE if is_flexible else FIXED
        allocation = world.capacities[slot.vnode_id].copy().take(want)
        world.assign(
            VNode(vnode_id, cluster_id, slot.node_id, slot.vnode_id, kind, allocation, tags, rank=rank)
        )
    has = held(world, cluster_id)
    least = {name: pick.choice([0, amount, amount, max(amount - HALF, 0)]) for name, amount in has.items()}
    lending: dict[str, int] = {}
    if lends:
        least = {n: a + pick.choice([0, 0, HALF]) for n, a in has.items()}
        lending = {n: pick.choice([a, a, HALF, SCALE]) for n, a in least.items() if a}
    limit = None if borrow is None else candidates.amounts(borrow)
    if limit is not None:
        limit = {n: max(a, has.get(n, 0) - least.get(n, 0)) for n, a in limit.items()}
    least = {n: a for n, a in least.items() if a}
    if spec.flexible_max is not None:
        least = {n: min(a, spec.flexible_max.get(n, a)) for n, a in least.items()}
    spec = ClusterSpec(least, spec.flexible_max, flexible=flexible)
    world.put_cluster(Cluster(cluster_id, parent, LOGICAL, spec, borrow_limit=limit, lending_limit=lending))


HALF = SCALE // 2


def random_gang(pick: random.Random, world: Ledger) -> tuple[ClusterSpec, dict[str, int]]:
    groups = candidates.random_groups(pick, pick.choice([0, 0, 1, 1, 2, 3]), random_bundle)
    whole = {}
    if pick.random() < 0.1:
        whole = {pick.choice(sorted({n.template_id for n in world.nodes.values()})): pick.randint(1, 2)}
    flexible, most = None, None
    if pick.random() < 0.6 or not (groups or whole):
        flexible = f"{pick.choice([0, 0.5, 1, 1, 2, 2.5, 3, 4.5, 6, 8])}c"
        flexible += pick.choice(["", "", "", "", " 0.5g", " 1g", " 2g"])
        if pick.random() < 0.2:
            most = "8c 2g"
    entry = pick.choice(["", "", "", "", "", "", "0.5c", "0.5c", "1c", "1c 0.5g"])
    return candidates.spec(*groups, flexible=flexible, most=most, whole=whole), candidates.amounts(entry)


def random_bundle(pick: random.Random) -> str:
    cpu = pick.choice([0, 0.5, 0.5, 1, 1, 1.5, 2])
    gpu = pick.choice([0, 0, 0, 0, 0, 0, 0.25, 0.5, 1])
    condition = pick.choice(["", "", "", "", "", "", "", "", "", "", " @zone=a", " @zone!=a", " @!tier"])
    return f"{cpu}c {gpu}g{condition}"


def case(seed: int) -> tuple[Ledger, str, ClusterSpec, dict[str, int]]:
    pick = random.Random(seed)
    world, cluster_id = random_tree(pick)
    return (world, cluster_id, *random_gang(pick, world))


def compare(seeds: range) -> tuple[int, int, int, int]:
    """How many fit at once, with growth, when nothing runs, and never.

    Every answer is that of brute force, every plan is sound.
    """
    at_once = grown = waiting = hopeless = 0
    for seed in seeds:
        world, cluster_id, spec, entry = case(seed)
        assert unbalanced(world) == [], seed
        want = brute_growth.fits(world, cluster_id, spec, entry)
        possible = want or brute_growth.ever_fits(world, cluster_id, spec, entry)
        never = ever(world, cluster_id, spec, entry)
        assert (never is None) == possible, (seed, never)
        plan = place(world, cluster_id, spec, entry)
        if isinstance(plan, Placed):
            assert want, seed
            at_once += 1
            continue
        before = copy.deepcopy(world)
        found = place_with_growth(world, cluster_id, spec, entry)
        assert isinstance(found, tuple) == want, (seed, found, plan)
        if not isinstance(found, tuple):
            assert differences(world, before) == [], seed
            assert not found.exhausted, seed
            waiting += never is None
            hopeless += never is not None
            continue
        grown += 1
        steps, placed = found
        assert steps, seed
        assert unbalanced(world) == [], seed
        assert limits_broken(world, before) == [], seed
        brute.check(world, cluster_id, spec, entry, placed)
        after = copy.deepcopy(world)
        for step in reversed(steps):
            revert_growth(world, step)
        assert differences(world, before) == [], seed
        for step in steps:  # as a commit does
            assert growth_fits(world, step), (seed, step)
            apply_growth(world, step)
        assert differences(world, after) == [], seed
        for step in reversed(steps):
            revert_growth(world, step)
        assert place_with_growth(world, cluster_id, spec, entry) == found, seed
    return at_once, grown, waiting, hopeless


def limits_broken(world: Ledger, before: Ledger) -> list[str]:
    """Maxima, borrow and lending limits: nobody gained or lent more than he may."""
    broken = []
    for cluster_id, cluster in world.clusters.items():
        has, had = held(world, cluster_id), held(before, cluster_id)
        least = cluster.spec.flexible_min
        for name in {*has, *had}:
            more = has.get(name, 0) - had.get(name, 0)
            most = min(
                (cluster.spec.flexible_max or {}).get(name, 1 << 60),
                least.get(name, 0) + (cluster.borrow_limit or {}).get(name, 1 << 60),
            )
            if more > 0 and has[name] > most:
                broken.append(f"{cluster_id} has {has[name]} {name} of {most}")
            if more < 0 and least.get(name, 0) - has.get(name, 0) > cluster.lending_limit.get(name, 0):
                broken.append(f"{cluster_id} lent too much {name}")
    return broken


@pytest.mark.parametrize("number", [127, 129, 300])
def test_a_minimum_over_many_equal_nodes_is_placed_whole(number: int) -> None:
    """The limit of one resource is reached, so it is spread anew over the first 128 nodes; the others keep theirs."""
    world = Ledger()
    for n in range(number):
        world.put_node(Node(f"a{n:03}", "a", Allocation({CPU: SCALE, "mem": 3 * SCALE}), f"a{n:03}", {}))
    most = {"mem": 9 * SCALE, CPU: 1000 * SCALE}
    world.put_cluster(Cluster("c", PRIMARY, LOGICAL, ClusterSpec({"mem": 6 * SCALE}, most)))
    for n in range(3):
        amounts = Allocation({"mem": 2 * SCALE})
        world.put_node(Node(f"m{n}", "m", amounts, f"m{n}", {}))
        world.assign(VNode(f"c/{n}", "c", f"m{n}", f"m{n}", FLEXIBLE, amounts, {}, rank=n))
    minimum = {CPU: number * SCALE, "mem": 6 * SCALE}
    found = place_with_growth(world, "c", ClusterSpec(minimum), {})
    assert isinstance(found, tuple)
    assert isinstance(found[1], Placed)
    assert total(piece.allocation.amounts for piece in found[1].pieces) == minimum


def test_growth_is_found_exactly_when_brute_force_finds_some() -> None:
    at_once, grown, waiting, hopeless = compare(range(250))
    assert min(at_once, grown, waiting, hopeless) > 5, (at_once, grown, waiting, hopeless)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_growth_is_found_exactly_when_brute_force_finds_some_2000() -> None:
    at_once, grown, waiting, hopeless = compare(range(2000))
    assert at_once + grown + waiting + hopeless == 2000
    assert min(at_once, grown, waiting, hopeless) > 60, (at_once, grown, waiting, hopeless)
