"""What preemptions and nominations are after a change of theirs."""

from __future__ import annotations

from dataclasses import replace

from vctl.engine import changes as ch
from vctl.engine.apply.table import applies
from vctl.engine.state import SchedulerState
from vctl.scheduler.nominations import Nomination


@applies(ch.JobPreempting)
def _preempting(state: SchedulerState, change: ch.JobPreempting) -> None:
    state.put_preemption(change.preemption)


@applies(ch.PreemptionMoved)
def _moved(state: SchedulerState, change: ch.PreemptionMoved) -> None:
    if (one := state.preemptions.get(change.victim_id)) is not None:
        state.preemptions[change.victim_id] = replace(one, told=True, ending=change.move == "end")


@applies(ch.JobSpared)
def _spared(state: SchedulerState, change: ch.JobSpared) -> None:
    if state.preemptions.pop(change.victim_id, None) is not None:
        state.running.leave(change.victim_id, leaves=state.is_ending(change.victim_id))


@applies(ch.PreemptionOver)
def _over(state: SchedulerState, change: ch.PreemptionOver) -> None:
    state.preemptions.pop(change.victim_id, None)


@applies(ch.JobPreempted)
def _preempted(state: SchedulerState, change: ch.JobPreempted) -> None:
    state.preemptions.pop(change.job_id, None)


@applies(ch.JobNominated)
def _nominated(state: SchedulerState, change: ch.JobNominated) -> None:
    state.put_nomination(
        Nomination(
            change.job_id, change.submission_id, change.priority, change.parent_id, change.pieces,
            frozenset(change.awaited),
        )
    )  # fmt: skip


@applies(ch.NominationDropped)
def _dropped(state: SchedulerState, change: ch.NominationDropped) -> None:
    state.drop_nomination(change.job_id)
