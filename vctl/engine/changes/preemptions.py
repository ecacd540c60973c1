"""Changes of preemption: running jobs end for waiting ones, for which resources are reserved meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl.core.jobs import Preemption
from vctl.core.resources import Allocation
from vctl.core.values import replace
from vctl.engine.changes.change import Change, PublicEvent, change, internal

if TYPE_CHECKING:
    from vctl.engine.state import SchedulerState


@change
class JobPreempting(Change):
    """A running job is to end for another; its grace ends at ``ends_at``."""

    preemption: Preemption
    cluster_id: str
    ends_at: str

    def public_event(self) -> PublicEvent:
        begun = self.preemption
        data = {"winner": begun.winner, "rule": begun.rule, "ends_at": self.ends_at}
        return PublicEvent("job.preempting", "job", begun.victim, self.cluster_id, begun.victim_id, data)

    def apply(self, state: SchedulerState) -> None:
        state.put_preemption(self.preemption)


@change
class PreemptionMoved(Change):
    """The job got notice (``tell``), or its processes are being stopped (``end``)."""

    victim_id: int
    move: str

    public_event = internal("job", "victim_id")

    def apply(self, state: SchedulerState) -> None:
        if (preemption := state.preemptions.get(self.victim_id)) is not None:
            state.preemptions[self.victim_id] = replace(preemption, told=True, ending=self.move == "end")


@change
class JobSpared(Change):
    """A job that was to end for another one goes on."""

    victim_id: int
    victim: str
    winner: str
    why: str

    def public_event(self) -> PublicEvent:
        return PublicEvent(
            "job.spared", "job", self.victim, None, self.victim_id, {"winner": self.winner, "why": self.why}
        )

    def apply(self, state: SchedulerState) -> None:
        if state.preemptions.pop(self.victim_id, None) is not None:
            state.running.leave(self.victim_id, leaves=state.is_ending(self.victim_id))


@change
class PreemptionOver(Change):
    """A preemption is over because its victim does not run any more."""

    victim_id: int

    public_event = internal("job", "victim_id")

    def apply(self, state: SchedulerState) -> None:
        state.preemptions.pop(self.victim_id, None)


@change
class JobPreempted(Change):
    """A job ended for another one, or because a lender reclaimed resources. ``data``: what it lost."""

    job_id: int
    submission_id: str
    parent_id: str
    data: Mapping[str, Any]

    def public_event(self) -> PublicEvent:
        return PublicEvent("job.preempted", "job", self.submission_id, self.parent_id, self.job_id, self.data)

    def apply(self, state: SchedulerState) -> None:
        state.preemptions.pop(self.job_id, None)


@change
class JobNominated(Change):
    """Resources are reserved for a waiting job. A nomination that replaces another one keeps its place.

    ``pieces``: (virtual node, allocation). ``awaited``: the jobs that still have to end for it.
    """

    job_id: int
    submission_id: str
    priority: int
    parent_id: str
    pieces: tuple[tuple[str, Allocation], ...]
    awaited: tuple[int, ...] = ()
    message: str | None = None
    """Why the job waits, if that is new."""

    def public_event(self) -> PublicEvent:
        """No public event: the jobs that end have events."""
        return PublicEvent("", "job", self.submission_id, self.parent_id, self.job_id)

    def apply(self, state: SchedulerState) -> None:
        from vctl.scheduler.nominations import Nomination  # imported here because commands do not need it

        state.put_nomination(
            Nomination(
                self.job_id, self.submission_id, self.priority, self.parent_id, self.pieces,
                frozenset(self.awaited),
            )
        )  # fmt: skip


@change
class NominationDropped(Change):
    """The nomination of a job was dropped: nothing is reserved for it any more."""

    job_id: int

    public_event = internal("job", "job_id")

    def apply(self, state: SchedulerState) -> None:
        state.drop_nomination(self.job_id)
