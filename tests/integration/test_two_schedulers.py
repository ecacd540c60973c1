"""Two schedulers on one state directory: one works, the other is refused or finds out (spec 17)."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing

import pytest

from tests.integration.conftest import Place, eventually
from tests.specification import spec

pytestmark = spec("17.one-daemon", "12.daemon-death")


def test_a_second_daemon_is_refused_and_changes_nothing(one: Place) -> None:
    daemon = one.daemon()
    one.sleeper("--submission-id", "j")
    one.running_process("j")
    before = one.tables()
    for words in ([], ["-o", "json"]):
        refused = one.run("daemon", *words)
        assert refused.code == 5, refused
        said = refused.json["error"]["message"] if words else refused.err
        assert f"a daemon is running already in {one.home} (pid {daemon.pid})" in said
    assert one.tables() == before
    assert daemon.poll() is None
    assert one.scheduler()["pid"] == daemon.pid
    one.ok("job", "stop", "j")


def taken_over(place: Place, old: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    """Suspend a scheduler, anywhere but in a transaction, and start one that takes it for gone: its lock was lost."""

    def is_suspended() -> bool:
        os.kill(old.pid, signal.SIGSTOP)
        try:
            with (
                open(place.home / "changes", "rb") as turn,
                closing(sqlite3.connect(place.home / "cluster.db", timeout=0.1)) as db, db,
            ):  # fmt: skip
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                db.execute("UPDATE terms SET ended_at = 1")
        except (sqlite3.OperationalError, BlockingIOError):
            os.kill(old.pid, signal.SIGCONT)
            return False
        return True

    eventually(is_suspended, "a moment without a transaction")
    (place.home / "scheduler.lock").rename(place.home / f"scheduler.lock.{old.pid}")
    return place.daemon()


def test_a_suspended_daemon_that_wakes_changes_nothing_and_starts_nothing(one: Place) -> None:
    one.submit("--submission-id", "short", "--", "sh", "-c", "echo short >>ran; sleep 1; exit 4")
    old = one.daemon()
    one.running_process("short")
    new = taken_over(one, old)
    assert one.reach("short", "FAILED")["exit_code"] == 4
    one.submit("--submission-id", "after", "--", "sh", "-c", "echo after >>ran")
    one.reach("after", "SUCCEEDED")
    one.submit("--submission-id", "held", "--hold", "--", "sh", "-c", "echo held >>ran")
    one.ok("vc", "create", "v", "--spec", '{"flexible_resource_min": {"CPU": 1}}')
    one.term(new)
    before = one.tables()
    os.kill(old.pid, signal.SIGCONT)
    assert one.finish(old).code == 5
    assert one.tables() == before
    assert (one.folder / "ran").read_text().split() == ["short", "after"]
    log = (one.folder / "daemon.log").read_text()
    assert "Traceback" not in log
    one.ok("vc", "delete", "v")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_job_runs_once_wherever_a_daemon_is_suspended(one: Place, seed: int) -> None:
    """Between any two of its steps: it has taken a job up, and launches it when it wakes, or has launched it."""
    dice, names = random.Random(seed), [f"j{number}" for number in range(12)]
    for name in names:
        one.submit(
            "--submission-id", name, "--", "sh", "-c", f"echo {name} >>ran; exit {dice.choice([0, 6])}"
        )
    old = one.daemon()
    time.sleep(dice.uniform(0, 0.08))
    taken_over(one, old)
    eventually((one.folder / "ran").exists, "the first job")
    os.kill(old.pid, signal.SIGCONT)  # while the new one is at work
    eventually(lambda: all(job["ended_at"] for job in one.jobs().values()), "the jobs to end")
    assert one.finish(old).code == 5
    assert Counter((one.folder / "ran").read_text().split()) == dict.fromkeys(names, 1)
    assert {job["attempt"] for job in one.jobs().values()} == {1}
    one.assert_sound()
