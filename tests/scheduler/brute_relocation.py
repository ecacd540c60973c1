"""Whether displaced virtual nodes have any place at all: every slot for each, and every split of each flexible part.

Shares nothing with ``vctl.scheduler``: slots are lists of numbers, choices are plain loops. Amounts are whole CPUs, and
GPUs or halves of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from vctl.core.clusters import FIXED, FLEXIBLE, PRIMARY, FixedNode, VNode
from vctl.core.labels import Labels, matches
from vctl.core.ledger import Ledger
from vctl.core.nodes import Node

ONE, HALF = 10_000, 5_000


class Undecided(Exception):
    """There are too many ways to try them all."""


Gpus = dict[int, int]
"""Instance -> share."""


@dataclass(eq=False)
class Room:
    """One slot: what is free in it, and what it has in all."""

    node: Node
    labels: Labels
    cpu: int
    gpus: Gpus
    has: tuple[int, int]
    inside: object = None
    """The slot of the parent in which it lies."""
    is_all: bool = True
    """Whether it counts as a whole node, if it has all of one."""
    is_flexible: bool = False
    is_used: bool = False

    @property
    def template(self) -> str:
        """The template, if it is an unused whole node."""
        total = self.node.total.amounts
        of_all = self.is_all and self.has == (total.get("CPU", 0), total.get("GPU", 0))
        is_free = not self.is_used and (self.cpu, sum(self.gpus.values())) == self.has
        return self.node.template_id if of_all and is_free else ""

    def takes(self, cpu: int, gpu: int) -> Iterator[Gpus]:
        """Every way to take an amount, as the shares of its GPUs; it is given back when the loop goes on."""
        if cpu > self.cpu:
            return
        for shares in self._shares(gpu):
            self.cpu -= cpu
            for index, share in shares.items():
                self.gpus[index] -= share
            yield shares
            self.cpu += cpu
            for index, share in shares.items():
                self.gpus[index] += share

    def _shares(self, gpu: int) -> Iterator[Gpus]:
        if not gpu:
            yield {}
        elif gpu < ONE:
            yield from [{index: gpu} for index, have in sorted(self.gpus.items()) if have >= gpu]
        else:
            full = [index for index, have in sorted(self.gpus.items()) if have == ONE][: gpu // ONE]
            if len(full) * ONE == gpu:
                yield dict.fromkeys(full, ONE)


@dataclass(eq=False)
class Brute:
    """The displaced virtual nodes of a ledger, and where they may go."""

    world: Ledger
    gone: list[VNode]
    steps: int = 300_000
    rooms: dict[str, list[Room]] = field(default_factory=dict)
    of: dict[str, Room] = field(default_factory=dict)
    taken: dict[tuple[str, int], list[str]] = field(default_factory=dict)

    def fits(self) -> bool:
        """Whether all of them have a place at the same time."""
        ids = {vnode.vnode_id for vnode in self.gone}
        for cluster_id, members in self.world.members.items():
            alive = [self.world.vnodes[one] for one in sorted(members) if one not in ids]
            alive = [one for one in alive if self.world.nodes[one.node_id].state == "ALIVE"]
            self.rooms[cluster_id] = [self._room(vnode) for vnode in alive]
            self.of.update(zip((vnode.vnode_id for vnode in alive), self.rooms[cluster_id], strict=True))
            for vnode in (self.world.vnodes[one] for one in members):
                if vnode.kind == FIXED and not vnode.whole and vnode.vnode_id not in ids:
                    self.taken.setdefault((cluster_id, self._asked(vnode)[0]), []).append(vnode.node_id)
        for vnode_id, room in self.of.items():
            room.inside = self.of.get(self.world.vnodes[vnode_id].parent_id or "")
        deep = {one: len(self.world.upward(one)) for one in self.world.clusters}
        wants: list[VNode | str] = []
        for cluster_id in sorted({vnode.cluster_id for vnode in self.gone}, key=lambda one: (deep[one], one)):
            mine = [vnode for vnode in self.gone if vnode.cluster_id == cluster_id]
            wants += [vnode for vnode in mine if vnode.kind != FLEXIBLE]
            wants += [cluster_id] * any(vnode.kind == FLEXIBLE for vnode in mine)
        return self._all(wants)

    def _room(self, vnode: VNode) -> Room:
        world, capacity = self.world, self.world.capacities[vnode.vnode_id]
        amounts = vnode.allocation.amounts
        inside = world.children[vnode.vnode_id].keys() - {one.vnode_id for one in self.gone}
        return Room(
            world.nodes[vnode.node_id], vnode.labels, capacity.free.get("CPU", 0),
            dict(capacity.instances.get("GPU", {})), (amounts.get("CPU", 0), amounts.get("GPU", 0)),
            is_all=vnode.whole or vnode.kind == FLEXIBLE,
            is_flexible=vnode.kind == FLEXIBLE, is_used=bool(inside) or vnode.vnode_id in world.homes,
        )  # fmt: skip

    def _asked(self, vnode: VNode) -> tuple[int, FixedNode]:
        spec = self.world.clusters[vnode.cluster_id].spec
        members = (self.world.vnodes[one] for one in self.world.members[vnode.cluster_id])
        ranks = sorted(one.rank for one in members if one.kind == FIXED and not one.whole)
        asked = [(number, node) for number, group in enumerate(spec.groups) for node in group.nodes]
        return asked[ranks.index(vnode.rank)]

    def _all(self, wants: list[VNode | str]) -> bool:
        self.steps -= 1
        if self.steps < 0:
            raise Undecided
        if not wants:
            return True
        want, rest = wants[0], wants[1:]
        if isinstance(want, str):
            return any(self._all(rest) for _ in self._splits(want))
        parent = self.world.clusters[want.cluster_id].parent_id or PRIMARY
        choices = self._whole(want, parent) if want.whole else self._fixed(want, parent)
        return any(self._all(rest) for _ in choices)

    def _whole(self, want: VNode, parent: str) -> Iterator[None]:
        template = self.world.nodes[want.node_id].template_id
        for room in list(self.rooms[parent]):
            if room.template == template:
                for shares in room.takes(*room.has):
                    mine = Room(room.node, room.labels, room.has[0], dict(shares), room.has)
                    yield from self._with(want.cluster_id, mine)

    def _fixed(self, want: VNode, parent: str) -> Iterator[None]:
        number, asked = self._asked(want)
        policy = self.world.clusters[want.cluster_id].spec.groups[number].policy
        others = self.taken.setdefault((want.cluster_id, number), [])
        cpu, gpu = asked.resources.get("CPU", 0), asked.resources.get("GPU", 0)
        for room in list(self.rooms[parent]):
            if policy == "STRICT_SPREAD" and room.node.node_id in others:
                continue
            if policy == "STRICT_PACK" and any(one != room.node.node_id for one in others):
                continue
            if matches(asked.selector, room.labels):
                for shares in room.takes(cpu, gpu):
                    others.append(room.node.node_id)
                    yield from self._with(
                        want.cluster_id,
                        Room(room.node, room.labels, cpu, dict(shares), (cpu, gpu), is_all=False),
                    )
                    others.pop()

    def _with(self, cluster_id: str, room: Room) -> Iterator[None]:
        self.rooms[cluster_id].append(room)
        yield
        self.rooms[cluster_id].pop()

    def _splits(self, cluster_id: str) -> Iterator[None]:
        cluster = self.world.clusters[cluster_id]
        own = [one for one in self.gone if one.cluster_id == cluster_id and one.kind == FLEXIBLE]
        gone = {vnode.vnode_id for vnode in own}
        members = (self.world.vnodes[one] for one in self.world.members[cluster_id] if one not in gone)
        lives = [
            one for one in members if one.kind == FLEXIBLE and self.world.nodes[one.node_id].state != "DEAD"
        ]

        def bounds(name: str) -> tuple[int, int]:
            least = cluster.spec.flexible_min.get(name, 0)
            has = sum(one.allocation.amounts.get(name, 0) for one in lives)
            return max(least - has, 0), sum(one.allocation.amounts.get(name, 0) for one in own)

        yield from self._some(
            cluster_id, list(self.rooms[cluster.parent_id or PRIMARY]), bounds("CPU"), bounds("GPU")
        )

    def _some(
        self, cluster_id: str, rooms: list[Room], cpu: tuple[int, int], gpu: tuple[int, int]
    ) -> Iterator[None]:
        """Every split of an amount between two bounds over these rooms, at most one piece in each."""
        self.steps -= 1
        if self.steps < 0:
            raise Undecided
        if not rooms:
            if cpu[0] <= 0 and gpu[0] <= 0:
                yield
            return
        room, rest = rooms[0], rooms[1:]
        yield from self._some(cluster_id, rest, cpu, gpu)
        there = [one for one in self.rooms[cluster_id] if one.is_flexible and one.inside is room]
        for c in range(0, min(cpu[1], room.cpu) + 1, ONE):
            for g in range(0, min(gpu[1], sum(room.gpus.values())) + 1, HALF):
                for shares in room.takes(c, g) if c or g else ():
                    # a half GPU counts only where a half is lacking
                    counts = g - g % ONE + min(g % ONE, gpu[0] % ONE)
                    left = (cpu[0] - c, cpu[1] - c), (gpu[0] - counts, gpu[1] - g)
                    if not there:
                        new = Room(room.node, room.labels, c, dict(shares), (c, g), room, is_flexible=True)
                        self.rooms[cluster_id].append(new)
                        yield from self._some(cluster_id, rest, *left)
                        self.rooms[cluster_id].remove(new)
                    else:
                        before = there[0].cpu, there[0].gpus, there[0].has
                        there[0].cpu += c
                        there[0].gpus = dict(Counter(before[1]) + Counter(shares))
                        there[0].has = (before[2][0] + c, before[2][1] + g)
                        yield from self._some(cluster_id, rest, *left)
                        there[0].cpu, there[0].gpus, there[0].has = before
