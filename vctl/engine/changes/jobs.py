"""Changes of jobs: started, ended, queued again, asked to stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl.core.clusters import Cluster, VNode
from vctl.core.jobs import PendingJob, Run, RunningJob
from vctl.core.spans import Spans, numbers_of
from vctl.core.values import replace
from vctl.engine.changes.change import Change, PublicEvent, change, internal, unread
from vctl.engine.changes.clusters import ClusterRemoved

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class JobStarted(Change):
    """A job starts, with its own cluster or in its parent, and with all its main processes."""

    at: int
    job: RunningJob
    nodes: tuple[str, ...]
    runs: tuple[Run, ...]
    """The run with the allocation of the entrypoint first; the other members of a gang follow by rank."""
    cluster: Cluster | None = None
    vnodes: tuple[VNode, ...] = ()
    was_ahead: bool = False
    """Whether its run was assigned ahead."""

    def public_event(self) -> PublicEvent:
        job = self.job
        data = {"attempt": job.attempt, "nodes": list(self.nodes)}
        return PublicEvent("job.started", "job", job.submission_id, job.cluster_id, job.job_id, data)

    def apply(self, state: SchedulerState) -> None:
        job, ledger = self.job, state.ledger
        ahead = state.ahead.drop(job.run_id) if self.was_ahead else None
        if self.cluster is not None:
            if state.trial is None or not state.trial.settle(job.job_id, self.cluster, self.vnodes):
                ledger.put_cluster(self.cluster)
                ledger.assign_all(self.vnodes)
        for run in self.runs:
            state.add_run(run)
        if ahead is not None:
            others = (follower.start.job for follower in state.ahead.runs.values())
            state.queues[job.parent_id].note_start(ahead.start.job, others)
        request = state.pending(job.job_id) if ahead is None else ahead.start.job
        if request is not None:
            state.requests[job.job_id] = request
            state.dequeue(job.job_id)
        state.array_limits.run(job.array_id, job.job_id)
        state.running.put(job)
        if not job.per_node:
            state.changed.started[job.run_id] = None


@change
class JobEnding(Change):
    """The entrypoint of a job has ended with this outcome; its other processes are still being ended."""

    job_id: int
    outcome: tuple[str, str | None, int | None, str | None]
    """Status, reason, exit code, message."""

    public_event = internal("job", "job_id")

    def apply(self, state: SchedulerState) -> None:
        if (job := state.running.jobs.get(self.job_id)) is not None:
            own = min(state.members_of(self.job_id), default="")
            state.running.put(replace(job, outcome=self.outcome, run_id=own))
            state.running.leave(self.job_id)
            state.note_stop(state.members_of(self.job_id))


@change
class JobEnded(Change):
    """A job is over. ``move``: ``end``, or ``stop`` or ``reject`` for a job that waited."""

    at: int
    job_id: int
    submission_id: str
    array_id: str | None
    cluster_id: str | None
    """The cluster that its event names."""
    move: str
    status: str
    reason: str | None
    message: str | None
    exit_code: int | None
    removed: ClusterRemoved | None = None
    """The removal of its own cluster; None if it has none, or if detached work is left in it."""

    def public_event(self) -> PublicEvent:
        data: dict[str, object] = {"status": self.status, "exit_code": self.exit_code}
        if self.reason:
            data["reason"] = self.reason
        return PublicEvent("job.ended", "job", self.submission_id, self.cluster_id, self.job_id, data)

    def apply(self, state: SchedulerState) -> None:
        state.dequeue(self.job_id)
        state.running.end(self.job_id, self.at)
        state.requests.pop(self.job_id, None)
        state.array_limits.leave(self.array_id, self.job_id)
        state.note_end(self.submission_id, self.array_id)
        if self.removed is not None:
            self.removed.apply(state)


@change
class JobRequeued(Change):
    """A job that ran waits again for another attempt; its cluster was removed."""

    job: PendingJob
    reason: str | None
    message: str | None
    data: Mapping[str, Any]
    at: int = 0
    """When the attempt before ended."""

    def public_event(self) -> PublicEvent:
        job = self.job
        return PublicEvent("job.requeued", "job", job.submission_id, job.parent_id, job.job_id, self.data)

    def apply(self, state: SchedulerState) -> None:
        state.running.end(self.job.job_id, self.at)
        state.requests.pop(self.job.job_id, None)
        state.put_pending(self.job)


@change
class StopAsked(Change):
    """A stop of a running job was requested. The time and reason are those of the first request.

    The grace and message are those of the last one.
    """

    at: int
    job_id: int
    submission_id: str
    reason: str
    grace_s: float | None
    message: str | None
    silent: bool = False
    """Whether the event of its array reports it already."""

    def public_event(self) -> PublicEvent:
        kind = "" if self.silent else "job.stop_requested"
        return PublicEvent(kind, "job", self.submission_id, None, self.job_id, {"reason": self.reason})

    def apply(self, state: SchedulerState) -> None:
        if (job := state.running.jobs.get(self.job_id)) is not None:
            state.running.put(
                replace(
                    job, stop_requested_at=self.at, stop_reason=self.reason, stop_grace_s=self.grace_s,
                    message=self.message,
                )
            )  # fmt: skip
            state.running.leave(self.job_id)
            state.note_stop(state.runs_of_job.get(self.job_id, ()))


@change
class JobsStopped(Change):
    """A stop of an array was requested. Members that waited are over; running ones have a ``StopAsked``."""

    at: int
    array_id: str
    first: int
    last: int
    spans: Spans
    """The members that waited."""
    awaited: tuple[str, ...]
    """The ids of members for which other jobs wait."""
    reason: str
    message: str

    def public_event(self) -> PublicEvent:
        data = {"first": self.first, "last": self.last, "reason": self.reason}
        return PublicEvent("array.stop_requested", "array", self.array_id, None, None, data)

    def apply(self, state: SchedulerState) -> None:
        for job_id in numbers_of(self.spans):
            state.dequeue(job_id)
            state.array_limits.leave(self.array_id, job_id)
        state.changed.ended.update((self.array_id, *self.awaited))


@change
class NoticeSent(Change):
    """A notice of a start or an end was sent, or given up. Only a notice that failed is a public event."""

    number: int
    """The row of the notice."""
    subject: str
    """The id of the job or array."""
    job_id: int
    moment: str
    problem: str | None = None

    def public_event(self) -> PublicEvent:
        kind = "" if self.problem is None else "notice.failed"
        data = {"moment": self.moment, "problem": self.problem}
        return PublicEvent(kind, "job", self.subject, None, self.job_id, data)

    apply = unread
