"""Nothing of a run is left when its exit record appears, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import pytest

from tests.runtime.conftest import STUBBORN, Ground, eventually, is_gone
from tests.specification import spec
from vctl.runtime import processes, relay
from vctl.runtime.protocol import RunState

pytestmark = spec("8.stop")


def test_what_the_job_left_running_is_gone_at_a_normal_end(ground):
    mark = ground.home / "mark"
    ground.python("a", STUBBORN + "\nsys.exit(5)", str(mark))
    ended = ground.ended("a")
    assert (ended.exit_code, ended.stopped) == (5, False)
    assert is_gone(int(mark.read_text()))


def test_what_the_job_left_running_gets_a_chance_to_end(ground):
    """The leftover traps SIGTERM and is let finish within the grace."""
    mark = ground.home / "mark"
    left = f"trap 'echo bye > {mark}; exit' TERM; echo > {mark}.ready; while :; do sleep 0.01; done"
    script = f'(setsid sh -c "{left}" &) ; while [ ! -e {mark}.ready ]; do sleep 0.01; done; exit 3'
    ground.launch("a", "sh", "-c", script, grace_s=20.0)
    assert ground.ended("a").exit_code == 3
    assert mark.read_text() == "bye\n"


def test_stop_ends_the_whole_tree(ground):
    mark = ground.home / "mark"
    ground.python("a", STUBBORN + "\ntime.sleep(1000)", str(mark))
    start = ground.running("a")
    eventually(lambda: mark.exists() and mark.read_text())
    ground.runtime.stop("a", grace_s=0.1)
    ended = ground.ended("a")
    assert (ended.exit_code, ended.signal, ended.stopped) == (137, signal.SIGKILL, True)
    assert is_gone(int(mark.read_text()))
    assert is_gone(start.pid)


def test_a_job_that_ends_by_itself_when_asked_keeps_its_code(ground):
    ground.launch("a", "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done")
    eventually(lambda: ground.runtime.observe("a").start and ground.log("a"))
    ground.runtime.stop("a", grace_s=20)
    assert (ground.ended("a").exit_code, ground.ended("a").stopped) == (9, True)


def test_the_asking_signal_can_be_chosen(ground):
    ground.launch("a", "sh", "-c", "trap 'exit 4' INT; echo ready; while :; do sleep 0.01; done")
    eventually(lambda: ground.runtime.observe("a").start and ground.log("a"))
    ground.runtime.stop("a", grace_s=20, signo=signal.SIGINT)
    assert ground.ended("a").exit_code == 4


def test_a_second_stop_shortens_the_grace_and_never_lengthens_it(ground):
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(1000)"
    )
    ground.python("a", code)
    eventually(lambda: ground.runtime.observe("a").start and ground.log("a"))
    ground.runtime.stop("a", grace_s=1000)
    time.sleep(0.1)
    assert ground.runtime.observe("a").state is RunState.RUNNING
    ground.runtime.stop("a", grace_s=0.05)
    ground.runtime.stop("a", grace_s=1000)
    assert ground.ended("a").exit_code == 137


def test_a_suspended_tree_is_stopped(ground):
    ground.launch("a", "sleep", "1000")
    start = ground.running("a")
    os.kill(start.pid, signal.SIGSTOP)
    ground.runtime.stop("a", grace_s=20)
    assert ground.ended("a").exit_code == 143


def test_a_stop_that_comes_before_the_launch_is_not_lost(ground):
    ground.runtime.stop("a", grace_s=1)
    ground.launch("a", "touch", str(ground.home / "ran"))
    ended = ground.ended("a")
    assert (ended.exit_code, ended.stopped) == (143, True)
    assert not (ground.home / "ran").exists()


def test_a_stop_right_behind_the_launch_is_not_lost(ground):
    names = [f"r{n}" for n in range(40)]
    for name in names:
        ground.launch(name, "/bin/sleep", "1000")
        ground.runtime.stop(name, grace_s=20)
    assert all(ground.ended(name).exit_code == 143 and ground.ended(name).stopped for name in names)


def test_a_tree_that_replaces_whatever_is_killed_is_stopped(ground):
    """Each process forks another when one of its children ends, in a session of its own, deaf to SIGTERM.

    A fork takes a byte from a pipe, so that the machine is safe whatever happens: 300 forks, not one more.
    """
    code = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
tokens, fill = os.pipe()
os.write(fill, b"x" * 300)
os.close(fill)
children = 0
while True:
    if children < 2 and os.read(tokens, 1):
        if os.fork() == 0:
            os.setsid()
            children = 0
            continue
        children += 1
    try:
        children -= bool(os.waitpid(-1, os.WNOHANG)[0])
    except ChildProcessError:
        children = 0
    time.sleep(0.02)
"""
    ground.python("a", code)
    supervisor = ground.running("a").supervisor
    eventually(lambda: len(processes.descendants(supervisor)) > 10)
    ground.runtime.stop("a", grace_s=0)
    ground.ended("a")
    assert b"a" not in processes.marked(b"VCTL_RUN_ID", os.fsencode(f"VCTL_HOME={ground.home}"))


