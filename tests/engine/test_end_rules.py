"""The rule of starts and ends: a state and what was observed on the one side, changes on the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.engine.states import (
    NOTHING,
    NOW,
    PROCESS,
    STARTED,
    add_task,
    over,
    pending,
    run_job,
    state_of,
    yielded,
)
from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import Preemption
from vctl.core.values import Exit, replace
from vctl.core.wording import timestamp
from vctl.engine import changes as ch
from vctl.engine.apply import apply
from vctl.engine.changes import Change
from vctl.engine.rules.ends import processes
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import ProcessOver, ProcessSeen
from vctl.ops.forms import moment

pytestmark = spec("8.end", "8.retries", "8.preemption", "10.life", "10.objects", "12.node-death")

RETRIES = '{"max_retries":2,"retry_on":["ExitCode"],"backoff_s":4}'
OWN = f"{PRIMARY}##j1"


def end(state: SchedulerState, run_id: str = "j1.0", code: int | None = 0, **fields: object) -> ProcessOver:
    """This run has exited with a code; None: it was lost."""
    plain = {"signal": None, "launch_errno": None, "message": "", "stopped": False, "ended_at": STARTED + 1}
    record = None if code is None else Exit(code, **{**plain, **fields})  # type: ignore[arg-type]
    return ProcessOver(state.runs[run_id], record, "its supervisor was killed")


def follows(state: SchedulerState, *stimuli: ProcessOver | ProcessSeen) -> list[Change]:
    return yielded(state, processes(state, stimuli, NOW, NOTHING.lease))


def run_over(run_id: str = "j1.0", code: int | None = 0, message: str | None = None) -> ch.RunEnded:
    return ch.RunEnded(NOW, run_id, code, message)


def test_a_job_is_over_with_its_process_and_nothing_is_left() -> None:
    state = state_of()
    run_job(state)
    assert follows(state, end(state)) == [run_over(), over()]
    assert (state.runs, state.running.jobs, state.requests, state.changed.ended) == ({}, {}, {}, {"j1"})
    assert OWN not in state.ledger.clusters
    assert state.ledger.capacities["n1"].free == {"CPU": 40000}


def test_a_process_that_was_not_written_yet_is_written_with_its_end() -> None:
    state = state_of()
    run_job(state, seen=False)
    run_job(state, 2, seen=False)
    assert follows(state, ProcessSeen("j1.0", PROCESS), ProcessSeen("j2.0", PROCESS), end(state)) == [
        ch.RunSeen("j2.0", PROCESS),
        ch.RunEnded(NOW, "j1.0", 0, None, PROCESS),
        over(),
    ]


def test_of_a_run_that_is_over_nothing_follows() -> None:
    state = state_of()
    run_job(state)
    late = end(state)
    follows(state, late)
    assert follows(state, late, ProcessSeen("j1.0", PROCESS)) == []


def test_ends_follow_in_the_order_in_which_they_happened() -> None:
    state = state_of()
    run_job(state)
    run_job(state, 2)
    late, early = end(state, ended_at=9), end(state, "j2.0", ended_at=8)
    assert follows(state, late, early) == [run_over("j2.0"), over(2), run_over(), over()]


OUTCOMES: dict[str, tuple[str | None, int | None, dict[str, object], tuple[object, ...]]] = {
    "badly": (None, 7, {}, ("FAILED", 7, "NonZeroExit", "exited with code 7")),
    "by a signal": (
        None,
        139,
        {"signal": 11},
        ("FAILED", 139, "NonZeroExit", "ended by signal 11 (SIGSEGV)"),
    ),
    "lost": (None, None, {}, ("FAILED", None, "ProcessLost", "its supervisor was killed")),
    "out of time": (
        "TimeLimit",
        143,
        {"stopped": True},
        ("FAILED", 124, "TimeLimit", "ran longer than its time limit"),
    ),
    "stopped": (
        "StoppedByUser",
        143,
        {"stopped": True},
        ("STOPPED", 143, "StoppedByUser", "stopped by the user"),
    ),
    "its node died": ("NodeFailed", None, {}, ("FAILED", None, "NodeFailed", "node n1 died")),
}


@pytest.mark.parametrize(("stopped_for", "code", "record", "expected"), OUTCOMES.values(), ids=list(OUTCOMES))
def test_how_a_job_ends(
    stopped_for: str | None, code: int | None, record: dict[str, object], expected: Sequence[object]
) -> None:
    state = state_of()
    run_job(state)
    if stopped_for is not None:
        apply(state, ch.RunStopping("j1.0", stopped_for))
    status, exit_code, reason, message = expected
    assert follows(state, end(state, code=code, **record)) == [
        run_over("j1.0", exit_code, message),  # type: ignore[arg-type]
        over(1, status, exit_code, reason=reason, message=message),  # type: ignore[arg-type]
    ]


def test_the_words_of_who_stopped_a_job_are_its_message() -> None:
    state = state_of()
    run_job(state)
    apply(state, ch.StopAsked(3, 1, "j1", "StoppedByUser", None, "enough"))
    apply(state, ch.RunStopping("j1.0", "StoppedByUser"))
    _, job_over = follows(state, end(state, code=143, stopped=True))
    assert job_over == over(1, "STOPPED", 143, reason="StoppedByUser", message="enough")


def test_a_gang_goes_on_after_a_member_that_ended_well_and_ends_with_the_last() -> None:
    state = state_of()
    run_job(state, members=2)
    assert follows(state, end(state)) == [run_over()]
    assert state.running.jobs[1].run_id == "j1.1"
    assert follows(state, end(state, "j1.1")) == [run_over("j1.1"), over()]


def test_a_gang_is_not_ending_after_a_member_that_was_to_end_has_ended_well() -> None:
    """As it is for who reads the tables: its resources do not come free for others."""
    state = state_of()
    run_job(state, members=2)
    apply(state, ch.RunStopping("j1.0", "TimeLimit"))
    assert state.running.leaving == {1}
    assert follows(state, end(state)) == [run_over()]
    assert not state.running.leaving


def test_a_gang_ends_with_the_member_that_ended_badly() -> None:
    state = state_of()
    run_job(state, members=2)
    outcome = ("FAILED", "NonZeroExit", 3, "exited with code 3")
    assert follows(state, end(state, code=3))[-1] == ch.JobEnding(1, outcome)
    ended = follows(state, end(state, "j1.1", code=143, stopped=True))
    assert ended[-1] == over(1, "FAILED", 3, reason="NonZeroExit", message="exited with code 3")


def test_a_job_that_failed_waits_again_after_a_backoff_that_doubles() -> None:
    state = state_of()
    request = replace(pending(rules=RETRIES, grace_s=2.0), attempt=1)
    run_job(state, rules=RETRIES, grace_s=2.0, attempt=1)
    begins = NOW + 8 * 10**9
    message = f"attempt 2 of 3: exited with code 3; next try at {timestamp(begins)}"
    assert follows(state, end(state, code=3)) == [
        run_over(code=3, message="exited with code 3"),
        ch.ClusterRemoved(OWN, silent=True),
        ch.JobRequeued(
            replace(request, attempt=2, begin_at_ns=begins),
            "Backoff",
            message,
            {"attempt": 2, "cause": "NonZeroExit", "exit_code": 3, "backoff_s": 8.0},
            NOW,
        ),
    ]
    assert state.parent_of == {1: PRIMARY}
    assert OWN not in state.ledger.clusters


def refused(state: SchedulerState) -> ProcessOver:
    """The runtime does not get what a run needs: others hold it."""
    return ProcessOver(state.runs["j1.0"], None, "others hold it", "InsufficientResources")


@spec("16.ray")
@pytest.mark.parametrize(("before", "wait_s"), [(0, 1), (2, 4), (9, 15)])
def test_a_job_that_others_keep_from_starting_waits_in_its_queue_and_says_who(
    before: int, wait_s: int
) -> None:
    """It asks again after a while that doubles, and no try of its own is lost."""
    state = state_of()
    request = replace(pending(rules=RETRIES), attempt=before, preemptions=before)
    run_job(state, rules=RETRIES, attempt=before, preemptions=before)
    begins = NOW + wait_s * 10**9
    assert follows(state, refused(state))[-1] == ch.JobRequeued(
        replace(request, attempt=before + 1, preemptions=before + 1, begin_at_ns=begins),
        "InsufficientResources",
        f"others hold it; it asks again at {timestamp(begins)}",
        {"attempt": before + 1, "cause": "InsufficientResources", "exit_code": None},
        NOW,
    )


@spec("16.ray")
def test_a_job_that_others_keep_from_starting_can_be_stopped() -> None:
    state = state_of()
    run_job(state)
    apply(state, ch.StopAsked(3, 1, "j1", "StoppedByUser", None, None))
    assert follows(state, refused(state))[-1] == over(
        1, "STOPPED", 143, reason="StoppedByUser", message="stopped by the user"
    )


def test_after_its_last_try_a_job_has_failed() -> None:
    state = state_of()
    run_job(state, rules=RETRIES, attempt=2)
    assert follows(state, end(state, code=3))[-1] == over(
        1, "FAILED", 3, reason="NonZeroExit", message="exited with code 3"
    )


def test_a_stop_is_never_tried_again() -> None:
    state = state_of()
    run_job(state, rules=RETRIES)
    apply(state, ch.StopAsked(3, 1, "j1", "StoppedByUser", None, None))
    assert isinstance(follows(state, end(state, code=3))[-1], ch.JobEnded)


@pytest.mark.parametrize("rule", ["requeue", "stop"])
def test_a_job_that_ended_for_another_tells_its_loss_and_waits_again_if_that_is_the_rule(rule: str) -> None:
    state = state_of()
    run_job(state, cpus="2c")
    apply(state, ch.JobPreempting(Preemption(1, "j1", 1, 7, "w", rule, warns=False, ends_ns=9), OWN, "2026"))
    apply(state, ch.PreemptionMoved(1, "end"))
    apply(state, ch.RunStopping("j1.0", "Preempted"))
    message = "preempted by w, which has a higher priority"
    loss = {"winner": "w", "rule": rule, "attempt": 1, "exit_code": 143, "lost_s": 3.0,
            "lost_resource_seconds": {"CPU": 6.0}}  # fmt: skip
    first, *rest = follows(state, end(state, code=143, stopped=True))
    assert first == run_over(code=143, message="the lender reclaimed the resources that it ran on")
    lost = ch.JobPreempted(1, "j1", PRIMARY, loss)
    if rule == "stop":
        assert rest == [over(1, "STOPPED", 143, reason="Preempted", message=message), lost]
        return
    waits = replace(pending(), attempt=1, preemptions=1)
    assert rest == [
        ch.ClusterRemoved(OWN, silent=True),
        lost,
        ch.JobRequeued(
            waits,
            "Preempted",
            f"{message}; it runs again when its resources are free",
            {"attempt": 1, "cause": "Preempted", "exit_code": 143},
            NOW,
        ),
    ]


def test_what_a_job_has_started_ends_with_it_and_the_job_with_the_last_of_it() -> None:
    state = state_of()
    run_job(state)
    add_task(state, 1, runs=True)
    add_task(state, 2)
    assert follows(state, end(state)) == [
        run_over(),
        ch.TaskStopAsked(NOW, "task-1", 1, OWN, 3.0, "OwnerEnded"),
        ch.RunStopping("t1", "OwnerEnded"),
        ch.TaskEnded(NOW, "task-2", 1, OWN, "cancel", "OwnerEnded", "j1, which started it, has ended", None),
        ch.JobEnding(1, ("SUCCEEDED", None, 0, None)),
    ]
    words = "the job or task that started it has ended"
    assert follows(state, end(state, "t1", 143, stopped=True)) == [
        run_over("t1", 143, words),
        ch.TaskEnded(NOW, "task-1", 1, OWN, "fail", "OwnerEnded", words, 143),
        over(),
    ]


def test_the_cluster_of_a_job_stays_while_a_detached_task_lives_in_it() -> None:
    state = state_of()
    run_job(state)
    add_task(state, 1, runs=True, detached=True, outlives=True)
    assert follows(state, end(state)) == [run_over(), over(removed=None), ch.ClusterDetached(OWN)]
    assert follows(state, end(state, "t1")) == [
        run_over("t1"),
        ch.TaskEnded(NOW, "task-1", 1, OWN, "finish", None, None, 0),
        ch.ClusterRemoved(OWN, silent=True),
    ]


def test_a_task_that_failed_is_tried_again_and_ends_what_it_had_started() -> None:
    state = state_of()
    run_job(state)
    add_task(state, 1, runs=True, max_retries=1)
    add_task(state, 2, owner_id="task-1")
    assert follows(state, end(state, "t1", 1)) == [
        run_over("t1", 1, "exited with code 1"),
        ch.TaskRetried("task-1", 1, OWN, "exited with code 1"),
        ch.TaskEnded(
            NOW, "task-2", 1, OWN, "cancel", "OwnerEnded", "task-1, which started it, has ended", None
        ),
    ]


LEFT: dict[str, tuple[dict[str, int] | str, list[Change]]] = {
    "all": ({"a": 5}, [
        ch.ObjectCreated(NOW, 1, "a", "n1", OWN, 5, "task-1"),
        ch.TaskEnded(NOW, "task-1", 1, OWN, "finish", None, None, 0),
        ch.TaskReady("task-2", 1, OWN),
    ]),
    "nothing": ("a is missing", [
        ch.TaskEnded(NOW, "task-1", 1, OWN, "fail", "OutputMissing",
                     "exited with code 0 without its output in $VCTL_OBJECT_DIR: a is missing", 1),
        ch.TaskEnded(NOW, "task-2", 1, OWN, "cancel", "InputFailed",
                     "input a cannot be produced: task-1 FAILED (OutputMissing)"),
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("left", "expected"), LEFT.values(), ids=list(LEFT))
def test_outputs_of_a_task_are_recorded_and_their_users_follow(
    left: dict[str, int] | str, expected: list[Change]
) -> None:
    state = state_of()
    run_job(state)
    add_task(state, 1, runs=True, outputs=("a",))
    add_task(state, 2, inputs=("a",))
    assert follows(state, replace(end(state, "t1"), outputs=left)) == [run_over("t1"), *expected]


def test_times_in_messages_are_those_of_the_calendar() -> None:
    for text in ("2000-02-29T23:59:59.000001Z", "2100-03-01T00:00:00.000000Z", "1969-12-31T23:59:59.999999Z"):
        at = moment(text)
        assert at is not None
        assert timestamp(at) == text
