"""Jobs whose begin time has come, and retries whose backoff is over: from then on they wait as others do."""

from __future__ import annotations

from vctl.daemon.following import FollowedState
from vctl.ops import gates
from vctl.store.store import Store


def begin_due(store: Store, state: FollowedState) -> None:
    """Take the begin time off every queued job for which it is over, in one transaction."""
    now = store.clock()
    due = [
        job.job_id
        for queue in state.queues.values()
        for job in queue.delayed()
        if job.begin_at_ns is not None and job.begin_at_ns <= now
    ]
    if not due:
        return
    with store.transaction():
        state.follow(store)
        for job_id in sorted(due):
            gates.refresh(store, job_id)
            state.reload_job(store, job_id)
        state.caught_up(store)


def begins_after(state: FollowedState, now: int) -> list[int]:
    """When queued jobs may start that cannot start now: begin times, and reservations that end."""
    queues = state.queues.values()
    begins = [job.begin_at_ns for queue in queues for job in queue.delayed() if job.begin_at_ns is not None]
    return begins + [at for queue in queues for at in queue.reserved_after(now)]
