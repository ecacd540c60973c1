"""The states of slots and nodes in the search for a place: what may differ between nodes of one class is left out."""

from __future__ import annotations

from typing import NamedTuple

from vctl.core.resources import SCALE

Vector = tuple[int, ...]
"""Amounts in 1/10000 units, one place per resource."""


class SlotTraits(NamedTuple):
    """The properties of a slot that never change during a search.

    ``selectors`` has a bit per selector that matches; ``units`` says per resource whether it has instances
    here; ``waste`` is what others miss if the gang is here: the scarcity of such slots, and the number of free
    unit resources for which the gang did not ask. Of a slot that can grow,
    ``supplies`` are the numbers of its supplies per resource (0: none, or each instance has its own), ``fresh``
    says that it does not exist yet.
    """

    selectors: int
    template: str
    holds_entry: bool
    units: tuple[bool, ...]
    waste: tuple[int, int]
    supplies: tuple[int, ...] = ()
    fresh: bool = False


KIND_BITS = 20
FULL = SCALE << KIND_BITS
"""The least level of a whole instance."""


def level_of(share: int, kind: int) -> int:
    """One number for the free share of an instance and the number of its supply (0: it does not grow)."""
    return share << KIND_BITS | kind


def share_of(level: int) -> int:
    """The free share of a level."""
    return level >> KIND_BITS


def kind_of(level: int) -> int:
    """The number of the supply of a level."""
    return level & (1 << KIND_BITS) - 1


class SlotState(NamedTuple):
    """A slot: the number of its traits, its free amounts, and the sorted instance levels by unit resource."""

    trait: int
    free: Vector
    levels: tuple[Vector, ...]
    pristine: bool


class NodeState(NamedTuple):
    """A node: its slots in order, and the phase (counted from 1) that uses it already, else 0."""

    slots: tuple[SlotState, ...]
    used: int


def full_levels(slot: SlotState, r: int) -> int:
    """The number of free whole instances of a resource."""
    return sum(level >= FULL for level in slot.levels[r])
