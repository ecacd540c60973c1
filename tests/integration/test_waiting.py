"""Commands that wait: who schedules, who takes over, what they exit with, and what readers are told."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from tests.integration.conftest import Place, eventually, interrupt, is_gone
from tests.specification import spec
from vctl.ops.forms import timestamp

pytestmark = spec("13.waiting", "8.exit-codes")


def test_waiting_commands_share_one_scheduler_and_start_the_next(one: Place) -> None:
    """spec 13: none of them schedules; the scheduler is killed, then stopped, and each gets its code."""
    one.sleeper("--submission-id", "long")
    waiters = [one.start("job", "wait", "long") for _ in range(3)]
    pid = one.running_process("long")
    first = one.scheduler()
    assert first["kind"] == "background"
    assert first["pid"] not in [waiter.pid for waiter in waiters]
    os.kill(first["pid"], signal.SIGKILL)
    eventually(lambda: one.scheduler()["pid"] not in (None, first["pid"]), "the next scheduler", 10)
    assert not is_gone(pid)
    assert one.ok("job", "submit", "--submission-id", "quick", "--", "echo", "by the next") == "by the next\n"
    one.ok("daemon", "--stop")
    interrupt(waiters[0])
    assert one.finish(waiters[0]).code == 130
    os.kill(pid, signal.SIGTERM)
    assert [one.finish(waiter).code for waiter in waiters[1:]] == [143, 143]
    one.assert_sound()


def test_a_foreground_daemon_takes_over_within_a_second(one: Place) -> None:
    """spec 13"""
    waiting = one.start(
        "job", "submit", "--submission-id", "j", "--",
        "sh", "-c", "while [ ! -e go ]; do sleep 0.1; done; exit 5",
    )  # fmt: skip
    one.running_process("j")
    before = one.scheduler()
    assert before["kind"] == "background"
    start_s = one.run("daemon", "--status").seconds
    asked_at = time.time_ns()
    daemon = one.daemon()
    with one.sql() as db:
        (began,) = db.execute("SELECT max(started_at) FROM terms WHERE kind = 'foreground'").fetchone()
    assert began - asked_at < (1 + 4 * start_s) * 1e9  # a second, and the start of a process
    eventually(lambda: is_gone(before["pid"]), "the one in the background to end", 5)
    assert one.scheduler() == {**one.scheduler(), "kind": "foreground", "pid": daemon.pid}
    (one.folder / "go").touch()
    assert one.finish(waiting).code == 5
    assert one.term(daemon).code == 0
    assert one.run("daemon", "--status").code == 6


def test_a_second_daemon_is_refused_at_once(one: Place) -> None:
    """spec 13"""
    daemon = one.daemon()
    start_s = one.run("daemon", "--status").seconds
    ran = one.run("daemon")
    assert ran.code == 5
    assert str(daemon.pid) in ran.err
    assert ran.seconds < 1 + 4 * start_s
    assert daemon.poll() is None
    assert one.ok("job", "submit", "--", "echo", "still there") == "still there\n"
    # a daemon that was killed left no stale claim: the next one starts
    one.kill(daemon)
    one.daemon()


def test_a_daemon_that_was_killed_while_others_wait_does_not_refuse_the_next(one: Place) -> None:
    one.kill(one.daemon())
    waiting = one.start("job", "submit", "--submission-id", "j", "--", "sleep", "1000")
    one.running_process("j")
    one.daemon()
    interrupt(waiting)
    assert one.finish(waiting).code == 130


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGTERM])
def test_the_daemon_ends_in_good_order_and_jobs_go_on(one: Place, signo: int) -> None:
    daemon = one.daemon()
    one.sleeper("--submission-id", "j")
    pid = one.running_process("j")
    os.killpg(daemon.pid, signo)  # as a terminal does it
    assert one.finish(daemon, within_s=5).code == 0
    assert not is_gone(pid)
    one.daemon()
    one.ok("job", "stop", "j")
    assert is_gone(pid)
    log = (one.folder / "daemon.log").read_text()
    assert "running jobs go on" in log
    assert "Traceback" not in log


def test_job_wait(one: Place) -> None:
    one.daemon()
    for name, command in {"ok": "true", "three": "exit 3", "nine": "exit 9"}.items():
        one.submit("--submission-id", name, "--", "sh", "-c", command)
    assert one.run("job", "wait", "ok").code == 0
    assert one.run("job", "wait", "three").code == 3
    assert one.run("job", "wait", "ok", "nine", "three").code == 9
    assert one.run("job", "wait", "last").code == 9
    assert one.run("job", "wait", "nosuch").code == 4
    one.sleeper("--submission-id", "long")
    ran = one.run("job", "wait", "long", "--timeout", "0.3")
    assert ran.code == 7
    assert "0.3" in ran.err
    waiting = one.start("job", "wait", "long", "--progress")
    assert waiting.stderr is not None
    assert b"long runs on" in waiting.stderr.readline()
    interrupt(waiting)
    assert one.finish(waiting).code == 130
    waiting = one.start("job", "wait", "long")
    one.ok("job", "stop", "long")
    assert one.finish(waiting).code == 143
    one.submit("--submission-id", "never", "--num-cpus", "4", "--priority", "-1", "--", "true")
    one.run("job", "stop", "never")
    assert one.run("job", "wait", "never").code in (0, 143)
    answer = one.run("job", "wait", "nine", "-o", "json")
    assert (answer.code, answer.json["exit_code"]) == (9, 9)


def test_a_job_stopped_before_it_started_is_143(one: Place) -> None:
    one.sleeper("--submission-id", "j")
    waiting = one.start("job", "wait", "j")
    one.reach("j", "RUNNING")
    one.submit("--submission-id", "queued", "--num-cpus", "4", "--", "true")
    following = one.start("job", "logs", "--follow", "queued")
    assert one.run("job", "stop", "queued").code == 0
    assert one.finish(following).code == 143
    assert one.run("job", "wait", "queued").code == 143
    assert one.job("queued")["exit_code"] is None
    one.ok("job", "stop", "j")
    assert one.finish(waiting).code == 143


def test_a_job_stopped_between_two_attempts_is_143(one: Place) -> None:
    """spec 8: it has run; it wrote nothing, and nobody says that it never started."""
    one.daemon()
    retried = "--max-retries 1 --retry-on ExitCode --backoff 1h"
    one.submit("--submission-id", "a", *retried.split(), "--", "false")
    eventually(lambda: one.job("a")["state_reason"] == "Backoff", "the backoff")
    assert one.run("job", "logs", "a").err.startswith("job a has no output yet: attempt 1 of 2: ")
    one.ok("job", "stop", "a")
    assert one.run("job", "logs", "a").err == ""
    assert (one.job("a")["exit_code"], one.run("job", "wait", "a").code) == (143, 143)


def test_logs_follow(one: Place) -> None:
    """Bytes arrive while the job runs, and the end brings the job's code."""
    one.daemon()
    code = (
        "import os, sys, time\n"
        "os.write(1, b'one \\xff')\n"
        "while not os.path.exists('go'): time.sleep(0.02)\n"
        "os.write(2, b'two')\n"
        "sys.exit(6)"
    )
    one.submit("--submission-id", "j", "--", sys.executable, "-c", code)
    following = one.start("job", "logs", "--follow", "j")
    assert following.stdout is not None
    assert os.read(following.stdout.fileno(), 5) == b"one \xff"
    assert one.run("job", "logs", "j").stdout == b"one \xff"
    (one.folder / "go").touch()
    ran = one.finish(following)
    assert (ran.code, ran.stdout) == (6, b"two")
    assert one.run("job", "logs", "-f", "last").code == 6
    assert one.run("job", "logs", "-n", "1", "j").stdout == b"one \xfftwo"


