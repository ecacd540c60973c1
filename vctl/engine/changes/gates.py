"""Changes of what keeps waiting jobs out of their queue, and of what may be edited while a job is not over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vctl.core.spans import Spans
from vctl.engine.changes.told import Told, change, untold


@change
class Members:
    """A job, or all jobs of an array: what an event names, and their numbers."""

    object_id: str
    first: int
    last: int
    cluster_id: str | None = None
    """The cluster that the event of a job names."""
    is_array: bool = False

    def told(self, what: str, data: Mapping[str, Any]) -> Told:
        """The public event of what happened to them."""
        if self.is_array:
            reach = {"first": self.first, "last": self.last}
            return Told(f"array.{what}", "array", self.object_id, None, None, {**reach, **data})
        return Told(f"job.{what}", "job", self.object_id, self.cluster_id, self.first, data)


@change
class JobsHeld:
    """Waiting jobs are put on hold, or released."""

    members: Members
    spans: Spans
    held: bool
    closed: bool
    """Whether they wait for a place among the members of their array afterwards."""

    def told(self) -> Told:
        """The public event."""
        return self.members.told("held" if self.held else "released", {})


@change
class JobsEdited:
    """Jobs have another priority, name or time limit. ``values``: column -> value."""

    members: Members
    spans: Spans
    values: Mapping[str, Any]

    def told(self) -> Told:
        """The public event."""
        return self.members.told("edited", self.values)


@change
class MembersAdmitted:
    """Members of an array got a place among those that may run at once."""

    array_id: str
    spans: Spans

    told = untold("array", "array_id")


@change
class BeginTimesPassed:
    """The begin time of waiting jobs is over, or the time before another attempt."""

    spans: Spans

    def told(self) -> Told:
        """For schedulers alone."""
        return Told("", "job", str(self.spans[0][0]))


@change
class DependencyMet:
    """A condition that a job waited for came true; ``left`` are open."""

    job_id: int
    submission_id: str
    cluster_id: str
    condition: str
    awaited: str
    left: int

    def told(self) -> Told:
        """The public event, once none is open."""
        kind = "" if self.left else "job.unblocked"
        data = {"awaited": self.awaited}
        return Told(kind, "job", self.submission_id, self.cluster_id, self.job_id, data)
