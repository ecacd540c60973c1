"""Replacement of dead nodes: which gangs are broken, and what moves off dead, draining and shrunk nodes.

What is on a node moves together if it can, else at the highest level at which there is a place for it: units are tried
all at once, then one by one, then opened (decision 0022). ``relocation`` searches the places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vctl.core import resources as rs
from vctl.core.clusters import FIXED, FLEXIBLE, JOB, LOGICAL, PRIMARY, Cluster, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import DEAD, DRAINING, Node
from vctl.core.resources import Amounts, beyond, least_of
from vctl.core.slots import primary_labels
from vctl.core.values import field, replace, value
from vctl.scheduler.minimum import lacks
from vctl.scheduler.relocation import Relocation, fixed_request, inherit

Lent = Mapping[str, Amounts]
"""Cluster -> the part of its minimum that siblings have borrowed."""


@value(frozen=True, slots=True)
class Replaced:
    """A virtual node that left a dead node, and its successor (None: it has none)."""

    before: VNode
    after: VNode | None


class Move(NamedTuple):
    """Virtual nodes to remove and to place, in this order, and the pairs that replace each other."""

    removed: tuple[str, ...]
    placed: tuple[VNode, ...] = ()
    parts: tuple[Replaced, ...] = ()


BUDGET = 2_000
"""The slots that the searches of one ``move`` may try."""
LEFT = (DEAD, DRAINING)
"""The states of nodes that everything leaves which can."""
LEAST_BUDGET = 8
"""The slots for each virtual node that a search may try in any case."""


@value(frozen=True, slots=True)
class Unit:
    """Virtual nodes that move together, each after the one in which it lies.

    ``amounts``: cluster -> the part of its minimum that it lacks for another reason than these virtual nodes.
    """

    parts: tuple[VNode, ...]
    amounts: Mapping[str, Amounts] = field(default_factory=dict)


def units(ledger: Ledger, node_ids: Iterable[str], lent: Lent | None = None) -> list[Unit]:
    """What is displaced from these dead, draining and shrunk nodes and not in use, most clusters of a node first.

    ``lent``: cluster -> the part of its minimum that siblings have; None: that is not known, and no cluster gets
    more than it had on these nodes.
    """
    sizes = {node_id: len(below(ledger, node_id)) for node_id in node_ids}
    moving: list[Unit] = []
    for node_id in sorted(sizes, key=lambda node_id: (-sizes[node_id], node_id)):
        moving += (_units_in if ledger.nodes[node_id].state in LEFT else _units_beyond)(ledger, node_id)
    moving = _joined(ledger, moving)
    if lent is not None:
        parts = [part for unit in moving for part in unit.parts if ledger.nodes[part.node_id].state == DEAD]
        moved = _flexible_amounts(parts)
        inside = (part for node_id in sizes for part in below(ledger, node_id))
        named = {part.cluster_id for part in inside if part.kind == FLEXIBLE} | ledger.lenders
        for cluster_id in sorted(named):
            if ledger.clusters[cluster_id].kind == LOGICAL:
                moving += _of_amounts(ledger, cluster_id, lent, moved.get(cluster_id, {}))
    return moving


def _units_in(ledger: Ledger, vnode_id: str) -> Iterator[Unit]:
    """The outermost unused virtual nodes in a virtual node, each with everything in it."""
    for child_id in ledger.children[vnode_id]:
        top = ledger.vnodes[child_id]
        parts = (top, *below(ledger, child_id))
        if _moves(ledger, parts):
            yield Unit(parts)
        else:
            yield from _units_in(ledger, child_id)


def _units_beyond(ledger: Ledger, vnode_id: str) -> Iterator[Unit]:
    """Unused slices that make room for the others on a node that shrank: one that is enough, else the largest."""
    inside = [ledger.vnodes[child_id] for child_id in ledger.children[vnode_id]]
    for vnode in inside:
        if vnode.whole:
            yield from _units_beyond(ledger, vnode.vnode_id)
    excess = {name: -free for name, free in ledger.capacities[vnode_id].free.items() if free < 0}
    candidates = [(vnode, *below(ledger, vnode.vnode_id)) for vnode in inside if not vnode.whole]
    candidates = [parts for parts in candidates if _moves(ledger, parts)]
    while excess and candidates:
        freed = [parts[0].allocation.amounts for parts in candidates]
        sizes = [sum(least_of(amounts, excess).values()) for amounts in freed]
        sums = [sum(amounts.values()) for amounts in freed]
        at = max(range(len(candidates)), key=lambda at: (sizes[at], -sums[at], candidates[at][0].vnode_id))
        if not sizes[at]:
            return
        excess = beyond(excess, freed[at])
        yield Unit(candidates.pop(at))


def _moves(ledger: Ledger, parts: Sequence[VNode]) -> bool:
    """Whether virtual nodes are not in use, and not about to go."""
    top, clusters = parts[0], [ledger.clusters[part.cluster_id] for part in parts]
    if any(part.vnode_id in ledger.homes for part in parts):
        return False
    is_logical = all(cluster.kind == LOGICAL for cluster in clusters)
    if ledger.nodes[top.node_id].state != DEAD and (top.whole or not is_logical):
        return False
    of_jobs = [part for part in parts if ledger.clusters[part.cluster_id].kind == JOB and not part.whole]
    if any(part.kind == FIXED or lacks(ledger, part.cluster_id, {}) for part in of_jobs):
        return False  # the gang ends with it
    return len(parts) > 1 or top.kind == FLEXIBLE or clusters[0].state != "REMOVING"


def _joined(ledger: Ledger, moving: list[Unit]) -> list[Unit]:
    """The same units, with those in one that have members of one STRICT_PACK group."""
    joined: list[Unit] = []
    group_of: dict[tuple[str, int], int] = {}
    for unit in moving:
        groups = [
            (part.cluster_id, number)
            for part in unit.parts
            if part.kind == FIXED and not part.whole
            for number, _, policy in [fixed_request(ledger, part)]
            if policy == "STRICT_PACK"
        ]
        at = next((group_of[group] for group in groups if group in group_of), len(joined))
        if at < len(joined):
            joined[at] = Unit((*joined[at].parts, *unit.parts))
        else:
            joined.append(unit)
        group_of.update(dict.fromkeys(groups, at))
    return joined


def _of_amounts(ledger: Ledger, cluster_id: str, lent: Lent, moved: Amounts) -> Iterator[Unit]:
    """The unit of the amounts that a cluster lacks beyond those which move."""
    lack = lacks(ledger, cluster_id, lent.get(cluster_id, {}))
    if more := beyond(lack, moved):
        yield Unit((), {cluster_id: more})


def _flexible_amounts(parts: Iterable[VNode]) -> dict[str, dict[str, int]]:
    amounts_of: dict[str, dict[str, int]] = {}
    for part in parts:
        if part.kind == FLEXIBLE:
            amounts_of[part.cluster_id] = rs.add(amounts_of.get(part.cluster_id, {}), part.allocation.amounts)
    return amounts_of


def stamp_of(ledger: Ledger, moving: Iterable[Unit]) -> object:
    """A value that is the same while units that have no place cannot have one: nothing came free for them."""
    named = {part.cluster_id for unit in moving for part in unit.parts}
    named.update(cluster_id for unit in moving for cluster_id in unit.amounts)
    above = {up.parent_id or PRIMARY for cluster_id in named for up in ledger.upward(cluster_id)}
    parts = tuple((unit.parts, rs.total(unit.amounts.values())) for unit in moving)
    return parts, tuple((cluster_id, ledger.index(cluster_id).stamp) for cluster_id in sorted(above | named))


def move(ledger: Ledger, moving: Sequence[Unit], lent: Lent | None = None) -> Move | None:
    """The move of all units, or of as many as have a place beside those before them; None: none has one."""
    best: Move | None = None
    placed: list[Unit] = []
    budget = BUDGET

    def keep(some: Sequence[Unit]) -> None:
        """Keep these units if all have a place; else the first half as far as it goes, then the second."""
        nonlocal best, budget
        made, budget = _search(ledger, [*placed, *some], lent or {}, budget)
        if made is not None:
            best = made
            placed.extend(some)
        elif len(some) > 1:
            keep(some[: len(some) // 2])
            keep(some[len(some) // 2 :])
        elif opened := list(_opened(ledger, some[0], lent)):
            keep(opened)

    if moving:
        keep(moving)
    return best


def _opened(ledger: Ledger, unit: Unit, lent: Lent | None) -> Iterator[Unit]:
    """The units in the outermost virtual nodes of a unit that has no place, and the amounts of flexible ones."""
    if any(ledger.nodes[part.node_id].state not in LEFT for part in unit.parts):
        return
    inside = {part.vnode_id for part in unit.parts}
    tops = [part for part in unit.parts if part.parent_id not in inside]
    for top in tops:
        yield from _units_in(ledger, top.vnode_id)
    if not unit.parts or lent is None:
        return
    for cluster_id in dict.fromkeys(top.cluster_id for top in tops if top.kind == FLEXIBLE):
        if any(top.cluster_id == cluster_id and ledger.children[top.vnode_id] for top in tops):
            yield from _of_amounts(ledger, cluster_id, lent, {})


def _search(ledger: Ledger, trial: Sequence[Unit], lent: Lent, budget: int) -> tuple[Move | None, int]:
    """One search for all of these units, and the budget that is left."""
    parts = [part for unit in trial for part in unit.parts]
    gains = _flexible_amounts(parts)
    for unit in trial:
        for cluster_id, amounts in unit.amounts.items():
            gains[cluster_id] = rs.add(gains.get(cluster_id, {}), amounts)
    search = Relocation(ledger, parts, gains, lent, max(budget, LEAST_BUDGET * (len(parts) + 1)))
    placed = search.placed()
    remaining = max(min(budget, search.growth.budget), 0)
    if placed is None:
        return None, remaining
    removed = tuple(part.vnode_id for part in reversed(parts))
    return Move(removed, tuple(placed), tuple(_pairs(parts, placed, search.home))), remaining


def _pairs(
    parts: Sequence[VNode], placed: Sequence[VNode], home: Mapping[str, str | None]
) -> Iterator[Replaced]:
    """Each virtual node that moved with its successor; a flexible one may have several, or none."""
    after = {vnode.vnode_id: vnode for vnode in placed}
    grown: dict[str, list[VNode]] = {}
    for vnode in placed:
        if vnode.kind == FLEXIBLE and vnode.vnode_id not in home.values():
            grown.setdefault(vnode.cluster_id, []).append(vnode)
    for part in parts:
        home_id = home.get(part.vnode_id)
        successors = grown.pop(part.cluster_id, []) if home_id is None else [after[home_id]]
        yield from (Replaced(part, vnode) for vnode in successors)
        if not successors:
            yield Replaced(part, None)


def replace_dead(ledger: Ledger) -> None:
    """Make all possible moves in a ledger, as a scheduler does before it starts jobs."""
    while True:
        node_ids = [
            node.node_id
            for node in ledger.nodes.values()
            if (node.state in LEFT or node.shrunk) and ledger.children[node.node_id]
        ]
        made = move(ledger, units(ledger, node_ids))
        if made is None:
            return
        ledger.rearrange(made.removed, made.placed)


def below(ledger: Ledger, vnode_id: str) -> list[VNode]:
    """All virtual nodes that lie in one, at any depth, outermost first."""
    inside: list[VNode] = []
    for child in ledger.children[vnode_id]:
        inside += [ledger.vnodes[child], *below(ledger, child)]
    return inside


def relabelled(ledger: Ledger, node: Node) -> tuple[VNode, ...]:
    """The virtual nodes on a node as they are when the node has these labels, outermost first."""
    new = {node.node_id: replace(ledger.vnodes[node.node_id], labels=primary_labels(node))}
    for vnode in below(ledger, node.node_id):
        above = new[vnode.parent_id or ""]
        new[vnode.vnode_id] = replace(vnode, labels=inherit(ledger, vnode, above))
    return tuple(new.values())[1:]


# ---- gangs ----


def broken_gangs(ledger: Ledger, node_id: str) -> list[Cluster]:
    """Job clusters whose gang lost a slice with a dead node. Whole nodes are replaced instead."""
    broken: dict[str, Cluster] = {}
    for vnode in below(ledger, node_id):
        cluster = ledger.clusters[vnode.cluster_id]
        is_slice = cluster.kind == JOB and not vnode.whole
        if is_slice and (vnode.kind == FIXED or lacks(ledger, cluster.cluster_id, {})):
            broken[cluster.cluster_id] = cluster
    return [broken[cluster_id] for cluster_id in sorted(broken)]


def is_published(cluster: Cluster) -> bool:
    """Whether a runtime must learn of new nodes of a cluster: not if it only holds other clusters."""
    return cluster.kind != LOGICAL or not cluster.divisible
