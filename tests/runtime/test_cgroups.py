"""Limits that the kernel enforces, with the groups of this machine (spec 16, 19)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runtime.conftest import Ground, eventually, is_gone
from tests.specification import spec
from vctl.runtime import cgroup_trees, cgroups, processes
from vctl.runtime.protocol import Confinement, RunState

pytestmark = spec("16.local", "19.limits")

MIB = 1 << 20
LIMIT = 64 * MIB
MEMORY_ONLY: Confinement = (0, 0, ())
FILL = "import sys, time; kept = b'x' * (int(sys.argv[1]) << 20); print('full', flush=True); time.sleep(60)"
BELOW = f"""
import subprocess, sys
subprocess.run([sys.executable, "-I", "-S", "-c", {FILL!r}, sys.argv[1]])
open(sys.argv[2], "w").close()
import time; time.sleep(60)
"""
HIDDEN = """
import os, resource, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        resource.setrlimit(10, (12345, 12345))  # RLIMIT_LOCKS
        os.execve(sys.executable, ["idle", "-I", "-S", "-c",
            "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN);"
            "open(sys.argv[1] + '.new', 'w').write(str(os.getpid())); os.rename(sys.argv[1] + '.new', sys.argv[1]);"
            "time.sleep(1000)", sys.argv[1]], {})
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]): time.sleep(0.005)
time.sleep(float(sys.argv[2]))
"""
"""Leaves a process with another parent, session and tag, without its environment, and deaf to SIGTERM."""
BOMB = """
import os, sys, time
forks = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(1000)
        forks += 1
    except OSError:
        break
print(forks, flush=True)
time.sleep(1000)
"""


@pytest.fixture
def confined(ground: Ground) -> Iterator[Ground]:
    """A state directory whose runs can have groups in version 1, with one supervisor; none of them is left."""
    groups = cgroup_trees.find(os.fsencode(ground.home))
    if groups.version != 1 or not {cgroups.MEMORY, cgroups.PIDS, cgroups.FREEZER} <= groups.trees.keys():
        pytest.skip(f"cgroup v1 cannot be written here: {groups.reasons}")
    ground.runtime._supervisors.supervisors = 1
    yield ground
    ground.end()
    eventually(lambda: not folders(ground), "the groups to be removed")


def folders(ground: Ground) -> list[str]:
    """The groups of the state directory that exist in any tree."""
    return [os.fsdecode(base) for groups in bases(ground) for base in groups.trees.values()]


def bases(ground: Ground) -> list[cgroups.Groups]:
    return cgroup_trees.bases(os.fsencode(ground.home))


def groups_of(ground: Ground, run: str) -> list[cgroups.RunGroup]:
    return cgroup_trees.left_by(run.encode(), bases(ground))


def log(ground: Ground, run: str) -> bytes:
    path = ground.runtime.logs / run
    return path.read_bytes() if path.exists() else b""


def written_pid(path: Path) -> int:
    eventually(path.exists)
    return int(path.read_text())


def test_the_kernel_ends_a_run_over_its_memory_and_its_neighbours_live(confined: Ground) -> None:
    confined.python("n", FILL, "30", memory_bytes=LIMIT, confinement=MEMORY_ONLY)
    confined.python("plain", FILL, "100")
    confined.python("a", FILL, "200", memory_bytes=LIMIT, confinement=MEMORY_ONLY)
    end = confined.ended("a")
    assert (end.exit_code, end.signal, end.stopped) == (137, signal.SIGKILL, False)
    assert end.message == "asked 64 MiB, peak 64 MiB; try --memory 96MiB"
    assert end.max_rss_kib == 64 << 10
    assert end.ended_at - confined.running("n").started_at < 10e9
    for neighbour in ("n", "plain"):
        eventually(lambda run=neighbour: log(confined, run) == b"full\n")
        assert confined.runtime.observe(neighbour).state is RunState.RUNNING


def test_a_process_below_that_takes_too_much_ends_the_whole_run(confined: Ground) -> None:
    """The kernel kills one process; the command around it could go on, and would report another failure."""
    confined.python(
        "a", BELOW, "200", str(confined.home / "after"), memory_bytes=LIMIT, confinement=MEMORY_ONLY
    )
    end = confined.ended("a")
    assert (end.exit_code, end.signal) == (137, signal.SIGKILL)
    assert "asked 64 MiB" in end.message


@pytest.mark.parametrize("code", ["; exit 0", "", " || exit 3"])
def test_a_command_that_ends_at_once_after_the_kernel_killed_below_it_ran_out_of_memory(
    confined: Ground, code: str
) -> None:
    fill = f"{sys.executable} -I -S -c \"b'x' * (200 << 20)\"{code}"
    confined.launch("a", "sh", "-c", fill, memory_bytes=LIMIT, confinement=MEMORY_ONLY)
    end = confined.ended("a")
    assert (end.exit_code, end.signal) == (137, signal.SIGKILL)
    assert "asked 64 MiB" in end.message


def test_what_a_run_used_is_that_of_all_its_processes(confined: Ground) -> None:
    """The one it waited for and the one that it left behind count, and the peak of an earlier run does not."""
    code = """
