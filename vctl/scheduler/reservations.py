"""Reservations: the place and the start that are kept for a waiting job, and the capacity left for others.

``backfill`` finds reservations. ``Claims`` computes how much of a virtual node must stay free for them,
``View`` is the free capacity of a cluster less these amounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import (
    CPU,
    EMPTY,
    SCALE,
    Allocation,
    Amounts,
    FreeCapacity,
    Part,
    level,
    parts_of,
    total,
)
from vctl.core.slots import SlotIndex
from vctl.core.values import field, value
from vctl.core.wording import amounts_text, cluster_text, timestamp
from vctl.scheduler.availability import AvailabilityProfile, amounts_of
from vctl.scheduler.candidate_nodes import candidates_in
from vctl.scheduler.placement import Placed, place_on
from vctl.scheduler.upper_bound import UpperBound

FOR_EVER = 1 << 63
MOST_NAMED = 3
"""The most bookings that a reason names."""


@value(frozen=True, slots=True)
class Reservation:
    """A place kept for a job from a start on. ``start_ns`` None: no start is known, so it binds every job."""

    job_id: int
    submission_id: str
    start_ns: int | None
    end_ns: int | None
    """When the time limit would end the job; None: it has no limit."""
    placed: Placed = field(compare=False)
    claims: tuple[tuple[str, dict[Part, int]], ...] = field(compare=False)
    """The amounts that the place takes: (virtual node, amounts by part)."""
    is_booking: bool = False
    """Whether a booking has the place: the id is that of its cluster, and its number is no job's."""

    @classmethod
    def of(cls, job: PendingJob, start_ns: int | None, placed: Placed) -> Reservation:
        """A reservation of this place from the start of a job to its time limit."""
        limit_ns = job.time_limit_ns
        end_ns = None if start_ns is None or limit_ns is None else start_ns + limit_ns
        return cls.at(job.job_id, job.submission_id, start_ns, end_ns, placed)

    @classmethod
    def at(
        cls, job_id: int, submission_id: str, start_ns: int | None, end_ns: int | None, placed: Placed
    ) -> Reservation:
        """A reservation of this place, with the claims that follow from it."""
        claims = tuple((vnode_id, parts_of(allocation)) for vnode_id, allocation in placed.parts)
        return cls(job_id, submission_id, start_ns, end_ns, placed, claims)

    @property
    def amounts(self) -> dict[str, int]:
        """The sum of what the place takes."""
        return total(amounts_of(parts) for _, parts in self.claims)

    def is_due(self, now_ns: int) -> bool:
        """Whether its start has come."""
        return self.start_ns is not None and self.start_ns <= now_ns

    def precedes(self, other: Reservation) -> bool:
        """Whether its start comes first, by job id if both start together; one without a known start is last."""
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[int, int]:
        return (FOR_EVER if self.start_ns is None else self.start_ns, self.job_id)

    def binds(self, end_ns: int | None) -> bool:
        """Whether a job that runs from now to ``end_ns`` (None: for ever) may run at the reserved start."""
        return self.start_ns is None or end_ns is None or end_ns > self.start_ns

    def lasts_at(self, moment_ns: int) -> bool:
        """Whether its job may run at a moment. Without a known start it may run at any moment."""
        if self.start_ns is not None and self.start_ns > moment_ns:
            return False
        return self.end_ns is None or self.end_ns > moment_ns

    def is_valid(self, ledger: Ledger, parent_id: str) -> bool:
        """Whether the virtual nodes of its pieces still exist, take work and are large enough."""
        for piece in self.placed.pieces:
            vnode = ledger.vnodes.get(piece.parent_vnode_id)
            if vnode is None or vnode.cluster_id != parent_id or vnode.node_id != piece.node_id:
                return False  # another virtual node may have got the same id
            if not ledger.nodes[vnode.node_id].schedulable:
                return False
            have = vnode.allocation.amounts
            if any(amount > have.get(name, 0) for name, amount in piece.allocation.amounts.items()):
                return False
        return True


def kept_off_text(binding: Sequence[Reservation]) -> str:
    """Which reservations and bookings a job would be in the way of."""
    names = ", ".join(one.submission_id for one in binding if not one.is_booking)
    reserved = f"its start would take resources that are reserved for {names}"
    booked = sorted((one for one in binding if one.is_booking), key=lambda one: one.start_ns or 0)
    if not booked:
        return reserved
    told = [f"{cluster_text(one.submission_id)} ({amounts_text(one.amounts)})" for one in booked[:MOST_NAMED]]
    more = f" and {len(booked) - MOST_NAMED} more" if len(booked) > MOST_NAMED else ""
    first_ns = booked[0].start_ns or 0
    also = f"; {reserved}" if names else ""
    return (
        f"it could still run at the begin of what is booked for {', '.join(told)}{more}: before, it starts only with a"
        f" time limit that ends by {timestamp(first_ns)}{also}"
    )


