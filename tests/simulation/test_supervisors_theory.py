"""The example on the page of theory at the head of vctl/runtime/supervisors.py, over the simulated kernel."""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulation.kernel import Supervisor
from tests.simulation.seats import Row, Seats, request
from tests.specification import spec
from vctl.runtime.local import LocalRuntime
from vctl.runtime.protocol import RunState
from vctl.runtime.supervisors import MAX_TRIES
from vctl.runtime.worker_slot import BUSY, REQUESTED, RETIRED

pytestmark = spec("12.daemon-death", "16.local")


class Machine(Seats):
    """Two CPUs, no faults but those of the test; runs last until they are killed."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(home, 0, without=frozenset(self.FAULTS))
        self.latency, self.kernel.cpus, self.kernel.lasts_s = 0.1, {0, 1}, [1000.0]
        self.kernel.install(patch)
        self.local = LocalRuntime(home)
        self.local.prepare()
        self.slots_of = self.local._supervisors.slots

    def runtime(self) -> LocalRuntime:
        return self.local

    def taken(self, run_id: str) -> None: ...

    def go_on(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass; the scheduler looks after each event and each millisecond."""
        end = self.elapsed_s + seconds
        while self.elapsed_s < end and not until():
            at = self.heap[0][0] if self.heap else end
            if at <= self.elapsed_s + 0.001:
                self.elapsed_s = max(self.elapsed_s, at)
                heapq.heappop(self.heap)[3]()
            else:
                self.elapsed_s += 0.001
            self.look()

    def look(self) -> None:
        self.kernel.pump()
        self.local.changes()

    def launch(self, job: int) -> int:
        """The number that the run of a job gets."""
        number = self.local.assign()
        self.local.launch(request(Row(f"{job}.1", job, number)))
        self.go_on(0.1, lambda: self.slots_of[number].state is BUSY)
        return number

    def supervisors_of(self, number: int) -> list[Supervisor]:
        return [one for one in self.kernel.supervisors() if number in one.numbers]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(tmp_path, patch)
        try:
            yield machine
        finally:
            machine.local.close()
            machine.kernel.close()


def test_a_supervisor_is_killed_that_has_taken_one_run_and_was_asked_for_another(machine: Machine) -> None:
    one, two = machine.launch(1), machine.launch(2)
    assert machine.local.launch_next(request(Row("5.1", 5, one, follows="1.1")), "1.1")
    (killed,) = machine.supervisors_of(one)
    killed.signal(signal.SIGSTOP)  # so it does not take the next one that it is asked for
    three, four = machine.launch(3), machine.launch(4)
    slots = [machine.slots_of[number] for number in (one, two, three, four)]
    assert [slot.supervisor for slot in slots] == [0, 1, 0, 1]
    assert [slot.state for slot in slots] == [BUSY, BUSY, REQUESTED, BUSY]

    killed.signal(signal.SIGKILL)
    machine.look()
    assert [slot.state for slot in slots] == [RETIRED, BUSY, REQUESTED, BUSY]
    assert (slots[2].due, slots[2].tries) == (machine.elapsed_s, 2)  # it was PAUSED for 0 s
    assert machine.local.was_declined("5.1")
    assert machine.local.observe("1.1").state is RunState.LOST
    assert not machine.local.clear_lost(
        "1.1"
    )  # what is left of it is found by its mark and killed, then it is over
    machine.go_on(5.0)
    assert machine.kernel.running() == ["2.1", "3.1", "4.1"]
    assert [slot.state for slot in slots] == [RETIRED, BUSY, BUSY, BUSY]
    assert machine.local.observe("3.1").state is RunState.RUNNING


def test_ten_supervisors_are_killed_before_they_take_a_run(machine: Machine) -> None:
    number = machine.local.assign()
    machine.local.launch(request(Row("3.1", 3, number)))
    slot, pauses = machine.slots_of[number], []
    for _ in range(MAX_TRIES):
        assert slot.state is not RETIRED
        machine.go_on(30.0, lambda: bool(machine.supervisors_of(number)))
        machine.supervisors_of(number)[0].signal(signal.SIGKILL)
        machine.look()
        pauses.append(round(slot.due - machine.elapsed_s, 2))
    assert slot.state is RETIRED
    pauses.pop()  # after the last one nobody is asked any more
    assert pauses == [0, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24]
    assert 20 < sum(pauses) < 21
    assert machine.kernel.starts == {}
    seen = machine.local.observe("3.1")
    assert (seen.state, seen.start) == (RunState.LOST, None)
    assert seen.problem == "10 supervisors ended before they took it: see launcher.log"
