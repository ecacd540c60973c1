"""Scheduler, launcher, supervisor: any of them may be killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.runtime.conftest import STUBBORN, eventually, is_gone
from tests.specification import spec
from vctl.runtime import lines, processes, supervisors
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import RunState

pytestmark = spec("12.daemon-death", "16.local")

SCHEDULER = """
import sys, time
from pathlib import Path
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import LaunchRequest
home = Path(sys.argv[1])
runtime = LocalRuntime(home)
for n in range(50):
    script = f"sleep 0.7; exit {n + 1}"
    log = str(runtime.logs / str(n))
    runtime.launch(
        LaunchRequest(f"r{n}", ("/bin/sh", "-c", script), {"PATH": "/bin:/usr/bin"}, "/", log, runtime.assign())
    )
print("launched", flush=True)
time.sleep(100)
"""


def launchers(home: Path) -> list[int]:
    """Pids of launchers (and only those) that serve a state directory."""
    every = processes.all_processes()
    return [
        one.pid
        for one in every
        if processes.name(one.pid) == b"vctl-launcher"
        and processes.command(one.pid)[-1:] == [os.fsencode(home)]
    ]


def test_killing_scheduler_and_launcher_loses_no_exit_code(ground):
    scheduler = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, str(ground.home)], stdout=subprocess.PIPE, text=True
    )
    with scheduler:
        assert scheduler.stdout.readline() == "launched\n"
        eventually(lambda: len(ground.runtime.known_runs()) == 50)
        scheduler.kill()
    for pid in launchers(ground.home):
        os.kill(pid, signal.SIGKILL)
    codes = [ground.ended(f"r{n}").exit_code for n in range(50)]
    assert codes == list(range(1, 51))


def test_the_launcher_ends_when_the_scheduler_is_killed(ground):
    scheduler = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER, str(ground.home)], stdout=subprocess.PIPE, text=True
    )
    with scheduler:
        assert scheduler.stdout.readline() == "launched\n"
        scheduler.kill()
    eventually(lambda: not launchers(ground.home), "the launcher to end")
    assert all(ground.ended(f"r{n}").exit_code == n + 1 for n in range(50))


def test_launches_go_on_when_the_launcher_is_killed_again_and_again(ground):
    """Each run writes one line: none is missing and none is there twice."""
    tally = ground.home / "tally"
    for n in range(60):
        ground.launch(f"r{n}", "/bin/sh", "-c", f"echo {n} >> {tally}")
        if n % 10 == 5:
            for pid in launchers(ground.home):
                os.kill(pid, signal.SIGKILL)
    for n in range(60):
        ground.ended(f"r{n}")
    assert sorted(map(int, tally.read_text().split())) == list(range(60))


def test_observing_is_enough_to_recover_from_a_dead_launcher(ground, monkeypatch):
    """It is killed before it has read that there is a run."""
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda _launcher, signo: sent.append(signo))
    monkeypatch.setattr(supervisors, "ANSWER_S", 1000.0)  # it is not replaced for being slow
    ground.runtime.prepare()
    eventually(lambda: launchers(ground.home))
    (launcher,) = launchers(ground.home)
    os.kill(launcher, signal.SIGSTOP)
    eventually(lambda: processes.process(launcher).state == "T")
    ground.launch("a", "sh", "-c", "exit 8")
    assert sent == [signal.SIGCONT], "it would have been resumed, and have read it"
    assert ground.runtime.observe("a").state is RunState.NEVER_STARTED
    os.kill(launcher, signal.SIGKILL)
    assert ground.ended("a").exit_code == 8


def test_a_run_launched_twice_runs_once(ground):
    tally = ground.home / "tally"
    for _ in range(3):
        ground.launch("a", "/bin/sh", "-c", f"echo x >> {tally}; exit 3")
    ground.ended("a")
    ground.launch("a", "/bin/sh", "-c", f"echo x >> {tally}")
    ground.launch("b", "true")
    ground.ended("b")
    assert ground.ended("a").exit_code == 3
    assert tally.read_text() == "x\n"


def test_a_run_launched_by_two_schedulers_at_once_runs_once(ground):
    tally = ground.home / "tally"
    second = LocalRuntime(ground.home)
    requests = [ground.request(f"r{n}", "/bin/sh", "-c", f"echo {n} >> {tally}") for n in range(40)]
    threads = [
        threading.Thread(target=lambda runtime=runtime: [runtime.launch(one) for one in requests])
        for runtime in (ground.runtime, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in requests:
        ground.ended(one.run_id)
    second.close()
    ground.runtime.close()  # both launchers have read all they were sent
    eventually(lambda: not launchers(ground.home))
    assert sorted(map(int, tally.read_text().split())) == list(range(40))


def test_a_run_whose_supervisor_was_killed_is_lost_and_can_be_cleared(ground):
    mark = ground.home / "mark"
    ground.python("a", STUBBORN + "\ntime.sleep(1000)", str(mark))
    start = ground.running("a")
    eventually(lambda: mark.exists() and mark.read_text())
    os.kill(start.supervisor, signal.SIGKILL)
    seen = ground.reach("a", RunState.LOST)
    assert seen.start == start
    assert not is_gone(start.pid)
    assert ground.runtime.clear_lost("a") == ()
    assert is_gone(start.pid)
    assert is_gone(int(mark.read_text()))
    ground.runtime.forget("a")


def test_clearing_touches_nothing_while_a_supervisor_lives(ground):
    ground.launch("a", "sleep", "1000")
    start = ground.running("a")
    assert ground.runtime.clear_lost("a") == ()
    time.sleep(0.05)
    assert not is_gone(start.pid)


def test_after_a_restart_of_the_machine_a_run_is_lost_and_no_pid_is_trusted(ground):
    """Another boot id in the record, no lock held: the process that has the pid now is a stranger."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        began = processes.start_time(stranger.pid)
        ground.record("a").write_bytes(
            lines.line(b"T", b"a", b"1 1 another")
            + lines.line(b"S", b"a", b"%d %d 1" % (stranger.pid, began))
        )
        assert ground.runtime.observe("a").state is RunState.LOST
        assert ground.runtime.clear_lost("a") == ()
        assert stranger.poll() is None
        stranger.kill()


def test_the_launcher_keeps_no_file_of_the_scheduler_open(ground, tmp_path):
    """A lock the scheduler holds must be free when the scheduler is gone."""
    inherited = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(inherited, True)
    try:
        ground.runtime.prepare()
        ground.launch("a", "sleep", "1000")
        supervisor = ground.running("a").supervisor
        for pid in (*launchers(ground.home), supervisor):
            held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            assert str(tmp_path / "lock") not in held
    finally:
        os.close(inherited)


def test_a_run_launched_from_inside_a_run_outlives_it(ground):
    """A scheduler may itself run in a job; what it launches belongs to others, not to that job."""
    code = """
import sys; sys.path.insert(0, sys.argv[2])
import time
from pathlib import Path
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import LaunchRequest
runtime = LocalRuntime(Path(sys.argv[1]))
runtime.launch(
    LaunchRequest("inner", ("/bin/sleep", "1000"), {}, "/", str(runtime.logs / "inner"), runtime.assign())
)
while runtime.observe("inner").start is None: time.sleep(0.01)
"""
    root = str(Path(__file__).parents[2])
    ground.launch("outer", sys.executable, "-c", code, str(ground.home), root)
    assert ground.ended("outer").exit_code == 0, ground.log("outer")
    assert ground.runtime.observe("inner").state is RunState.RUNNING
    ground.runtime.stop("inner", grace_s=5)
    assert ground.ended("inner").exit_code == 143
