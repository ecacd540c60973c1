"""Bookings: clusters with a begin and an end. A place is surely free then, or the refusal says who has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vctl.core import resources as rs
from vctl.core.access import Access
from vctl.core.clusters import BOOKED, JOB, LOGICAL, Booking, Cluster, ClusterSpec
from vctl.core.jobs import RunningJob
from vctl.core.ledger import Ledger
from vctl.core.wording import amounts_text, cluster_text, listed, timestamp
from vctl.engine.changes import AccessChanged, ClusterAdded
from vctl.engine.rules.bookings import opening
from vctl.errors import Conflict, Infeasible, VctlError, param
from vctl.ops import cluster_changes, feasible, nodes, rights
from vctl.ops.cluster_views import get_cluster, resolve
from vctl.scheduler.bookings import kept, place_of_booking
from vctl.scheduler.feasibility import ever
from vctl.scheduler.placement import Unplaced
from vctl.scheduler.running import Running
from vctl.spec.fields import refuse
from vctl.spec.ids import check_new_cluster_id
from vctl.store import clusters as table
from vctl.store import jobs, rows
from vctl.store.ahead import BeingStarted
from vctl.store.store import Store

if TYPE_CHECKING:
    from vctl.spec.documents import ClusterForm

MOST_NAMED = 3
"""The most users of a place that a refusal names."""
LATE_NS = 60_000_000_000
"""A begin that has passed less long ago is now: so long may a request be under way."""


def reserve(
    store: Store,
    spec: ClusterSpec,
    *,
    begin_s: float | None,
    length_s: float,
    name: str | None = None,
    parent_id: str | None = None,
    divisible: bool = True,
) -> ClusterForm:
    """Book resources of a cluster for a time: a logical cluster that opens and closes by itself."""
    if name is not None:
        check_new_cluster_id(name)
    parent = resolve(parent_id)
    rights.check_booking(store, parent)
    nodes.join(store)
    with store.transaction():
        now = store.clock()
        begin_ns = now if begin_s is None else int(begin_s * 1e9)
        if begin_ns < now - LATE_NS:
            raise refuse(
                param("at"), f"{timestamp(begin_ns)} has passed", "write now, +2h, 14:00, or 2030-01-31T14:00"
            )
        begin_ns = max(begin_ns, now)
        span = begin_ns, begin_ns + int(length_s * 1e9)
        above = cluster_changes.check_parent(store, parent)
        if above is not None and above["kind"] != LOGICAL:
            raise refuse(
                param("cluster"), "a job cannot book parts of itself", "name the primary or a logical cluster"
            )
        outer = None if above is None else rows.cluster(above).booking
        if outer is not None and outer.end_ns < span[1]:
            raise Conflict(
                f"{cluster_text(parent)} is itself booked until {timestamp(outer.end_ns)} only",
                fix="let it end by then, or book resources of another cluster",
            )
        cluster_id = name or _unused(store)
        if table.get(store, cluster_id) is not None:
            raise Conflict(
                f"virtual cluster {cluster_text(cluster_id)} exists already", fix="choose another name"
            )
        for job_id in store.being_started:  # whether it ends in time is not known yet
            raise BeingStarted(job_id)
        ledger = feasible.whole_tree(store)
        running = Running(_running(store))
        parts = place_of_booking(ledger, running, parent, spec, span, now)
        if isinstance(parts, Unplaced):
            raise _refusal(store, ledger, running, parent, spec, span, parts)
        booking = Booking(*span, parts)
        cluster = Cluster(
            cluster_id, parent, LOGICAL, spec, divisible, store.next_revision(), BOOKED, booking=booking
        )
        store.emit(ClusterAdded(now, cluster, nodes.author(store)))
        if store.identity is not None:  # the booking is for its user, who may let others in, and cancel it
            who = (store.identity.name,)
            store.emit(AccessChanged(cluster_id, Access(submitters=who, admins=who).given))
        if begin_ns <= now:
            ledger.put_cluster(cluster)
            for change in opening(ledger, cluster, booking, now):
                store.emit(change)
        return get_cluster(store, cluster_id)


def kept_now(store: Store) -> set[str]:
    """The booked clusters whose places are surely free at their begins, as the tables are now."""
    if not table.booked(store):
        return set()
    return kept(table.load_ledger(store), Running(_running(store)), store.clock())


def check_kept(store: Store, before: set[str]) -> None:
    """Raise Conflict if a change of this transaction is in the way of a booking that was kept before it."""
    for cluster_id in sorted(before - kept_now(store)):
        row = table.get(store, cluster_id)
        booking = None if row is None else rows.cluster(row).booking
        if booking is not None:
            raise Conflict(
                f"it could still run on resources that are booked for {cluster_text(cluster_id)} from"
                f" {timestamp(booking.begin_ns)} on",
                fix=f"give a limit that ends before, or cancel the booking with `vctl vc delete {cluster_id}`",
                details={"bookings": [cluster_id]},
            )


def _running(store: Store) -> Iterator[RunningJob]:
    """The running jobs with the times at which their limits end them."""
    for row in jobs.running_rows(store):
        yield rows.running(row)


def _unused(store: Store) -> str:
    """The name of a booking that got none."""
    number = 1
    while table.get(store, f"booking-{number}") is not None:
        number += 1
    return f"booking-{number}"


def _refusal(
    store: Store, ledger: Ledger, running: Running, parent_id: str, spec: ClusterSpec, span: tuple[int, int],
    answer: Unplaced,
) -> VctlError:  # fmt: skip
    """Why these resources cannot be booked: nobody ever has so much, other bookings have them, or jobs that stay."""
    asked = amounts_text(rs.total(node.resources for node in spec.fixed))
    never = ever(ledger, parent_id, spec, {})
    if never is not None and not never.exhausted:
        return Infeasible(
            f"these resources exceed the capacity of {cluster_text(parent_id)}: {never.capacity}",
            fix=feasible.fix_for(store, parent_id, never),
            details=feasible.numbers_of(never, "largest"),
        )
    now = store.clock()
    others = [] if ledger.booked is None else sorted(ledger.booked.clusters.items())
    meanwhile = [
        (cluster_id, cluster.booking)
        for cluster_id, cluster in others
        if cluster.parent_id == parent_id and cluster.booking is not None
        and cluster.booking.begin_ns < span[1] and cluster.booking.end_ns > span[0]
    ]  # fmt: skip
    alone = place_of_booking(ledger, running, parent_id, spec, span, now, beside=())
    if meanwhile and not isinstance(alone, Unplaced):
        names = [
            f"{cluster_text(cluster_id)} (until {timestamp(booking.end_ns)})"
            for cluster_id, booking in meanwhile
        ]
        return Conflict(
            f"{asked} cannot be booked from {timestamp(span[0])} on: booked for {listed(names, MOST_NAMED)}",
            fix="choose another time, or less; `vctl vc list` shows the bookings",
            details={"bookings": [cluster_id for cluster_id, _ in meanwhile]},
        )
    holders = _holders(ledger, running, parent_id, span[0])
    named = listed([cluster_text(name) for name in holders], MOST_NAMED)
    return Conflict(
        f"{asked} cannot be booked from {timestamp(span[0])} on: {answer.message}, beside what"
        f" {named or 'others'} may still hold then",
        fix="choose a later time, or give these a time limit with `vctl job edit JOB --time-limit TIME`",
        details={"holders": holders, **feasible.numbers_of(answer, "have")},
    )


def _holders(ledger: Ledger, running: Running, parent_id: str, begin_ns: int) -> list[str]:
    """The clusters and jobs directly in a cluster that may still be there at a time."""
    closed_ns = Booking(begin_ns, begin_ns, ()).closed_from_ns
    found: list[str] = []
    for cluster_id in sorted(ledger.subclusters.get(parent_id, ())):
        cluster = ledger.clusters[cluster_id]
        if not any(ledger.vnodes[one].parent_id for one in ledger.members.get(cluster_id, ())):
            continue
        if cluster.kind == JOB:
            job = running.jobs.get(int(cluster.job or 0))
            if job is None or job.ends_at_ns is None or job.ends_at_ns > closed_ns:
                found.append(cluster_id if job is None else f"job {job.submission_id}")
        elif cluster.booking is None or cluster.booking.end_ns > begin_ns:
            found.append(f"cluster {cluster_id}")
    return found
