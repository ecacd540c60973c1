"""Jobs that may not start yet or whose limits change: hold, begin time, edits, the warning before the time limit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.specification import spec
from vctl.errors import BadSpec, Conflict
from vctl.operations import jobs as verbs
from vctl.ops import job_edits, logs, reasons, submitting
from vctl.ops import jobs as job_ops
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array, parse_dependency, parse_warning_signal

pytestmark = spec("8.limits")

HOUR = 3600 * 10**9
ONE = {"CPU": 10_000}


def submit(life: Life, name: str, *words: str, **fields: Any) -> str:
    request = JobRequest(
        argv=words or SLEEP, submission_id=name, grace_s=0.1, entry=fields.pop("entry", ONE), **fields
    )
    submitting.submit(life.store, request, environment={"PATH": "/usr/bin:/bin"})
    return name


def status(life: Life, name: str) -> tuple[str, str | None]:
    job = life.job(name)
    return job["status"], job["state_reason"]


@pytest.fixture
def here(life: Life) -> Life:
    life.nodes(1, "t")
    return life


def test_a_held_job_waits_until_it_is_released(here: Life) -> None:
    submit(here, "a", hold=True)
    assert status(here, "a") == ("PENDING", "Held")
    here.turn()
    submit(here, "b", "true")
    here.until(lambda: here.job("b")["status"] == "SUCCEEDED")
    assert status(here, "a") == ("PENDING", "Held")
    assert job_edits.release(here.store, "a")["state_reason"] == "PendingEvaluation"
    here.until(lambda: here.job("a")["status"] == "RUNNING")


def test_hold_survives_the_daemon(here: Life) -> None:
    submit(here, "a")
    job_edits.hold(here.store, "a")
    job_edits.hold(here.store, "a")  # once more changes nothing
    here.turn()
    here.die()
    here.turn()
    assert status(here, "a") == ("PENDING", "Held")
    assert here.events("job.held") == ["a"]


def test_only_pending_jobs_are_held(here: Life) -> None:
    here.run("a")
    for what in (job_edits.hold, job_edits.release):
        with pytest.raises(Conflict, match="only a pending job"):
            what(here.store, "a")


def test_a_begin_time_is_waited_for(here: Life) -> None:
    submit(here, "a", begin_at=time.time() + 3600)
    submit(here, "b")
    here.until(lambda: here.job("b")["status"] == "RUNNING")
    assert status(here, "a") == ("PENDING", "BeginTime")
    assert here.job("a")["message"].startswith("begins at 2")
    assert here.scheduler is not None
    assert 0 < here.scheduler.sleep_s() <= 5
    here.skew_ns = HOUR - 10**9
    here.turn()
    assert here.scheduler.sleep_s() <= 1
    here.skew_ns = HOUR + 10**9
    here.until(lambda: here.job("a")["status"] == "RUNNING")


def test_after_its_begin_time_a_job_waits_as_others_do(here: Life) -> None:
    here.run("first", spec={"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 4}}]}]})
    submit(here, "a", begin_at=time.time() + 1800)
    here.skew_ns = HOUR
    here.turn()
    here.turn()
    assert status(here, "a") == ("PENDING", "InsufficientResources")
    assert here.scheduler is not None
    assert here.scheduler.sleep_s() > 1  # what is over does not keep it awake


def test_a_begin_time_in_the_past_is_none(here: Life) -> None:
    submit(here, "a", begin_at=time.time() - 10)
    assert status(here, "a") == ("PENDING", "PendingEvaluation")


def test_hold_and_begin_time_together(here: Life) -> None:
    submit(here, "a", begin_at=time.time() + 3600, hold=True)
    assert status(here, "a") == ("PENDING", "Held")
    job_edits.release(here.store, "a")
    assert status(here, "a") == ("PENDING", "BeginTime")
    job_edits.hold(here.store, "a")
    here.skew_ns = HOUR + 1
    here.turn()
    assert status(here, "a") == ("PENDING", "Held")


def test_edits_of_a_pending_job(here: Life) -> None:
    full = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 4}}]}]}
    here.run("first", spec=full)
    submit(here, "a", entry={"CPU": 40_000})
    submit(here, "b", entry={"CPU": 40_000})
    here.turn()
    edited = job_edits.edit(here.store, "b", {"priority": 5, "name": "urgent", "time_limit_s": 60.0})
    assert (edited["priority"], edited["name"], edited["queue_position"]) == (5, "urgent", 1)
    here.end("first")
    here.until(lambda: here.job("b")["status"] == "RUNNING")
    assert here.job("a")["status"] == "PENDING"


def test_of_a_running_job_only_the_time_limit_changes(here: Life) -> None:
    here.run("a")
    with pytest.raises(Conflict, match='priority=5, name="b" cannot be set') as caught:
        job_edits.edit(here.store, "a", {"priority": 5, "name": "b", "time_limit_s": 1})
    assert caught.value.fix == "of a running job, time_limit may be changed"
    assert caught.value.exit_code == 5
    job_edits.edit(here.store, "a", {"time_limit_s": 3600})
    here.turn()
    job_edits.edit(here.store, "a", {"time_limit_s": None})
    here.skew_ns = 2 * HOUR
    here.turn()
    assert here.job("a")["status"] == "RUNNING"
    job_edits.edit(here.store, "a", {"time_limit_s": 3600})
    here.until(lambda: here.job("a")["status"] != "RUNNING")
    ended = here.job("a")
    assert (ended["status"], ended["state_reason"], ended["exit_code"]) == ("FAILED", "TimeLimit", 124)
    with pytest.raises(Conflict, match="is FAILED"):
        job_edits.edit(here.store, "a", {"time_limit_s": 3600})


BAD_EDITS = {
    "nothing": {},
    "zero": {"time_limit_s": 0},
    "a priority": {"priority": 2**40},
    "a word": {"priority": "high"},
    "no priority": {"priority": None},
}


@pytest.mark.parametrize("changes", BAD_EDITS.values(), ids=list(BAD_EDITS))
def test_bad_edits(here: Life, changes: dict[str, object]) -> None:
    def edit() -> None:
        """The verb checks types and ranges, before it is carried out."""
        verbs.edit.check(("a",), changes)
        job_edits.edit(here.store, "a", changes)

    submit(here, "a")
    with pytest.raises(BadSpec):
        edit()


def test_a_signal_warns_before_the_time_limit(here: Life) -> None:
    shell = "trap 'echo warned' USR1; echo up; while :; do sleep 0.02; done"
    submit(here, "a", "sh", "-c", shell, time_limit_s=3600, signal=parse_warning_signal("USR1@60"))
    log = logs.log_of(here.home, "a")
    here.until(lambda: log.exists() and "up" in log.read_text())
    here.skew_ns = HOUR - 61 * 10**9
    here.turn()
    assert here.events("job.warned") == []
    here.skew_ns += 2 * 10**9
    here.until(lambda: "warned" in log.read_text())
    here.die()  # the next scheduler does not warn of the same end again
    here.turn()
    assert here.events("job.warned") == ["a"]
    job_edits.edit(here.store, "a", {"time_limit_s": 7200})  # but of another end
    here.turn()
    here.skew_ns += HOUR
    here.until(lambda: log.read_text().count("warned") == 2)
    here.skew_ns += HOUR
    here.until(lambda: here.job("a")["status"] == "FAILED")
    assert (here.job("a")["state_reason"], here.job("a")["exit_code"]) == ("TimeLimit", 124)


def test_a_clock_that_is_set_ends_nothing(here: Life) -> None:
    """Spec 8: a time limit is counted from the start of the process, whatever the clock on the wall says."""
    submit(here, "a", "sleep", "60", time_limit_s=30)
    here.until(lambda: here.job("a")["status"] == "RUNNING")
    scheduler = here.scheduler
    assert scheduler is not None
    here.until(lambda: scheduler.state.timers.next_ns is not None)
    scheduler.store.clock = lambda: here.now() + 7_200 * 10**9
    for _ in range(3):
        here.turn()
    assert here.job("a")["status"] == "RUNNING"
    scheduler.store.clock = here.now
    here.skew_ns += 30 * 10**9
    here.until(lambda: here.job("a")["status"] == "FAILED")
    assert (here.job("a")["state_reason"], here.job("a")["exit_code"]) == ("TimeLimit", 124)


def test_the_view_says_what_the_commands_say(here: Life) -> None:
    """Spec 8: one reason of what holds a job back, for whoever reads the tables and for the commands."""
    soon = time.time() + 3600
    submit(here, "first", "true", hold=True)
    submit(here, "begins", begin_at=soon)
    submit(here, "lacks", begin_at=soon)
    submit(here, "both", begin_at=soon, hold=True)
    submit(here, "after", after=tuple(parse_dependency(f"{one}:first") for one in ("ok", "any", "notok")))
    submit(here, "plain")
    submit(here, "a", array=parse_array("0-2%1"), begin_at=soon)
    submit(here, "b", array=parse_array("0-2%1"))
    submit(here, "c", array=parse_array("0-6"), hold=True)
    submit(here, "many", after=tuple(parse_dependency(f"any:c_{n}") for n in range(6)))
    with here.store.transaction():
        here.store.db.execute(
            "UPDATE jobs SET attempt = 1, state_reason = 'Backoff', message = 'attempt 1 of 2: x'"
            " WHERE submission_id = 'a_0'"
        )
        here.store.db.execute(
            "UPDATE jobs SET attempt = 1, state_reason = 'Preempted', message = 'for b' WHERE submission_id = 'b_0'"
        )
        here.store.db.execute(
            "UPDATE jobs SET attempt = 1, state_reason = 'InsufficientResources', message = 'others hold it'"
            " WHERE submission_id = 'lacks'"
        )
    seen = set()
    for row in here.store.rows("SELECT * FROM jobs"):
        view = here.store.row("SELECT state_reason, message FROM v_jobs WHERE job_id = ?", row["job_id"])
        assert view is not None
        reason, message = reasons.gate(here.store, row)
        assert tuple(view) == (reason or "PendingEvaluation", message), row["submission_id"]
        seen.add(reason)
    tokens = {
        "Held",
        "BeginTime",
        "Dependency",
        "ArrayLimit",
        "Backoff",
        "Preempted",
        "InsufficientResources",
    }
    assert seen == {None, *tokens}


def test_a_job_that_was_stopped_waits_for_nobody(here: Life) -> None:
    """Spec 8: no event about what it waited for, when that ends later."""
    submit(here, "first", "true", hold=True)
    submit(here, "next", after=(parse_dependency("ok:first"),))
    submit(here, "a", array=parse_array("0-2"), after=(parse_dependency("any:first"),))
    job_ops.stop(here.store, "next")
    job_ops.stop(here.store, "a")
    assert here.store.value("SELECT count(*) FROM dependencies") == 0
    job_edits.release(here.store, "first")
    here.until(lambda: here.job("first")["status"] == "SUCCEEDED")
    here.turn()
    assert here.events("job.unblocked") == []
