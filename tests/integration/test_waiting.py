"""Commands that wait: who schedules, who takes over, what they exit with, and what readers are told."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from tests.integration.conftest import Place, eventually, interrupt, is_gone
from vctl.ops.forms import timestamp


def scheduling(place: Place) -> int | None:
    """Pid of the process that schedules."""
    return place.beat().get("pid")


def test_one_waiter_schedules_and_others_take_over(one: Place) -> None:
    """The scheduling one is killed, then the next one leaves; the job is not harmed and each gets its code."""
    last = one.sleeper("--submission-id", "long")
    waiters = [one.start("job", "wait", last) for _ in range(3)]
    pid = one.running_process(last)
    by_pid = {waiter.pid: waiter for waiter in waiters}
    first = by_pid.pop(eventually(lambda: scheduling(one), "a scheduler"))
    one.kill(first)
    second_pid = eventually(lambda: scheduling(one) in by_pid and scheduling(one), "another to take over", 10)
    assert not is_gone(pid)
    quick = one.ok("job", "submit", "--submission-id", "quick", "--", "echo", "by", "the", "second")
    assert quick == "by the second\n"
    second = by_pid.pop(second_pid)
    interrupt(second)
    assert one.finish(second).code == 130
    (third,) = by_pid.values()
    eventually(lambda: scheduling(one) == third.pid, "the third to take over", 10)
    assert one.ok("job", "submit", "--", "echo", "by the third") == "by the third\n"
    os.kill(pid, signal.SIGTERM)
    assert one.finish(third).code == 143
    one.assert_sound()


def test_a_starting_daemon_gets_the_lock_within_a_second(one: Place) -> None:
    waiting = one.start(
        "job",
        "submit",
        "--submission-id",
        "j",
        "--",
        "sh",
        "-c",
        "while [ ! -e go ]; do sleep 0.1; done; exit 5",
    )
    one.running_process("j")
    assert scheduling(one) == waiting.pid
    asked_at = time.time_ns()
    daemon = one.daemon()
    with one.sql() as db:
        (began,) = db.execute("SELECT max(started_at) FROM reigns WHERE kind = 'daemon'").fetchone()
    assert began - asked_at < 2e9  # a second, and the start of a process on a busy machine
    assert not (one.home / "daemon.wanted").exists()
    (one.folder / "go").touch()
    assert one.finish(waiting).code == 5
    assert scheduling(one) == daemon.pid
    assert one.term(daemon).code == 0


def test_a_second_daemon_is_refused_at_once(one: Place) -> None:
    daemon = one.daemon()
    ran = one.run("daemon")
    assert ran.code == 5
    assert str(daemon.pid) in ran.err
    assert ran.seconds < 3
    assert daemon.poll() is None
    assert one.ok("job", "submit", "--", "echo", "still there") == "still there\n"
    # a daemon that was killed left no stale claim: the next one starts
    one.kill(daemon)
    one.daemon()


def test_a_daemon_that_was_killed_while_a_waiter_takes_over_does_not_refuse_the_next(one: Place) -> None:
    one.kill(one.daemon())
    waiting = one.start("job", "submit", "--submission-id", "j", "--", "sleep", "1000")
    one.running_process("j")
    one.daemon()
    interrupt(waiting)
    assert one.finish(waiting).code == 130


def test_a_daemon_killed_while_it_asked_for_the_lock_stops_nobody(one: Place) -> None:
    (one.home / "daemon.wanted").touch()
    os.utime(one.home / "daemon.wanted", (time.time() - 60, time.time() - 60))
    assert one.run("job", "submit", "--", "echo", "goes on").out == "goes on\n"
    (one.home / "daemon.wanted").touch()
    assert one.run("job", "submit", "--", "echo", "goes on").out == "goes on\n"


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
    waiting = one.start("job", "wait", "long")
    time.sleep(0.5)
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
        assert "no scheduler has run here yet" in ran.err, words
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
        assert " s ago" in ran.err, words
    scheduler = one.read("status")["scheduler"]
    assert scheduler["running"] is False
    assert scheduler["last_beat"]


def test_a_daemon_that_is_suspended_is_called_old(one: Place) -> None:
    daemon = one.daemon()
    assert one.run("status").err == ""
    os.kill(daemon.pid, signal.SIGSTOP)
    old = {**one.beat(), "last_beat": timestamp(time.time_ns() - 100 * 10**9)}
    old["last_beat_ns"] -= 100 * 10**9
    (one.home / "scheduler.beat").write_text(json.dumps(old).ljust(512))
    assert " 10" in one.run("status").err
    os.kill(daemon.pid, signal.SIGCONT)
    assert one.ok("job", "submit", "--", "echo", "awake") == "awake\n"
    eventually(lambda: one.run("status").err == "", "a fresh beat", 10)
