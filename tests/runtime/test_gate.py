"""The gate before runs that follow another: so many start at a time, and nobody holds up the others."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator

import pytest

from tests.runtime.conftest import eventually
from tests.runtime.test_next_runs import follow
from tests.specification import spec
from vctl.runtime import gate, supervisor

pytestmark = spec("16.local", "8.arrays")

DESCRIPTOR = 200
WAIT = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.003)"
STAY = "import os, time\nopen('ran', 'a').write('x\\n')\nwhile not os.path.exists('end'): time.sleep(0.003)"


class Visitors:
    """Processes that enter a gate, say so, and stay until they are told to go."""

    def __init__(self, places: int) -> None:
        self.gate = gate.made(DESCRIPTOR)
        self.gate.places = places
        self.pids: list[int] = []
        self.said: dict[int, int] = {}
        self.told: dict[int, int] = {}

    def enter(self, number: int, times: int = 1) -> int:
        """Have one more go in, so many times; its pid."""
        heard, says = os.pipe()
        hears, tell = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                for _ in range(times):
                    began = time.monotonic()
                    self.gate.enter(number)
                    os.write(says, b"%f\n" % (time.monotonic() - began))
                    os.read(hears, 1)
                    self.gate.leave()
            finally:
                os._exit(0)
        os.close(says)
        os.close(hears)
        self.pids.append(pid)
        self.said[pid], self.told[pid] = heard, tell
        return pid

    def is_in(self, pid: int, timeout_s: float = 10.0) -> bool:
        return bool(select.select([self.said[pid]], [], [], timeout_s)[0])

    def waited_s(self, pid: int) -> float:
        """How long it waited to get in."""
        assert self.is_in(pid)
        return float(os.read(self.said[pid], 100))

    def go(self, pid: int) -> None:
        os.write(self.told[pid], b"x")

    def end(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(self.said[pid])
            os.close(self.told[pid])
        os.close(DESCRIPTOR)


@pytest.fixture
def visitors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Visitors]:
    monkeypatch.setattr(gate, "LONGEST_WAIT_S", 60.0)
    here = Visitors(2)
    yield here
    here.end()


def test_as_many_are_in_the_gate_as_it_has_places(visitors):
    first, second, third = (visitors.enter(7) for _ in range(3))
    inside = [pid for pid in (first, second, third) if visitors.is_in(pid, 1.0)]
    assert len(inside) == 2
    (outside,) = {first, second, third} - set(inside)
    for pid in inside:
        visitors.go(pid)
    assert visitors.is_in(outside)


def test_who_dies_in_the_gate_makes_room(visitors):
    inside = [visitors.enter(number) for number in (0, 1)]
    assert all(map(visitors.is_in, inside))
    waiting = visitors.enter(0)
    assert not visitors.is_in(waiting, 0.2)
    os.kill(inside[0], signal.SIGKILL)
    assert visitors.is_in(waiting)


def test_who_is_suspended_in_the_gate_holds_up_each_of_the_others_once(visitors, monkeypatch):
    monkeypatch.setattr(gate, "LONGEST_WAIT_S", 0.3)
    inside = [visitors.enter(number) for number in (0, 1)]
    assert all(map(visitors.is_in, inside))
    for pid in inside:
        os.kill(pid, signal.SIGSTOP)
    late = visitors.enter(0, times=3)
    assert visitors.waited_s(late) >= 0.3
    for _ in range(2):
        visitors.go(late)
        assert visitors.waited_s(late) < 0.3


def test_a_gate_without_places_stops_nobody(visitors):
    visitors.gate.places = 0
    assert all(visitors.is_in(visitors.enter(0)) for _ in range(3))


def has_room(path: str) -> bool:
    """Whether nobody has the first place."""
    with open(path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except BlockingIOError:
            return False
    return True


def test_a_run_that_takes_longer_leaves_the_gate_for_others(ground):
    """On one CPU there is one place; all of three runs that follow others are there at a time, and it is free."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        for name in "abc":
            ground.python(name, WAIT, str(ground.home / "go"))
            ground.running(name)
            assert follow(ground, f"{name}2", name, STAY)
    finally:
        os.sched_setaffinity(0, mine)
    (ground.home / "go").touch()
    ran = ground.home / "ran"
    eventually(lambda: ran.exists() and ran.read_text().count("x") == 3, "three runs at a time")
    start = ground.running("c2")
    eventually(lambda: has_room(f"/proc/{start.supervisor}/fd/{supervisor.GATE}"), "the gate to be free")
    (ground.home / "end").touch()
    for name in "abc":
        assert ground.ended(f"{name}2").exit_code == 0


def test_a_process_has_nothing_of_the_gate(ground):
    """Neither the file nor the alarm of the wait."""
    code = (
        "import os, signal; print(sorted(os.listdir('/proc/self/fd'))[:3], os.path.exists('/proc/self/fd/4'),"
        " signal.getsignal(signal.SIGALRM) == signal.SIG_DFL, signal.getitimer(signal.ITIMER_REAL))"
    )
    ground.python("a", WAIT, str(ground.home / "go"))
    ground.running("a")
    assert follow(ground, "b", "a", code)
    (ground.home / "go").touch()
    ground.ended("b")
    assert ground.log("b").decode().split("] ")[1] == "False True (0.0, 0.0)\n"
