"""Independent answers for placement tests: tries everything, and checks a plan from its pieces alone.

Shares nothing with ``vctl.scheduler.placement``: instances are lists of shares, choices are plain loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from vctl.core.clusters import FLEXIBLE, ClusterSpec, FixedNode
from vctl.core.labels import matches
from vctl.core.ledger import Ledger
from vctl.core.resources import FreeCapacity
from vctl.scheduler.placement import Placed

ONE, HALF = 10_000, 5_000


class Slot:
    """One virtual node with plain numbers."""

    def __init__(self, world: Ledger, slot_id: str) -> None:
        vnode, capacity = world.vnodes[slot_id], world.capacities[slot_id]
        self.slot_id, self.node_id, self.labels = slot_id, vnode.node_id, vnode.labels
        self.cpu = capacity.free.get("CPU", 0)
        self.gpus = [capacity.instances["GPU"][i] for i in sorted(capacity.instances.get("GPU", {}))]
        self.total_cpu, self.total_gpu = (
            vnode.allocation.amounts.get("CPU", 0),
            vnode.allocation.amounts.get("GPU", 0),
        )
        whole = vnode.whole and capacity.is_untouched()
        self.template = world.nodes[vnode.node_id].template_id if whole else None

    def puts(self, cpu: int, gpu: int) -> Iterator[None]:
        """Every way to take an amount; it is given back when the loop goes on."""
        if cpu > self.cpu:
            return
        before, gpus, template = self.cpu, list(self.gpus), self.template
        self.cpu -= cpu
        if cpu or gpu:
            self.template = None
        if gpu >= ONE:
            full = [i for i, share in enumerate(self.gpus) if share == ONE]
            if gpu % ONE == 0 and len(full) * ONE >= gpu:
                for i in full[: gpu // ONE]:
                    self.gpus[i] = 0
                yield
        elif gpu:
            for i, share in enumerate(gpus):
                if share >= gpu:
                    self.gpus[i] -= gpu
                    yield
                    self.gpus[i] += gpu
        else:
            yield
        self.cpu, self.gpus, self.template = before, gpus, template


def fits(world: Ledger, parent_id: str, spec: ClusterSpec, entry: dict[str, int]) -> bool:
    """Whether any assignment of the gang exists."""
    return next(assignments(world, parent_id, spec, entry), None) is not None


def assignments(
    world: Ledger, parent_id: str, spec: ClusterSpec, entry: dict[str, int]
) -> Iterator[list[tuple[int, str]]]:
    """Every assignment, as (group, node id) per fixed bundle."""
    ids = [v for v in world.members[parent_id] if world.nodes[world.vnodes[v].node_id].state == "ALIVE"]
    slots = [Slot(world, v) for v in sorted(ids)]
    bundles = [(g, node) for g, group in enumerate(spec.groups) for node in group.nodes]
    housed = not any(entry.values()) or any(
        all(a <= node.resources.get(n, 0) for n, a in entry.items()) for _, node in bundles
    )
    templates = [t for t, count in spec.replica_sets.items() for _ in range(count)]
    yield from _fixed(slots, spec, bundles, templates, entry, housed, [])


def _fixed(
    slots: list[Slot],
    spec: ClusterSpec,
    bundles: list[tuple[int, FixedNode]],
    templates: list[str],
    entry: dict[str, int],
    housed: bool,
    done: list[tuple[int, str]],
) -> Iterator[list[tuple[int, str]]]:
    if bundles:
        (g, node), rest = bundles[0], bundles[1:]
        policy = spec.groups[g].policy
        for slot in slots:
            mine = [node_id for group, node_id in done if group == g]
            if policy == "STRICT_SPREAD" and slot.node_id in mine:
                continue
            if policy == "STRICT_PACK" and mine and slot.node_id != mine[0]:
                continue
            if matches(node.selector, slot.labels):
                for _ in slot.puts(node.resources.get("CPU", 0), node.resources.get("GPU", 0)):
                    yield from _fixed(slots, spec, rest, templates, entry, housed, [*done, (g, slot.node_id)])
        return
    if templates:
        yield from _whole(slots, spec, templates, entry, housed, done)
    elif _rest_fits(slots, spec, entry, housed):
        yield list(done)


def _whole(
    slots: list[Slot],
    spec: ClusterSpec,
    templates: list[str],
    entry: dict[str, int],
    housed: bool,
    done: list[tuple[int, str]],
) -> Iterator[list[tuple[int, str]]]:
    for slot in slots:
        if slot.template == templates[0]:
            before = slot.cpu, slot.gpus, slot.template
            slot.cpu, slot.gpus, slot.template = 0, [0] * len(slot.gpus), None
            holds = entry.get("CPU", 0) <= slot.total_cpu and entry.get("GPU", 0) <= slot.total_gpu
            yield from _fixed(slots, spec, [], templates[1:], entry, housed or holds, done)
            slot.cpu, slot.gpus, slot.template = before


def _rest_fits(slots: list[Slot], spec: ClusterSpec, entry: dict[str, int], housed: bool) -> bool:
    if not housed and not spec.flexible:
        return False
    least = dict(spec.flexible_min) if spec.flexible else {}
    need = {} if housed else entry
    want = {name: max(least.get(name, 0), need.get(name, 0)) for name in ("CPU", "GPU")}
    if (
        not housed
        and spec.flexible_max is not None
        and any(need[n] > spec.flexible_max.get(n, need[n]) for n in need)
    ):
        return False
    return flexible_fits(slots, want, need)


def flexible_fits(slots: list[Slot], want: dict[str, int], need: dict[str, int]) -> bool:
    """Whether the flexible minimum can be cut over slots, at most one piece in each."""
    if not any(want.values()):
        return True
    homes: Sequence[int | None] = range(len(slots)) if any(need.values()) else [None]
    return any(
        _cpu(slots, want["CPU"], need.get("CPU", 0), home)
        and _gpu(slots, want["GPU"], need.get("GPU", 0), home)
        for home in homes
    )


def _cpu(chosen: Sequence[Slot], want: int, need: int, home: int | None) -> bool:
    for cut in product(*(range(0, slot.cpu + 1, HALF) for slot in chosen)):
        if sum(cut) != want:
            continue
        rests = [cut]
        if home is not None:
            if cut[home] < need:
                continue
            rests.append(tuple(c - need if i == home else c for i, c in enumerate(cut)))
        if any(sum(bool(piece % ONE) for piece in rest) <= 1 for rest in rests):
            return True
    return False


def _gpu(chosen: Sequence[Slot], want: int, need: int, home: int | None) -> bool:
    if want < ONE:
        if need and home is not None:
            return any(share >= want for share in chosen[home].gpus)
        return not want or any(share >= want for slot in chosen for share in slot.gpus)
    full = [slot.gpus.count(ONE) * ONE for slot in chosen]
    return sum(full) >= want and (home is None or min(full[home], want) >= need)


def check(world: Ledger, parent_id: str, spec: ClusterSpec, entry: dict[str, int], plan: Placed) -> None:
    """Assign a plan into a copy of its free capacities and hold it against the spec."""
    capacities: dict[str, FreeCapacity] = {}
    for rank, piece in enumerate(plan.pieces):
        assert piece.rank == rank
        vnode = world.vnodes[piece.parent_vnode_id]
        assert vnode.cluster_id == parent_id
        assert vnode.node_id == piece.node_id
        capacity = capacities.setdefault(
            piece.parent_vnode_id, world.capacities[piece.parent_vnode_id].copy()
        )
        assert capacity.fits_exactly(piece.allocation), piece
        capacity.take_exactly(piece.allocation)
        for name, shares in piece.allocation.instances.items():
            assert sum(shares.values()) == piece.allocation.amounts[name]
            assert piece.allocation.amounts[name] % ONE == 0 or len(shares) == 1 or piece.whole
        if world.capacities[piece.parent_vnode_id].instances and piece.allocation.amounts.get("GPU"):
            assert "GPU" in piece.allocation.instances
    fixed = [piece for piece in plan.pieces if piece.kind != FLEXIBLE and not piece.whole]
    bundles = [(g, node) for g, group in enumerate(spec.groups) for node in group.nodes]
    assert [(p.group, dict(p.allocation.amounts)) for p in fixed] == [
        (g, dict(n.resources)) for g, n in bundles
    ]
    for piece, (_, node) in zip(fixed, bundles, strict=True):
        assert matches(node.selector, world.vnodes[piece.parent_vnode_id].labels)
    for g, group in enumerate(spec.groups):
        used = {piece.node_id for piece in fixed if piece.group == g}
        assert group.policy != "STRICT_SPREAD" or len(used) == len(group.nodes)
        assert group.policy != "STRICT_PACK" or len(used) == 1
    whole = [world.nodes[p.node_id].template_id for p in plan.pieces if p.whole]
    assert whole == [t for t, count in sorted(spec.replica_sets.items()) for _ in range(count)]
    parts = [piece for piece in plan.pieces if piece.kind == FLEXIBLE]
    assert len({piece.parent_vnode_id for piece in parts}) == len(parts)
    assert [p.node_id for p in parts] == sorted(p.node_id for p in parts)
    for name in ("CPU", "GPU"):
        got = sum(piece.allocation.amounts.get(name, 0) for piece in parts)
        least = spec.flexible_min.get(name, 0)
        assert got in (least, max(least, entry.get(name, 0)))
    if any(entry.values()):
        home = plan.pieces[plan.entry_rank]
        assert all(a <= home.allocation.amounts.get(n, 0) for n, a in entry.items())
        assert {n: a for n, a in plan.entry.amounts.items() if a} == {n: a for n, a in entry.items() if a}
