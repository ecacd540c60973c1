"""Bookings in the search for starts: the places that jobs must leave alone, and the place of a new booking.

A job leaves alone the place of each booking that begins before the job is over by its time limit; one without a limit
runs for ever. That is the reservation of backfill with a known start (``reservations``), so a job that waits gets its
own reservation beside it. A cluster never grows over a place that is booked: what it has borrowed outlives the job for
which it grew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from vctl.core.bookings import Returns, most_of
from vctl.core.clusters import FIXED, PRIMARY, BookedPart, Booking, Cluster, ClusterSpec, VNode
from vctl.core.jobs import PendingJob
from vctl.core.ledger import Ledger
from vctl.core.resources import EMPTY, Allocation, FreeCapacity, parts_of, within
from vctl.core.values import replace
from vctl.scheduler.availability import AvailabilityProfile
from vctl.scheduler.candidate_nodes import candidates_in
from vctl.scheduler.elasticity import can_grow, level_above
from vctl.scheduler.placement import Placed, Unplaced, place_on
from vctl.scheduler.placement_result import Piece, seated, vnodes_of
from vctl.scheduler.plan import Start, still_fits
from vctl.scheduler.reservations import Reservation, Shared
from vctl.scheduler.running import Running

NOWHERE = Placed((), 0, EMPTY, exact=True)


def booked(ledger: Ledger) -> list[Shared]:
    """The bookings that have not begun, as reservations on the level of their parents."""
    if ledger.booked is None:
        return []
    found: list[Shared] = []
    for number, (cluster_id, cluster) in enumerate(sorted(ledger.booked.clusters.items())):
        booking, level = cluster.booking, cluster.parent_id or PRIMARY
        if booking is None:
            continue
        claims = tuple(
            (part.parent_vnode_id, parts_of(part.allocation))
            for part in booking.parts
            if part.parent_vnode_id in ledger.vnodes
        )
        one = Reservation(
            -2 - number, cluster_id, booking.closed_from_ns, booking.end_ns, NOWHERE, claims, is_booking=True
        )
        # what a cluster has borrowed and does not use may go home for a job anywhere below the level of its growth
        scope = level_above(ledger, level) if can_grow(ledger.clusters[level]) else level
        found.append(Shared(one, level, scope, frozenset()))
    return found


def booked_on(ledger: Ledger, level: str) -> list[Reservation]:
    """The bookings of a cluster's resources that have not begun."""
    return [shared.reservation for shared in booked(ledger) if shared.level == level] if ledger.booked else []


def binding(ledger: Ledger, job: PendingJob, now_ns: int) -> list[str]:
    """The bookings whose places a job must leave alone if it starts now."""
    if ledger.booked is None:
        return []
    return ledger.booked.binding(
        job.parent_id, None if job.time_limit_ns is None else now_ns + job.time_limit_ns
    )


def returned_by(ledger: Ledger, running: Running, now_ns: int) -> Returns:
    """What running jobs return by their time limits on the virtual nodes of the cluster in which they were queued."""
    profiles: dict[str, AvailabilityProfile] = {}

    def returned_on(vnode_id: str) -> Sequence[tuple[int, dict[str | tuple[str, int], int]]]:
        level = ledger.vnodes[vnode_id].cluster_id
        if level not in profiles:
            profiles[level] = AvailabilityProfile(ledger, level, running, now_ns)
        return profiles[level].returned_on(vnode_id)

    return returned_on


def still_fits_beside(ledger: Ledger, running: Running, start: Start, now_ns: int) -> bool:
    """Whether a start can still be taken, beside the bookings: what the search asks, asked again before the commit."""
    if ledger.booked is None or start.growth:
        return still_fits(ledger, start)
    with ledger.bookings_in_force(binding(ledger, start.job, now_ns), returned_by(ledger, running, now_ns)):
        return still_fits(ledger, start)


def place_of_booking(
    ledger: Ledger, running: Running, parent_id: str, spec: ClusterSpec, span: tuple[int, int], now_ns: int, *,
    beside: Collection[str] | None = None,
) -> tuple[BookedPart, ...] | Unplaced:  # fmt: skip
    """The place that is surely free from the begin of a booking on: by time limits, and beside other bookings.

    ``beside``: only these bookings count (None: all).
    """
    capacities = _capacities(ledger, running, parent_id, ledger.members[parent_id], span, now_ns, beside)
    with ledger.bookings_in_force(()):
        index = ledger.index_with(parent_id, capacities)
        placed = place_on(candidates_in(ledger, index, capacities), spec, {})
    if not isinstance(placed, Placed):
        return placed
    return tuple(
        BookedPart(piece.parent_vnode_id, piece.node_id, replace(piece.allocation, cores=()), piece.whole)
        for piece in placed.pieces
    )


def kept(ledger: Ledger, running: Running, now_ns: int) -> set[str]:
    """The booked clusters whose places are surely free at their begins."""
    booked = {} if ledger.booked is None else ledger.booked.clusters
    return {name for name, cluster in booked.items() if _is_kept(ledger, running, cluster, now_ns)}


