"""Splits a flexible minimum over nodes: whole units, the fraction in one piece, at most one piece per node.

Input: node states with the number of nodes in each, and per state the slots that could take a piece
(``Option``). Output: the pieces (``Part``). Amounts are vectors of 1/10000 units, one place per resource.
``growth_split`` makes the choices; this module enumerates them and divides the minimum over the slots that
were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from vctl.core.resources import SCALE
from vctl.core.values import value

if TYPE_CHECKING:
    from vctl.scheduler.node_classes import SlotState

Vector = tuple[int, ...]
ANYWHERE, NOWHERE = -1, -2


@value(frozen=True, slots=True)
class Option:
    """One slot of a node that could take the node's flexible piece, and at most how much of each resource."""

    slot: SlotState
    most: Vector
    cost: tuple[int, ...] = ()


@value(frozen=True, slots=True)
class Part:
    """One flexible piece: the state of its node, its slot, and chosen instances (resource number, level)."""

    state: int
    slot: SlotState
    amounts: Vector
    shares: tuple[tuple[int, int], ...] = ()


ClassCount = tuple[int, int, tuple[Option, ...]]
"""A node state, the number of nodes in it, and the slots to choose from on each."""
Host = tuple[int, Option]
"""The node state and the slot that hold the entrypoint."""
Chosen = tuple[int, int, Option]
"""A node state, a number of nodes in it, and the slot that was chosen on each."""


def inside(small: Vector, large: Vector) -> bool:
    """Whether a vector is at most another in every place."""
    return all(a <= b for a, b in zip(small, large, strict=True))


def worthwhile(options: tuple[Option, ...], want: Vector) -> tuple[Option, ...]:
    """The options of a node that no other option covers in every resource, most useful first."""
    found: list[Option] = []
    for option in sorted(options, key=lambda o: (-_share(o.most, want), o.cost)):
        if any(option.most) and not any(inside(option.most, other.most) for other in found):
            found.append(option)
    return tuple(found)


def _share(most: Vector, want: Vector) -> int:
    return sum(min(m, w) * 1000 // w for m, w in zip(most, want, strict=True) if w)


def hosts(
    stands: Sequence[ClassCount], want: Vector, entry: Vector
) -> Iterator[tuple[Host | None, list[ClassCount]]]:
    """Every node state that can hold the entrypoint, with the other nodes; (None, all) without one."""
    if not any(entry):
        yield None, list(stands)
        return
    hosts = [
        (-_share(option.most, want), option.cost, state, option)
        for state, _, options in stands
        for option in options
        if inside(entry, option.most)
    ]
    for _, _, state, option in sorted(hosts, key=lambda host: host[:3]):
        others = [(s, count - (s == state), options) for s, count, options in stands]
        yield (state, option), [stand for stand in others if stand[1]]


def choices(stands: Sequence[ClassCount]) -> Iterator[list[Chosen]]:
    """Every way to choose one slot per node. Nodes in the same state are interchangeable."""
    fixed: list[Chosen] = [(s, count, options[0]) for s, count, options in stands if len(options) == 1]
    for chosen in _ways([stand for stand in stands if len(stand[2]) > 1]):
        yield fixed + chosen


def _ways(stands: Sequence[ClassCount]) -> Iterator[list[Chosen]]:
    if not stands:
        yield []
        return
    state, count, options = stands[0]
    for way in combinations_with_replacement(options, count):
        for rest in _ways(stands[1:]):
            yield [(state, 1, option) for option in way] + rest


def split_chosen(nodes: list[Chosen], want: Vector, entry: Vector, host: Host | None) -> list[Part] | None:
    """Pieces on the chosen slots, the piece of the entrypoint first; None if the slots do not suffice."""
    if host is None:
        return _cover(nodes, want)
    state, option = host
    held = []
    for r, whole in enumerate(want):
        amounts = _entry_amounts(whole, entry[r], option.most[r])
        amount = next((x for x in amounts if _fraction_host(nodes, r, whole - x) != NOWHERE), None)
        if amount is None:
            return None
        held.append(amount)
    rest = _cover(nodes, tuple(w - h for w, h in zip(want, held, strict=True)))
    return None if rest is None else [Part(state, option.slot, tuple(held)), *rest]


def _entry_amounts(want: int, entry: int, most: int) -> list[int]:
    """Amounts of one resource that the entrypoint's piece may take, best first.

    Whole units of the minimum with its fraction or without, or the entrypoint's own amount and whole units.
    """
    top = min(want, most)
    if top == want:
        return [want]
    amounts = [top - (top - fraction) % SCALE for fraction in (want % SCALE, 0, entry % SCALE)]
    return [amount for amount in amounts if amount >= max(entry, 0)]


def _fraction_host(nodes: list[Chosen], r: int, want: int) -> int:
    """The position of the node that must take the fraction of a resource so that the whole units suffice.

    ANYWHERE: no particular node must. NOWHERE: the nodes do not suffice.
    """
    units = sum(count * (option.most[r] // SCALE) for _, count, option in nodes) * SCALE
    if units >= want:
        return ANYWHERE
    fraction = want % SCALE
    if units >= want - fraction:
        for position, (_, _, option) in enumerate(nodes):
            if option.most[r] % SCALE >= fraction:
                return position
    return NOWHERE


def _cover(nodes: list[Chosen], want: Vector) -> list[Part] | None:
    """Pieces for ``want``; the nodes that cover most of it come first. None if the nodes do not suffice."""
    nodes = sorted(nodes, key=lambda node: (-_share(node[2].most, want), node[2].cost, node[0]))
    last = [_fraction_host(nodes, r, amount) for r, amount in enumerate(want)]
    if NOWHERE in last:
        return None
    rest = list(want)
    parts: dict[tuple[int, int], list[int]] = {}
    for position, (_, count, option) in enumerate(nodes):
        for copy in range(count):
            if not any(rest):
                break
            for r, left in enumerate(rest):
                if left and not (copy == 0 and last[r] == position):
                    taken = left if left <= option.most[r] else option.most[r] // SCALE * SCALE
                    if taken:
                        parts.setdefault((position, copy), [0] * len(want))[r] = taken
                        rest[r] -= taken
    for r, left in enumerate(rest):
        if left:
            assert left <= nodes[last[r]][2].most[r], (want, rest)
            parts.setdefault((last[r], 0), [0] * len(want))[r] = left
    return [Part(nodes[p][0], nodes[p][2].slot, tuple(amounts)) for (p, _), amounts in parts.items()]
