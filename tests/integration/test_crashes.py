"""The daemon is killed again and again while jobs flow; many commands write at once. Nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.contents import WHOLE
from tests.integration.conftest import PATIENCE_S, ROOT, Place, eventually, is_gone
from tests.specification import spec

pytestmark = spec("12.daemon-death", "17.durable")

JOB = """
import os, sys, time
with open("ran", "ab", 0) as file:
    file.write(f"{os.environ['VCTL_SUBMISSION_ID']}\\n".encode())
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[1]))
"""
"""Tells once that it ran, takes a moment, ends with its own code."""

KEEPER = """
import os, random, signal, subprocess, sys, time
kills, seed, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
chance = random.Random(seed)
for turn in range(kills + 1):
    argv = words if turn < kills else ["daemon"]
    daemon = subprocess.Popen([sys.executable, "-m", "vctl", *argv], stderr=open("daemon.log", "ab"))
    if turn == kills:
        print(daemon.pid, flush=True)
        daemon.wait()
    else:
        time.sleep(chance.uniform(0.05, 0.6))  # also before it is up, while it replays
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
"""


def submit_in_process(place: Place, numbers: range, seed: int) -> None:
    """Queue jobs one by one from this process, so that submits and kills overlap as they will."""
    from vctl.ops import submitting
    from vctl.spec.job_request import JobRequest, shortcut_spec
    from vctl.store.store import Store

    chance = random.Random(seed)
    with Store.open(place.home) as store:
        for number in numbers:
            spec = shortcut_spec(chance.choice((1, 1, 1, 2, 4)), None, None, chance.choice((1, 1, 2)))
            argv = (sys.executable, "-S", "-c", JOB, str(number % 100), str(round(chance.uniform(0, 0.2), 3)))
            request = JobRequest(argv=argv, spec=spec, submission_id=f"j{number}", cwd=str(place.folder))
            submitting.submit(store, request, environment={"PATH": os.environ["PATH"]})
            time.sleep(0.005)


@contextmanager
def keeper(place: Place, kills: int, seed: int, words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts schedulers and kills them; the last one is a daemon that stays."""
    process = subprocess.Popen(
        [sys.executable, "-c", KEEPER, str(kills), str(seed), *words], env=place.environment({}), cwd=place.folder,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it and its last daemon
        process.communicate(timeout=PATIENCE_S)


def flown(place: Place) -> dict[str, dict[str, Any]]:
    return {name: job for name, job in place.jobs().items() if name != "anchor"}


def flow(
    place: Place, *, jobs: int, kills: int, seed: int, within_s: float, words: Sequence[str] = ("daemon",)
) -> None:
    if not place.home.exists():
        place.add_nodes(3)
    with keeper(place, kills, seed, words) as process:
        submit_in_process(place, range(jobs), seed)
        assert process.stdout is not None
        eventually(lambda: all(job["ended_at"] for job in flown(place).values()), "the jobs to end", within_s)
        last = int(process.stdout.readline())  # all kills have happened
        os.kill(last, signal.SIGTERM)
        process.wait(PATIENCE_S)
        found = flown(place)
        assert len(found) == jobs
        expected = {f"j{number}": number % 100 for number in range(jobs)}
        assert {name: job["exit_code"] for name, job in found.items()} == expected
        wrong = [job for job in found.values() if (job["status"] == "SUCCEEDED") != (job["exit_code"] == 0)]
        assert wrong == []
        assert {job["attempt"] for job in found.values()} == {1}
        ran = Counter((place.folder / "ran").read_text().split())
        assert {name: times for name, times in ran.items() if times != 1} == {}
        assert len(ran) == jobs
        with place.sql() as db:
            kinds = "SELECT job_id, kind, count(*) FROM events WHERE object = 'job' GROUP BY 1, 2"
            doubled = [row for row in db.execute(kinds) if row[2] != 1]
            assert doubled == []
            ended = "SELECT count(*) FROM events WHERE kind = 'job.ended'"
            assert db.execute(ended).fetchone() == (jobs,)
            assert db.execute("SELECT count(*) FROM runs").fetchone() == (0,)
            assert db.execute("SELECT count(*) FROM terms").fetchone()[0] >= 1
        assert set(place.free().values()) == {4.0}
        assert os.listdir(place.home / "stops") == []
        assert not (place.home / "runs").exists()
        place.assert_sound()
        log = (place.folder / "daemon.log").read_text()
        assert "Traceback" not in log, log


def test_jobs_survive_kills_of_the_daemon(place: Place) -> None:
    flow(place, jobs=60, kills=10, seed=int(os.environ.get("SEED", "7")), within_s=60)


def test_jobs_survive_kills_of_commands_that_wait(place: Place) -> None:
    """Without a daemon: who waits schedules, and is killed; a job outlives each of them."""
    place.add_nodes(3)
    place.submit("--submission-id", "anchor", "--entrypoint-num-cpus", "0", "--", "true")
    with place.sql() as db:  # one that nobody starts, so that waiting for it lasts
        db.execute("UPDATE jobs SET held = 1 WHERE submission_id = 'anchor'")
    waiter = ("job", "wait", "anchor")
    try:
        flow(place, jobs=40, kills=8, seed=11, within_s=60, words=waiter)
    finally:
        place.ok("job", "stop", "anchor")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_hundred_jobs_survive_fifty_kills(place: Place, seed: int) -> None:
    flow(place, jobs=200, kills=50, seed=seed, within_s=300)


def test_a_submit_that_returned_is_there(one: Place) -> None:
    """Also when whatever wrote or schedules is killed right after."""
    for number in range(4):
        daemon = one.daemon()
        name = one.run("job", "submit", "--no-wait", "--", "sh", "-c", f"exit {number + 1}").out.strip()
        one.kill(daemon)
        assert name in one.jobs()
    one.daemon()
    assert [one.run("job", "wait", str(number)).code for number in range(1, 5)] == [1, 2, 3, 4]
    one.assert_sound()


def test_a_submit_killed_while_it_writes_is_whole_or_not_there(one: Place) -> None:
    chance = random.Random(3)
    for number in range(12):
        process = one.start("job", "submit", "--no-wait", "--submission-id", f"j{number}", "--", "true")
        time.sleep(chance.uniform(0.02, 0.12))
        one.kill(process)
    with one.sql() as db:
        jobs = {row[0] for row in db.execute("SELECT job_id FROM jobs")}
        assert {row[0] for row in db.execute(f"SELECT job_id FROM {WHOLE}")} == jobs
        assert {
            row[0] for row in db.execute("SELECT job_id FROM events WHERE kind = 'job.submitted'")
        } == jobs
    one.daemon()
    eventually(lambda: all(job["status"] == "SUCCEEDED" for job in one.jobs().values()), "the jobs to end")
    one.assert_sound()


SUBMIT_100 = """
import os, sys
from pathlib import Path
from vctl.ops import submitting
from vctl.spec.job_request import JobRequest
from vctl.store.store import Store

sys.stdin.read()  # all begin together
for _ in range(100):
    with Store.open(Path(os.environ["VCTL_HOME"])) as store:  # as a command does: open, write, close
        print(submitting.submit(store, JobRequest(argv=("true",), cwd="/"), environment={})["submission_id"])
"""


def test_eight_processes_submit_a_hundred_jobs_each(place: Place) -> None:
    """Into a directory that none of them has seen: making it is part of the race."""
    place.add_nodes(1)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", SUBMIT_100], env=place.environment({}), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        )
        for _ in range(8)
    ]  # fmt: skip
    try:
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.close()
            writer.stdin = None
        said = [writer.communicate(timeout=100) for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert [err for _, err in said if err] == []
    ids = [name for out, _ in said for name in out.decode().split()]
    assert len(ids) == len(set(ids)) == 800
    found = place.jobs()
    assert set(found) == set(ids)
    assert sorted(job["job_id"] for job in found.values()) == list(range(1, 801))
    assert sorted(job["queue_position"] for job in found.values()) == list(range(1, 801))


def test_commands_at_once_in_a_fresh_directory(place: Place) -> None:
    """The first commands in a state directory make it, one of them, and all of them work."""
    processes = [
        place.start("job", "submit", "--no-wait", "--", "true", VCTL_LOCAL_NODE="1") for _ in range(6)
    ]
    ran = [place.finish(process) for process in processes]
    assert [one.code for one in ran] == [0] * 6, ran
    assert len({one.out for one in ran}) == 6
    assert len(place.read("node", "list")["items"]) == 1


def test_a_state_that_stays_locked_is_reported_with_its_holder(one: Place) -> None:
    """Exit 6 with the name of whoever holds the write lock, after the configured patience."""
    with one.sql() as db:
        db.execute("BEGIN IMMEDIATE")
        ran = one.run("job", "submit", "--no-wait", "-o", "json", "--", "true", VCTL_LOCK_TIMEOUT="1")
        db.execute("ROLLBACK")
    error = json.loads(ran.stdout)["error"]
    assert (ran.code, error["exit_code"]) == (6, 6)
    assert str(os.getpid()) in error["message"]
    assert one.jobs() == {}


def test_readers_need_no_lock(one: Place) -> None:
    with one.sql() as db:
        db.execute("BEGIN IMMEDIATE")
        for words in ("status", "job list", "nodes", "vc list", "doctor"):
            ran = one.fork(*words.split(), VCTL_LOCK_TIMEOUT="1")
            assert ran.code == 0, (words, ran)
        db.execute("ROLLBACK")


def test_an_old_scheduler_that_wakes_up_is_fenced(one: Place) -> None:
    """It slept while its lock was taken from it (a copied directory, a broken file lock): it writes no more."""
    daemon = one.daemon()
    one.sleeper("--submission-id", "j")
    pid = one.running_process("j")
    os.kill(daemon.pid, signal.SIGSTOP)
    (one.home / "scheduler.lock").rename(one.home / "scheduler.lock.old")
    with one.sql() as db:
        db.execute("UPDATE terms SET ended_at = 1")
    other = one.daemon()
    os.kill(daemon.pid, signal.SIGCONT)
    one.ok("job", "submit", "--", "true")
    assert one.finish(daemon, within_s=15).code == 5
    assert other.poll() is None
    assert not is_gone(pid)
    one.ok("job", "stop", "j")
