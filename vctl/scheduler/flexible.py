"""Splits a flexible minimum over nodes: whole units, the fraction in one piece, at most one piece per node.

Works on vectors of 1/10000 units and on node states with how many nodes are in each; names nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Generic, TypeVar

from vctl.core.resources import SCALE
from vctl.core.values import value

Vector = tuple[int, ...]
S = TypeVar("S")
ANYWHERE, NOWHERE = -1, -2


@value(frozen=True, slots=True)
class Option(Generic[S]):
    """One slot of a node that could take the node's flexible piece, and at most how much of each resource."""

    slot: S
    most: Vector
    cost: tuple[int, ...] = ()


@value(frozen=True, slots=True)
class Part(Generic[S]):
    """One flexible piece: on a node in this state, in this slot; with the instances chosen (number, level), if any."""

    state: int
    slot: S
    amounts: Vector
    shares: tuple[tuple[int, int], ...] = ()


ClassCount = tuple[int, int, tuple[Option[S], ...]]
"""A node state, how many nodes are in it, and the slots to choose from on each."""


def within(small: Vector, large: Vector) -> bool:
    """Whether a vector is at most another in every place."""
    return all(a <= b for a, b in zip(small, large, strict=True))


def worthwhile(options: tuple[Option[S], ...], want: Vector) -> tuple[Option[S], ...]:
    """Options no other option of the node beats in every resource; most useful first."""
    found: list[Option[S]] = []
    for option in sorted(options, key=lambda o: (-_share(o.most, want), o.cost)):
        if any(option.most) and not any(within(option.most, other.most) for other in found):
            found.append(option)
    return tuple(found)


def _share(most: Vector, want: Vector) -> int:
    return sum(min(m, w) * 1000 // w for m, w in zip(most, want, strict=True) if w)


Host = tuple[int, Option[S]]


def hosts(
    stands: Sequence[ClassCount[S]], want: Vector, entry: Vector
) -> Iterator[tuple[Host[S] | None, list[ClassCount[S]]]]:
    """Every node state that can hold the entrypoint, with the other nodes; None when nobody asks."""
    if not any(entry):
        yield None, list(stands)
        return
    hosts = [
        (-_share(option.most, want), option.cost, state, option)
        for state, _, options in stands
        for option in options
        if within(entry, option.most)
    ]
    for _, _, state, option in sorted(hosts, key=lambda host: host[:3]):
        others = [(s, count - (s == state), options) for s, count, options in stands]
        yield (state, option), [stand for stand in others if stand[1]]


Chosen = tuple[int, int, Option[S]]


def choices(stands: Sequence[ClassCount[S]]) -> Iterator[list[Chosen[S]]]:
    """Every way to choose one slot per node, nodes in the same state being alike."""
    fixed: list[Chosen[S]] = [(s, count, options[0]) for s, count, options in stands if len(options) == 1]
    manifold = [stand for stand in stands if len(stand[2]) > 1]
    for chosen in _ways(manifold):
        yield fixed + chosen


def _ways(stands: Sequence[ClassCount[S]]) -> Iterator[list[Chosen[S]]]:
    if not stands:
        yield []
        return
    state, count, options = stands[0]
    for way in combinations_with_replacement(options, count):
        for rest in _ways(stands[1:]):
            yield [(state, 1, option) for option in way] + rest


def split_chosen(
    nodes: list[Chosen[S]], want: Vector, entry: Vector, host: Host[S] | None
) -> list[Part[S]] | None:
    """Pieces on the slots chosen, the one of the entrypoint first; None when they do not suffice."""
    if host is None:
        return _cover(nodes, want)
    state, option = host
    held = []
    for r, whole in enumerate(want):
        amount = next(
            (x for x in _entry_amounts(whole, entry[r], option.most[r]) if _covers(nodes, r, whole - x)), None
        )
        if amount is None:
            return None
        held.append(amount)
    rest = _cover(nodes, tuple(w - h for w, h in zip(want, held, strict=True)))
    return None if rest is None else [Part(state, option.slot, tuple(held)), *rest]


def _entry_amounts(want: int, entry: int, most: int) -> list[int]:
    """What the entrypoint's piece may take of one resource, best first.

    Whole units of the minimum with its fraction or without, or the entrypoint's own amount and whole units.
    """
    top = min(want, most)
    if top == want:
        return [want]
    amounts = [top - (top - fraction) % SCALE for fraction in (want % SCALE, 0, entry % SCALE)]
    return [amount for amount in amounts if amount >= max(entry, 0)]


def _covers(nodes: list[Chosen[S]], r: int, want: int) -> bool:
    return _fraction_host(nodes, r, want) != NOWHERE


def _fraction_host(nodes: list[Chosen[S]], r: int, want: int) -> int:
    """The position of the node that must take the fraction for the whole units to suffice, or a word."""
    units = sum(count * (option.most[r] // SCALE) for _, count, option in nodes) * SCALE
    if units >= want:
        return ANYWHERE
    fraction = want % SCALE
    if units >= want - fraction:
        for position, (_, _, option) in enumerate(nodes):
            if option.most[r] % SCALE >= fraction:
                return position
    return NOWHERE


def _cover(nodes: list[Chosen[S]], want: Vector) -> list[Part[S]] | None:
    """Pieces for ``want`` on these nodes, those that cover most of it first."""
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
