"""Runs that have one supervisor at the same time: each is ended, counted and seen alone."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.conftest import Ground, eventually, is_gone
from tests.specification import spec
from vctl.runtime import processes, supervisors
from vctl.runtime.protocol import RunState

pytestmark = spec("16.local")

ROOT = Path(__file__).parents[2]
DAEMON = """
import os, resource, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if len(sys.argv) > 2:
            resource.setrlimit(10, (int(sys.argv[2]), resource.RLIM_INFINITY))
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]): time.sleep(0.001)
"""
"""Leaves a process that has no parent, session or variable of the job; with a number it has that as its tag."""
WAIT = DAEMON + "\nwhile not os.path.exists(sys.argv[1] + '.end'): time.sleep(0.003)"
LIMITED = """
import resource, runpy, sys
resource.setrlimit(10, (9, 9))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LAUNCHES = """
import sys
from pathlib import Path
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import LaunchRequest
runtime = LocalRuntime(Path(sys.argv[1]))
for n in range(5):
    words = ("/bin/sh", "-c", f"sleep 100 & setsid sleep 100 & exit {n}")
    runtime.launch(LaunchRequest(f"r{n}", words, {}, "/", str(runtime.logs / f"r{n}"), runtime.assign(), grace_s=0))
runtime.close()
"""


@pytest.fixture
def together(ground: Ground) -> Ground:
    """A state directory whose runs have one supervisor."""
    ground.runtime._supervisors.supervisors = 1
    return ground


def started(ground: Ground, name: str, *tag: str) -> int:
    """Start a run that leaves a daemon and waits to be ended; the daemon."""
    mark = ground.home / f"{name}.pid"
    ground.python(name, WAIT, str(mark), *tag, grace_s=0.2)
    eventually(mark.exists)
    return int(mark.read_text())


def end(ground: Ground, name: str) -> None:
    (ground.home / f"{name}.pid.end").touch()


def test_there_are_as_many_supervisors_as_cpus(ground):
    """More of them gain nothing, and each has memory of its own."""
    cpus = min(len(os.sched_getaffinity(0)), supervisors.MAX_SUPERVISORS)
    names = [f"r{n}" for n in range(4 * cpus)]
    for name in names:
        ground.launch(name, "sleep", "1000")
    runs_of = Counter(ground.running(name).supervisor for name in names)
    assert sorted(runs_of.values()) == [4] * cpus


def test_a_daemon_ends_with_its_own_run_only(together):
    """It has no parent, no session and no variable of its job; also where the job has ended before."""
    daemons = {name: started(together, name) for name in "abc"}
    assert len({together.running(name).supervisor for name in "abc"}) == 1
    for name, rest in (("b", "ac"), ("a", "c"), ("c", "")):
        end(together, name)
        assert together.ended(name).exit_code == 0
        assert is_gone(daemons[name])
        assert not any(is_gone(daemons[other]) for other in rest)


def test_a_stop_ends_the_processes_of_its_run_only(together):
    daemons = {name: started(together, name) for name in "ab"}
    together.runtime.stop("a", grace_s=5)
    assert together.ended("a").stopped
    assert is_gone(daemons["a"])
    assert not is_gone(daemons["b"])
    assert together.runtime.observe("b").state is RunState.RUNNING
    end(together, "b")
    assert not together.ended("b").stopped


def test_a_daemon_of_a_lost_run_is_found_by_its_tag(together):
    """Spec 12: it is a child of nobody that we know, and has no session and no variable of the job."""
    daemons = {name: started(together, name) for name in "ab"}
    os.kill(together.running("a").supervisor, signal.SIGKILL)
    together.reach("a", RunState.LOST)
    assert together.runtime.clear_lost("a") == ()
    assert is_gone(daemons["a"])
    assert not is_gone(daemons["b"])
    together.reach("b", RunState.LOST)
    assert together.runtime.clear_lost("b") == ()
    assert is_gone(daemons["b"])


@pytest.mark.parametrize("tag", ["7", str(2**50)])
def test_a_daemon_that_has_changed_its_tag_is_gone_before_any_run_is_over(together, tag):
    """Spec 16: nothing outlives its job: nobody knows whose process it is, so the next end takes it along."""
    daemon = started(together, "a", tag)
    kept = started(together, "b")
    end(together, "a")
    together.ended("a")
    assert is_gone(daemon)
    assert not is_gone(kept)


