"""Placement against brute force: the same answer on random small gangs, and the fewest nodes for PACK."""

from __future__ import annotations

import random

from tests.scheduler import brute, candidates
from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.ledger import Ledger
from vctl.core.values import replace
from vctl.scheduler.feasibility import could_help, empty_nodes, ever
from vctl.scheduler.placement import Placed, Places, Unplaced, place, place_again, place_on

pytestmark = spec("6.complete")

Case = tuple[Ledger, str, ClusterSpec, dict[str, int]]


def random_case(seed: int) -> Case:
    """A cluster of at most four slots, partly used, and a gang of at most four bundles."""
    pick = random.Random(seed)
    world, parent_id = random_world(pick)
    groups = candidates.random_groups(pick, pick.choice([0, 1, 2, 3, 3, 4]), random_bundle)
    whole = {}
    if parent_id == PRIMARY and pick.random() < 0.2:
        whole = {pick.choice(sorted({node.template_id for node in world.nodes.values()})): pick.randint(1, 2)}
    flexible, most = None, None
    if pick.random() < 0.5 or not (groups or whole):
        flexible = f"{pick.choice([0, 0, 0.5, 1, 1, 2, 2.5, 3, 4.5])}c"
        flexible += pick.choice(["", "", "", " 0.5g", " 1g", " 2g"])
        if pick.random() < 0.2:
            most = "6c 2g"
    entry = pick.choice(["", "", "", "", "0.5c", "0.5c", "1c", "1.5c", "1c 0.5g", "1g"])
    return (
        world,
        parent_id,
        candidates.spec(*groups, flexible=flexible, most=most, whole=whole),
        candidates.amounts(entry),
    )


def random_world(pick: random.Random) -> tuple[Ledger, str]:
    nodes = [
        f"{pick.choice([1, 2, 2, 3, 4])}c {pick.choice([0, 1, 1, 2, 2])}g" for _ in range(pick.randint(2, 4))
    ]
    labels = {f"n{i}": f"zone={pick.choice('ab')}" for i in range(1, 5) if pick.random() < 0.7}
    world, parent_id = candidates.ledger(nodes, labels), PRIMARY
    if pick.random() < 0.4:
        parent_id = "part"
        candidates.slice_cluster(world, parent_id, "n1=0.5c")
        for i in range(2, 5):
            node_id = pick.choice(sorted(world.nodes))
            want = candidates.amounts(f"{pick.choice([1, 1.5, 2, 2])}c {pick.choice([0, 0.5, 1, 1])}g")
            if world.capacities[node_id].fits(want):
                candidates.assign(world, parent_id, f"part-v{i}", node_id, want, i)
    for vnode_id in sorted(world.members[parent_id]):
        for _ in range(pick.randint(0, 2)):
            held = pick.choice(["0.5c", "1c", "0.5g", "0.25g", "0.75g", "0.25g"])
            if pick.random() < 0.5 and world.capacities[vnode_id].fits(candidates.amounts(held)):
                candidates.use(world, vnode_id, held)
    return world, parent_id


def random_bundle(pick: random.Random) -> str:
    cpu = pick.choice([0, 0, 0.5, 0.5, 0.5, 1, 1, 1.5, 2])
    gpu = pick.choice([0, 0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 1])
    condition = pick.choice(
        ["", "", "", "", "", "", "", "", " @zone=a", " @zone!=a", " @zone", " @ray.io/vnode_id=n1|part-v2"]
    )
    return f"{cpu}c {gpu}g{condition}"


def test_fits_exactly_when_brute_force_finds_an_assignment() -> None:
    agreed = placed = 0
    for seed in range(2000):
        world, parent_id, spec, entry = random_case(seed)
        want = brute.fits(world, parent_id, spec, entry)
        plan = place(world, parent_id, spec, entry)
        assert isinstance(plan, Placed) == want, (seed, plan)
        if isinstance(plan, Placed):
            brute.check(world, parent_id, spec, entry, plan)
            assert ever(world, parent_id, spec, entry) is None, seed
            placed += 1
        else:
            assert plan.message, seed
            assert not plan.exhausted, seed
        assert place(world, parent_id, spec, entry) == plan, seed
        agreed += 1
    assert agreed == 2000
    assert 600 < placed < 1600, "the cases are neither all easy nor all hopeless"


def test_what_counting_calls_feasible_is_what_the_search_places_on_empty_nodes() -> None:
    """``ever`` answers most submits without a search; it must not say more than the search."""
    feasible = 0
    for seed in range(2000):
        world, parent_id, spec, entry = random_case(seed)
        searched = place_on(empty_nodes(world, parent_id), spec, entry)
        assert (ever(world, parent_id, spec, entry) is None) == isinstance(searched, Placed), (seed, searched)
        feasible += isinstance(searched, Placed)
    assert 800 < feasible < 1900


