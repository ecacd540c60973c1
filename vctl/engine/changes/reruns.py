"""The change that lets jobs that did not succeed run again in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vctl.core.jobs import PendingJob
from vctl.core.spans import spans_of
from vctl.core.values import field, replace
from vctl.engine.changes.change import Change, PublicEvent, change
from vctl.engine.changes.gates import Members
from vctl.engine.changes.submits import OUTSIDE, Launch, SubmitDetails

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class JobsRerun(Change):
    """Jobs that did not succeed wait again, for their next attempts: one job, or members of an array.

    ``template``: the first of them; all others are like it. ``jobs``: number, id and attempts of each,
    and for how many members its row stands, with their step. The attempts so
    far count no more among those that ``--max-retries`` permits.
    """

    members: Members
    template: PendingJob
    details: SubmitDetails
    jobs: tuple[tuple[int, str, int, int, int], ...]
    at_once: int | None
    after: tuple[tuple[str, str], ...] = ()
    launch: Launch | None = field(default=None, compare=False, repr=False, metadata={OUTSIDE: True})

    def waiting(self) -> Iterator[PendingJob]:
        """The jobs as they wait now."""
        for job_id, submission_id, attempt, members, step in self.jobs:
            yield replace(
                self.template,
                job_id=job_id,
                submission_id=submission_id,
                attempt=attempt,
                preemptions=attempt,
                members=members,
                step=step,
            )

    def public_event(self) -> PublicEvent:
        numbers = (job_id + n for job_id, _, _, members, _ in self.jobs for n in range(members))
        return self.members.event("rerun", {"spans": spans_of(numbers)} if self.members.is_array else {})

    def apply(self, state: SchedulerState) -> None:
        shares = any(members > 1 for _, _, _, members, _ in self.jobs)
        if self.template.array_id is not None and (self.at_once is not None or shares):
            state.array_limits.limit(self.template.array_id, self.at_once)
        for job in self.waiting():
            state.put_pending(job)