def _is_kept(ledger: Ledger, running: Running, cluster: Cluster, now_ns: int) -> bool:
    booking, parent_id = cluster.booking, cluster.parent_id or PRIMARY
    if booking is None or _is_lost(ledger, parent_id, booking):
        return False
    vnode_ids = {part.parent_vnode_id for part in booking.parts}
    span = max(booking.begin_ns, now_ns), booking.end_ns
    capacities = _capacities(ledger, running, parent_id, vnode_ids, span, now_ns, _others(ledger, cluster))
    return all(
        capacities[part.parent_vnode_id].take_most(part.allocation).amounts == part.allocation.amounts
        for part in booking.parts
    )


def moved(ledger: Ledger, running: Running, cluster: Cluster, now_ns: int) -> Booking | None:
    """The booking of a cluster at another place, because its own has lost a node or is not free at the begin.

    None: its place is as it was, or there is no other one.
    """
    booking, parent_id = cluster.booking, cluster.parent_id or PRIMARY
    if booking is None or booking.end_ns <= now_ns:
        return None
    if booking.begin_ns > now_ns and not _is_lost(ledger, parent_id, booking):
        return None
    span, others = (max(booking.begin_ns, now_ns), booking.end_ns), _others(ledger, cluster)
    parts = place_of_booking(ledger, running, parent_id, cluster.spec, span, now_ns, beside=others)
    return None if isinstance(parts, Unplaced) or parts == booking.parts else replace(booking, parts=parts)


def _others(ledger: Ledger, cluster: Cluster) -> list[str]:
    return [one for one in (ledger.booked.clusters if ledger.booked else ()) if one != cluster.cluster_id]


def _is_lost(ledger: Ledger, parent_id: str, booking: Booking) -> bool:
    """Whether a part of a place is gone, takes no work, or has become too small."""
    for part in booking.parts:
        slot = ledger.vnodes.get(part.parent_vnode_id)
        if slot is None or slot.cluster_id != parent_id or not ledger.nodes[slot.node_id].schedulable:
            return True
        if not within(part.allocation.amounts, slot.allocation.amounts):
            return True
    return False


def _capacities(
    ledger: Ledger, running: Running, parent_id: str, vnode_ids: Iterable[str], span: tuple[int, int], now_ns: int,
    beside: Collection[str] | None,
) -> dict[str, FreeCapacity]:  # fmt: skip
    """What is surely free on virtual nodes from the begin of a span on, until other bookings need it."""
    closed_ns = Booking(*span, ()).closed_from_ns
    profile = AvailabilityProfile(ledger, parent_id, running, now_ns)
    gone = {job.cluster_id for at_ns, job in profile.ends if now_ns < at_ns <= closed_ns}
    with ledger.bookings_in_force(()):
        capacities = {vnode_id: ledger.capacities[vnode_id].copy() for vnode_id in vnode_ids}
    for vnode_id, capacity in capacities.items():
        for child_id in ledger.children[vnode_id]:
            child = ledger.vnodes[child_id]
            booking = ledger.clusters[child.cluster_id].booking
            if child.cluster_id in gone or (booking is not None and booking.end_ns <= span[0]):
                capacity.give_back(child.allocation)
        claims = () if ledger.booked is None else ledger.booked.on.get(vnode_id, ())
        if claims := [claim for claim in claims if beside is None or claim.cluster_id in beside]:
            capacity.take_most(most_of(claims, span=span))
    return capacities


def free_place(ledger: Ledger, cluster: Cluster, booking: Booking) -> tuple[VNode, ...] | None:
    """The virtual nodes that a booked cluster gets, with cores that are free now; None: not all of its place is."""
    labels = [node.labels for node in cluster.spec.fixed]
    pieces = tuple(
        Piece(
            FIXED, rank, 0, part.parent_vnode_id, part.node_id,
            Allocation(part.allocation.amounts, part.allocation.instances), labels[rank] if rank < len(labels) else {},
            part.whole,
        )
        for rank, part in enumerate(booking.parts)
    )  # fmt: skip
    parent_id = cluster.parent_id or PRIMARY
    for piece in pieces:
        slot = ledger.vnodes.get(piece.parent_vnode_id)
        if slot is None or slot.cluster_id != parent_id or not ledger.nodes[slot.node_id].schedulable:
            return None
    others = [name for name in ledger.booked.clusters if name != cluster.cluster_id] if ledger.booked else []
    begun = [name for name in others if _begins_before(ledger, name, booking)]
    with ledger.bookings_in_force(begun):
        placed = seated(ledger, Placed(pieces, 0, EMPTY, exact=True), {})
    return None if placed is None else vnodes_of(ledger, cluster.cluster_id, placed.pieces)


def _begins_before(ledger: Ledger, cluster_id: str, booking: Booking) -> bool:
    """Whether another booking, that has not opened in time, comes first."""
    other = ledger.clusters[cluster_id].booking
    return other is not None and other.begin_ns < booking.begin_ns < other.end_ns
