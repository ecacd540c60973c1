"""Changes that add jobs and arrays, and changes that delete them once they are over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vctl.core.indices import Indices, Parts
from vctl.core.jobs import PendingJob
from vctl.core.spans import Spans, numbers_of
from vctl.core.values import field, replace
from vctl.engine.changes.change import Change, PublicEvent, change, unread

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState

OUTSIDE = "outside"


@change
class Launch:
    """The command, as columns. It may contain secrets, so it is not in the journal."""

    entrypoint: str = ""
    argv: str = "[]"
    env: str = "{}"
    cwd: str | bytes = ""
    options: str = "{}"


@change
class SubmitDetails:
    """The columns of a job that no decision needs in this form."""

    name: str | None
    metadata: str
    time_limit_s: float | None
    resources: str
    submitted_by: int | None
    uid: int | None = None
    """The user of a shared service who submitted it, and as whom it runs; None in personal mode."""


@change
class JobSubmitted(Change):
    """A job was submitted, and waits. ``after``: (condition, id) of each job or array that it waits for."""

    job: PendingJob
    details: SubmitDetails
    after: tuple[tuple[str, str], ...] = ()
    launch: Launch | None = field(default=None, compare=False, repr=False, metadata={OUTSIDE: True})

    def public_event(self) -> PublicEvent:
        job = self.job
        return PublicEvent("job.submitted", "job", job.submission_id, job.parent_id, job.job_id)

    def apply(self, state: SchedulerState) -> None:
        state.put_pending(self.job)


@change
class ArraySubmitted(Change):
    """An array was submitted. ``template``: its first member with the array's id; all others are like it."""

    template: PendingJob
    details: SubmitDetails
    indices: Parts
    shown: str
    """The indices as the user wrote them."""
    at_once: int | None
    made: int
    """The number of first members that have rows of their own. One row stands for all others of a range."""
    after: tuple[tuple[str, str], ...] = ()
    launch: Launch | None = field(default=None, compare=False, repr=False, metadata={OUTSIDE: True})

    @property
    def count(self) -> int:
        """The number of members."""
        return len(Indices(self.indices))

    @property
    def rows(self) -> list[tuple[int, int, int, int]]:
        """Of each row: its place among all members, its index, and for how many members it stands, with their step."""
        rows, n = list[tuple[int, int, int, int]](), 0
        for part in self.indices:
            indices = range(*part)
            own = max(0, min(self.made - n, len(indices)))
            rows += [(n + at, index, 1, 1) for at, index in enumerate(indices[:own])]
            if rest := len(indices) - own:
                rows.append((n + own, indices[own], rest, indices.step if rest > 1 else 1))
            n += len(indices)
        return rows

    @property
    def open(self) -> int:
        """How many members have a place at first: the rest of an array with a limit gets places later."""
        if self.at_once is None:
            return self.count
        return 0 if self.template.held else min(self.at_once, self.made)

    def members(self) -> Iterator[PendingJob]:
        """The jobs of all members; some stand for several, which have no rows of their own."""
        first, array_id, open_ = self.template.job_id, self.template.submission_id, self.open
        for n, index, members, step in self.rows:
            yield replace(
                self.template,
                job_id=first + n,
                submission_id=f"{array_id}_{index}",
                closed=n >= open_,
                array_id=array_id,
                members=members,
                step=step,
            )

    def public_event(self) -> PublicEvent:
        template = self.template
        data = {"first": template.job_id, "last": template.job_id + self.count - 1, "count": self.count}
        return PublicEvent("array.submitted", "array", template.submission_id, None, None, data)

    def apply(self, state: SchedulerState) -> None:
        template = self.template
        if state.pending(template.job_id) is not None:
            return
        if self.at_once is not None or any(members > 1 for _, _, members, _ in self.rows):
            state.array_limits.limit(template.submission_id, self.at_once)
        state.put_all_pending(self.members())


@change
class JobForgotten(Change):
    """A job that was over was deleted."""

    job_id: int
    submission_id: str

    def public_event(self) -> PublicEvent:
        return PublicEvent("job.deleted", "job", self.submission_id, None, self.job_id)

    def apply(self, state: SchedulerState) -> None:
        _forget(state, ((self.job_id, self.job_id),))


@change
class ArrayForgotten(Change):
    """An array whose members were all over was deleted, with its remaining members."""

    array_id: str
    first: int
    last: int
    spans: Spans

    def public_event(self) -> PublicEvent:
        return PublicEvent(
            "array.deleted", "array", self.array_id, None, None, {"first": self.first, "last": self.last}
        )

    def apply(self, state: SchedulerState) -> None:
        _forget(state, self.spans)


@change
class JobsPruned(Change):
    """Jobs that ended long ago were deleted."""

    spans: Spans
    others: int = 0
    """How many members of arrays were deleted that had no rows of their own."""

    def public_event(self) -> PublicEvent:
        count = sum(last - first + 1 for first, last in self.spans) + self.others
        return PublicEvent("jobs.pruned", "jobs", "", None, None, {"count": count})

    def apply(self, state: SchedulerState) -> None:
        _forget(state, self.spans)


@change
class ArraysEmptied(Change):
    """Arrays were deleted because their last members were deleted."""

    array_ids: tuple[str, ...]

    def public_event(self) -> PublicEvent:
        return PublicEvent("", "array", self.array_ids[0])

    apply = unread


def _forget(state: SchedulerState, spans: Spans) -> None:
    """Forget the objects of deleted jobs, and the nomination that a stopped job may still have."""
    for job_id in numbers_of(spans):
        state.tasks.drop_objects(job_id)
        state.drop_nomination(job_id)