def test_a_signal_reaches_the_main_process_or_all(ground):
    loop = "while :; do sleep 0.01; done"
    child = f"trap 'echo child; exit' USR1; echo ready; {loop}"
    # The main process waits for the child, as what it leaves running would be ended before it can say a word.
    script = f"sh -c \"{child}\" & trap 'echo main; [ $1 = one ] || wait; exit' USR1; echo ready; {loop}"
    for name in ("one", "all"):
        ground.launch(name, "sh", "-c", script, "sh", name)
        eventually(
            lambda name=name: ground.runtime.observe(name).start and ground.log(name).count(b"ready") == 2
        )
    assert ground.runtime.signal_run("one", signal.SIGUSR1)
    ground.ended("one")
    assert b"main" in ground.log("one")
    assert b"child" not in ground.log("one")
    assert ground.runtime.signal_run("all", signal.SIGUSR1, tree=True)
    ground.ended("all")
    assert {b"child", b"main"} <= set(ground.log("all").split())
    assert not ground.runtime.signal_run("all", signal.SIGUSR1)
    assert not ground.runtime.signal_run("never", signal.SIGUSR1)


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stray_signal_does_not_end_supervision(ground, signo):
    ground.launch("a", "sh", "-c", "sleep 0.2; exit 6")
    os.kill(ground.running("a").supervisor, signo)
    assert ground.ended("a").exit_code == 6


SUSPENDS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("every_s", ["1000", "0"], ids=["once", "again and again"])
def test_a_run_that_suspends_its_supervisor_is_stopped(ground, every_s):
    """Spec 8: a stop reaches the whole tree, also when nobody answers for it."""
    ground.python("a", SUSPENDS, every_s)
    start = ground.running("a")
    eventually(lambda: processes.process(start.supervisor).state == "T")
    ground.runtime.stop("a", grace_s=0.2)

    def over():
        ground.runtime.changes()
        return ground.runtime.observe("a").state in (RunState.EXITED, RunState.LOST)

    eventually(over)
    assert ground.runtime.clear_lost("a") == ()
    assert is_gone(start.pid)


def test_a_suspended_supervisor_notices_the_end_of_its_run(ground):
    """Spec 8: a job that suspends its supervisor and ends is over, not running for ever."""
    ground.launch("a", "sh", "-c", "kill -STOP $PPID; exit 6")

    def over():
        ground.runtime.changes()
        return ground.runtime.observe("a").state is RunState.EXITED

    eventually(over)
    assert ground.ended("a").exit_code == 6


def test_a_suspended_launcher_is_woken_or_replaced(ground):
    """Spec 8: nobody can hold up what is launched by suspending the launcher."""
    ground.runtime.prepare()
    ground.launch("a", "true")
    ground.ended("a")
    launcher = ground.runtime._supervisors.server.pid
    until = time.monotonic() + 4

    def suspend():
        with contextlib.suppress(ProcessLookupError):  # it was replaced
            while time.monotonic() < until:
                os.kill(launcher, signal.SIGSTOP)

    holder = threading.Thread(target=suspend)
    holder.start()
    ground.launch("b", "sh", "-c", "exit 3")
    eventually(
        lambda: (ground.runtime.changes() and False) or ground.runtime.observe("b").state is RunState.EXITED
    )
    holder.join()
    with contextlib.suppress(ProcessLookupError):
        os.kill(launcher, signal.SIGCONT)


def test_what_a_labelled_command_wrote_is_not_lost_with_it(ground: Ground) -> None:
    """spec 13: the relay writes it even if it had no time to before the command was killed."""
    told = ground.home / "told"
    ground.launch(
        "run", sys.executable, "-I", "-S", relay.__file__, "label", "-", "--", "sh", "-c",
        f"until [ -e {told} ]; do sleep 0.01; done; echo last; touch {told}2; exec sleep 1000",
        own={"PATH": os.environ["PATH"], "RANK": "3"},
    )  # fmt: skip
    pid = ground.running("run").pid
    eventually(lambda: len(processes.descendants(pid)) > 0, "the command")
    os.kill(pid, signal.SIGSTOP)
    told.touch()
    eventually((ground.home / "told2").exists, "the last line")
    ground.runtime.stop("run", grace_s=0)
    assert ground.ended("run").stopped
    assert ground.log("run") == b"3: last\n"
