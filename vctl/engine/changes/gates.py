"""Changes of what keeps waiting jobs out of their queue, and of what may be edited while a job is not over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vctl.core.spans import Spans
from vctl.engine.changes.change import PublicEvent, change, internal


@change
class Members:
    """A job, or all jobs of an array: what an event names, and their numbers."""

    object_id: str
    first: int
    last: int
    cluster_id: str | None = None
    """The cluster that the event of a job names."""
    is_array: bool = False

    def event(self, what: str, data: Mapping[str, Any]) -> PublicEvent:
        """The public event of what happened to them."""
        if self.is_array:
            reach = {"first": self.first, "last": self.last}
            return PublicEvent(f"array.{what}", "array", self.object_id, None, None, {**reach, **data})
        return PublicEvent(f"job.{what}", "job", self.object_id, self.cluster_id, self.first, data)


@change
class JobsHeld:
    """Waiting jobs are put on hold, or released."""

    members: Members
    spans: Spans
    held: bool
    closed: bool
    """Whether they wait for a place among the members of their array afterwards."""

    def public_event(self) -> PublicEvent:
        return self.members.event("held" if self.held else "released", {})


@change
class JobsEdited:
    """Jobs have another priority, name or time limit. ``values``: column -> value."""

    members: Members
    spans: Spans
    values: Mapping[str, Any]

    def public_event(self) -> PublicEvent:
        return self.members.event("edited", self.values)


@change
class MembersAdmitted:
    """Members of an array got a place among those that may run at once."""

    array_id: str
    spans: Spans

    public_event = internal("array", "array_id")


@change
class BeginTimesPassed:
    """The begin time of waiting jobs is over, or the time before another attempt."""

    spans: Spans

    def public_event(self) -> PublicEvent:
        """For schedulers alone."""
        return PublicEvent("", "job", str(self.spans[0][0]))


@change
class DependencyMet:
    """A condition that a job waited for came true; ``left`` are open."""

    job_id: int
    submission_id: str
    cluster_id: str
    condition: str
    awaited: str
    left: int

    def public_event(self) -> PublicEvent:
        """The public event, once none is open."""
        kind = "" if self.left else "job.unblocked"
        data = {"awaited": self.awaited}
        return PublicEvent(kind, "job", self.submission_id, self.cluster_id, self.job_id, data)
