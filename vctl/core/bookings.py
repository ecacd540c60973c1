"""The places of bookings that have not begun: what of them is free is kept out of the free capacity of the ledger.

So whatever reads a free capacity leaves the places alone: tasks, growth, loans, new clusters, replacements, commands.
Only the search for starts of jobs, and their commit, put other bookings in force (``Ledger.bookings_in_force``): a job
that is over before a begin may use the place, and what running jobs return before a begin need not be kept free now. A
start that was decided takes what it takes: the kept part gets smaller, and larger again when something comes back.

What is kept outside of a search is a function of the bookings and of what is in use, so a ledger that is loaded keeps
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from vctl.core.clusters import BOOKED, BookedPart, Booking, Cluster
from vctl.core.resources import EMPTY, Allocation, FreeCapacity, Part, level, parts_of

Returns = Callable[[str], Sequence[tuple[int, Mapping[Part, int]]]]
"""Virtual node -> what comes back there by time limits: (when, amounts by part)."""


class BookedClaim(NamedTuple):
    """The part of a virtual node that a cluster has booked."""

    cluster_id: str
    booking: Booking
    part: BookedPart


class BookedPlaces:
    """The places of the clusters in the state BOOKED, and what of them is taken from the free capacities."""

    def __init__(self, capacities: Mapping[str, FreeCapacity]) -> None:
        self.capacities = capacities
        self.clusters: dict[str, Cluster] = {}
        """The clusters in the state BOOKED."""
        self.on: dict[str, list[BookedClaim]] = {}
        """Virtual node -> the claims on it."""
        self.kept: dict[str, Allocation] = {}
        """Virtual node -> what is taken from its free capacity."""
        self.in_force: Collection[str] | None = None
        """The clusters whose places are kept; None: all."""
        self.returned_on: Returns | None = None
        """What comes back before a begin need not be kept; None: that is not known."""
        self._peaks: dict[str, Allocation] = {}

    def copy(self, capacities: Mapping[str, FreeCapacity]) -> BookedPlaces:
        """The same places over a copy of the capacities."""
        copy = BookedPlaces(capacities)
        copy.clusters, copy.kept, copy._peaks = dict(self.clusters), dict(self.kept), dict(self._peaks)
        copy.on = {vnode_id: list(claims) for vnode_id, claims in self.on.items()}
        copy.in_force, copy.returned_on = self.in_force, self.returned_on
        return copy

    def put(self, cluster: Cluster) -> set[str]:
        """Take over a cluster as it is now; returns the virtual nodes on which its claims have changed."""
        cluster_id, old = cluster.cluster_id, self.clusters.get(cluster.cluster_id)
        booking = cluster.booking if cluster.state == BOOKED else None
        if booking == (None if old is None else old.booking):
            if old is not None:
                self.clusters[cluster_id] = cluster
            return set()
        changed = self.drop(cluster_id)
        if booking is not None:
            self.clusters[cluster_id] = cluster
            for part in booking.parts:
                self.on.setdefault(part.parent_vnode_id, []).append(BookedClaim(cluster_id, booking, part))
                self._peaks.pop(part.parent_vnode_id, None)
                changed.add(part.parent_vnode_id)
        return changed

    def drop(self, cluster_id: str) -> set[str]:
        """Forget a cluster that was booked; returns the virtual nodes on which it had claims."""
        old = self.clusters.pop(cluster_id, None)
        if old is None or old.booking is None:
            return set()
        changed = {part.parent_vnode_id for part in old.booking.parts}
        for vnode_id in changed:
            self.give_back(vnode_id)
            self._peaks.pop(vnode_id, None)
            if left := [claim for claim in self.on[vnode_id] if claim.cluster_id != cluster_id]:
                self.on[vnode_id] = left
            else:
                del self.on[vnode_id]
        return changed

    def binding(self, parent_id: str, end_ns: int | None) -> list[str]:
        """The clusters whose places a job of a cluster leaves alone if it runs until then (None: for ever).

        A job of another cluster could only use them if its cluster grew, and that outlives the job.
        """
        return [
            name
            for name, cluster in self.clusters.items()
            if cluster.booking is not None
            and (cluster.parent_id != parent_id or end_ns is None or end_ns > cluster.booking.closed_from_ns)
        ]

    def parts_of(self, cluster_ids: Iterable[str]) -> list[tuple[str, Allocation]]:
        """The places of some bookings: (virtual node, part of it)."""
        bookings = [self.clusters[name].booking for name in cluster_ids]
        return [
            (part.parent_vnode_id, part.allocation)
            for booking in bookings
            if booking is not None
            for part in booking.parts
        ]

    def give_back(self, vnode_id: str) -> None:
        """Give back what is kept of a virtual node: it is about to change."""
        kept = self.kept.pop(vnode_id, None)
        if kept is not None and (capacity := self.capacities.get(vnode_id)) is not None:
            capacity.give_back(kept)

    def keep(self, vnode_id: str) -> None:
        """Keep what is free now of that which the bookings in force need on a virtual node."""
        self.give_back(vnode_id)
        capacity = self.capacities.get(vnode_id)
        if capacity is None or capacity.is_overdrawn():
            return
        kept = capacity.take_most(self._needed(vnode_id))
        if kept != EMPTY:
            self.kept[vnode_id] = kept

    def _needed(self, vnode_id: str) -> Allocation:
        claims = self.on.get(vnode_id, ())
        if self.in_force is not None:
            claims = [claim for claim in claims if claim.cluster_id in self.in_force]
            return EMPTY if not claims else most_of(claims, self.returned_on and self.returned_on(vnode_id))
        if (known := self._peaks.get(vnode_id)) is None:
            known = self._peaks[vnode_id] = most_of(claims)
        return known


def most_of(
    claims: Iterable[BookedClaim],
    returns: Sequence[tuple[int, Mapping[Part, int]]] | None = None,
    span: tuple[int, int] = (0, 1 << 63),
) -> Allocation:
    """The most that claims need together at any moment of a span, of each resource and device.

    ``returns``: what comes back meanwhile; at a begin so much less has to be free now.
    """
    since_ns, until_ns = span
    within = [one for one in claims if one.booking.begin_ns < until_ns and one.booking.end_ns > since_ns]
    most: dict[Part, int] = {}
    for moment in {max(one.booking.begin_ns, since_ns) for one in within}:
        there = [one for one in within if one.booking.begin_ns <= moment < one.booking.end_ns]
        closed_ns = min((one.booking.closed_from_ns for one in there), default=moment)
        back = [parts for at_ns, parts in returns or () if at_ns <= closed_ns]
        for part, amount in level([parts_of(one.part.allocation) for one in there], back).items():
            most[part] = max(most.get(part, 0), amount)
    return _allocation(most)


def _allocation(parts: Mapping[Part, int]) -> Allocation:
    amounts: dict[str, int] = {}
    instances: dict[str, dict[int, int]] = {}
    for part, amount in parts.items():
        name, index = part if isinstance(part, tuple) else (part, None)
        if amount > 0:
            amounts[name] = amounts.get(name, 0) + amount
            if index is not None:
                instances.setdefault(name, {})[index] = amount
    return Allocation(amounts, instances)
