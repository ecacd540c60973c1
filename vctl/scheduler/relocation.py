"""Relocation: the search for new places for displaced virtual nodes, all of them or none.

A depth-first search on a copy of a part of the ledger, outermost virtual nodes first; see decision 0022 for the order,
and why it tries everything that could make a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from vctl.core import labels as lb
from vctl.core import resources as rs
from vctl.core.clusters import FIXED, FLEXIBLE, PRIMARY, ClusterSpec, FixedNode, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import ALIVE
from vctl.core.resources import SCALE, Allocation, Amounts, FreeCapacity, beyond, least_of
from vctl.core.slots import SlotClass, template_of
from vctl.core.values import field, replace, value
from vctl.scheduler.elasticity import flexible_in, flexible_parts, next_rank
from vctl.scheduler.minimum import lacks
from vctl.scheduler.placement import Piece, Placed
from vctl.scheduler.placement_result import vnodes_of
from vctl.scheduler.reshape import place_more
from vctl.scheduler.scarcity import scarcity_in

PRICE_OF_FILLING = 5
"""The number of slots for which the placement of the rest of one minimum counts."""


@value(frozen=True, slots=True)
class Rule:
    """The rule for the place of a fixed virtual node: its policy, the nodes of its group, and its selector."""

    policy: str = ""
    others: frozenset[str] = frozenset()
    selector: lb.Selector = ()

    @property
    def is_named(self) -> bool:
        """Whether the selector may tell virtual nodes apart that are alike otherwise."""
        return any(condition.key in lb.OWN for condition in self.selector)

    def allows(self, slot: VNode) -> bool:
        """Whether a slot may be taken, if there is room."""
        if self.policy == "STRICT_SPREAD" and slot.node_id in self.others:
            return False
        if self.policy == "STRICT_PACK" and self.others and {slot.node_id} != self.others:
            return False
        return lb.matches(self.selector, slot.labels)

    def preference(
        self, slot: VNode, near: str | None, scarcity: Callable[[str], int]
    ) -> tuple[bool, bool, int, str, str]:
        """The sort key of a slot. ``near``: the slot in which its neighbours of before are now."""
        is_away = bool(self.others) and (slot.node_id in self.others) == (self.policy == "SPREAD")
        return slot.vnode_id != near, is_away, scarcity(slot.vnode_id), slot.node_id, slot.vnode_id


@value(slots=True)
class AllowedGrowth:
    """The growth of clusters in a trial ledger, where something displaced needs it.

    Unlike growth for a job it needs no limits of its own: a cluster gets back no more than it had. ``before``: the
    ledger of which the trial is a copy.
    """

    before: Ledger
    now: Ledger
    allowance: dict[str, dict[str, int]]
    """Cluster -> the most that its flexible virtual nodes may still gain."""
    budget: int
    """The number of slots that may still be tried."""

    def is_alive(self, vnode_id: str) -> bool:
        """Whether the node of a virtual node takes work."""
        return self.now.nodes[self.now.vnodes[vnode_id].node_id].state == ALIVE

    def grown(self, cluster_id: str, slot_id: str, more: Amounts) -> Iterator[str]:
        """The flexible virtual node of a cluster in a slot, with more; the slot is enlarged for it if it can be."""
        if not rs.within(more, self.allowance.get(cluster_id, {})):
            return
        for _ in self._enlarged(slot_id, more):
            self.budget -= 1
            before = flexible_in(self.now, cluster_id, slot_id)
            capacity = self.now.capacities[slot_id].copy()
            whole, shares = rs.in_requests({n: a for n, a in more.items() if a}, capacity.instances)
            gain = capacity.take(whole)
            if shares:
                gain = rs.merged(gain, capacity.take(shares))
            vnode_id = self.gain(cluster_id, slot_id, gain)
            yield vnode_id
            self.take_back(cluster_id, vnode_id, before, gain)

    def _enlarged(self, slot_id: str, request: Amounts) -> Iterator[None]:
        lack = lacking(self.now.capacities[slot_id], request)
        if not lack:
            yield
            return
        slot = self.now.vnodes[slot_id]
        if slot.kind == FLEXIBLE and self.is_alive(slot_id):
            for _ in self.grown(slot.cluster_id, slot.parent_id or "", lack):
                if not lacking(self.now.capacities[slot_id], request):
                    yield

    def gain(self, cluster_id: str, slot_id: str, gain: Allocation) -> str:
        """Give a cluster more in a slot of its parent; a new virtual node has an id that none had before."""
        own = flexible_in(self.now, cluster_id, slot_id)
        if own is not None:
            self.now.resize(replace(own, allocation=rs.merged(own.allocation, gain)))
        else:
            rank = max(next_rank(self.before, cluster_id), next_rank(self.now, cluster_id))
            node_id = self.now.vnodes[slot_id].node_id
            piece = Piece(FLEXIBLE, rank, -1, slot_id, node_id, gain, {}, whole=False)
            (own,) = vnodes_of(self.now, cluster_id, [piece])
            self.now.assign(own)
        allowance = self.allowance[cluster_id]
        self.allowance[cluster_id] = {n: a - gain.amounts.get(n, 0) for n, a in allowance.items()}
        return own.vnode_id

    def take_back(self, cluster_id: str, vnode_id: str, before: VNode | None, gain: Allocation) -> None:
        """Undo ``gain``. ``before``: the virtual node before it, if there was one."""
        if before is None:
            self.now.release(vnode_id)
        else:
            self.now.resize(before)
        self.allowance[cluster_id] = rs.add(self.allowance[cluster_id], gain.amounts)


@value(slots=True)
class Relocation:
    """One search. ``parts``: the displaced virtual nodes, each after the one in which it lies.

    ``allowance``: cluster -> the most that its flexible virtual nodes may gain. ``lent``: cluster -> the part of its
    minimum that siblings have.
    """

    ledger: Ledger
    parts: Sequence[VNode]
    allowance: dict[str, dict[str, int]]
    lent: Mapping[str, Amounts]
    budget: int
    """The number of slots that may be tried."""
    now: Ledger = field(init=False)
    growth: AllowedGrowth = field(init=False)
    clusters: list[str] = field(init=False)
    requests: dict[str, tuple[int, FixedNode, str]] = field(init=False)
    """Fixed virtual node of a cluster with displaced ones -> its ``fixed_request``."""
    home: dict[str, str | None] = field(default_factory=dict)
    """Displaced virtual node -> the virtual node in its place; None: a flexible one that is split."""
    _inside: dict[str, list[VNode]] = field(default_factory=dict)
    _apart: set[str] = field(default_factory=set)
    """Nodes on which these clusters have virtual nodes: no other node is like one of them."""

    def __post_init__(self) -> None:
        ledger = self.ledger
        named = {PRIMARY, *self.allowance, *(part.cluster_id for part in self.parts)}
        named |= {up.cluster_id for cluster_id in list(named) for up in ledger.upward(cluster_id)}
        self.clusters = sorted(named, key=lambda cluster_id: (len(ledger.upward(cluster_id)), cluster_id))
        self.now = ledger.part(self.clusters)
        self.growth = AllowedGrowth(ledger, self.now, dict(self.allowance), self.budget)
        for part in reversed(self.parts):
            self._inside.setdefault(part.parent_id or "", []).insert(0, part)
            self.now.release(part.vnode_id)
        for cluster_id in self.clusters[1:]:
            self._apart |= {ledger.vnodes[vnode_id].node_id for vnode_id in ledger.members[cluster_id]}
        with_fixed = {part.cluster_id for part in self.parts if part.kind == FIXED and not part.whole}
        members = (ledger.vnodes[v] for cluster_id in with_fixed for v in ledger.members[cluster_id])
        fixed = (vnode for vnode in members if vnode.kind == FIXED and not vnode.whole)
        self.requests = {vnode.vnode_id: fixed_request(ledger, vnode) for vnode in fixed}

    def placed(self) -> list[VNode] | None:
        """The virtual nodes that are new or changed, outermost first; None: no place was found."""
        if self._is_hopeless():
            return None
        choices: list[Iterator[None]] = []
        while True:
            if len(choices) == len(self.parts):
                if self._fill():
                    return self._changed()
            else:
                choices.append(self._choices(self.parts[len(choices)]))
            while choices and next(choices[-1], self) is self:
                choices.pop()
            if not choices or self.growth.budget <= 0:
                return None

    def _is_hopeless(self) -> bool:
        """Whether there is too little in all, or no slot for one of them: then nothing needs to be tried."""
        needs: dict[str, dict[str, int]] = {}
        for cluster_id in reversed(self.clusters):
            solid = [part for part in self.parts if part.kind != FLEXIBLE]
            children = [part for part in solid if self._parent(part.cluster_id) == cluster_id]
            coming = [part.allocation.amounts for part in solid if part.cluster_id == cluster_id]
            inner = [needs[inner_id] for inner_id in needs if self._parent(inner_id) == cluster_id]
            need = rs.total([*(part.allocation.amounts for part in children), *inner])
            lack = rs.subtract(need, rs.total([*coming, self._free(cluster_id, 1)])) if need else {}
            allowed = self.allowance.get(cluster_id)
            if allowed is not None:
                lack = rs.maximum(lack, least_of(self._lacks(cluster_id), allowed))
                needs[cluster_id] = {name: amount for name, amount in lack.items() if amount > 0}
            elif not coming and not all(self._has_slot(part, cluster_id) for part in children):
                return True
            if not rs.within(lack, allowed or {}):
                return True
        return False

    def _has_slot(self, part: VNode, cluster_id: str) -> bool:
        if part.whole:
            return next(self._whole_slots(cluster_id, self._template(part), None), None) is not None
        rule, request = self._rule(part), part.allocation.amounts
        fits = self._members(
            cluster_id, lambda group: group.capacity.fits(request), rule.allows, rule.is_named
        )
        return bool(fits)

    def _template(self, part: VNode) -> str:
        return self.ledger.nodes[part.node_id].template_id

    def _changed(self) -> list[VNode]:
        now, before = self.now, self.ledger.vnodes
        return [
            now.vnodes[vnode_id]
            for cluster_id in self.clusters[1:]
            for vnode_id in now.members[cluster_id]
            if now.vnodes[vnode_id] is not before.get(vnode_id)
        ]

    # ---- the choices of one virtual node: each is made in the copy, and taken back when the next is asked for ----

    def _choices(self, part: VNode) -> Iterator[None]:
        if part.kind == FLEXIBLE:
            yield from self._flexible_choices(part)
        elif part.whole:
            parent_id = self._parent(part.cluster_id)
            for slot_id in self._whole_slots(parent_id, self._template(part), self._near(part)):
                yield from self._in_slot(part, slot_id, self.now.vnodes[slot_id].allocation)
        else:
            request, parent_id = part.allocation.amounts, self._parent(part.cluster_id)
            for slot_id in self._slots(parent_id, request, self._near(part), self._rule(part)):
                for allocation in _choices_of(self.now.capacities[slot_id], request):
                    yield from self._in_slot(part, slot_id, allocation)

    def _in_slot(self, part: VNode, slot_id: str, allocation: Allocation) -> Iterator[None]:
        slot = self.now.vnodes[slot_id]
        labels = inherit(self.ledger, part, slot)
        self.now.assign(
            replace(part, node_id=slot.node_id, parent_id=slot_id, allocation=allocation, labels=labels)
        )
        self.home[part.vnode_id] = part.vnode_id
        yield
        self.now.release(part.vnode_id)

    def _flexible_choices(self, part: VNode) -> Iterator[None]:
        """A flexible virtual node with something in it: in one slot, or where what lies in it finds places.

        It is kept in one piece where its minimum pays for that; otherwise it gains only what its contents need.
        """
        cluster_id, needed = part.cluster_id, self._needed_in(part)
        least = least_of(self._lacks(cluster_id), part.allocation.amounts)
        keep = {n: a for n, a in rs.maximum(least, needed).items() if a > 0}
        is_covered = rs.within(needed, least)
        if not is_covered:
            self.home[part.vnode_id] = None
            yield
        for slot_id in self._slots(self._parent(cluster_id), keep, self._near(part)) if needed else ():
            for vnode_id in self.growth.grown(cluster_id, slot_id, keep):
                self.home[part.vnode_id] = vnode_id
                yield
        if is_covered:
            self.home[part.vnode_id] = None
            yield

    def _needed_in(self, part: VNode) -> dict[str, int]:
        """What the contents of a flexible virtual node need of it."""
        return rs.total(
            child.allocation.amounts if child.kind != FLEXIBLE
            else rs.maximum(least_of(self._lacks(child.cluster_id), child.allocation.amounts), self._needed_in(child))
            for child in self._inside.get(part.vnode_id, ())
        )  # fmt: skip

    def _near(self, part: VNode) -> str | None:
        return self.home.get(part.parent_id or "")

    def _parent(self, cluster_id: str) -> str:
        return self.ledger.clusters[cluster_id].parent_id or PRIMARY

    def _rule(self, part: VNode) -> Rule:
        number, request, policy = self.requests[part.vnode_id]
        group = (v for v, (group, _, _) in self.requests.items() if group == number >= 0)
        placed = self.now.members[part.cluster_id].keys() & group
        return Rule(policy, frozenset(self.now.vnodes[v].node_id for v in placed), request.selector)

    # ---- slots ----

    def _slots(
        self, cluster_id: str, request: Amounts, near: str | None, rule: Rule | None = None
    ) -> Iterator[str]:
        """The slots of a cluster with room for a request: those that have it, then those that can be given it."""
        rule, scarcity = rule or Rule(), scarcity_in(self.now, cluster_id)
        fitting = self._members(
            cluster_id, lambda group: not lacking(group.capacity, request), rule.allows, rule.is_named
        )
        for slot in sorted(fitting, key=lambda slot: rule.preference(slot, near, scarcity)):
            self.growth.budget -= 1
            yield slot.vnode_id
        if cluster_id not in self.growth.allowance:
            return
        own = [part for part in flexible_parts(self.now, cluster_id) if self.growth.is_alive(part.vnode_id)]
        for slot in sorted(own, key=lambda slot: rule.preference(slot, near, scarcity)):
            lack = lacking(self.now.capacities[slot.vnode_id], request)
            if lack and rule.allows(slot):
                yield from self.growth.grown(cluster_id, slot.parent_id or "", lack)
        for outer_id in self._slots(self._parent(cluster_id), request, None):
            if flexible_in(self.now, cluster_id, outer_id) is None:
                for slot_id in self.growth.grown(cluster_id, outer_id, request):
                    if rule.allows(self.now.vnodes[slot_id]):
                        yield slot_id

    def _members(
        self, cluster_id: str, of: Callable[[SlotClass], bool], will_do: Callable[[VNode], bool],
        is_named: bool = False,
    ) -> list[VNode]:  # fmt: skip
        """The slots of the classes that will do; of the slots that are alike no more than could be needed."""
        slots: list[VNode] = []
        for group in self.now.index(cluster_id).classes.values():
            if not of(group):
                continue
            alike = 0
            for slot_id in group.ids:
                slot = self.now.vnodes[slot_id]
                if slot.node_id not in self._apart and not is_named:
                    alike += 1
                    if alike > len(self.parts) + 1:
                        continue
                if will_do(slot):
                    slots.append(slot)
        return slots

    def _whole_slots(self, cluster_id: str, template: str, near: str | None) -> Iterator[str]:
        """The slots of a cluster that are an unused whole node: those that are, then those that can become one."""
        slots = self._members(
            cluster_id, lambda group: group.template_id == template and group.untouched,
            lambda slot: self._is_unused(slot.vnode_id),
        )  # fmt: skip
        scarcity = scarcity_in(self.now, cluster_id)
        for slot in sorted(slots, key=lambda slot: Rule().preference(slot, near, scarcity)):
            self.growth.budget -= 1
            yield slot.vnode_id
        if cluster_id not in self.growth.allowance:
            return
        for part in flexible_parts(self.now, cluster_id):
            node = self.ledger.nodes[part.node_id]
            lack = beyond(node.total.amounts, part.allocation.amounts)
            is_kind = node.state == ALIVE and node.template_id == template
            if is_kind and lack and self._is_unused(part.vnode_id):
                for slot_id in self.growth.grown(cluster_id, part.parent_id or "", lack):
                    if template_of(self.now.vnodes[slot_id], node) == template:
                        yield slot_id
        for outer_id in self._whole_slots(self._parent(cluster_id), template, None):
            outer = self.now.vnodes[outer_id]
            yield from self.growth.grown(cluster_id, outer_id, outer.allocation.amounts)

    def _is_unused(self, slot_id: str) -> bool:
        is_free = self.now.capacities[slot_id].is_untouched() and not self.now.children[slot_id]
        return is_free and slot_id not in self.ledger.homes

    # ---- the rest of the minimums ----

    def _lacks(self, cluster_id: str) -> dict[str, int]:
        return lacks(self.now, cluster_id, self.lent.get(cluster_id, {}))

    def _fill(self) -> bool:
        """Fill what the minimums still lack, outermost clusters first. False: there is too little; nothing is done."""
        return any(self._fill_with(unit) for unit in (1, SCALE))

    def _fill_with(self, unit: int) -> bool:
        """Like ``_fill``; what is free in a slot counts in multiples of ``unit`` as room for the clusters below."""
        done: list[tuple[str, str, VNode | None, Allocation]] = []
        needs: dict[str, dict[str, int]] = {}
        for cluster_id in reversed(self.clusters):
            if cluster_id in self.growth.allowance:
                inner = [needs[inner_id] for inner_id in needs if self._parent(inner_id) == cluster_id]
                more = rs.subtract(rs.total(inner), self._free(cluster_id, unit)) if inner else {}
                need = rs.maximum(self._lacks(cluster_id), more)
                needs[cluster_id] = least_of(need, self.growth.allowance[cluster_id])
        for cluster_id in self.clusters:
            if not needs.get(cluster_id):
                continue
            self.growth.budget -= PRICE_OF_FILLING
            placed = place_more(self.now, cluster_id, ClusterSpec(flexible_min=needs[cluster_id]))
            if not isinstance(placed, Placed):
                for gain in reversed(done):
                    self.growth.take_back(*gain)
                return False
            for piece in placed.pieces:
                before = flexible_in(self.now, cluster_id, piece.parent_vnode_id)
                vnode_id = self.growth.gain(cluster_id, piece.parent_vnode_id, piece.allocation)
                done.append((cluster_id, vnode_id, before, piece.allocation))
        return True

    def _free(self, cluster_id: str, unit: int) -> dict[str, int]:
        """What is free in a cluster, in multiples of ``unit`` on each virtual node."""
        return rs.total(
            {n: max(a, 0) // unit * unit * len(group.ids) for n, a in group.capacity.free.items()}
            for group in self.now.index(cluster_id).classes.values()
        )


def inherit(ledger: Ledger, vnode: VNode, new_parent: VNode) -> dict[str, str]:
    """The labels of a virtual node below a new parent: those of the parent, its own, and the system's."""
    old_parent = ledger.vnodes[vnode.parent_id or ""]
    own = {key: value for key, value in vnode.labels.items() if old_parent.labels.get(key) != value}
    system = {lb.VNODE_ID: vnode.vnode_id, lb.VCLUSTER_ID: vnode.cluster_id}
    return {**new_parent.labels, **own, **fixed_request(ledger, vnode)[1].labels, **system}