def test_a_signal_to_all_of_a_run_reaches_no_other(together):
    daemons = {name: started(together, name) for name in "ab"}
    assert together.runtime.signal_run("a", signal.SIGKILL, tree=True)
    together.ended("a")
    assert is_gone(daemons["a"])
    assert not is_gone(daemons["b"])


def test_the_use_of_a_daemon_counts_for_its_own_run(together):
    burn = "x = time.process_time()\nwhile time.process_time() - x < 0.3: pass"
    code = "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        "
    code += (
        burn.replace("\n", "\n        ") + "\n        open(sys.argv[1], 'w')\n    os._exit(0)\nos.wait()\n"
    )
    code += "while not os.path.exists(sys.argv[1]): time.sleep(0.003)\ntime.sleep(0.1)"
    started(together, "other")
    together.python("busy", code, str(together.home / "burnt"))
    busy = together.ended("busy")
    assert busy.user_us + busy.system_us > 250_000
    end(together, "other")
    other = together.ended("other")
    assert other.user_us + other.system_us < 250_000


def test_a_supervisor_that_is_killed_loses_its_runs_and_no_others(together):
    """Spec 12: what it left is told apart by the marks of the runs."""
    names = ["a", "b"]
    for name in names:
        together.launch(name, "sleep", "1000")
    starts = {name: together.running(name) for name in names}
    together.runtime._supervisors.supervisors = 2
    together.runtime._supervisors.load[0] += 9
    together.launch("c", "sleep", "1000")
    other = together.running("c").supervisor
    assert {one.supervisor for one in starts.values()} != {other}
    os.kill(starts["a"].supervisor, signal.SIGKILL)
    for name in names:
        assert together.reach(name, RunState.LOST).start == starts[name]
    assert together.runtime.clear_lost("a") == ()
    assert is_gone(starts["a"].pid)
    assert not is_gone(starts["b"].pid)
    assert together.runtime.clear_lost("b") == ()
    assert together.runtime.observe("c").state is RunState.RUNNING


def test_a_job_that_waits_for_the_disk_holds_up_no_other(together, mount):
    """The directory of its log cannot be written to; spec 8: it starts when that passes."""
    full = mount("-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs")
    (full / "fill").write_bytes(b"x" * 4096)
    together.launch("a", "true", log_path=str(full / "a"))
    together.reach("a", RunState.STARTING)
    for n in range(5):
        together.launch(f"r{n}", "true")
        assert together.ended(f"r{n}").exit_code == 0
    assert together.runtime.observe("a").state is RunState.STARTING
    (full / "fill").unlink()
    assert together.ended("a").exit_code == 0


def test_where_nobody_may_have_a_tag_each_run_has_its_supervisor(ground):
    """Whose process a daemon is says its tag; without one a supervisor stands over one run."""
    script = ground.home / "launches.py"
    script.write_text(LAUNCHES)
    words = [sys.executable, "-c", LIMITED, str(script), str(ground.home)]
    subprocess.run(words, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)})
    for n in range(5):
        assert ground.ended(f"r{n}").exit_code == n
    pids = {ground.runtime.observe(f"r{n}").start.supervisor for n in range(5)}
    assert len(pids) == 5
    eventually(lambda: all(map(is_gone, pids)))


def test_a_process_has_the_number_of_its_run_as_its_tag(ground):
    ground.python("a", "import resource; print(*resource.getrlimit(10))")
    ground.ended("a")
    number = ground.record("a").name
    assert ground.log("a").decode().split() == [number, str(resource.getrlimit(10)[1])]
    assert processes.tag(os.getpid()) == max(0, resource.getrlimit(10)[0])


def test_no_supervisor_has_more_numbers_than_it_can_have_files(together):
    together.runtime._supervisors.max_numbers = 3
    for n in range(8):
        together.launch(f"r{n}", "sleep", "1000")
    runs_of = Counter(together.running(f"r{n}").supervisor for n in range(8))
    assert len(runs_of) == 3
    assert max(runs_of.values()) <= 4


def test_hundreds_of_runs_with_few_open_files(ground):
    """The usual soft limit is 1,024; here it is 100."""
    script = ground.home / "launches.py"
    script.write_text(LAUNCHES.replace("range(5)", "range(90)").replace("exit {n}", "sleep 2; exit {n}"))
    code = LIMITED.replace("setrlimit(10, (9, 9))", "setrlimit(resource.RLIMIT_NOFILE, (100, 200))")
    words = [sys.executable, "-c", code, str(script), str(ground.home)]
    subprocess.run(words, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert [ground.ended(f"r{n}").exit_code for n in range(90)] == list(range(90))
