"""Supervisors that stand over one run after the other: each run is as if it were the first."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from tests.runtime.conftest import eventually, is_gone
from tests.specification import spec
from vctl.runtime import local, processes, supervisors
from vctl.runtime.environment import NOTHING_SHARED, SharedVariables
from vctl.runtime.protocol import RunState

pytestmark = spec("16.local")


def supervisor_of(ground, run_id):
    return ground.runtime.observe(run_id).start.supervisor


def idle(pid):
    """Whether a supervisor has no run: nothing is below it and it waits for its launcher."""
    seen = processes.process(pid)
    return seen is not None and seen.state == "S" and not processes.descendants(pid)


def one_by_one(ground, *runs):
    """Each run is launched when the supervisor of the one before has nothing to do."""
    for run_id, code, fields in runs:
        ground.python(run_id, code, **fields)
        ground.ended(run_id)
        pid = supervisor_of(ground, run_id)
        eventually(lambda pid=pid: is_gone(pid) or idle(pid))


def test_a_supervisor_is_used_again(ground):
    one_by_one(ground, *((f"r{n}", "pass", {}) for n in range(5)))
    assert len({supervisor_of(ground, f"r{n}") for n in range(5)}) < 5


def test_a_supervisor_loads_nothing_that_its_launcher_has_not(ground):
    """Spec 16: each would have it in memory of its own, and the first run would wait for it."""
    ground.launch("a", "true")
    ground.ended("a")
    ground.launch("b", "sleep", "100")
    supervisor = ground.running("b").supervisor
    launcher = processes.process(supervisor).parent
    loaded = [
        set(re.findall(r"/\S+\.so\S*", Path(f"/proc/{one}/maps").read_text()))
        for one in (launcher, supervisor)
    ]
    assert loaded[1] <= loaded[0]


def test_a_run_inherits_nothing_from_the_one_before(ground):
    last = max(os.sched_getaffinity(0))
    say = (
        "import os\nfiles = len(os.listdir('/proc/self/fd'))\n"
        "print(sorted(os.sched_getaffinity(0)), os.getcwd(), files)"
    )
    one_by_one(
        ground,
        ("pinned", say, {"cpu_ids": (last,)}),
        ("free", say, {}),
        ("elsewhere", say, {"cwd": "/"}),
    )
    everywhere = str(sorted(os.sched_getaffinity(0)))
    assert ground.log("free").decode().startswith(everywhere)
    assert ground.log("elsewhere").decode().startswith(f"{everywhere} / 4")
    assert supervisor_of(ground, "elsewhere") == supervisor_of(ground, "free")


def test_use_is_counted_for_each_run_alone(ground):
    one_by_one(
        ground,
        ("large", "x = bytearray(80_000_000)\nfor i in range(2_000_000): pass", {}),
        ("small", "pass", {}),
    )
    large, small = ground.ended("large"), ground.ended("small")
    assert large.max_rss_kib > 78_000 > 40_000 > small.max_rss_kib
    assert small.user_us < large.user_us


def test_a_stop_of_an_earlier_run_does_not_reach_the_next(ground):
    one_by_one(ground, ("first", "pass", {}))
    pid = supervisor_of(ground, "first")
    ground.launch("second", "sleep", "1000")
    assert ground.running("second").supervisor == pid
    ground.runtime.stop("first", grace_s=0)
    os.kill(pid, signal.SIGUSR1)  # as if the stop had been sent just before the first run ended
    ground.launch("third", "true")
    ground.ended("third")
    assert ground.runtime.observe("second").state is RunState.RUNNING


def test_an_idle_supervisor_that_is_killed_takes_no_request_with_it(ground):
    for n in range(20):
        ground.launch(f"r{n}", "true")
        ground.ended(f"r{n}")
        os.kill(supervisor_of(ground, f"r{n}"), signal.SIGKILL)
        ground.launch(f"s{n}", "sh", "-c", f"exit {n}")
        assert ground.ended(f"s{n}").exit_code == n


def test_a_long_environment_reaches_a_supervisor_that_was_used(ground):
    one_by_one(ground, ("a", "pass", {}))
    env = {"PATH": os.environ["PATH"], **{f"V{n}": "x" * 60_000 for n in range(10)}}
    ground.python("b", "import os; print(sum(map(len, os.environ.values())))", own=env)
    assert ground.ended("b").exit_code == 0
    assert int(ground.log("b")) >= 600_000


@spec("8.environment")
def test_runs_of_commands_with_different_environments_take_turns_on_a_supervisor(ground):
    raw = os.fsdecode(b"\xff\xfe")
    brought = [
        SharedVariables({"A": "x", "LIST": raw}),
        SharedVariables({"B": "y", "OWN": "theirs"}),
        NOTHING_SHARED,
    ]
    for n in range(9):
        ground.launch(
            f"r{n}", "/bin/cat", "/proc/self/environ", own={"OWN": f"{n}{raw}"}, shared=brought[n % 3]
        )
        ground.ended(f"r{n}")
        want = {
            **brought[n % 3].variables,
            "OWN": f"{n}{raw}",
            "VCTL_RUN_ID": f"r{n}",
            "VCTL_HOME": str(ground.home),
        }
        assert sorted(ground.log(f"r{n}").split(b"\0")[:-1]) == sorted(
            os.fsencode(f"{name}={text}") for name, text in want.items()
        )
    assert len({supervisor_of(ground, f"r{n}") for n in range(9)}) == 1


@spec("8.environment")
def test_a_supervisor_that_replaces_one_knows_what_runs_share(ground):
    brought = SharedVariables({"A": "x"})
    ground.launch("a", "/bin/sh", "-c", "exit $((A))", shared=brought, own={"A": "3"})
    assert ground.ended("a").exit_code == 3
    ground.launch("b", "/bin/sh", "-c", "echo $A", shared=brought, own={})
    ground.ended("b")
    os.kill(supervisor_of(ground, "b"), signal.SIGKILL)
    ground.launch("c", "/bin/sh", "-c", "echo $A", shared=brought, own={})
    ground.ended("c")
    assert (ground.log("b"), ground.log("c")) == (b"x\n", b"x\n")


def test_idle_supervisors_end_with_their_launcher(ground):
    one_by_one(ground, ("a", "pass", {}))
    pid = supervisor_of(ground, "a")
    ground.runtime.close()
    eventually(lambda: is_gone(pid))


def test_few_supervisors_wait_for_work(ground):
    for n in range(60):
        ground.launch(f"r{n}", "sleep", "0.3")
    for n in range(60):
        ground.ended(f"r{n}")
    pids = {supervisor_of(ground, f"r{n}") for n in range(60)}
    most = max(4, 2 * len(os.sched_getaffinity(0)))
    eventually(lambda: ground.runtime.changes() or sum(not is_gone(pid) for pid in pids) <= most)


def test_a_second_wave_finds_the_supervisors_of_the_first(ground):
    waves = [[f"{wave}-{n}" for n in range(20)] for wave in "ab"]
    for wave in waves:
        for name in wave:
            ground.launch(name, "sleep", "0.2")
        for name in wave:
            ground.ended(name)
        pids = [supervisor_of(ground, name) for name in wave]
        eventually(lambda pids=pids: all(idle(pid) for pid in pids))
    first, second = ({supervisor_of(ground, name) for name in wave} for wave in waves)
    assert first == second


def test_more_runs_than_a_scheduler_may_have_open_files(ground):
    """Spec 8: those to whom no line is kept open carry out their run and write how it ended."""
    ground.runtime._supervisors.max_lines = 5
    names = [f"r{n}" for n in range(24)]
    for name in names:
        ground.launch(name, "sleep", "1000")
    for name in names:
        ground.running(name)
    eventually(lambda: ground.runtime.changes() is not None and len(ground.runtime._supervisors.by_fd) == 5)
    for name in names:
        ground.runtime.stop(name, grace_s=0)
        assert ground.ended(name).stopped


def test_an_end_is_no_loss_because_the_run_was_there_at_an_earlier_look(ground, monkeypatch):
    """Spec 8: the exit code travels, also when the supervisor has no line and ends right after its run."""
    monkeypatch.setattr(local, "_MARKS_S", 1000.0)
    ground.runtime._supervisors.max_lines, ground.runtime._supervisors.supervisors = 1, 3
    names = ["a", "b", "c"]
    for name in names:
        ground.launch(name, "sleep", "1000")
    starts = [ground.running(name) for name in names]
    eventually(lambda: ground.runtime.changes() is not None and len(ground.runtime._supervisors.by_fd) == 1)
    earlier = ground.runtime._marked()
    assert set(earlier) == {b"a", b"b", b"c"}
    for name in names:
        ground.runtime.stop(name, grace_s=0)
        ground.reach(name, RunState.EXITED)
    eventually(lambda: sum(is_gone(start.supervisor) for start in starts) == 2)
    for name in names:
        ground.runtime._marks = time.monotonic(), earlier
        assert ground.ended(name).stopped


def test_a_signal_does_not_reach_a_run_that_the_supervisor_took_up_meanwhile(ground, monkeypatch):
    one_by_one(ground, ("warm", "pass", {}))
    ground.launch("first", "sleep", "1000")
    first = ground.running("first")
    look = processes.children

    def children(pid):
        monkeypatch.setattr(processes, "children", look)
        os.kill(first.pid, signal.SIGKILL)
        ground.ended("first")
        eventually(lambda: idle(pid))
        ground.launch("second", "sleep", "1000")
        assert ground.running("second").supervisor == pid
        return look(pid)

    monkeypatch.setattr(processes, "children", children)
    assert not ground.runtime.signal_run("first", signal.SIGTERM, tree=True)
    assert ground.runtime.observe("second").state is RunState.RUNNING
    ground.runtime.stop("second", grace_s=0)
    assert ground.ended("second").stopped


def test_the_last_run_of_a_supervisor_takes_no_request_with_it(ground, monkeypatch):
    """Spec 8: a job that is launched starts. The limit of runs is lowered; a gap was seen at every thousandth run."""
    monkeypatch.setattr(supervisors, "MAX_RUNS", 3)
    ground.runtime.prepare()
    launcher = ground.runtime._supervisors.server.pid
    started = []
    for n in range(60):
        ground.launch(f"r{n}", "true")
        ground.ended(f"r{n}")
        started.append(ground.runtime.observe(f"r{n}").start)
    assert ground.runtime._supervisors.server.pid == launcher
    assert not ground.runtime._supervisors.server.is_dead()
    assert len(ground.runtime._findings.of) == 60
    assert max(Counter(file.number for file in ground.runtime._findings.of.values()).values()) <= 3
    gaps = [after.started_at - before.started_at for before, after in pairwise(started)]
    assert max(gaps) < 0.5e9


def test_a_suspended_supervisor_that_has_nothing_to_do_is_woken_by_its_next_request(ground):
    """Spec 8: nobody can hold up what is launched by suspending an idle supervisor."""
    one_by_one(ground, ("a", "pass", {}))
    pid = supervisor_of(ground, "a")
    os.kill(pid, signal.SIGSTOP)
    ground.launch("b", "sh", "-c", "exit 4")
    assert ground.ended("b").exit_code == 4


def test_a_supervisor_that_is_suspended_again_and_again_does_not_keep_what_it_was_given(ground):
    """Spec 8: the request goes to another one, or who has taken it up is woken when the suspending ends."""
    one_by_one(ground, ("a", "pass", {}))
    pid = supervisor_of(ground, "a")
    until = time.monotonic() + 3

    def suspend():
        while time.monotonic() < until and signalled(pid, signal.SIGSTOP):
            pass

    holder = threading.Thread(target=suspend)
    holder.start()
    ground.launch("b", "sh", "-c", "exit 4")
    eventually(
        lambda: (ground.runtime.changes() and False) or ground.runtime.observe("b").state is RunState.EXITED
    )
    assert ground.ended("b").exit_code == 4
    holder.join()
    signalled(pid, signal.SIGCONT)


def signalled(pid, signo):
    """Send a signal; False when the process is gone: one that takes no request may be replaced."""
    try:
        os.kill(pid, signo)
    except ProcessLookupError:
        return False
    return True
