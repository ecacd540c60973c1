"""Changes of the gates that keep waiting jobs out of their queue, and edits of jobs that are not over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl.core.jobs import PendingJob
from vctl.core.spans import Spans, numbers_of, parts_of
from vctl.core.values import field, replace
from vctl.engine.changes.change import Change, PublicEvent, change, internal
from vctl.engine.changes.submits import OUTSIDE, Launch

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class Members:
    """A job, or all jobs of an array: the id for events, and the first and last number."""

    object_id: str
    first: int
    last: int
    cluster_id: str | None = None
    """The cluster that the event of a job names."""
    is_array: bool = False

    def event(self, what: str, data: Mapping[str, Any]) -> PublicEvent:
        """The public event ``job.<what>`` or ``array.<what>``."""
        if self.is_array:
            reach = {"first": self.first, "last": self.last}
            return PublicEvent(f"array.{what}", "array", self.object_id, None, None, {**reach, **data})
        return PublicEvent(f"job.{what}", "job", self.object_id, self.cluster_id, self.first, data)


@change
class JobsHeld(Change):
    """Waiting jobs are put on hold, or released."""

    members: Members
    spans: Spans
    held: bool
    closed: bool
    """Whether they then wait for a place among the members of their array."""

    def public_event(self) -> PublicEvent:
        return self.members.event("held" if self.held else "released", {})

    def apply(self, state: SchedulerState) -> None:
        _change(state, self.spans, held=self.held, closed=self.closed)


@change
class JobsEdited(Change):
    """Jobs that are not over were edited. Jobs that run have only their time limit edited."""

    members: Members
    spans: Spans
    job: PendingJob
    """One of them, as it is now."""
    edited: tuple[str, ...]
    """The fields in which all of them are now as this one."""
    columns: Mapping[str, Any]
    """The edited columns that no decision needs."""
    data: Mapping[str, Any]
    """What the event says: the edited parameters."""
    after: tuple[tuple[str, str], ...] | None = None
    """(condition, id) of each job or array that they wait for now; None: as before."""
    launch: Launch | None = field(default=None, compare=False, repr=False, metadata={OUTSIDE: True})
    """Their command, if that or their request was edited."""

    def public_event(self) -> PublicEvent:
        return self.members.event("edited", self.data)

    def apply(self, state: SchedulerState) -> None:
        values = {name: getattr(self.job, name) for name in self.edited}
        for job_id in numbers_of(self.spans):
            if (waiting := state.pending(job_id)) is not None:
                if waiting.parent_id != values.get("parent_id", waiting.parent_id):
                    state.dequeue(job_id)
                state.put_pending(replace(waiting, **values))
            elif (job := state.running.jobs.get(job_id)) is not None and "time_limit_ns" in values:
                limit_ns = self.job.time_limit_ns
                ends_at_ns = None if limit_ns is None else job.started_at_ns + limit_ns
                job = replace(job, ends_at_ns=ends_at_ns)
                state.running.put(job)
                state.requests[job_id] = replace(state.requests[job_id], time_limit_ns=limit_ns)
                for run_id in state.members_of(job_id):
                    state.timers.plan(state, state.runs[run_id], job)


@change
class ArrayLimited(Change):
    """Another number of members of an array may run at once."""

    array_id: str
    first: int
    last: int
    at_once: int | None
    """None: all of them."""
    shown: str
    """The indices and the limit, as in a submit."""
    closed: Spans
    """The members that wait for a place now."""
    opened: Spans
    """The members that wait for none now."""

    def public_event(self) -> PublicEvent:
        data = {"first": self.first, "last": self.last, "max_running": self.at_once}
        return PublicEvent("array.edited", "array", self.array_id, None, None, data)

    def apply(self, state: SchedulerState) -> None:
        limits = state.array_limits
        limits.drop(self.array_id)
        _change(state, self.closed, closed=True)
        _change(state, self.opened, closed=False)
        limits.limit(self.array_id, self.at_once)
        for job_id in range(self.first, self.last + 1):
            if (job := state.pending(job_id)) is not None:
                limits.put(job)
            elif job_id in state.running.jobs:
                limits.run(self.array_id, job_id)
        limits.settle(self.array_id)


@change
class MembersAdmitted(Change):
    """Members of an array got a place among those that may run at once."""

    array_id: str
    spans: Spans

    public_event = internal("array", "array_id")

    def apply(self, state: SchedulerState) -> None:
        _change(state, self.spans, closed=False)


@change
class MembersUnfolded(Change):
    """Members for which one row stood get rows of their own; the others stay together, before and behind them."""

    array_id: str
    job_id: int
    """The first of all the members for which the row stood."""
    members: int
    """Their number."""
    own: Spans
    """Those that get rows of their own."""

    public_event = internal("array", "array_id")

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The rows that take the place of the one: the first member of each, and for how many it stands."""
        return parts_of(self.job_id, self.members, self.own)

    def apply(self, state: SchedulerState) -> None:
        job = state.pending(self.job_id)
        if job is None or job.members != self.members:  # it is over, or the change was applied before
            return
        first, *others = (job.member(number, members) for number, members in self.parts)
        state.put_pending(first)
        state.put_all_pending(others)
        state.array_limits.settle(self.array_id)


@change
class BeginTimesPassed(Change):
    """Waiting jobs have reached their begin time, or the end of their backoff."""

    spans: Spans

    def public_event(self) -> PublicEvent:
        return PublicEvent("", "job", str(self.spans[0][0]))

    def apply(self, state: SchedulerState) -> None:
        _change(state, self.spans, begin_at_ns=None)


@change
class DependencyMet(Change):
    """A condition of a waiting job is met; ``left`` conditions are still open."""

    job_id: int
    submission_id: str
    cluster_id: str
    condition: str
    awaited: str
    left: int

    def public_event(self) -> PublicEvent:
        kind = "" if self.left else "job.unblocked"
        data = {"awaited": self.awaited}
        return PublicEvent(kind, "job", self.submission_id, self.cluster_id, self.job_id, data)

    def apply(self, state: SchedulerState) -> None:
        _change(state, ((self.job_id, self.job_id),), waits_for=self.left)


def _change(state: SchedulerState, spans: Spans, **values: Any) -> None:
    for job_id in numbers_of(spans):
        if (job := state.pending(job_id)) is not None:
            state.put_pending(replace(job, **values))
