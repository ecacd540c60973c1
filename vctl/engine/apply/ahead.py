"""Which runs are assigned ahead after a change of that."""

from __future__ import annotations

from vctl.engine import changes as ch
from vctl.engine.ahead import in_place_of
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState


@applies(ch.RunAssignedAhead)
def _run_assigned_ahead(state: SchedulerState, change: ch.RunAssignedAhead) -> None:
    job, before = state.pending(change.job_id), state.ahead.runs.get(change.follows)
    if job is not None:
        state.dequeue(change.job_id)
        state.ahead.put(
            in_place_of(
                state.ledger, before or state.runs[change.follows], job, change.run_id, change.supervisor,
                change.revision,
            )
        )  # fmt: skip


@applies(ch.RunTakenBack)
def _run_taken_back(state: SchedulerState, change: ch.RunTakenBack) -> None:
    if (one := state.ahead.drop(change.run_id)) is not None:
        state.put_pending(one.start.job)
