"""Opens the gates of waiting jobs: begin times, ends of jobs for which they wait, places in arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vctl.core import jobs as jb
from vctl.core.jobs import PendingJob
from vctl.core.spans import spans_of
from vctl.engine.changes import (
    BeginTimesPassed,
    Change,
    DependencyMet,
    JobEnded,
    MembersAdmitted,
    MembersUnfolded,
)
from vctl.engine.stimuli import AwaitedOver

if TYPE_CHECKING:  # a submit judges dependencies, too, and needs no scheduler
    from vctl.engine.state import SchedulerState
    from vctl.engine.stimuli import Stimulus

OPEN, MET, IMPOSSIBLE = "open", "met", "impossible"


def awaited(state: SchedulerState, stimuli: Iterable[Stimulus], now: int) -> Iterator[Change]:
    """Release jobs whose awaited jobs have ended as required; end jobs whose condition is impossible now."""
    for one in [one for one in stimuli if isinstance(one, AwaitedOver)]:
        for job_id, condition in one.waiting:
            job = state.pending(job_id)
            if job is not None and job.waits_for and (found := judged(condition, one)) != OPEN:
                yield followed(job, condition, one.name, now, met=found == MET)


def judged(condition: str, one: AwaitedOver) -> str:
    """Whether a condition is ``MET``, ``IMPOSSIBLE`` or still ``OPEN``."""
    if one.good + one.bad + one.left == 0:  # deleted, so it is over, but its outcome is not known any more
        return MET if condition == "any" else IMPOSSIBLE
    if condition == "ok" and one.bad:
        return IMPOSSIBLE
    if one.left:
        return OPEN
    return MET if condition == "any" or (condition == "ok") == (one.bad == 0) else IMPOSSIBLE


def followed(job: PendingJob, condition: str, name: str, now: int, *, met: bool) -> DependencyMet | JobEnded:
    """The change for a job whose condition is met or (not ``met``) impossible: then the job never runs."""
    if met:
        return DependencyMet(job.job_id, job.submission_id, job.parent_id, condition, name, job.waits_for - 1)
    wish = {"ok": "to succeed", "notok": "to fail", "any": "to end"}[condition]
    return JobEnded(
        now, job.job_id, job.submission_id, job.array_id, job.parent_id, "reject", jb.FAILED,
        jb.DEPENDENCY_FAILED, f"it waited for {name} {wish}, which can no longer happen", None,
    )  # fmt: skip


def begin_due(state: SchedulerState, now: int) -> Iterator[Change]:
    """Remove the begin time of every queued job that has reached it."""
    due = sorted(
        job.job_id
        for queue in state.queues.values()
        for job in queue.delayed()
        if job.begin_at_ns is not None and job.begin_at_ns <= now
    )
    if due:
        yield BeginTimesPassed(spans_of(due))


def unfold_members(state: SchedulerState) -> Iterator[Change]:
    """Give rows of their own to the next members of arrays of which few such members are left."""
    for job, count in state.array_limits.to_unfold():
        own = ((job.job_id, job.job_id + count - 1),)
        yield MembersUnfolded(job.array_id or "", job.job_id, job.members, own)


def admit_members(state: SchedulerState) -> Iterator[Change]:
    """Give the free places of arrays to the first members that wait for one."""
    for array_id, members in state.array_limits.due().items():
        yield MembersAdmitted(array_id, spans_of(members))


def begins_after(state: SchedulerState, now: int) -> list[int]:
    """The times at which queued jobs may become able to start: begin times and future reserved starts."""
    queues = state.queues.values()
    begins = [job.begin_at_ns for queue in queues for job in queue.delayed() if job.begin_at_ns is not None]
    return begins + [at for queue in queues for at in queue.reserved_after(now)]
