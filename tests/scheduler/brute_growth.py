"""Whether a gang fits when clusters grow and siblings lend: tries everything, on plain numbers.

Written from sections 4, 5, 6 and 9 of the specification. Shares nothing with ``vctl.scheduler`` but the tree itself:
no ladders, no flows, no classes of nodes. A place is a virtual node of the cluster that is there or could be made.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from tests.scheduler.brute import HALF, ONE
from vctl.core.clusters import FLEXIBLE, LOGICAL, PRIMARY, ClusterSpec, FixedNode
from vctl.core.labels import VCLUSTER_ID, VNODE_ID, matches
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.core.values import replace

QUARTER = 2_500
Atom = tuple[str, int]
"""A resource (-1) or one instance of it."""
Taken = dict[tuple[int, Atom], int]


@dataclass(eq=False)
class Place:
    """Where a cluster has, or could have, a virtual node; ``above`` is what it lies in, as far as it can grow there."""

    cluster_id: str
    vnode_id: str | None
    node_id: str
    above: Place | None
    labels: dict[str, str]
    number: int = 0


@dataclass
class World:
    """The question: a tree, where a gang is to go, and how much everybody may gain and lend."""

    tree: Ledger
    cluster_id: str
    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node_id in sorted(self.tree.nodes):
            if self.tree.nodes[node_id].state == "ALIVE":
                self.places += places(self.tree, self.cluster_id, node_id)
        for number, place in enumerate(self.places):
            place.number = number

    def free(self, vnode_id: str | None, atom: Atom) -> int:
        if vnode_id is None:
            return 0
        name, index = atom
        capacity = self.tree.capacities[vnode_id]
        if index < 0:
            return max(capacity.free.get(name, 0), 0)
        return capacity.instances.get(name, {}).get(index, 0)

    def gain_left(self, cluster_id: str, name: str) -> int:
        cluster = self.tree.clusters[cluster_id]
        has = flexible_total(self.tree, cluster_id, name)
        left = 1 << 60
        if cluster.spec.flexible_max is not None and name in cluster.spec.flexible_max:
            left = min(left, cluster.spec.flexible_max[name] - has)
        if cluster.borrow_limit is not None and name in cluster.borrow_limit:
            left = min(left, cluster.spec.flexible_min.get(name, 0) + cluster.borrow_limit[name] - has)
        return max(left, 0)

    def lends(self, place: Place, name: str) -> list[tuple[str, str, int]]:
        """(lender, its virtual node in what the place lies in, how much it may lend in all)."""
        if place.above is None or place.above.vnode_id is None:
            return []
        me = self.tree.clusters[place.cluster_id]
        if flexible_total(self.tree, me.cluster_id, name) < me.spec.flexible_min.get(name, 0):
            return []
        found = []
        for vnode in self.tree.vnodes.values():
            other = self.tree.clusters[vnode.cluster_id]
            if vnode.parent_id != place.above.vnode_id or vnode.kind != FLEXIBLE or other.kind != LOGICAL:
                continue
            if other.cluster_id == me.cluster_id or other.parent_id != me.parent_id:
                continue
            lent = other.spec.flexible_min.get(name, 0) - flexible_total(self.tree, other.cluster_id, name)
            left = other.lending_limit.get(name, 0) - lent
            if lent >= 0 and left > 0:
                found.append((other.cluster_id, vnode.vnode_id, left))
        return found

    def atoms(self, place: Place, name: str) -> list[Atom]:
        total = self.tree.nodes[place.node_id].total
        return [(name, i) for i in sorted(total.instances[name])] if name in total.instances else [(name, -1)]

    def could_have(self, place: Place, atom: Atom) -> int:
        """What a place could have if nothing else grew."""
        have = self.free(place.vnode_id, atom)
        if place.above is None:
            return have
        lent = sum(min(self.free(v, atom), most) for _, v, most in self.lends(place, atom[0]))
        return have + min(
            self.gain_left(place.cluster_id, atom[0]), lent + self.could_have(place.above, atom)
        )

    def allows(self, taken: Taken, name: str) -> bool:
        """Whether all that is taken of a resource can be had at once."""
        wanted = sorted((key, amount) for key, amount in taken.items() if key[1][0] == name and amount)
        seen: set[object] = set()

        def supply(i: int, left: dict[str, int]) -> bool:
            if i == len(wanted):
                return True
            state = (i, tuple(sorted(left.items())))
            if state in seen:
                return False
            seen.add(state)
            (number, atom), amount = wanted[i]
            return any(supply(i + 1, rest) for rest in climb(self.places[number], atom, amount, left))

        def climb(place: Place, atom: Atom, amount: int, left: dict[str, int]) -> Iterator[dict[str, int]]:
            more = amount - self.free(place.vnode_id, atom)
            if more <= 0:
                yield left
                return
            budget = left.get(place.cluster_id, self.gain_left(place.cluster_id, name))
            if place.above is None or more > budget:
                return
            left = {**left, place.cluster_id: budget - more}
            lenders = self.lends(place, name)
            for loan in product(
                *(
                    range(0, min(self.free(v, atom), left.get(f"<{who}", most), more) + 1, QUARTER)
                    for who, v, most in lenders
                )
            ):
                after = dict(left)
                for (who, _, most), amount_lent in zip(lenders, loan, strict=True):
                    after[f"<{who}"] = after.get(f"<{who}", most) - amount_lent
                if sum(loan) <= more:
                    yield from climb(place.above, atom, more - sum(loan), after)

        return supply(0, {})


def flexible_total(tree: Ledger, cluster_id: str, name: str) -> int:
    return sum(
        v.allocation.amounts.get(name, 0)
        for v in tree.vnodes.values()
        if v.cluster_id == cluster_id and v.kind == FLEXIBLE
    )


def grows(tree: Ledger, cluster_id: str) -> bool:
    cluster = tree.clusters[cluster_id]
    return cluster_id != PRIMARY and cluster.spec.flexible and cluster.state != "STOPPED"


def places(tree: Ledger, cluster_id: str, node_id: str) -> list[Place]:
    """What a cluster has on a node, and what it could make there: one flexible part in each of its parent's."""
    here = [v for v in sorted(tree.members[cluster_id]) if tree.vnodes[v].node_id == node_id]
    found = [existing(tree, vnode_id) for vnode_id in here]
    taken = {tree.vnodes[v].parent_id for v in here if tree.vnodes[v].kind == FLEXIBLE}
    if grows(tree, cluster_id):
        for above in places(tree, tree.clusters[cluster_id].parent_id or "", node_id):
            if above.vnode_id is None or above.vnode_id not in taken:
                labels = {**above.labels, VNODE_ID: "new", VCLUSTER_ID: cluster_id}
                found.append(Place(cluster_id, None, node_id, above, labels))
    return found