@value(frozen=True, slots=True)
class Shared:
    """A reservation on a level, and the cluster (scope) below which it binds."""

    reservation: Reservation
    level: str
    scope: str
    own: frozenset[str]
    """The parent of the job and all clusters above it."""
    is_turn: bool = False
    """Whether it belongs to the sibling whose turn it is."""
    behind: frozenset[tuple[int, int | None]] = frozenset()
    """The reservations beside which it was found: (job id, start)."""

    def precedes(self, other: Reservation) -> bool:
        """Whether the job of the other one leaves it alone also once its own start has come."""
        return self.reservation.is_booking or self.reservation.precedes(other)

    def waits_for(self, other: Reservation) -> bool:
        """Whether it has no known start, and was found behind another reservation: it does not bind its job."""
        return self.reservation.start_ns is None and (other.job_id, other.start_ns) in self.behind


class Claims:
    """The claims of reservations by virtual node, and the amounts that must stay free over a span of time."""

    def __init__(
        self, ledger: Ledger, reservations: Iterable[Reservation], profile: AvailabilityProfile
    ) -> None:
        self.ledger = ledger
        self.profile = profile
        self.on: dict[str, list[tuple[Reservation, dict[Part, int]]]] = {}
        for one in reservations:
            for vnode_id, parts in one.claims:
                self.on.setdefault(vnode_id, []).append((one, parts))

    def needed(self, vnode_id: str, since_ns: int, until_ns: int) -> dict[Part, int]:
        """The amounts that a job which runs over a span must leave free at its begin.

        It is the maximum, over the reserved starts in the span, of the claims then less the returns before.
        """
        claims = self.on[vnode_id]
        if len(claims) == 1:
            reservation, parts = claims[0]
            start_ns = reservation.start_ns or 0
            if start_ns <= since_ns:
                return parts if reservation.lasts_at(since_ns) else {}
            if start_ns >= until_ns:
                return {}
        moments = {max(reservation.start_ns or 0, since_ns) for reservation, _ in claims}
        most: dict[Part, int] = {}
        for moment in moments:
            if moment >= until_ns:
                continue
            back: list[dict[Part, int]] = []
            if moment > since_ns:
                returns = self.profile.returned_on(vnode_id)
                back = [parts for at_ns, parts in returns if since_ns < at_ns <= moment]
            for part, amount in level(
                [parts for held, parts in claims if held.lasts_at(moment)], back
            ).items():
                if amount > most.get(part, 0):
                    most[part] = amount
        return most

    def are_met(self, now_ns: int) -> bool:
        """Whether every claim will be free at its reserved start."""
        for vnode_id in self.on:
            capacity = self.ledger.capacities.get(vnode_id)
            needed = self.needed(vnode_id, now_ns, FOR_EVER)
            if capacity is None or any(amount > _part_of(capacity, part) for part, amount in needed.items()):
                return False
        return True

    def hide(self, capacity: FreeCapacity, vnode_id: str, since_ns: int, until_ns: int) -> Allocation:
        """Take the needed amounts from a free capacity, as far as they are free; returns what was taken."""
        if max(capacity.free.values(), default=0) <= 0:
            return EMPTY
        needed = self.needed(vnode_id, since_ns, until_ns)
        taken = _free_of(capacity, needed) if needed else EMPTY
        if taken.amounts:
            capacity.take_exactly(taken)
        return taken


def _free_of(capacity: FreeCapacity, needed: dict[Part, int]) -> Allocation:
    amounts: dict[str, int] = {}
    instances: dict[str, dict[int, int]] = {}
    for part, amount in needed.items():
        name, index = part if isinstance(part, tuple) else (part, None)
        free = min(amount, _part_of(capacity, part))
        if free > 0:
            amounts[name] = amounts.get(name, 0) + free
            if index is not None:
                instances.setdefault(name, {})[index] = free
    cpu = amounts.get(CPU, 0) // SCALE
    return Allocation(amounts, instances, tuple(sorted(capacity.cores)[:cpu]))


def _part_of(capacity: FreeCapacity, part: Part) -> int:
    if isinstance(part, tuple):
        return capacity.instances.get(part[0], {}).get(part[1], 0)
    return capacity.free.get(part, 0)