def test_pack_uses_the_fewest_nodes() -> None:
    fewest = compared = 0
    for seed in range(700):
        pick = random.Random(seed)
        world, parent_id = random_world(pick)
        text = "PACK: " + ", ".join(random_bundle(pick) for _ in range(pick.randint(2, 4)))
        spec = candidates.spec(text)
        plan = place(world, parent_id, spec, {})
        if isinstance(plan, Placed):
            best = min(len({n for _, n in found}) for found in brute.assignments(world, parent_id, spec, {}))
            used = len({piece.node_id for piece in plan.pieces})
            compared += 1
            fewest += used == best
            assert used == best, (seed, used, best)
    assert compared > 100
    assert fewest == compared


def test_spread_uses_distinct_nodes_when_it_can() -> None:
    for seed in range(300):
        pick = random.Random(seed)
        world, parent_id = random_world(pick)
        bundles = ", ".join(random_bundle(pick) for _ in range(pick.randint(2, 3)))
        strict = place(world, parent_id, candidates.spec(f"STRICT_SPREAD: {bundles}"), {})
        if isinstance(strict, Placed):
            soft = place(world, parent_id, candidates.spec(f"SPREAD: {bundles}"), {})
            assert isinstance(soft, Placed), seed
            assert len({piece.node_id for piece in soft.pieces}) == len(soft.pieces), seed


def test_nothing_that_now_fits_is_called_hopeless() -> None:
    helped = 0
    for seed in range(1500):
        world, parent_id, spec, entry = random_case(seed)
        if isinstance(place(world, parent_id, spec, entry), Unplaced) and world.charges:
            run_id = next(iter(world.charges))
            vnode_id = world.charges[run_id][0]
            world.discharge(run_id)
            if isinstance(place(world, parent_id, spec, entry), Placed):
                helped += 1
                assert could_help(world, parent_id, spec, entry, [vnode_id]), seed
    assert helped > 10


def test_a_place_that_is_known_is_the_one_that_a_search_finds() -> None:
    """Spec 6: equal free capacity, equal place, whatever took it before; only cores and instances are chosen anew."""
    repeated = 0
    for seed in range(80):
        world, parent_id, wanted, entry = random_case(seed)
        pick, known = random.Random(seed), Places()
        taken: list[str] = []
        for number in range(24):
            stamp = world.index(parent_id).stamp
            was_known = stamp in known
            found = place_again(world, parent_id, wanted, entry, known)
            assert found == place(world, parent_id, wanted, entry), (seed, number)
            repeated += was_known and isinstance(found, Placed)
            if taken and pick.random() < 0.5:
                world.discharge(taken.pop(pick.randrange(len(taken))))
            else:
                vnode_id = pick.choice(sorted(world.members[parent_id]))
                want = candidates.amounts(pick.choice(["0.5c", "1c", "1c", "0.5g", "1g", "1c 1g"]))
                if world.capacities[vnode_id].fits(want):
                    held = world.capacities[vnode_id].choice(want)
                    taken.append(f"{seed}.{number}")
                    world.charge(taken[-1], vnode_id, held)
    assert repeated > 150


def test_a_known_place_is_used_again_although_equal_jobs_come_and_go() -> None:
    """Spec 6: the first of a row of jobs pays for the search, where none of them waits when the next one comes."""
    world = candidates.ledger("4c", {"n2": "zone=a"})
    wanted, known = candidates.spec("PACK: 1c"), Places()
    world.demand.ask("others", candidates.spec("PACK: 1c @zone=a"))
    places = []
    for _ in range(3):
        world.demand.ask("queue", wanted)
        places.append(place_again(world, "kPrimaryClusterID", wanted, {}, known))
        world.demand.put("queue")
    assert isinstance(places[0], Placed)
    assert places[1] is places[0]
    assert places[2] is places[0]


def test_what_was_known_of_a_cluster_is_not_believed_of_another_one_of_its_name() -> None:
    """Spec 6: a cluster is removed and made again, on the same node with another label."""
    world = candidates.ledger("2c", {"n1": "zone=a"})
    wanted, known = candidates.spec("PACK: 1c @zone=a"), Places()
    candidates.slice_cluster(world, "part", "n1=1c")
    assert isinstance(place_again(world, "part", wanted, {}, known), Placed)
    world.remove_cluster("part")
    world.put_node(replace(world.nodes["n1"], labels={"zone": "b"}))
    candidates.slice_cluster(world, "part", "n1=1c")
    assert isinstance(place_again(world, "part", wanted, {}, known), Unplaced)