def fixed_request(ledger: Ledger, vnode: VNode) -> tuple[int, FixedNode, str]:
    """The fixed node of the spec for which a virtual node was made: its group, the request, the group's policy.

    The group is -1 if the spec has no such fixed node.
    """
    groups = ledger.clusters[vnode.cluster_id].spec.groups
    nodes = [(number, node) for number, group in enumerate(groups) for node in group.nodes]
    members = ledger.ranked(vnode.cluster_id)
    fixed = [member for member in members if member.kind == FIXED and not member.whole]
    position = fixed.index(vnode) if vnode in fixed else len(nodes)
    if position < len(nodes):
        number, node = nodes[position]
        if rs.shape_of(node.resources) == rs.shape_of(vnode.allocation.amounts):
            return number, node, groups[number].policy
    return -1, FixedNode(vnode.allocation.amounts), ""


def _choices_of(capacity: FreeCapacity, request: Amounts) -> Iterator[Allocation]:
    """The allocations for a request that leave different shares of unit resources behind, the usual one first."""
    usual = capacity.choice(request)
    yield usual
    for name, shares in usual.instances.items():
        (index, part) = next(iter(shares.items()), (0, SCALE))
        if part < SCALE:
            free = capacity.instances[name]
            others = {share: index for index, share in sorted(free.items(), reverse=True) if share >= part}
            for share, index in sorted(others.items()):
                if share != free[index]:
                    yield replace(usual, instances={**usual.instances, name: {index: part}})


def lacking(capacity: FreeCapacity, request: Amounts) -> dict[str, int]:
    """What a virtual node has to gain to hold amounts; of a unit resource whole instances, and a new share."""
    lack: dict[str, int] = {}
    for name, amount in request.items():
        if name in capacity.instances and amount >= SCALE:
            share, spare = amount % SCALE, capacity.whole_units(name) - amount // SCALE
            has_share = spare > 0 or any(share <= a < SCALE for a in capacity.instances[name].values())
            lack[name] = max(-spare, 0) * SCALE + (0 if has_share else share)
        elif name in capacity.instances and amount:
            lack[name] = 0 if capacity.pick(name, amount) else amount
        else:
            lack[name] = amount - max(capacity.free.get(name, 0), 0)
    return {name: amount for name, amount in lack.items() if amount > 0}
