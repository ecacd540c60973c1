"""The settings of the scheduler that rules use, and the memo of the rules; neither is in a table."""

from __future__ import annotations

from vctl.core.nodes import Template
from vctl.core.resources import DEFAULT_UNITS, Amounts
from vctl.core.values import field, value

NO_PROVIDER = "none"


@value(frozen=True, slots=True)
class LeaseTerms:
    """The terms of leases.

    ``idle_s``: after this idle time a lease is returned, but not before ``cooldown_s`` have passed since its
    grant. ``duration_s``: the duration of a lease; None: as long as it is used. ``reclaim_grace_s``: the time
    between the notice to a job and its end when its lender reclaims resources.
    """

    idle_s: float = 10.0
    cooldown_s: float = 2.0
    duration_s: float | None = None
    reclaim_grace_s: float = 30.0


@value(frozen=True, slots=True)
class MachineTerms:
    """A node provider: its kind, its templates, the boot time of machines, how long an unused one stays."""

    kind: str = NO_PROVIDER
    templates: tuple[Template, ...] = ()
    units: frozenset[str] = DEFAULT_UNITS
    boot_s: float = 0.0
    idle_s: float = 60.0


@value(slots=True)
class TurnMemo:
    """What the rules remember between turns; times in ns since the machine started.

    It may be dropped at any moment: the rules then only begin their waits and searches anew.
    """

    idle_leases: dict[int, tuple[int, Amounts]] = field(default_factory=dict)
    """Lease -> since when, and how much of it has been unused all the time since then."""
    vacated_vnodes: set[str] = field(default_factory=set)
    """Virtual nodes whose user has left: what is borrowed there need not be idle for a time first."""
    notified: dict[int, dict[int, int]] = field(default_factory=dict)
    """Called lease -> job that uses it and got notice -> when the grace of the job ends."""
    idle_machines: dict[str, int] = field(default_factory=dict)
    """Node -> since when it is unused."""
    replaced: int = -1
    """The last entry of the journal at the latest search for replacements of nodes."""
    stuck: object = None
    """What had no place in that search, and the free capacity then: with the same there is nothing to search."""
    booked: tuple[int, int] = (-1, 0)
    """The last entry of the journal, and the number of late bookings, at the latest search for places of bookings."""
    due: list[int] = field(default_factory=list)
    """The times at which the rules have to run again."""
