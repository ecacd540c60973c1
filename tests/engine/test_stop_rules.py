"""The rules of stops, limits and warnings, and the effects that are due: each a function of state and time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.engine.states import NOTHING, PROCESS, STARTED, add_task, effects_due, run_job, state_of, yielded
from tests.specification import spec
from vctl.core.clusters import PRIMARY, ClusterSpec
from vctl.core.jobs import PendingJob, Preemption
from vctl.engine import changes as ch
from vctl.engine import effects
from vctl.engine.apply import apply
from vctl.engine.changes import Change
from vctl.engine.effects import Done, Effect, LaunchRun, Notify, Stop, Warn
from vctl.engine.rules import preemption, stops
from vctl.engine.settings import TurnMemo
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import JobNotified, JobWarned, Now, Stimulus
from vctl.engine.turn import follows, looked_at, rules

pytestmark = spec("8.stop", "8.limits", "8.preemption", "9.lending", "12.daemon-death")

OWN = f"{PRIMARY}##j1"
SECOND = 10**9
BEGAN = PROCESS.pid_start * SchedulerState.tick_ns
"""When the process of a job began, by the clock of the boot."""
SIGNAL = {"number": 10, "name": "USR1", "before_s": 4.0}
WARNS = '{"signal":{"number":10,"name":"USR1","before_s":4.0}}'


def asked(at: int = 3, grace_s: float | None = None, reason: str = "StoppedByUser") -> ch.StopAsked:
    return ch.StopAsked(at, 1, "j1", reason, grace_s, None)


def stopping(*run_ids: str, reason: str = "StoppedByUser") -> list[Change]:
    return [ch.RunStopping(run_id, reason) for run_id in run_ids]


# ---- which processes are to end ----


def test_a_stop_of_a_job_ends_all_that_is_attached_to_it() -> None:
    state = state_of()
    run_job(state, members=2)
    run_job(state, 2)
    add_task(state, 1, runs=True)
    add_task(state, 2, runs=True, detached=True, outlives=True)
    apply(state, asked())
    assert yielded(state, stops.requested(state)) == stopping("j1.0", "j1.1", "t1")
    assert yielded(state, stops.requested(state)) == []


def test_a_task_that_was_cancelled_ends_alone() -> None:
    state = state_of()
    run_job(state)
    add_task(state, 1, runs=True)
    add_task(state, 2, runs=True)
    apply(state, ch.TaskStopAsked(3, "task-2", 1, OWN, 0.5))
    assert yielded(state, stops.requested(state)) == stopping("t2", reason="Cancelled")


def test_the_others_of_a_gang_end_when_a_member_ended_badly() -> None:
    state = state_of()
    run_job(state, members=2)
    apply(state, ch.RunEnded(5, "j1.0", 3, None))
    apply(state, ch.JobEnding(1, ("FAILED", "NonZeroExit", 3, None)))
    assert yielded(state, stops.requested(state)) == stopping("j1.1", reason="GangEnded")


def test_the_first_reason_stays() -> None:
    state = state_of()
    run_job(state)
    apply(state, ch.RunStopping("j1.0", "TimeLimit"))
    apply(state, asked())
    assert list(stops.requested(state)) == []


def test_a_process_ends_when_its_time_is_over_on_the_clock_of_the_boot() -> None:
    state = state_of()
    run_job(state, time_limit_ns=10 * SECOND)
    run_job(state, 2, time_limit_ns=20 * SECOND)
    run_job(state, 3)
    assert state.timers.next_ns == BEGAN + 10 * SECOND
    assert list(stops.limits(state, BEGAN + 10 * SECOND - 1)) == []
    assert yielded(state, stops.limits(state, BEGAN + 10 * SECOND)) == stopping("j1.0", reason="TimeLimit")
    assert yielded(state, stops.limits(state, BEGAN + 20 * SECOND)) == stopping("j2.0", reason="TimeLimit")
    state.timers.tidy(state, BEGAN + 20 * SECOND)
    assert state.timers.next_ns is None


def test_what_is_due_and_was_not_done_stays_planned() -> None:
    """A limit may be lowered between a look at the limits and the end of that turn."""
    state = state_of()
    run_job(state, rules=WARNS, time_limit_ns=10 * SECOND)
    state.timers.tidy(state, BEGAN + 30 * SECOND)
    assert state.timers.next_ns == BEGAN + 6 * SECOND
    apply(state, edited(1.0))
    state.timers.tidy(state, BEGAN + 1 * SECOND)
    assert state.timers.next_ns == BEGAN
    assert yielded(state, stops.limits(state, BEGAN + 1 * SECOND)) == stopping("j1.0", reason="TimeLimit")


def edited(limit_s: float | None) -> ch.JobsEdited:
    limit_ns = None if limit_s is None else int(limit_s * 1e9)
    job = PendingJob(1, "j1", PRIMARY, "s", ClusterSpec(), {}, time_limit_ns=limit_ns)
    columns = {"time_limit_s": limit_s}
    return ch.JobsEdited(
        ch.Members("j1", 1, 1, PRIMARY), ((1, 1),), job, ("time_limit_ns",), columns, columns
    )


@pytest.mark.parametrize("limit_s", [None, 30.0])
def test_another_limit_counts_from_now_on(limit_s: float | None) -> None:
    state = state_of()
    run_job(state, time_limit_ns=10 * SECOND)
    apply(state, edited(limit_s))
    assert list(stops.limits(state, BEGAN + 29 * SECOND)) == []
    ended = [] if limit_s is None else stopping("j1.0", reason="TimeLimit")
    assert list(stops.limits(state, BEGAN + 30 * SECOND)) == ended


# ---- what is due outside ----


def test_a_process_is_to_be_launched_until_it_is_seen() -> None:
    state = state_of()
    run_job(state, seen=False)
    assert effects_due(state, 0) == [LaunchRun("j1.0")]
    apply(state, ch.RunSeen("j1.0", PROCESS))
    assert effects_due(state, 0) == []


def reported(*, warns: bool, **moves: bool) -> Preemption:
    return Preemption(1, "j1", 1, 7, "w", "requeue", warns, 9 * SECOND, **moves)


GRACES: dict[str, tuple[Sequence[Change], Stop]] = {
    "as the job says": ([ch.RunStopping("j1.0", "TimeLimit")], Stop("j1.0", 2.0)),
    "as the user says": ([asked(grace_s=0.5), *stopping("j1.0")], Stop("j1.0", 0.5)),
    "its node is dead": ([ch.RunStopping("j1.0", "NodeFailed")], Stop("j1.0", 0.0)),
    "for a job that cannot warn": (
        [ch.JobPreempting(reported(warns=False), OWN, ""), ch.RunStopping("j1.0", "Preempted")],
        Stop("j1.0", 0.0, 9 * SECOND),
    ),
    "for one that was warned": (
        [ch.JobPreempting(reported(warns=True), OWN, ""), ch.RunStopping("j1.0", "Preempted")],
        Stop("j1.0", 2.0),
    ),
    "for a lender": ([ch.RunStopping("j1.0", "Preempted")], Stop("j1.0", 30.0)),
    "for a lender, and then its user": (
        [ch.RunStopping("j1.0", "Preempted"), asked(grace_s=1.0)],
        Stop("j1.0", 1.0),
    ),
}


@pytest.mark.parametrize(("changes", "expected"), GRACES.values(), ids=list(GRACES))
def test_what_a_process_gets_before_it_is_killed(changes: Sequence[Change], expected: Stop) -> None:
    state = state_of()
    run_job(state, grace_s=2.0)
    for change in changes:
        apply(state, change)
    assert [one for one in effects_due(state, 0) if isinstance(one, Stop)] == [expected]


@pytest.mark.parametrize(("reason", "grace_s"), [("Cancelled", 0.5), ("Preempted", 3.0)])
def test_what_a_task_gets_before_it_is_killed(reason: str, grace_s: float) -> None:
    state = state_of()
    run_job(state)
    add_task(state, 1, runs=True)
    if reason == "Cancelled":
        apply(state, ch.TaskStopAsked(3, "task-1", 1, OWN, grace_s))
    apply(state, ch.RunStopping("t1", reason))
    assert effects_due(state, 0) == [Stop("t1", grace_s), LaunchRun("t1")]


def test_only_what_is_new_is_done_and_all_of_it_by_a_scheduler_that_knows_of_nothing() -> None:
    state = state_of()
    done: Done = {}
    run_job(state, seen=False, grace_s=2.0)
    assert effects.news(state, done) == [LaunchRun("j1.0")]
    assert effects.news(state, done) == []
    apply(state, asked())
    yielded(state, stops.requested(state))
    assert effects.news(state, done) == [Stop("j1.0", 2.0)]
    apply(state, asked(grace_s=0.5))
    assert effects.news(state, done) == [Stop("j1.0", 0.5)]
    apply(state, asked(grace_s=0.5))
    assert effects.news(state, done) == []
    state.changed.runs = dict.fromkeys(state.runs)
    due: list[Effect] = [Stop("j1.0", 0.5), LaunchRun("j1.0")]
    assert effects.news(state, {}) == effects_due(state, 0) == due


def test_a_job_is_warned_of_each_end_until_that_is_recorded() -> None:
    state = state_of()
    run_job(state, rules=WARNS, time_limit_ns=10 * SECOND)
    end = BEGAN + 10 * SECOND
    at = end - 4 * SECOND
    warn = Warn("j1.0", SIGNAL, end)
    assert (state.timers.next_ns, effects_due(state, at - 1)) == (at, [])
    assert effects_due(state, at) == effects_due(state, end - 1) == [warn]
    stimuli: list[Stimulus] = [JobWarned("j1.0", end), JobWarned("gone", end)]
    assert yielded(state, stops.warned(state, stimuli, at)) == [
        ch.RunWarned("j1.0", end, 1, "j1", OWN, "USR1", 4.0)
    ]
    assert effects_due(state, end - 1) == []
    apply(state, edited(20.0))
    assert effects_due(state, end + 6 * SECOND) == [Warn("j1.0", SIGNAL, end + 10 * SECOND)]


# ---- jobs that end for others ----


@pytest.mark.parametrize("heard", [True, False])
def test_a_job_that_ends_for_another_is_told_and_ends_at_once_unless_it_heard_that(heard: bool) -> None:
    state = state_of()
    run_job(state, members=2)
    one = reported(warns=True)
    apply(state, ch.JobPreempting(one, OWN, ""))
    assert effects_due(state, 0) == [Notify(one)]
    ends = [*stopping("j1.0", "j1.1", reason="Preempted"), ch.PreemptionMoved(1, "end")]
    found = yielded(state, preemption.notified(state, [JobNotified(one, heard)]))
    assert found == ([ch.PreemptionMoved(1, "tell")] if heard else ends)
    assert list(effects.notices(state)) == []
    assert list(preemption.notified(state, [JobNotified(one, heard)])) == []
    assert list(preemption.due(state, one.ends_ns - 1)) == []
    assert yielded(state, preemption.due(state, one.ends_ns)) == (ends if heard else [])


def test_a_job_that_ends_anyway_is_not_told_that_it_ends_for_another() -> None:
    state = state_of()
    run_job(state)
    apply(state, ch.JobPreempting(reported(warns=True), OWN, ""))
    apply(state, asked())
    assert list(effects.notices(state)) == []
    assert list(preemption.due(state, 0)) == [ch.PreemptionMoved(1, "end")]


# ---- the order of a turn ----


def test_later_rules_see_what_earlier_ones_have_changed() -> None:
    state = state_of()
    run_job(state, time_limit_ns=10 * SECOND)
    run_job(state, 2, time_limit_ns=10 * SECOND)
    apply(state, asked())
    moment = Now(STARTED + 10 * SECOND, BEGAN + 10 * SECOND)
    assert follows(state, (), moment, NOTHING, TurnMemo())
    assert yielded(state, rules(state, (), moment, NOTHING, TurnMemo())) == [
        *stopping("j1.0"),
        *stopping("j2.0", reason="TimeLimit"),
    ]
    looked_at(state)
    assert not follows(state, (), moment, NOTHING, TurnMemo())
