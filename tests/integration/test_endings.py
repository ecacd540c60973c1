"""Every way in which a job ends: by itself, stopped, out of time, with its supervisor, with its machine."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.integration.conftest import STUBBORN, Place, eventually, is_gone
from tests.specification import spec
from vctl.runtime import lines, processes

pytestmark = spec("8.stop", "8.exit-codes", "8.end")

OTHER_BOOT = "00000000-0000-4000-8000-000000000000"


def test_stop_a_pending_job(one: Place) -> None:
    """At once, without any scheduler; it never ran, so it has no exit code."""
    name = one.sleeper()
    ran = one.run("job", "stop", name)
    assert ran.code == 0
    assert "STOPPED" in ran.out + ran.err
    job = one.job(name)
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("STOPPED", "StoppedByUser", None)
    assert job["started_at"] is None
    assert one.run("job", "stop", name).code == 0  # it is what was wanted
    one.assert_sound()


@pytest.mark.parametrize("with_daemon", [True, False], ids=["with a daemon", "without"])
def test_stop_a_running_job(one: Place, with_daemon: bool) -> None:
    if with_daemon:
        one.daemon()
        one.sleeper("--submission-id", "j")
        pid = one.running_process("j")
    else:
        waiting = one.start("job", "submit", "--submission-id", "j", "--", "sleep", "1000")
        pid = one.running_process("j")
        one.kill(waiting)
    assert one.run("job", "stop", "j").code == 0
    assert is_gone(pid)
    job = one.job("j")
    assert (job["status"], job["state_reason"], job["exit_code"]) == ("STOPPED", "StoppedByUser", 143)
    one.assert_sound()


def test_a_job_may_end_well_although_it_was_asked_to_stop(one: Place) -> None:
    """It had its chance to finish its work; the stop is what ended it, so STOPPED with 143 as documented."""
    one.daemon()
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
        "open('up', 'w').close()\n"
        "time.sleep(1000)\n"
    )
    one.submit("--submission-id", "j", "--", sys.executable, "-c", code)
    eventually((one.folder / "up").exists)
    one.ok("job", "stop", "j")
    assert (one.job("j")["status"], one.job("j")["exit_code"]) == ("STOPPED", 143)
    assert one.ok("job", "logs", "j") == "saved\n"


def test_stop_takes_the_whole_tree(one: Place) -> None:
    """Also what double-forked, left the session and ignores SIGTERM; its room is free only when all is gone."""
    one.daemon()
    reported = one.folder / "pid"
    one.submit("--submission-id", "j", "--num-cpus", "4", "--", sys.executable, "-c", STUBBORN, str(reported))
    eventually(reported.exists)
    pid, stray = one.running_process("j"), int(reported.read_text())
    one.submit("--submission-id", "next", "--num-cpus", "4", "--", "sh", "-c", f"kill -0 {pid} {stray}")
    one.ok("job", "stop", "j", "--grace", "0.3", "--no-wait")
    assert one.run("job", "wait", "j").code == 143
    assert is_gone(pid)
    assert is_gone(stray)
    assert one.run("job", "wait", "next").code != 0  # when it ran, neither was there
    one.assert_sound()


def test_the_second_stop_shortens_the_grace(one: Place) -> None:
    one.daemon()
    reported = one.folder / "pid"
    one.submit("--submission-id", "j", "--", sys.executable, "-c", STUBBORN, str(reported))
    eventually(reported.exists)
    one.ok("job", "stop", "j", "--grace", "1h", "--no-wait")
    time.sleep(0.3)
    assert one.job("j")["status"] == "RUNNING"
    began = time.monotonic()
    one.ok("job", "stop", "j", "--grace", "0")
    assert time.monotonic() - began < 5
    assert one.job("j")["exit_code"] == 143


def test_what_a_job_leaves_behind_ends_with_it(one: Place) -> None:
    one.daemon()
    waiting = one.start("job", "submit", "--submission-id", "j", "--grace", "0.2", "--", "sh", "-c",
                        "sleep 1000 & echo $! > left; exit 4")  # fmt: skip
    assert one.finish(waiting).code == 4
    assert is_gone(int((one.folder / "left").read_text()))
    one.assert_sound()


@pytest.mark.parametrize("with_daemon", [True, False], ids=["with a daemon", "without"])
def test_the_time_limit(one: Place, with_daemon: bool) -> None:
    if with_daemon:
        one.daemon()
    ran = one.run("job", "submit", "--submission-id", "j", "--time-limit", "0.5s", "--", "sleep", "1000")
    job = one.job("j")
    assert (ran.code, job["exit_code"]) == (124, 124)
    assert (job["status"], job["state_reason"]) == ("FAILED", "TimeLimit")
    assert "TimeLimit" in ran.err
    with one.sql() as db:
        ((took_ns,),) = db.execute("SELECT ended_at - started_at FROM jobs")
    assert 0.5e9 <= took_ns < 3e9
    one.assert_sound()


def test_the_time_limit_holds_over_a_crash_of_the_daemon(one: Place) -> None:
    """Counted from the start of the process, not from the start of the daemon; grace included."""
    daemon = one.daemon()
    one.submit(
        "--submission-id",
        "j",
        "--time-limit",
        "1s",
        "--grace",
        "0.2",
        "--",
        "sh",
        "-c",
        "trap '' TERM; sleep 1000",
    )
    pid = one.running_process("j")
    one.kill(daemon)
    time.sleep(1.2)
    assert not is_gone(pid)
    one.daemon()
    assert one.run("job", "wait", "j").code == 124
    one.assert_sound()


def test_delete(one: Place) -> None:
    one.ok("job", "submit", "--submission-id", "done", "--", "echo", "text")
    assert (one.home / "logs" / "done.log").exists()
    one.sleeper("--submission-id", "waits")
    ran = one.run("job", "delete", "waits")
    assert ran.code == 5
    assert "vctl job stop waits" in ran.err
    one.ok("job", "delete", "done")
    assert one.run("job", "status", "done").code == 4
    assert one.run("job", "delete", "done").code == 4
    assert not (one.home / "logs" / "done.log").exists()
    one.ok("job", "stop", "waits")
    one.ok("job", "delete", "waits")
    assert one.jobs() == {}
    again = one.ok("job", "submit", "--submission-id", "done", "--", "echo", "again")
    assert again == "again\n"
    one.assert_sound()


def test_running_jobs_are_adopted_after_a_kill_of_the_daemon(one: Place) -> None:
    """One that goes on, one that ends while nobody looks: each keeps its process and its own code."""
    daemon = one.daemon()
    one.sleeper("--submission-id", "stays")
    one.submit("--submission-id", "ends", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; exit 42")
    pids = [one.running_process(name) for name in ("stays", "ends")]
    one.kill(daemon)
    (one.folder / "go").touch()
    eventually(lambda: is_gone(pids[1]))
    assert one.job("ends")["status"] == "RUNNING"  # nobody has looked
    one.daemon()
    assert one.reach("ends", "FAILED")["exit_code"] == 42
    assert one.job("stays")["status"] == "RUNNING"
    assert one.job("stays")["attempt"] == 1
    assert one.running_process("stays") == pids[0]
    one.ok("job", "stop", "stays")
    assert is_gone(pids[0])
    one.assert_sound()


def test_the_fork_server_may_die(one: Place) -> None:
    """Running jobs do not notice, and the next job starts through a new one."""
    daemon = one.daemon()
    one.sleeper("--submission-id", "j")
    pid = one.running_process("j")
    from vctl.runtime import processes

    (launcher,) = [p for p in processes.descendants(daemon.pid) if processes.name(p) == b"vctl-launcher"]
    os.kill(launcher, signal.SIGKILL)
    assert one.ok("job", "submit", "--", "echo", "through another") == "through another\n"
    assert not is_gone(pid)
    one.ok("job", "stop", "j")


def test_a_supervisor_is_killed(one: Place) -> None:
    """The run is lost: what it left is ended, also what hid, and the job says so."""
    one.daemon()
    reported = one.folder / "pid"
    one.submit("--submission-id", "j", "--num-cpus", "4", "--", sys.executable, "-c", STUBBORN, str(reported))
    eventually(reported.exists)
    pid, stray = one.running_process("j"), int(reported.read_text())
    os.kill(one.supervisor_of("j"), signal.SIGKILL)
    job = one.reach("j", "FAILED", within_s=15)
    assert (job["state_reason"], job["exit_code"]) == ("ProcessLost", None)
    assert job["message"]
    assert is_gone(pid)
    assert is_gone(stray)
    assert one.run("job", "wait", "j").code == 1
    assert one.ok("job", "submit", "--num-cpus", "4", "--", "echo", "room again") == "room again\n"
    one.assert_sound()


def test_a_supervisor_is_killed_while_nothing_schedules(one: Place) -> None:
    daemon = one.daemon()
    one.sleeper("--submission-id", "j")
    pid, supervisor = one.running_process("j"), one.supervisor_of("j")
    one.kill(daemon)
    os.kill(supervisor, signal.SIGKILL)
    assert one.run("job", "wait", "j").code == 1
    assert one.job("j")["state_reason"] == "ProcessLost"
    assert is_gone(pid)
    one.assert_sound()


def test_the_machine_restarted(place: Place) -> None:
    """Seen by the boot id: the old local node is DEAD, its runs are lost, the machine is a new node."""
    daemon = place.daemon(VCTL_LOCAL_NODE="1")
    place.sleeper("--submission-id", "j")
    pid = place.running_process("j")
    place.kill(daemon)
    os.kill(place.supervisor_of("j"), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: is_gone(pid))
    (old,) = place.read("node", "list")["items"]
    with place.sql() as db:
        db.execute("UPDATE nodes SET boot_id = ?", (OTHER_BOOT,))
        db.execute("UPDATE runs SET boot_id = ?", (OTHER_BOOT,))
    here = processes.boot_id().encode()
    for record in (place.home / "records").glob("[0-9]*"):
        found = filter(None, map(lines.parsed, record.read_bytes().splitlines()))
        record.write_bytes(b"".join(
            lines.line(kind, run, rest.replace(here, OTHER_BOOT.encode())) for kind, run, rest in found
        ))  # fmt: skip
    place.daemon(VCTL_LOCAL_NODE="1")
    job = place.reach("j", "FAILED")
    assert job["state_reason"] in ("NodeFailed", "ProcessLost")
    nodes = {node["node_id"]: node for node in place.read("node", "list")["items"]}
    assert len(nodes) == 2
    assert nodes[old["node_id"]]["state"] == "DEAD"
    assert "restarted" in nodes[old["node_id"]]["reason"]
    (fresh,) = [node for node in nodes.values() if node["state"] == "ALIVE"]
    assert fresh["source"] == "local"
    assert place.ok("job", "submit", "--", "sh", "-c", "echo $VCTL_NODE_ID") == fresh["node_id"] + "\n"
    place.assert_sound()


def test_a_node_is_declared_dead(two: Place) -> None:
    two.daemon()
    two.sleeper("--submission-id", "j", "--num-cpus", "4")
    two.sleeper("--submission-id", "other", "--num-cpus", "4")
    pid, other = two.running_process("j"), two.running_process("other")
    (node_id,) = two.job("j")["node_ids"]
    two.ok("node", "kill", node_id)
    job = two.reach("j", "FAILED")
    assert (job["state_reason"], job["exit_code"]) == ("NodeFailed", None)
    assert is_gone(pid)
    assert not is_gone(other)
    assert two.read("cluster-resources")["CPU"] == 4.0
    assert two.run("job", "submit", "--num-cpus", "4", "--nodes", "2", "--", "true").code == 3
    two.ok("job", "stop", "other")
    two.assert_sound()


def test_a_draining_node_takes_no_work_and_ends_drained(two: Place) -> None:
    two.daemon()
    two.sleeper("--submission-id", "j")
    two.reach("j", "RUNNING")
    (node_id,) = two.job("j")["node_ids"]
    two.ok("node", "drain", node_id, "--reason", "repairs")
    for _ in range(3):
        ran = two.ok("job", "submit", "--", "sh", "-c", "echo $VCTL_NODE_ID")
        assert ran.strip() != node_id
    node = two.read("node", "get", node_id)
    assert (node["state"], node["reason"]) == ("DRAINING", "repairs")
    two.ok("job", "stop", "j")
    eventually(lambda: two.read("node", "get", node_id)["state"] == "DRAINED", "the node to be drained", 10)
    both = ("--submission-id", "both", "--num-cpus", "4", "--nodes", "2")
    assert (
        two.run("job", "submit", "--no-wait", *both, "--", "true").code == 3
    )  # alive and draining ones count
    two.ok("node", "undrain", node_id)
    two.sleeper(*both)
    two.reach("both", "RUNNING")
