"""Preemption on the command line with real processes: warned, it saves its work, ends, waits, and goes on."""

from __future__ import annotations

import sys

import pytest

from tests.integration.conftest import STUBBORN, Place, eventually, is_gone
from tests.specification import spec

pytestmark = spec("8.preemption")

SAVES = """
import os, signal, sys, time
attempt = os.environ["VCTL_ATTEMPT"]
if attempt == "2":
    print("goes on from", open("checkpoint").read())
    sys.exit(0)
def save(*_):
    open("checkpoint", "w").write("step 7")
    print("saved")
    sys.stdout.flush()
signal.signal(signal.SIGUSR1, save)
open("up", "w").close()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def busy(one: Place) -> Place:
    """A daemon, preemption with a grace of a second, and a job of low priority on all CPUs."""
    one.daemon()
    one.ok("vc", "update", "primary", "--preemption", "requeue", "--preemption-grace", "1s")
    one.submit(
        "--submission-id", "low", "--num-cpus", "4", "--priority", "-1", "--signal", "USR1@60",
        "--", sys.executable, "-c", SAVES,
    )  # fmt: skip
    eventually((one.folder / "up").exists)
    return one


def test_it_saves_its_work_and_goes_on_later(busy: Place) -> None:
    asked = busy.run(
        "job", "submit", "--dry-run", "--num-cpus", "4", "--priority", "5", "-o", "json", "--", "true"
    )
    assert [one["submission_id"] for one in asked.json["preempts"]] == ["low"]
    done = busy.run(
        "job", "submit", "--submission-id", "w", "--num-cpus", "4", "--priority", "5", "--", "echo", "won"
    )
    assert (done.code, done.out) == (0, "won\n")
    busy.reach("low", "SUCCEEDED")
    job = busy.job("low")
    assert (job["attempt"], job["exit_code"]) == (2, 0)
    assert busy.ok("job", "logs", "low") == "saved\ngoes on from step 7\n"
    with busy.sql() as db:
        events = [
            row[0] for row in db.execute("SELECT kind FROM events WHERE object_id = 'low' ORDER BY seq")
        ]
    wanted = ["job.submitted", "job.started", "job.preempting", "job.preempted", "job.requeued", "job.ended"]
    assert [kind for kind in dict.fromkeys(events) if kind in wanted] == wanted
    busy.assert_sound()


def test_with_no_daemon_a_waiting_submit_does_it(one: Place) -> None:
    one.ok("vc", "update", "primary", "--preemption", "stop", "--preemption-grace", "200ms")
    waiting = one.start("job", "submit", "--submission-id", "low", "--num-cpus", "4", "--", "sleep", "1000")
    pid = one.running_process("low")
    done = one.run("job", "submit", "--num-cpus", "4", "--priority", "5", "--", "echo", "won")
    assert (done.code, done.out) == (0, "won\n")
    assert one.finish(waiting).code == 143
    assert is_gone(pid)
    job = one.job("low")
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("STOPPED", "Preempted", 143)
    assert "preempted by " in job["message"]
    one.assert_sound()


def test_the_winner_starts_when_the_last_process_is_gone(one: Place) -> None:
    one.daemon()
    one.ok("vc", "update", "primary", "--preemption", "stop", "--preemption-grace", "0.3s")
    reported = one.folder / "pid"
    one.submit(
        "--submission-id", "low", "--num-cpus", "4", "--", sys.executable, "-c", STUBBORN, str(reported)
    )
    eventually(reported.exists)
    pid, stray = one.running_process("low"), int(reported.read_text())
    look = f"! kill -0 {pid} 2>/dev/null && ! kill -0 {stray} 2>/dev/null"
    done = one.run("job", "submit", "--num-cpus", "4", "--priority", "5", "--", "sh", "-c", look)
    assert done.code == 0, "when it ran, neither was there"
    one.assert_sound()


def test_a_daemon_killed_in_the_grace(busy: Place) -> None:
    busy.ok("vc", "update", "primary", "--preemption-grace", "3s")
    daemon = busy._started[0]
    busy.submit("--submission-id", "w", "--num-cpus", "4", "--priority", "5", "--", "true")
    eventually((busy.folder / "checkpoint").exists)
    busy.kill(daemon)
    busy.daemon()
    busy.reach("w", "SUCCEEDED")
    busy.reach("low", "SUCCEEDED")
    assert busy.job("low")["attempt"] == 2
    busy.assert_sound()
