"""What /proc says, checked on processes of our own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.runtime.conftest import eventually
from tests.specification import spec
from vctl.runtime import processes, supervisor

pytestmark = spec("16.local")

FAMILY = """
import os, threading, time
threading.Thread(target=lambda: os.fork() or time.sleep(1000)).start()
if os.fork() == 0 and os.fork() == 0: pass
time.sleep(1000)
"""


@pytest.fixture
def family() -> Iterator[int]:
    """A process with a child of its main thread, one of another thread, and grandchildren."""
    with subprocess.Popen([sys.executable, "-c", FAMILY], start_new_session=True) as parent:
        yield parent.pid
        os.killpg(parent.pid, signal.SIGKILL)


def test_descendants_are_found_in_both_ways(family, monkeypatch):
    eventually(lambda: len(processes.descendants(family)) >= 3)
    time.sleep(0.05)
    found = set(processes.descendants(family))
    assert all(os.getsid(pid) == family for pid in found)
    monkeypatch.setattr(processes.os.path, "exists", lambda path: False)
    assert set(processes.descendants(family)) == found


def test_what_is_spared_is_left_out_with_all_below_it(family):
    eventually(lambda: len(processes.descendants(family)) >= 3)
    assert processes.descendants(family, spare=lambda pid: True) == []


def test_a_process_is_known_by_pid_start_and_boot():
    with subprocess.Popen(["sleep", "1000"]) as child:
        started, boot = processes.start_time(child.pid), processes.boot_id()
        assert started is not None
        assert processes.alive(child.pid, started, boot)
        assert not processes.alive(child.pid, started + 1, boot)
        assert not processes.alive(child.pid, started, "another boot")
        assert not processes.send_signal(child.pid, started + 1, signal.SIGKILL)
        assert processes.send_signal(child.pid, started, signal.SIGKILL)
        eventually(lambda: not processes.alive(child.pid, started, boot))
        assert processes.process(child.pid).state == "Z"
    assert processes.process(child.pid) is None
    assert not processes.send_signal(child.pid, started, signal.SIGKILL)
    assert (processes.name(child.pid), processes.command(child.pid)) == (b"", [])


def test_a_name_with_blanks_and_brackets_is_read(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "1000"]) as child:
        eventually(lambda: processes.command(child.pid)[:1] == [os.fsencode(program)])
        seen = processes.process(child.pid)
        assert (seen.parent, seen.session) == (os.getpid(), os.getsid(0))
        child.kill()


def test_processes_are_found_by_their_mark():
    mark = b"test-%d" % os.getpid()
    with subprocess.Popen(["sleep", "1000"], env={b"VCTL_MARK": mark}) as child:
        eventually(lambda: [one.pid for one in processes.marked(b"VCTL_MARK").get(mark, ())] == [child.pid])
        assert mark not in processes.marked(b"VCTL_MARK", b"VCTL_HOME=/elsewhere")
        child.kill()


def test_the_clock_of_starts_is_the_one_of_proc():
    """spec 12: a process is found again by its pid and its start time. Seldom does a tick end in between."""
    for _ in range(50):
        before = processes.ticks_now()
        with subprocess.Popen(["sleep", "9"]) as child:
            after, started = processes.ticks_now(), processes.start_time(child.pid)
            child.kill()
        assert started is not None
        assert before <= started <= after
        if before == after:
            return
    raise AssertionError("a tick ended at every start")


@pytest.mark.parametrize("end", [0, 3, -signal.SIGTERM, -signal.SIGKILL])
def test_the_status_of_a_process_is_known_before_it_is_collected(end: int) -> None:
    """A supervisor notes it first: where memory fails as it collects the process, nobody could tell it any more."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if end < 0:
            os.kill(os.getpid(), -end)
        os._exit(end)
    seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert seen is not None
    found = supervisor._status_of(seen)
    _, status = os.waitpid(pid, 0)
    assert found == status