def test_a_reader_that_leaves_does_not_end_the_job(one: Place) -> None:
    """``vctl job submit … | head -1``"""
    one.daemon()
    waiting = one.start(
        "job",
        "submit",
        "--submission-id",
        "j",
        "--",
        "sh",
        "-c",
        "echo a; while :; do echo b; sleep 0.05; done",
    )
    assert waiting.stdout is not None
    assert os.read(waiting.stdout.fileno(), 2) == b"a\n"
    waiting.stdout.close()
    assert waiting.wait(10) == 141
    assert waiting.stderr is not None
    assert b"Traceback" not in waiting.stderr.read()
    assert one.job("j")["status"] == "RUNNING"
    one.ok("job", "stop", "j")


READERS = ("status", "nodes", "cluster-resources", "available-resources", "current-cluster", "job list", "vc list",
           "vc tree", "node list", "events", "list jobs", "job status j")  # fmt: skip


def test_readers_tell_how_old_the_last_beat_is(one: Place) -> None:
    one.submit("--submission-id", "j", "--", "true")
    for words in READERS[:2]:
        ran = one.fork(*words.split())
        assert ran.code == 0, ran
        assert ran.err.startswith("No scheduler is running."), words
    daemon = one.daemon()
    one.reach("j", "SUCCEEDED")
    for words in READERS:
        ran = one.fork(*words.split())
        assert (ran.code, ran.err) == (0, ""), words
    assert one.read("status")["scheduler"]["running"] is True
    one.kill(daemon)
    for words in READERS:
        ran = one.fork(*words.split())
        assert ran.code == 0, ran
        assert "s ago" in ran.err or "just now" in ran.err, words
    scheduler = one.read("status")["scheduler"]
    assert scheduler["running"] is False
    assert scheduler["last_beat"]


def test_a_daemon_that_is_suspended_is_called_old(one: Place) -> None:
    daemon = one.daemon()
    assert one.run("status").err == ""
    os.kill(daemon.pid, signal.SIGSTOP)
    old = {**one.heartbeat(), "last_beat": timestamp(time.time_ns() - 100 * 10**9)}
    old["last_beat_ns"] -= 100 * 10**9
    (one.home / "scheduler.beat").write_text(json.dumps(old).ljust(512))
    assert "seen 1m4" in one.run("status").err
    os.kill(daemon.pid, signal.SIGCONT)
    assert one.ok("job", "submit", "--", "echo", "awake") == "awake\n"
    eventually(lambda: one.run("status").err == "", "a fresh beat", 10)


def test_a_job_that_waits_for_itself_is_warned_in_its_log(one: Place) -> None:
    """spec 13: such warnings always go to stderr, also where that is no terminal; spec 11: why says it too."""
    inner = f"{sys.executable} -m vctl job submit --submission-id inner --num-cpus 2 -- true"
    one.ok(
        "job", "submit", "--no-wait", "--submission-id", "outer", "--num-cpus", "4", "--", "sh", "-c", inner
    )
    said = "inner cannot start before outer ends"
    eventually(lambda: said in one.run("job", "logs", "outer").out, "the warning")
    assert said in one.run("why", "inner").out
    assert one.run("why", "inner", "-o", "json").json["waits_for_itself"].startswith(said)
    one.ok("job", "stop", "outer")
    one.ok("job", "wait", "inner")
