"""Fences around devices: what is observed on the one side, the changes of fences on the other."""

from __future__ import annotations

import pytest

from tests.engine.states import follows
from tests.specification import spec
from vctl.core.clusters import FIXED, JOB, LOGICAL, PRIMARY, Cluster, ClusterSpec, VNode
from vctl.core.ledger import Ledger
from vctl.core.nodes import FOREIGN, LEFT, Fence, Node
from vctl.core.resources import GPU, SCALE, whole_node
from vctl.core.values import replace
from vctl.engine.apply import apply
from vctl.engine.changes import DeviceFenced
from vctl.engine.rules import devices
from vctl.engine.state import SchedulerState
from vctl.engine.stimuli import DevicesObserved
from vctl.scheduler.placement import Placed, place

pytestmark = spec("19.devices")

NOW = 9


def fence(number: int, *pids: int, why: str = FOREIGN, memory: int = 1 << 30, since: int = 0) -> Fence:
    return Fence(GPU, number, why, pids or (100,), "bob", memory, since)


def state_of(*fences: Fence) -> SchedulerState:
    ledger = Ledger()
    ledger.put_node(Node("box", "t", whole_node({"CPU": 4 * SCALE, GPU: 2 * SCALE}), fences=fences))
    return SchedulerState(ledger, {}, 0)


ROWS: dict[str, tuple[tuple[Fence, ...], tuple[Fence, ...], list[tuple[int, Fence | None]]]] = {
    "nothing seen, nothing fenced": ((), (), []),
    "a process came": ((), (fence(1),), [(1, fence(1, since=NOW))]),
    "it stays, with other memory": ((fence(1, since=3),), (fence(1, memory=5),), []),
    "it stays, and another came": ((fence(1, 100, since=3),), (fence(1, 100, 101),), []),
    "another one is there instead": ((fence(1, 100, since=3),), (fence(1, 200),), [(1, fence(1, 200, since=NOW))]),
    "it was left behind, as is known now": (
        (fence(1, since=3),), (fence(1, why=LEFT),), [(1, fence(1, why=LEFT, since=NOW))],
    ),
    "it ended": ((fence(1, since=3),), (), [(1, None)]),
    "it moved to another device": ((fence(0, since=3),), (fence(1),), [(0, None), (1, fence(1, since=NOW))]),
    "a device that the node does not have": ((), (fence(7),), []),
}  # fmt: skip


@pytest.mark.parametrize(("before", "seen", "changes"), ROWS.values(), ids=ROWS)
def test_what_is_seen_begins_and_ends_fences(
    before: tuple[Fence, ...], seen: tuple[Fence, ...], changes: list[tuple[int, Fence | None]]
) -> None:
    state = state_of(*before)
    got = follows(state, devices.fenced(state, [DevicesObserved("box", seen)], NOW))
    assert [(one.number, one.fence) for one in got if isinstance(one, DeviceFenced)] == changes
    assert follows(state, devices.fenced(state, [DevicesObserved("box", seen)], NOW)) == []  # seen again
    fenced = {one.number for one in state.ledger.nodes["box"].fences}
    assert fenced == {number for number in (0, 1) if any(one.number == number for one in seen)}
    assert state.ledger.capacities["box"].free[GPU] == (2 - len(fenced)) * SCALE


def test_a_node_that_is_gone_has_no_fences() -> None:
    state = state_of()
    assert follows(state, devices.fenced(state, [DevicesObserved("gone", (fence(0),))], NOW)) == []


def test_events_say_who_and_where() -> None:
    node = state_of(fence(1, 977, 978)).ledger.nodes["box"]
    began = DeviceFenced(NOW, node, GPU, 1, replace(node.fences[0], of="job 12")).public_event()
    assert (began.kind, began.object_id) == ("device.fenced", "box/1")
    assert began.data == {
        "node": "box", "resource": GPU, "instance": 1, "why": "foreign", "pids": [977, 978], "user": "bob",
        "memory": 1 << 30, "left_by": "job 12",
    }  # fmt: skip
    assert DeviceFenced(NOW, node, GPU, 1).public_event().kind == "device.released"


def test_work_is_placed_on_the_other_devices_and_never_at_once_on_a_fenced_one() -> None:
    state = state_of(fence(0))
    ledger = state.ledger

    def placed(gpus: float) -> list[dict[int, int]] | None:
        asked = ClusterSpec(flexible_min={GPU: int(gpus * SCALE)})
        found = place(ledger, PRIMARY, asked, {})
        return (
            [dict(piece.allocation.instances[GPU]) for piece in found.pieces]
            if isinstance(found, Placed)
            else None
        )

    assert placed(1) == [{1: SCALE}]
    assert placed(0.5) == [{1: SCALE // 2}]
    assert placed(2) is None
    apply(state, DeviceFenced(NOW, replace(ledger.nodes["box"], fences=()), GPU, 0))
    assert placed(2) == [{0: SCALE, 1: SCALE}]


def test_a_released_device_lets_waiting_work_be_judged_again() -> None:
    state = state_of(fence(0), fence(1))
    state.ledger.grown.clear()
    apply(state, DeviceFenced(NOW, replace(state.ledger.nodes["box"], fences=()), GPU, 0))
    assert state.ledger.grown == {PRIMARY: {"box"}}


def test_a_logical_cluster_is_fenced_as_its_node_and_the_cluster_of_a_job_is_not() -> None:
    state = state_of()
    ledger = state.ledger
    whole = whole_node({GPU: 2 * SCALE})
    ledger.put_cluster(Cluster("lab", PRIMARY, LOGICAL, ClusterSpec(flexible=False)))
    ledger.assign(VNode("lab/0", "lab", "box", "box", FIXED, whole))
    ledger.put_cluster(Cluster("lab##j", "lab", JOB, ClusterSpec(flexible=False), job="1"))
    one = replace(whole, amounts={GPU: SCALE}, instances={GPU: {0: SCALE}})
    ledger.assign(VNode("lab##j/0", "lab##j", "box", "lab/0", FIXED, one))
    apply(state, DeviceFenced(NOW, replace(ledger.nodes["box"], fences=(fence(0), fence(1))), GPU, 0))
    assert ledger.capacities["lab/0"].free[GPU] == 0
    assert ledger.capacities["lab##j/0"].free[GPU] == SCALE  # it has the device, and goes on with it
    ledger.release("lab##j/0")
    assert ledger.capacities["lab/0"].free[GPU] == 0  # what comes back is fenced, too
    ledger.release("lab/0")
    apply(state, DeviceFenced(NOW, replace(ledger.nodes["box"], fences=()), GPU, 0))
    assert ledger.capacities["box"].is_untouched()