def existing(tree: Ledger, vnode_id: str) -> Place:
    vnode = tree.vnodes[vnode_id]
    can_grow = vnode.kind == FLEXIBLE and grows(tree, vnode.cluster_id)
    above = existing(tree, vnode.parent_id or "") if can_grow else None
    return Place(vnode.cluster_id, vnode_id, vnode.node_id, above, dict(vnode.labels))


class Gang:
    """Every way to put a gang on the places of a world."""

    def __init__(self, world: World, spec: ClusterSpec, entry: dict[str, int]) -> None:
        self.world, self.spec, self.entry = world, spec, entry
        self.names = ("CPU", "GPU")
        self.taken: Taken = {}
        self.whole: set[int] = set()

    def fits(self) -> bool:
        bundles = [(g, node) for g, group in enumerate(self.spec.groups) for node in group.nodes]
        housed = not any(self.entry.values()) or any(
            all(a <= node.resources.get(n, 0) for n, a in self.entry.items()) for _, node in bundles
        )
        templates = [t for t, count in self.spec.replica_sets.items() for _ in range(count)]
        if not bundles and not templates and not any(self.spec.flexible_min.values()) and housed:
            return bool(self.world.places) or not self.spec.flexible
        return self._whole(templates, bundles, housed)

    def _whole(self, templates: list[str], bundles: list[tuple[int, FixedNode]], housed: bool) -> bool:
        if not templates:
            return self._fixed(bundles, housed, [])
        tree = self.world.tree
        for place in self.world.places:
            node = tree.nodes[place.node_id]
            vnode = None if place.vnode_id is None else tree.vnodes[place.vnode_id]
            if node.template_id != templates[0] or place.number in self.whole:
                continue
            if vnode is not None and (place.above is None and not vnode.whole):
                continue
            if vnode is not None and not tree.capacities[vnode.vnode_id].is_untouched():
                continue
            before = dict(self.taken)
            for name, amount in node.total.amounts.items():
                for atom in self.world.atoms(place, name):
                    self.taken[place.number, atom] = amount if atom[1] < 0 else ONE
            self.whole.add(place.number)
            if all(self.world.allows(self.taken, name) for name in self.names):
                holds = all(a <= node.total.amounts.get(n, 0) for n, a in self.entry.items())
                if self._whole(templates[1:], bundles, housed or holds):
                    return True
            self.whole.discard(place.number)
            self.taken = before
        return False

    def _fixed(self, bundles: list[tuple[int, FixedNode]], housed: bool, done: list[tuple[int, str]]) -> bool:
        if not bundles:
            return self._flexible(housed)
        (g, bundle), rest = bundles[0], bundles[1:]
        policy = self.spec.groups[g].policy
        for place in self.world.places:
            mine = [node_id for group, node_id in done if group == g]
            if policy == "STRICT_SPREAD" and place.node_id in mine:
                continue
            if policy == "STRICT_PACK" and mine and place.node_id != mine[0]:
                continue
            if place.number in self.whole or not matches(bundle.selector, place.labels):
                continue
            for _ in self._puts(place, bundle.resources.get("CPU", 0), bundle.resources.get("GPU", 0)):
                if self._fixed(rest, housed, [*done, (g, place.node_id)]):
                    return True
        return False

    def _puts(self, place: Place, cpu: int, gpu: int) -> Iterator[None]:
        """Every way to take an amount there; it is given back when the loop goes on."""
        before = dict(self.taken)
        for picked in self._instances(place, gpu):
            self.taken = dict(before)
            for atom, amount in [(("CPU", -1), cpu), *picked]:
                if amount:
                    self.taken[place.number, atom] = self.taken.get((place.number, atom), 0) + amount
            if self.world.allows(self.taken, "CPU") and self.world.allows(self.taken, "GPU"):
                yield
        self.taken = before

    def _instances(self, place: Place, gpu: int) -> Iterator[list[tuple[Atom, int]]]:
        if not gpu:
            yield []
            return
        if "GPU" not in self.world.tree.nodes[place.node_id].total.instances:
            return
        atoms = self.world.atoms(place, "GPU")
        share = min(gpu, ONE)
        possible = [
            atom for atom in atoms
            if self.world.could_have(place, atom) - self.taken.get((place.number, atom), 0) >= share
        ]  # fmt: skip
        yield from ([(atom, share) for atom in chosen] for chosen in subsets(possible, max(gpu // ONE, 1)))

    def _flexible(self, housed: bool) -> bool:
        spec, need = self.spec, {} if housed else self.entry
        if not housed and not spec.flexible:
            return False
        if not housed and spec.flexible_max is not None:
            if any(need[n] > spec.flexible_max.get(n, need[n]) for n in need):
                return False
        least = dict(spec.flexible_min) if spec.flexible else {}
        want = {name: max(least.get(name, 0), need.get(name, 0)) for name in self.names}
        if not any(want.values()):
            return True
        chosen = tuple(place for place in self.world.places if place.number not in self.whole)
        homes = range(len(chosen)) if any(need.values()) else [None]
        return any(
            self._cpu(chosen, want["CPU"], need.get("CPU", 0), home)
            and self._gpu(chosen, want["GPU"], need.get("GPU", 0), home)
            for home in homes
        )

    def _cpu(self, chosen: tuple[Place, ...], want: int, need: int, home: int | None) -> bool:
        atom = ("CPU", -1)
        most = [
            self.world.could_have(place, atom) - self.taken.get((place.number, atom), 0) for place in chosen
        ]
        for cut in product(*(range(0, min(m, want) + 1, HALF) for m in most)):
            if sum(cut) != want or (home is not None and cut[home] < need):
                continue
            rests = [cut]
            if home is not None:
                rests.append(tuple(c - need if i == home else c for i, c in enumerate(cut)))
            if all(sum(bool(piece % ONE) for piece in rest) > 1 for rest in rests):
                continue
            taken = dict(self.taken)
            for place, amount in zip(chosen, cut, strict=True):
                taken[place.number, atom] = taken.get((place.number, atom), 0) + amount
            if self.world.allows(taken, "CPU"):
                return True
        return False

    def _gpu(self, chosen: tuple[Place, ...], want: int, need: int, home: int | None) -> bool:
        if not want:
            return True
        if want < ONE:
            tries = chosen if not need or home is None else [chosen[home]]
            return any(
                self._allows_gpu(place, picked) for place in tries for picked in self._instances(place, want)
            )
        options = [
            [
                (place, picked) for count in range(want // ONE + 1)
                for picked in self._instances(place, count * ONE)
                if i != home or count * ONE >= need
            ]
            for i, place in enumerate(chosen)
        ]  # fmt: skip
        for way in product(*options):
            if sum(len(picked) for _, picked in way) * ONE == want:
                taken = dict(self.taken)
                for place, picked in way:
                    for atom, amount in picked:
                        taken[place.number, atom] = taken.get((place.number, atom), 0) + amount
                if self.world.allows(taken, "GPU"):
                    return True
        return False

    def _allows_gpu(self, place: Place, picked: list[tuple[Atom, int]]) -> bool:
        taken = dict(self.taken)
        for atom, amount in picked:
            taken[place.number, atom] = taken.get((place.number, atom), 0) + amount
        return self.world.allows(taken, "GPU")


def subsets(atoms: list[Atom], size: int) -> Iterator[list[Atom]]:
    if not size:
        yield []
    elif atoms:
        yield from ([atoms[0], *rest] for rest in subsets(atoms[1:], size - 1))
        yield from subsets(atoms[1:], size)


def fits(tree: Ledger, cluster_id: str, spec: ClusterSpec, entry: dict[str, int]) -> bool:
    """Whether any assignment of the gang exists, with all growth and lending that the limits allow."""
    return Gang(World(tree, cluster_id), spec, entry).fits()


def ever_fits(tree: Ledger, cluster_id: str, spec: ClusterSpec, entry: dict[str, int]) -> bool:
    """The same when nothing runs: no siblings, draining nodes back in service, what was borrowed given back."""
    return fits(idle(tree, cluster_id), cluster_id, spec, entry)


def idle(tree: Ledger, cluster_id: str) -> Ledger:
    """One cluster and those above it; each flexible part, the newest first, is cut down to the minimum of all."""
    tree = copy.deepcopy(tree)
    chain = [cluster_id]
    while chain[-1] != PRIMARY:
        chain.append(tree.clusters[chain[-1]].parent_id or PRIMARY)
    for run_id in list(tree.charges):
        tree.discharge(run_id)
    while others := [one for one in tree.clusters if one not in chain and not tree.subclusters.get(one)]:
        tree.remove_cluster(others[0])
    for node in list(tree.nodes.values()):
        if node.state == "DRAINING":
            tree.put_node(replace(node, state="ALIVE"))
    for one in chain[:-1]:
        tree.put_cluster(replace(tree.clusters[one], state="ACTIVE"))
        parts = [tree.vnodes[v] for v in tree.members[one] if tree.vnodes[v].kind == FLEXIBLE]
        for part in sorted(parts, key=lambda v: -v.rank):
            while cut_some(tree, part.vnode_id):
                pass
            if (
                not any(tree.vnodes[part.vnode_id].allocation.amounts.values())
                and not tree.children[part.vnode_id]
            ):
                tree.release(part.vnode_id)
    return tree


def cut_some(tree: Ledger, vnode_id: str) -> bool:
    """Take a quarter of something off a virtual node that has it free and does not need it for the minimum."""
    vnode, capacity = tree.vnodes[vnode_id], tree.capacities[vnode_id]
    least = tree.clusters[vnode.cluster_id].spec.flexible_min
    for name, amount in vnode.allocation.amounts.items():
        has = flexible_total(tree, vnode.cluster_id, name)
        if capacity.free.get(name, 0) < QUARTER or has - QUARTER < least.get(name, 0):
            continue
        instances = {n: dict(shares) for n, shares in vnode.allocation.instances.items()}
        if name in instances:
            index = max(i for i, share in capacity.instances[name].items() if share)
            instances[name][index] -= QUARTER
        amounts = {**vnode.allocation.amounts, name: amount - QUARTER}
        cores = tuple(sorted(capacity.cores)) if name == "CPU" else ()
        held = tuple(core for core in vnode.allocation.cores if core not in cores)
        keep = max(amounts.get("CPU", 0) // ONE - len(held), 0) if cores else 0
        left = tuple(sorted({*held, *cores[:keep]})) if cores else vnode.allocation.cores
        tree.resize(replace(vnode, allocation=Allocation(amounts, instances, left)))
        return True
    return False