class View:
    """The free capacity of a cluster less what reservations need, updated by the starts of a round."""

    def __init__(
        self,
        ledger: Ledger,
        parent_id: str,
        reservations: Iterable[Reservation],
        profile: AvailabilityProfile,
    ) -> None:
        self.ledger = ledger
        self.parent_id = parent_id
        self.claims = Claims(ledger, reservations, profile)
        self.now_ns = profile.now_ns
        self.capacities: dict[str, FreeCapacity] = {}
        """Virtual node -> its free capacity without the hidden part, where a part is hidden."""
        self.hidden: dict[str, Amounts] = {}
        """Virtual node -> the hidden amounts."""
        self._index: SlotIndex | None = None
        self._alike: list[tuple[Amounts, Amounts, int]] | None = None
        """(Free amounts, free amounts without the hidden part, number of such virtual nodes)."""
        for vnode_id in self._claimed_and_free():
            self._look(vnode_id)
        self._stamp = ledger.index(parent_id).stamp

    @property
    def is_current(self) -> bool:
        """Whether the view has followed every change of the cluster."""
        return self._stamp == self.ledger.index(self.parent_id).stamp

    def _claimed_and_free(self) -> Iterable[str]:
        """The virtual nodes with claims; most of those without free capacity are left out."""
        classes = self.ledger.index(self.parent_id).classes.values()
        free = [group for group in classes if any(group.capacity.free.values())]
        if sum(len(group.ids) for group in free) >= len(self.claims.on):
            return self.claims.on
        return [vnode_id for group in free for vnode_id in group.ids if vnode_id in self.claims.on]

    def _look(self, vnode_id: str) -> None:
        self.capacities.pop(vnode_id, None)
        self.hidden.pop(vnode_id, None)
        self._alike = None
        capacity = self.ledger.capacities.get(vnode_id)
        if capacity is None or not any(capacity.free.values()) or capacity.is_overdrawn():
            return
        seen = capacity.copy()
        if (taken := self.claims.hide(seen, vnode_id, self.now_ns, FOR_EVER)).amounts:
            self.capacities[vnode_id] = seen
            self.hidden[vnode_id] = taken.amounts

    def follow(self, vnode_ids: Iterable[str], profile: AvailabilityProfile) -> None:
        """Update the view after starts on these virtual nodes."""
        self.claims.profile = profile
        capacities = self.ledger.capacities
        changed = [vnode_id for vnode_id in dict.fromkeys(vnode_ids) if vnode_id in capacities]
        for vnode_id in changed:
            if vnode_id in self.claims.on:
                self._look(vnode_id)
        if self._index is not None:
            self.ledger.file(
                self._index,
                {vnode_id: self.capacities.get(vnode_id) or capacities[vnode_id] for vnode_id in changed},
            )
        self._stamp = self.ledger.index(self.parent_id).stamp

    def has_capacity(self, count: UpperBound) -> bool:
        """Whether a gang may fit: False is certain."""
        index = self.ledger.index(self.parent_id)
        totals = count.inside(index)
        for free, seen, many in self._hidden(index):
            pairs = zip(totals, count.of(free), count.of(seen), strict=True)
            totals = [total - many * (bare - left) for total, bare, left in pairs]
        return count.is_met(totals)

    def _hidden(self, index: SlotIndex) -> list[tuple[Amounts, Amounts, int]]:
        if self._alike is None:
            kinds: dict[object, tuple[Amounts, Amounts, int]] = {}
            for vnode_id, capacity in self.capacities.items():
                if index.class_of(vnode_id) is not None:
                    free = self.ledger.capacities[vnode_id].free
                    key = (*sorted(free.items()), None, *sorted(capacity.free.items()))
                    kinds[key] = (free, capacity.free, kinds[key][2] + 1 if key in kinds else 1)
            self._alike = list(kinds.values())
        return self._alike

    def place(self, job: PendingJob) -> Placed | None:
        """The place of a job in the free capacity of the view."""
        if self._index is None:
            self._index = self.ledger.index_with(self.parent_id, self.capacities)
        placed = place_on(candidates_in(self.ledger, self._index, self.capacities), job.spec, job.entry)
        return placed if isinstance(placed, Placed) else None

    @contextmanager
    def taken(self, name: str = "reserved") -> Iterator[None]:
        """Charge the hidden amounts in the ledger inside the block, for searches that read the ledger."""
        for vnode_id, capacity in self.capacities.items():
            hidden = self.ledger.capacities[vnode_id].more_than(capacity)
            self.ledger.charge(f"{name}:{vnode_id}", vnode_id, hidden)
        try:
            yield
        finally:
            for vnode_id in reversed(self.capacities):
                self.ledger.discharge(f"{name}:{vnode_id}")
