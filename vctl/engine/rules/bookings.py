"""Bookings: a cluster that was booked opens at its begin, and closes at its end."""

from __future__ import annotations

from collections.abc import Iterator

from vctl.core import jobs as jb
from vctl.core.clusters import ACTIVE, LOGICAL, REMOVING, Booking, Cluster
from vctl.core.ledger import Ledger
from vctl.core.tasks import CANCELLED, RUNNING
from vctl.core.values import replace
from vctl.core.wording import cluster_text, timestamp
from vctl.engine.changes import (
    Change,
    ClusterChanged,
    ClusterMoved,
    JobEnded,
    JobsStopped,
    StopAsked,
    TaskEnded,
    TaskStopAsked,
    VNodesChanged,
)
from vctl.engine.settings import TurnMemo
from vctl.engine.state import SchedulerState
from vctl.scheduler.bookings import free_place, moved


def opened(state: SchedulerState, now: int) -> Iterator[Change]:
    """Open the booked clusters whose begin has come, once their whole place is free.

    It is, unless a node has died, a job does not end, or the clock has jumped: then the cluster opens later.
    """
    ledger = state.ledger
    if ledger.booked is None:
        return
    for _, cluster in sorted(ledger.booked.clusters.items()):
        booking = cluster.booking
        if booking is None or booking.begin_ns > now or booking.end_ns <= now:
            continue
        yield from opening(ledger, cluster, booking, now)


def opening(ledger: Ledger, cluster: Cluster, booking: Booking, now: int) -> Iterator[Change]:
    """Open a booked cluster, if its whole place is free."""
    if (vnodes := free_place(ledger, cluster, booking)) is not None:
        yield ClusterMoved(now, cluster.cluster_id, "open", ACTIVE)
        yield VNodesChanged((), vnodes)


def relocated(state: SchedulerState, memo: TurnMemo, now: int) -> Iterator[Change]:
    """Give another place to booked clusters that have lost a node of theirs, or could not open at their begin."""
    ledger = state.ledger
    if ledger.booked is None:
        return
    booked = [cluster for _, cluster in sorted(ledger.booked.clusters.items())]
    late = sum(one.booking is not None and one.booking.begin_ns <= now for one in booked)
    if memo.booked == (state.seen, late):
        return
    for cluster in booked:
        if (booking := moved(ledger, state.running, cluster, now)) is not None:
            yield ClusterChanged(now, replace(cluster, booking=booking))
    memo.booked = state.seen, late


def closed(state: SchedulerState, now: int) -> Iterator[Change]:
    """Close the booked clusters whose end has come: their jobs are stopped, and they go when nothing is in them."""
    for cluster_id in sorted(state.ledger.timed):
        cluster = state.ledger.clusters[cluster_id]
        booking = cluster.booking
        if booking is None or booking.end_ns > now or cluster.state == REMOVING:
            continue
        said = f"the booking of {cluster_text(cluster_id)} ended at {timestamp(booking.end_ns)}"
        below = [cluster_id, *state.ledger.below(cluster_id)]
        for one in below:
            if state.ledger.clusters[one].kind == LOGICAL:
                yield ClusterMoved(now, one, "remove", REMOVING)
        for one in below:
            yield from _stopped(state, one, said, now)
            yield from _detached(state, one, now)


def _stopped(state: SchedulerState, cluster_id: str, said: str, now: int) -> Iterator[Change]:
    queue = state.queues.get(cluster_id)
    waiting = list(queue.jobs.values()) if queue is not None else []
    waiting += [job for job in state.gated.values() if job.parent_id == cluster_id]
    for job in sorted(waiting, key=lambda job: job.job_id):
        if job.members > 1:
            first, last = job.job_id, job.job_id + job.members - 1  # they share the row of the first
            names = tuple(job.member(number).submission_id for number in range(first, last + 1))
            row = ((first, first),)
            yield JobsStopped(now, job.array_id or "", first, last, row, names, jb.BOOKING_ENDED, said)
            continue
        yield JobEnded(
            now, job.job_id, job.submission_id, job.array_id, cluster_id, "stop", jb.STOPPED, jb.BOOKING_ENDED, said,
            jb.EXIT_STOPPED if job.attempt else None,
        )  # fmt: skip
    for job_id, running in sorted(state.running.of_parent.get(cluster_id, {}).items()):
        if running.stop_requested_at is None:
            yield StopAsked(now, job_id, running.submission_id, jb.BOOKING_ENDED, running.stop_grace_s, said)


def _detached(state: SchedulerState, cluster_id: str, now: int) -> Iterator[Change]:
    """Stop the tasks in a cluster that outlive their jobs; the others end with these."""
    tasks = [
        task for task in state.tasks.unfinished.values() if task.cluster_id == cluster_id and task.outlives
    ]
    for task in tasks:
        key = task.task_id, task.job_id, task.cluster_id
        if task.state == RUNNING:
            yield TaskStopAsked(task.stop_requested_at or now, *key, task.grace_s)
        else:
            yield TaskEnded(now, *key, "cancel", CANCELLED, "cancelled before it started")


def due_after(state: SchedulerState, now: int) -> list[int]:
    """The times at which a booked cluster opens or closes."""
    clusters = [state.ledger.clusters[one] for one in sorted(state.ledger.timed)]
    booked = [cluster.booking for cluster in clusters if cluster.booking is not None]
    times = [at for booking in booked for at in (booking.begin_ns, booking.end_ns)]
    return [at for at in times if at > now]
