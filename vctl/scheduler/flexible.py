"""Splits a flexible minimum over slots: whole units, the fraction in one piece, at most one piece per slot.

Input: the slots that could take a piece (``Option``), with the state of their node and the number of such
slots. Output: the pieces (``FlexiblePart``). Amounts are vectors of 1/10000 units, one place per resource.
``growth_split`` adds the limits of growth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vctl.core.resources import SCALE
from vctl.core.values import value
from vctl.scheduler.node_states import SlotState, Vector

ANYWHERE, NOWHERE = -1, -2


@value(frozen=True, slots=True)
class Option:
    """One slot that could take a flexible piece, and at most how much of each resource."""

    slot: SlotState
    limits: Vector
    cost: tuple[int, ...] = ()


@value(frozen=True, slots=True)
class FlexiblePart:
    """One flexible piece: the state of its node, its slot, and chosen instances (resource number, level)."""

    state: int
    slot: SlotState
    amounts: Vector
    shares: tuple[tuple[int, int], ...] = ()


SlotCount = tuple[int, int, Option]
"""A node state, a slot of it, and the number of such slots on all nodes in that state (in the middle)."""
Host = tuple[int, Option]
"""The node state and the slot that hold the entrypoint."""


def inside(small: Vector, large: Vector) -> bool:
    """Whether a vector is at most another in every place."""
    return all(a <= b for a, b in zip(small, large, strict=True))


def _share(limits: Vector, want: Vector) -> int:
    return sum(min(m, w) * 1000 // w for m, w in zip(limits, want, strict=True) if w)


def hosts(
    slots: Sequence[SlotCount], want: Vector, entry: Vector
) -> Iterator[tuple[Host | None, list[SlotCount]]]:
    """Every slot that can hold the entrypoint, with the other slots; (None, all) without an entrypoint."""
    if not any(entry):
        yield None, list(slots)
        return
    able = [(state, option) for state, _, option in slots if inside(entry, option.limits)]
    for host in sorted(able, key=lambda host: (-_share(host[1].limits, want), host[1].cost, host[0])):
        others = [(state, count - ((state, option) == host), option) for state, count, option in slots]
        yield host, [slot for slot in others if slot[1]]


def split_over(
    slots: list[SlotCount], want: Vector, entry: Vector, host: Host | None
) -> list[FlexiblePart] | None:
    """Pieces on these slots, the piece of the entrypoint first; None if the slots do not suffice."""
    if host is None:
        return _cover(slots, want)
    state, option = host
    held = []
    for r, whole in enumerate(want):
        amounts = _entry_amounts(whole, entry[r], option.limits[r])
        amount = next((x for x in amounts if _fraction_host(slots, r, whole - x) != NOWHERE), None)
        if amount is None:
            return None
        held.append(amount)
    rest = _cover(slots, tuple(w - h for w, h in zip(want, held, strict=True)))
    return None if rest is None else [FlexiblePart(state, option.slot, tuple(held)), *rest]


def _entry_amounts(want: int, entry: int, limit: int) -> list[int]:
    """Amounts of one resource that the entrypoint's piece may take, best first.

    Whole units of the minimum with its fraction or without, or the entrypoint's own amount and whole units.
    """
    top = min(want, limit)
    if top == want:
        return [want]
    amounts = [top - (top - fraction) % SCALE for fraction in (want % SCALE, 0, entry % SCALE)]
    return [amount for amount in amounts if amount >= max(entry, 0)]


def _fraction_host(slots: list[SlotCount], r: int, want: int) -> int:
    """The position of the slot that must take the fraction of a resource so that the whole units suffice.

    ANYWHERE: no particular slot must. NOWHERE: the slots do not suffice.
    """
    units = sum(count * (option.limits[r] // SCALE) for _, count, option in slots) * SCALE
    if units >= want:
        return ANYWHERE
    fraction = want % SCALE
    if units >= want - fraction:
        for position, (_, _, option) in enumerate(slots):
            if option.limits[r] % SCALE >= fraction:
                return position
    return NOWHERE


def _cover(slots: list[SlotCount], want: Vector) -> list[FlexiblePart] | None:
    """Pieces for ``want``; the slots that cover most of it come first. None if the slots do not suffice."""
    slots = sorted(slots, key=lambda slot: (-_share(slot[2].limits, want), slot[2].cost, slot[0]))
    last = [_fraction_host(slots, r, amount) for r, amount in enumerate(want)]
    if NOWHERE in last:
        return None
    rest = list(want)
    parts: dict[tuple[int, int], list[int]] = {}
    for position, (_, count, option) in enumerate(slots):
        for copy in range(count):
            if not any(rest):
                break
            for r, need in enumerate(rest):
                if need and not (copy == 0 and last[r] == position):
                    amount = need if need <= option.limits[r] else option.limits[r] // SCALE * SCALE
                    if amount:
                        parts.setdefault((position, copy), [0] * len(want))[r] = amount
                        rest[r] -= amount
    for r, need in enumerate(rest):
        if need:
            assert need <= slots[last[r]][2].limits[r], (want, rest)
            parts.setdefault((last[r], 0), [0] * len(want))[r] = need
    return [FlexiblePart(slots[p][0], slots[p][2].slot, tuple(amounts)) for (p, _), amounts in parts.items()]
