"""Runs that follow another one in its supervisor: one offer each, which the supervisor or somebody else takes."""

from __future__ import annotations

import os
import signal
import socket
import sys

import pytest

from tests.runtime.conftest import eventually, is_gone
from tests.specification import spec
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import RunState
from vctl.store import ahead

pytestmark = spec("16.local", "8.arrays")

WAIT = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.003)"
SAY = "import os\nopen('ran', 'a').write(os.environ['VCTL_RUN_ID'] + '\\n')"


def ran(ground):
    path = ground.home / "ran"
    return path.read_text().split() if path.exists() else []


def follow(ground, run_id, before, code=SAY):
    """Assign a run to follow another one."""
    ground.numbers[run_id] = ground.number(before)
    ahead.offer(ground.home, run_id)
    request = ground.request(run_id, sys.executable, "-I", "-S", "-c", code)
    return ground.runtime.launch_next(request, before)


@pytest.fixture
def first(ground):
    """A run that waits for the file ``go``, and two that follow it; what lets it end."""
    ground.python("first", WAIT, str(ground.home / "go"))
    start = ground.running("first")
    assert follow(ground, "second", "first") and follow(ground, "third", "second")
    return start


def go(ground):
    (ground.home / "go").touch()


def declined(ground, run_id):
    def reported():
        ground.runtime.changes()
        return ground.runtime.was_declined(run_id)

    eventually(reported, f"{run_id} to be declined")


def unread(line):
    """What a supervisor has said and nobody has heard."""
    try:
        return line.recv(1 << 16, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def test_runs_follow_each_other_in_one_supervisor(ground, first):
    go(ground)
    ground.ended("third")
    assert ran(ground) == ["second", "third"]
    assert {ground.runtime.observe(one).start.supervisor for one in ("first", "second", "third")} == {
        first.supervisor
    }
    assert os.listdir(ground.home / "ahead") == []


def test_a_run_that_was_taken_back_never_starts_nor_do_those_after_it(ground, first):
    assert ahead.withdraw(ground.home, "second")
    go(ground)
    for run_id in ("second", "third"):
        declined(ground, run_id)
        assert ground.runtime.observe(run_id).state is RunState.NEVER_STARTED
    assert ahead.withdraw(ground.home, "third")
    assert ran(ground) == []


def test_what_has_started_cannot_be_taken_back(ground, first):
    go(ground)
    ground.ended("third")
    assert not ahead.withdraw(ground.home, "second")
    assert not ahead.withdraw(ground.home, "third")


def test_nothing_follows_a_run_that_was_told_to_stop(ground, first):
    ground.runtime.stop("first", grace_s=0)
    declined(ground, "third")
    assert ahead.withdraw(ground.home, "second")
    assert ran(ground) == []


def test_what_was_declined_is_launched_as_any_other_run(ground, first):
    assert ahead.withdraw(ground.home, "second")
    go(ground)
    declined(ground, "third")
    for _ in range(2):
        ground.python("second", SAY)
        ground.ended("second")
    assert ran(ground) == ["second"]


def test_a_launch_beside_runs_once(ground, first):
    ground.python("second", SAY)
    go(ground)
    ground.ended("third")
    assert ran(ground) == ["second", "third"]


def test_a_supervisor_that_is_killed_takes_no_offer_with_it(ground, first):
    os.kill(first.supervisor, signal.SIGKILL)
    declined(ground, "second")
    declined(ground, "third")
    assert ahead.withdraw(ground.home, "second")
    ground.python("second", SAY)
    ground.ended("second")
    assert ran(ground) == ["second"]
    assert ground.runtime.clear_lost("first") == ()


def test_a_number_is_free_when_all_it_declined_was_taken_back(ground, first):
    assert ahead.withdraw(ground.home, "second")
    go(ground)
    for run_id in ("second", "third"):
        declined(ground, run_id)
    for run_id in ("second", "third"):
        assert ground.number("first") != ground.runtime.assign()
        ground.runtime.let_next_go(run_id)
    assert ground.number("first") == ground.runtime.assign()


def test_a_number_that_is_to_launch_what_it_declined_gets_no_other_run(ground, first):
    """Its requests are sent again to the process after a killed one: there is space for those of one run."""
    assert ahead.withdraw(ground.home, "second")
    go(ground)
    for run_id in ("second", "third"):
        declined(ground, run_id)
    ground.runtime.let_next_go("third")
    for run_id in ("second", "other"):
        ground.python(run_id, SAY)
    for run_id in ("second", "other"):
        ground.ended(run_id)
    assert ground.number("other") != ground.number("second")
    assert sorted(ran(ground)) == ["other", "second"]


@pytest.mark.parametrize("fate", [signal.SIGCONT, signal.SIGKILL])
def test_what_was_declined_is_launched_behind_what_follows_it(ground, fate):
    """Its number has another request, which is declined next: neither is lost, also when the process is killed."""
    ground.python("first", WAIT, str(ground.home / "go"))
    supervisor = ground.running("first").supervisor
    assert follow(ground, "second", "first")
    assert ahead.withdraw(ground.home, "second")
    go(ground)
    line = ground.runtime._supervisors.slots[ground.number("first")].line
    eventually(lambda: b"D second" in unread(line), "its supervisor to decline the second")
    os.kill(supervisor, signal.SIGSTOP)
    assert follow(ground, "third", "second")
    declined(ground, "second")
    assert not ground.runtime.was_declined("third")
    ground.python("second", SAY)
    os.kill(supervisor, fate)
    declined(ground, "third")

    def is_over():
        ground.runtime.changes()
        if ground.runtime.was_declined("second"):  # its request was lost with the process
            ground.python("second", SAY)
        return ground.runtime.observe("second").state in (RunState.EXITED, RunState.LOST)

    eventually(is_over, "the second to end")
    if ground.runtime.observe("second").state is RunState.LOST:
        assert fate == signal.SIGKILL, "its process was resumed, and was killed as it had started it"
        assert ran(ground) in ([], ["second"])
    else:
        assert ran(ground) == ["second"]


def test_they_follow_each_other_without_a_scheduler(ground, first):
    """Who comes after it finds in the records what has started, and takes the rest back."""
    ground.runtime.close()
    go(ground)
    eventually(lambda: is_gone(first.supervisor), "the supervisor to end")
    ground.runtime = LocalRuntime(ground.home)
    ground.runtime.prepare()
    states = {one: ground.runtime.observe(one).state for one in ("second", "third")}
    started = [one for one, state in states.items() if state is RunState.EXITED]
    assert ran(ground) == started
    for one, state in states.items():
        assert ahead.withdraw(ground.home, one) == (state is RunState.NEVER_STARTED)


def test_a_supervisor_that_nobody_hears_gets_no_next_run(ground):
    ahead.offer(ground.home, "second")
    ground.numbers["second"] = ground.number("first")
    assert not ground.runtime.launch_next(ground.request("second", "true"), "first")


def test_an_offer_of_another_boot_may_have_been_taken(ground):
    """After a power cut nobody knows whether the supervisor had removed it: the run is not started again."""
    ahead.offer(ground.home, "r")
    (ground.home / "ahead" / "r").write_text("another boot")
    assert not ahead.withdraw(ground.home, "r")
    assert os.listdir(ground.home / "ahead") == []
