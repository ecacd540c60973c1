"""The settings of the scheduler that rules use, and their memo of times; none of it is in a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from vctl.core.nodes import Template
from vctl.core.resources import DEFAULT_UNITS
from vctl.core.values import value

NO_PROVIDER = "none"


@value(frozen=True, slots=True)
class LeaseTerms:
    """``idle_s``: unused that long, a lease returns. ``cooldown_s``: never sooner than that after it was granted.

    ``reclaim_grace_s``: what a borrower gets between being told and being cut. ``duration_s`` None: while used.
    """

    idle_s: float = 10.0
    cooldown_s: float = 2.0
    duration_s: float | None = None
    reclaim_grace_s: float = 30.0


@value(frozen=True, slots=True)
class MachineTerms:
    """A node provider: its kind, the machines that it makes, their boot time, and how long an unused one stays."""

    kind: str = NO_PROVIDER
    templates: tuple[Template, ...] = ()
    units: frozenset[str] = DEFAULT_UNITS
    boot_s: float = 0.0
    idle_s: float = 60.0


@dataclass(slots=True)
class Memo:
    """The memo of the rules between turns, in ns since the machine started. It may be dropped at any moment: the rules
    wait anew, and look anew.
    """

    idle_leases: dict[int, int] = field(default_factory=dict)
    """Since when a part of a lease is unused."""
    wanted_leases: set[int] = field(default_factory=set)
    """Idle leases that others can use: returned when they are cool."""
    notified: dict[int, dict[int, int]] = field(default_factory=dict)
    """Lease that was called in -> job that uses it and was told -> when its grace ends."""
    idle_machines: dict[str, int] = field(default_factory=dict)
    """Since when nothing is on a machine."""
    replaced: int = -1
    """Entry of the journal up to which no dead node could be replaced."""
    due: list[int] = field(default_factory=list)
    """When the rules have to be asked again."""
