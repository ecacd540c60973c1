"""What the scheduler observes on the devices of its machine: a played library, real processes, a clock by hand."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.core.clusters import PRIMARY
from vctl.core.jobs import Run
from vctl.core.nodes import FOREIGN, LOCAL, Fence, Node
from vctl.core.resources import GPU, SCALE, Allocation, whole_node
from vctl.core.values import replace
from vctl.daemon.devices import EVERY_S, FENCED_S, STALE_S, DeviceObserver, DevicePolicy
from vctl.daemon.following import FollowedState
from vctl.engine.stimuli import DevicesObserved, Now
from vctl.runtime import processes
from vctl.runtime.measured import DeviceProcess, Measured, NvmlError
from vctl.store import nodes, observed
from vctl.store.devices import REPORTED
from vctl.store.store import Store

pytestmark = spec("19.devices")

GIB = 1 << 30


class Library:
    """Two devices with what a test puts on them, in use by ``percent``; it ``answers`` unless that is cleared."""

    source = "recorded"

    def __init__(self) -> None:
        self.on: dict[str, tuple[DeviceProcess, ...]] = {}
        self.answers = threading.Event()
        self.answers.set()
        self.fails = False
        self.looks = 0
        self.percent: int | None = 0
        self.used = 0

    def devices(self) -> list[tuple[tuple[int, int, int], str, str, int]]:
        return []

    def measure(self) -> list[Measured]:
        self.looks += 1
        assert self.answers.wait(30)
        if self.fails:
            raise NvmlError("nvmlInit_v2 failed with code 999")
        return [
            Measured(uuid, "H100", 80 * GIB, self.used, self.percent, self.on.get(uuid, ()))
            for uuid in ("a", "b", "elsewhere")
        ]


class Watched:
    """An observer on a state directory with this machine as a node, and the time."""

    def __init__(self, store: Store, policy: DevicePolicy) -> None:
        self.store, self.library, self.time = store, Library(), 10**12
        node = Node(
            "box",
            "t",
            whole_node({"CPU": 4 * SCALE, GPU: 2 * SCALE}),
            source=LOCAL,
            boot_id=processes.boot_id(),
        )
        with store.transaction():
            nodes.insert(
                store, node, devices={"gpus": [{"uuid": "a", "index": 0}, {"uuid": "b", "index": 1}]}
            )
        self.state = FollowedState.load(store)
        self.observer = DeviceObserver(store, policy, lambda: self.library)

    def look(self, after_s: float = EVERY_S, *, has_work: bool = False) -> tuple[Fence, ...] | None:
        """What is fenced by what is seen so many seconds later; None if nobody looks, or nothing is to be told."""
        self.time += int(after_s * 1e9)
        seen = self.observer.observe(self.state, [], Now(self.time, self.time), has_work=has_work)
        return next((one.fences for one in seen if isinstance(one, DevicesObserved)), None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "state") as opened:
        yield opened


def watched(store: Store, word: str = "avoid") -> Watched:
    return Watched(store, DevicePolicy(word))


def stranger(pid: int, memory: int | None = 5 * GIB) -> DeviceProcess:
    return DeviceProcess(pid, memory, "bob", "python serve.py")


ROWS: dict[str, tuple[str, dict[str, tuple[DeviceProcess, ...]], list[tuple[int, tuple[int, ...], int]]]] = {
    "nobody": ("avoid", {}, []),
    "one on the second device": ("avoid", {"b": (stranger(7),)}, [(1, (7,), 5 * GIB)]),
    "two on one device, the larger first": (
        "avoid", {"a": (stranger(7, GIB), stranger(8, 2 * GIB))}, [(0, (8, 7), 3 * GIB)],
    ),
    "small ones": ("avoid", {"a": (stranger(7, 1 << 20), stranger(8, 200 << 20))}, []),
    "small ones that are much together": ("avoid", {"a": (stranger(7, 200 << 20), stranger(8, 200 << 20))},
        [(0, (7, 8), 400 << 20)]),
    "one whose memory the driver does not tell": ("avoid", {"a": (stranger(7, None),)}, [(0, (7,), 0)]),
    "one on a device that is not vctl's": ("avoid", {"elsewhere": (stranger(7),)}, []),
    "by default it is only told": ("report", {"a": (stranger(7),)}, []),
    "or not even that": ("ignore", {"a": (stranger(7),)}, []),
}  # fmt: skip


@pytest.mark.parametrize(("word", "on", "fences"), ROWS.values(), ids=ROWS)
def test_processes_that_nobody_booked(
    store: Store,
    word: str,
    on: dict[str, tuple[DeviceProcess, ...]],
    fences: list[tuple[int, tuple[int, ...], int]],
) -> None:
    box = watched(store, word)
    box.library.on = on
    seen = box.look() or ()
    assert [(one.number, one.pids, one.memory) for one in seen] == fences
    assert all((one.why, one.owner) == (FOREIGN, "bob") for one in seen)
    reported = store.recall(REPORTED)
    here = {
        str("ab".index(uuid)): sorted(one.pid for one in some)
        for uuid, some in on.items()
        if uuid != "elsewhere"
    }
    assert reported == ({"node_id": "box", "pids": here, "idle": {}} if here and word != "ignore" else None)


def test_when_it_looks(store: Store) -> None:
    box = watched(store)
    box.look()
    box.look(EVERY_S / 2)
    assert box.library.looks == 1
    box.look(0, has_work=True)
    assert box.library.looks == 2  # figures as old as that are no ground for a start
    box.look(STALE_S / 2, has_work=True)
    assert box.library.looks == 2
    box.look(EVERY_S)
    assert box.library.looks == 3
    box.library.on = {"a": (stranger(7),)}
    box.look(EVERY_S)
    assert box.observer.due() == [box.time + int(FENCED_S * 1e9)]


def test_where_nothing_is_avoided_a_start_asks_for_no_look(store: Store) -> None:
    box = watched(store, "report")
    box.look()
    box.look(EVERY_S / 2, has_work=True)
    assert box.library.looks == 1


def test_a_driver_that_hangs_does_not_stop_the_scheduler(store: Store) -> None:
    box = watched(store)
    box.library.on = {"a": (stranger(7),)}
    box.library.answers.clear()
    assert box.look() is None
    assert box.look() is None
    assert box.library.looks == 1  # nobody asks again while it hangs
    box.library.answers.set()
    box.observer.figures._thread.join(30)  # type: ignore[union-attr]
    assert [one.number for one in box.look(0) or ()] == [0]


def test_a_driver_that_fails_neither_begins_nor_ends_a_fence(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    box = watched(store)
    box.library.fails = True
    assert box.look() is None
    assert box.look() is None
    box.library.fails = False
    box.look()
    assert [line.split("Z ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "devices cannot be measured: nvmlInit_v2 failed with code 999", "devices can be measured again",
    ]  # fmt: skip


def test_a_machine_without_devices_is_never_looked_at(store: Store) -> None:
    library = Library()
    observer = DeviceObserver(store, DevicePolicy("avoid"), lambda: library)
    state = FollowedState.load(store)
    assert observer.observe(state, [], Now(1, 1), has_work=True) == []
    assert (library.looks, observer.due()) == (0, [])


def test_an_ignored_process_counts_no_more_but_a_later_one_with_its_number_does(store: Store) -> None:
    box = watched(store)
    child = subprocess.Popen(["sleep", "60"])
    try:
        box.library.on = {"a": (DeviceProcess(child.pid, GIB),)}
        assert [one.pids for one in box.look() or ()] == [(child.pid,)]
        started = processes.start_time(child.pid)
        assert started is not None
        known = {"gpus": [{"uuid": "a", "index": 0}]}
        with store.transaction():
            observed.remember_devices(store, "box", {**known, "ignored": {str(child.pid): started}})
        assert box.look() is None
        with store.transaction():
            observed.remember_devices(store, "box", {**known, "ignored": {str(child.pid): started - 1}})
        assert [one.pids for one in box.look() or ()] == [(child.pid,)]
    finally:
        child.kill()
        child.wait()


def holds(box: Watched, run_id: str, number: int) -> None:
    """A run that holds a device of the machine."""
    held = Allocation({GPU: SCALE}, {GPU: {number: SCALE}})
    box.state.runs[run_id] = Run(run_id, 1, 1, 0, PRIMARY, "box", "box", held)


def test_a_booked_device_that_nobody_uses_is_told_after_a_while(store: Store) -> None:
    box = Watched(store, DevicePolicy(idle_s=60))

    def idle(after_s: float) -> list[str]:
        box.look(after_s)
        return sorted((store.recall(REPORTED) or {"idle": {}})["idle"])

    assert idle(1) == idle(100) == []  # nobody has booked any
    holds(box, "1.1.0.a", 1)
    assert idle(10) == idle(50) == []
    assert idle(20) == ["1"]
    box.library.percent = 3
    assert idle(10) == []  # it is used
    box.library.percent = 0
    assert (idle(5), idle(70)) == ([], ["1"])
    box.library.used = 2 * GIB  # memory came or went: somebody loads a model
    assert (idle(10), idle(70)) == ([], ["1"])
    box.library.used += 1 << 20
    assert idle(10) == ["1"]
    del box.state.runs["1.1.0.a"]
    holds(box, "2.1.0.a", 1)
    assert idle(10) == []  # another job has it now
    box.library.percent = None
    assert idle(100) == []  # the driver does not tell
    assert store.recall(REPORTED) is None


def test_the_time_can_be_never(store: Store) -> None:
    box = Watched(store, DevicePolicy(idle_s=0))
    holds(box, "1.1.0.a", 1)
    box.look()
    box.look(10**6)
    assert store.recall(REPORTED) is None


def test_a_process_of_another_namespace_counts_where_nobody_has_booked(store: Store) -> None:
    """In a container NVML may name pids of the host, which say nothing here."""
    box = watched(store)
    box.library.on = {"a": (DeviceProcess(4_194_303, GIB),), "b": (DeviceProcess(4_194_302, GIB),)}
    holds(box, "1.1.0.a", 1)
    assert [one.number for one in box.look() or ()] == [0]


def test_a_device_that_the_node_no_longer_has_is_nobody_s_concern(store: Store) -> None:
    box = watched(store)
    box.library.on = {"a": (stranger(7),), "b": (stranger(8),)}
    assert [one.number for one in box.look() or ()] == [0, 1]
    node = box.state.ledger.nodes["box"]
    smaller = Allocation({**node.total.amounts, GPU: SCALE}, {GPU: {1: SCALE}}, node.total.cores)
    box.state.ledger.put_node(replace(node, total=smaller))
    assert [one.number for one in box.look() or ()] == [1]
    assert list(store.recall(REPORTED)["pids"]) == ["1"]
