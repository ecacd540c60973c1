"""Free capacities keep exact books: no drift, no instance above one, and what is given back heals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.specification import spec
from vctl.core.resources import SCALE, Allocation, FreeCapacity, whole_node

pytestmark = spec("2.amounts", "2.instances")

NODE = {"CPU": 8 * SCALE, "GPU": 4 * SCALE, "memory": 64 * SCALE}

requests = st.fixed_dictionaries(
    {},
    optional={
        "CPU": st.integers(0, 8 * SCALE),
        "GPU": st.one_of(st.integers(0, SCALE - 1), st.integers(1, 4).map(lambda n: n * SCALE)),
        "memory": st.integers(0, 64 * SCALE),
    },
)


def check(capacity: FreeCapacity, held: list[Allocation]) -> None:
    """Total = free + held, for amounts, instances and cores."""
    for name, total in NODE.items():
        assert capacity.free[name] + sum(allocation.amounts.get(name, 0) for allocation in held) == total
        assert capacity.free[name] >= 0
    for index in range(4):
        taken = sum(allocation.instances.get("GPU", {}).get(index, 0) for allocation in held)
        assert taken <= SCALE
        assert capacity.instances["GPU"][index] == SCALE - taken
    cores = [core for allocation in held for core in allocation.cores] + sorted(capacity.cores)
    assert sorted(cores) == list(range(8)), "a core belongs to one holder"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(requests, st.integers(0, 5)), max_size=25))
def test_books_are_right_after_every_step_and_everything_heals(
    steps: list[tuple[dict[str, int], int]],
) -> None:
    capacity, held = FreeCapacity(whole_node(NODE)), list[Allocation]()
    for request, give in steps:
        if capacity.fits(request):
            held.append(capacity.take(request))
        if held and give < 2:
            capacity.give_back(held.pop(give % len(held)))
        check(capacity, held)
    for allocation in held:
        capacity.give_back(allocation)
    assert capacity.free == NODE
    assert capacity.is_untouched()
    assert set(capacity.instances["GPU"].values()) == {SCALE}


@settings(max_examples=150, deadline=None)
@given(st.lists(requests, max_size=10))
def test_a_holding_fits_exactly_where_it_came_from(many: list[dict[str, int]]) -> None:
    capacity = FreeCapacity(whole_node(NODE))
    duplicate = capacity.copy()
    for request in many:
        if capacity.fits(request):
            allocation = capacity.take(request)
            assert duplicate.fits_exactly(allocation)
            duplicate.take_exactly(allocation)
    assert (capacity.free, capacity.instances, capacity.cores) == (
        duplicate.free,
        duplicate.instances,
        duplicate.cores,
    )


def test_a_hundred_thousand_pairs_leave_no_drift() -> None:
    pick = random.Random(1)
    capacity, held = FreeCapacity(whole_node(NODE)), list[Allocation]()
    shapes = [
        {"CPU": pick.randint(1, 2 * SCALE), "GPU": pick.choice([1, 3333, 5000, 7501, SCALE]), "memory": 12345}
        for _ in range(50)
    ]
    for _ in range(100_000):
        request = shapes[pick.randrange(50)]
        if len(held) > 3 or not capacity.fits(request):
            capacity.give_back(held.pop(pick.randrange(len(held))))
        else:
            held.append(capacity.take(request))
    check(capacity, held)
    for allocation in held:
        capacity.give_back(allocation)
    assert capacity.free == NODE
    assert capacity.instances == FreeCapacity(whole_node(NODE)).instances


@pytest.mark.parametrize(
    ("taken", "request_", "want"),
    [
        ([2500], 5000, {0: 5000}),
        ([6000, 6000], 3000, {0: 3000}),
        ([7500, 5000], 2500, {0: 2500}),
        ([5000], SCALE, {1: SCALE}),
        ([5000], 2 * SCALE, {1: SCALE, 2: SCALE}),
        ([7500], 5000, {1: 5000}),
    ],
    ids=[
        "a share joins a shared instance",
        "among equals the lowest index",
        "the fullest that has room",
        "a whole one passes the shared ones by",
        "two whole ones are two instances",
        "a share that does not fit splits a whole one",
    ],
)
def test_which_instances_a_request_gets(taken: list[int], request_: int, want: dict[int, int]) -> None:
    capacity = FreeCapacity(whole_node(NODE))
    for share in taken:
        capacity.take({"GPU": share})
    assert capacity.take({"GPU": request_}).instances["GPU"] == want


def test_one_and_a_half_gpus_never_fit() -> None:
    assert not FreeCapacity(whole_node(NODE)).fits({"GPU": SCALE + SCALE // 2})


@spec("19.devices")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(requests, st.integers(0, 5), st.one_of(st.none(), st.sets(st.integers(0, 4)))), max_size=25
    )
)
def test_of_a_fenced_instance_nothing_is_free_until_the_fence_goes(
    steps: list[tuple[dict[str, int], int, set[int] | None]],
) -> None:
    """What is held goes on and is counted as before; what comes back to a fenced instance stays there."""
    capacity, held, fenced = FreeCapacity(whole_node(NODE)), list[Allocation](), set[int]()
    for request, give, numbers in steps:
        if numbers is not None:
            fenced = numbers
            capacity.fence({"GPU": numbers})
        if capacity.fits(request):
            held.append(capacity.take(request))
            assert fenced.isdisjoint(held[-1].instances.get("GPU", {}))
        if held and give < 2:
            capacity.give_back(held.pop(give % len(held)))
        assert all(capacity.instances["GPU"][index] == 0 for index in fenced & set(range(4)))
        assert capacity.free["GPU"] == sum(capacity.instances["GPU"].values())
        plain = capacity.copy()
        plain.fence({})
        check(plain, held)
        assert capacity.is_unheld() == plain.is_untouched()
    for allocation in held:
        capacity.give_back(allocation)
    assert capacity.is_unheld()
    capacity.fence({})
    assert capacity.is_untouched()


@spec("19.devices")
def test_a_fence_outlives_a_change_of_the_total() -> None:
    capacity = FreeCapacity(whole_node(NODE))
    half = capacity.take({"GPU": 5_000})
    capacity.fence({"GPU": {0, 3, 9}})
    assert (capacity.free["GPU"], capacity.fenced["GPU"]) == (2 * SCALE, {0: 5_000, 3: SCALE})
    capacity.resize(
        Allocation({**NODE, "GPU": 3 * SCALE}, {"GPU": dict.fromkeys(range(3), SCALE)}, tuple(range(8)))
    )
    assert (capacity.free["GPU"], capacity.fenced["GPU"]) == (2 * SCALE, {0: 5_000})
    capacity.give_back(half)
    assert (capacity.free["GPU"], capacity.fenced["GPU"], capacity.is_untouched()) == (
        2 * SCALE,
        {0: SCALE},
        False,
    )
    assert not capacity.fits({"GPU": 3 * SCALE})
    capacity.take_decided(Allocation({"GPU": SCALE}, {"GPU": {0: SCALE}}))  # decided before the fence
    assert (capacity.free["GPU"], capacity.fenced["GPU"]) == (2 * SCALE, {0: 0})