import os, subprocess, sys, time
def burn():
    until = time.process_time() + 0.15
    while time.process_time() < until: pass
for n in range(2):
    if os.fork() == 0:
        kept = b"x" * (30 << 20); burn(); time.sleep(0.3); os._exit(0)
os.wait(), os.wait()
"""
    confined.python("a", code, confinement=(0, 100, ()))
    end = confined.ended("a")
    assert end.exit_code == 0
    assert 60 << 10 < end.max_rss_kib < 120 << 10
    assert end.user_us + end.system_us >= 290_000
    confined.python("b", "", confinement=(0, 100, ()))
    assert 0 < confined.ended("b").max_rss_kib < 30 << 10
    assert confined.ended("b").user_us < 200_000


def test_a_run_that_fits_is_as_without_a_limit(confined: Ground) -> None:
    """Pages of files do not count: the kernel drops them before it kills anything."""
    large = confined.home / "large"
    large.write_bytes(b"x" * (100 * MIB))
    code = f"import time; print(len(open({str(large)!r}, 'rb').read(1 << 20)));\n"
    code += f"f = open({str(large)!r}, 'rb')\nwhile f.read(1 << 16): pass\nkept = b'x' * (30 << 20)"
    confined.python("a", code, memory_bytes=LIMIT, confinement=MEMORY_ONLY)
    end = confined.ended("a")
    assert (end.exit_code, end.signal, end.message) == (0, None, "")


def test_a_fork_bomb_reaches_its_limit_of_processes_and_ends_whole(confined: Ground) -> None:
    confined.python("a", BOMB, confinement=(40, 0, ()))
    confined.launch("n", "sleep", "1000", confinement=(40, 0, ()))
    main = confined.running("a").pid
    eventually(lambda: log(confined, "a"))
    assert int(log(confined, "a")) == 39
    assert subprocess.run(["true"], check=False).returncode == 0
    (group,) = [group for group in groups_of(confined, "a") if cgroups.PIDS in group.folders]
    assert len(group.processes()) == 40
    confined.runtime.stop("a", grace_s=0)
    assert confined.ended("a").stopped
    assert is_gone(main)
    assert not groups_of(confined, "a")
    assert confined.runtime.observe("n").state is RunState.RUNNING


def test_a_bomb_that_replaces_its_processes_in_new_sessions_ends_whole(confined: Ground) -> None:
    """SIGKILL of one process after another may never end: each has forked, left its group of processes, and gone."""
    code = "import os\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()\n"
    confined.python(
        "a", f"import os\nfor n in range(3): os.fork()\n{code}", confinement=(60, 0, ()), grace_s=0.0
    )
    end = confined.ended("a")
    assert end.exit_code in (0, 137)
    eventually(lambda: not groups_of(confined, "a"))


def test_a_process_that_hides_belongs_to_its_run_and_to_no_other(confined: Ground) -> None:
    """Without a group, a process whose tag is of no run is ended with whichever run ends next."""
    marks = [confined.home / name for name in "ab"]
    confined.python("a", HIDDEN, str(marks[0]), "0", confinement=MEMORY_ONLY, grace_s=0.1)
    confined.python("b", HIDDEN, str(marks[1]), "1000", confinement=MEMORY_ONLY, grace_s=0.1)
    hidden = [written_pid(mark) for mark in marks]
    assert confined.ended("a").exit_code == 0
    assert is_gone(hidden[0])
    assert not is_gone(hidden[1]), "it was ended with a run that it does not belong to"
    confined.runtime.stop("b", grace_s=0.1)
    confined.ended("b")
    assert is_gone(hidden[1])


def test_a_run_whose_supervisor_was_killed_is_cleared_by_its_group(confined: Ground) -> None:
    mark = confined.home / "a"
    confined.python("a", HIDDEN, str(mark), "1000", confinement=(0, 100, (("x", (0, 0, 0)),)))
    hidden, start = written_pid(mark), confined.running("a")
    os.kill(start.supervisor, signal.SIGKILL)
    confined.reach("a", RunState.LOST)
    assert not is_gone(hidden)
    assert groups_of(confined, "a")
    assert confined.runtime.clear_lost("a") == ()
    assert is_gone(hidden)
    assert is_gone(start.pid)
    assert not groups_of(confined, "a")


def test_a_run_whose_supervisor_was_killed_while_its_group_was_frozen_is_cleared(confined: Ground) -> None:
    confined.launch("a", "sleep", "1000", confinement=MEMORY_ONLY)
    start = confined.running("a")
    os.kill(start.supervisor, signal.SIGKILL)
    (frozen,) = [group for group in groups_of(confined, "a") if cgroups.FREEZER in group.folders]
    state = Path(os.fsdecode(frozen.folders[cgroups.FREEZER])) / "freezer.state"
    state.write_text("FROZEN")
    confined.reach("a", RunState.LOST)
    assert confined.runtime.clear_lost("a") == ()
    assert is_gone(start.pid)


def test_what_an_earlier_run_of_the_name_left_is_cleared_first(confined: Ground) -> None:
    groups = cgroup_trees.find(os.fsencode(confined.home))
    left = groups.make(b"a", (10, 0, ()))
    with subprocess.Popen(["sleep", "1000"]) as process:
        for file in left.procs:
            Path(os.fsdecode(file)).write_text(str(process.pid))
        confined.launch("a", "cat", "/proc/self/cgroup", confinement=MEMORY_ONLY)
        assert confined.ended("a").exit_code == 0
        assert process.wait(10) == -signal.SIGKILL
    assert b"/r.a\n" in log(confined, "a")
    left.remove()


@spec("19.limits")
def test_a_cluster_is_a_limit_for_all_of_its_runs_together(confined: Ground) -> None:
    """A run that asked for no memory takes that of its cluster and nobody else's, and the message says whose."""
    research = (0, 0, (("research", (100 * MIB, 0, 0)),))
    confined.python("n", FILL, "40", memory_bytes=LIMIT)
    confined.python("first", FILL, "20", confinement=research)
    eventually(lambda: log(confined, "first") == b"full\n")
    confined.python("second", FILL, "90", confinement=research)
    end = confined.ended("second")
    assert (end.exit_code, end.signal) == (137, signal.SIGKILL)
    assert end.message.startswith(
        "cluster research used all of its memory on this node, and the kernel killed it"
    )
    assert confined.runtime.observe("n").state is RunState.RUNNING


def test_the_processes_of_a_cluster_are_bounded_together(confined: Ground) -> None:
    clusters = (("research", (0, 30, 0)),)
    confined.python("a", BOMB, confinement=(20, 0, clusters))
    eventually(lambda: log(confined, "a"))
    confined.python("b", BOMB, confinement=(20, 0, clusters))
    eventually(lambda: log(confined, "b"))
    assert int(log(confined, "a")) == 19
    assert int(log(confined, "b")) == 9


def test_the_share_of_the_cpu_time_follows_the_cpus(confined: Ground) -> None:
    confined.launch("a", "sleep", "1000", confinement=(0, 250, (("x", (0, 0, 400)),)))
    confined.running("a")
    (group,) = [group for group in groups_of(confined, "a") if cgroups.CPU in group.folders]
    folder = Path(os.fsdecode(group.folders[cgroups.CPU]))
    assert [int((at / "cpu.shares").read_text()) for at in (folder, folder.parent)] == [2560, 4096]


def test_a_start_that_fails_leaves_no_group(confined: Ground) -> None:
    confined.launch("a", "/no/such/command", confinement=MEMORY_ONLY)
    assert confined.ended("a").exit_code == 127
    assert not groups_of(confined, "a")


def test_a_limit_below_what_a_process_needs_to_start_is_memory_that_ran_out(confined: Ground) -> None:
    """And it never ends the supervisor, which was in the group for a moment."""
    confined.launch("n", "sleep", "1000")
    confined.python("a", FILL, "10", memory_bytes=4096, confinement=MEMORY_ONLY)
    end = confined.ended("a")
    assert (end.exit_code, end.signal) == (137, signal.SIGKILL)
    assert "asked 4 KiB" in end.message
    assert confined.runtime.observe("n").state is RunState.RUNNING


def test_a_scheduler_that_a_run_starts_leaves_its_group(confined: Ground) -> None:
    code = f"""
import os, sys, time
sys.path.insert(0, {os.fspath(Path(cgroups.__file__).parents[2])!r})
from vctl.runtime import cgroup_trees
cgroup_trees.step_out(os.fsencode(sys.argv[1]))
print(open("/proc/self/cgroup").read(), flush=True)
"""
    confined.launch("a", sys.executable, "-c", code, str(confined.home), confinement=MEMORY_ONLY)
    assert confined.ended("a").exit_code == 0, log(confined, "a")
    assert b"vctl." not in log(confined, "a")
    confined.launch("b", sys.executable, "-c", code, "/tmp", confinement=MEMORY_ONLY)
    confined.ended("b")
    assert b"/r.b" in log(confined, "b"), "of another state directory: it is a part of the run"


def test_the_supervisor_is_in_no_group_afterwards(confined: Ground) -> None:
    confined.launch("a", "sleep", "1000", confinement=(10, 100, (("x", (LIMIT, 5, 5)),)))
    start = confined.running("a")
    assert b"vctl." not in Path(f"/proc/{start.supervisor}/cgroup").read_bytes()
    assert all(processes.process(pid) for group in groups_of(confined, "a") for pid in group.processes())
    with suppress(ProcessLookupError):
        os.kill(start.pid, signal.SIGKILL)
