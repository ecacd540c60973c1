"""Bookings with the real scheduler and tables on a hand-cranked clock: they open, close, move, and are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.core.clusters import ClusterSpec, FixedNode, Group
from vctl.errors import Conflict, Infeasible, VctlError
from vctl.ops import bookings, cluster_views, job_edits, nodes, submitting, why
from vctl.ops import clusters as cluster_ops
from vctl.ops import jobs as job_ops
from vctl.ops import tasks as task_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array, parse_dependency
from vctl.spec.task_request import TaskRequest

pytestmark = spec("19.booking")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "state") as made:
        for number in (1, 2):
            nodes.add(made.store, resources=amounts(4, 2), node_id=f"n{number}", template="t4")
        made.turn()
        yield made


def gpus(count: float = 2, nodes_: int = 1, cpus: float = 0) -> ClusterSpec:
    each = FixedNode({name: amount for name, amount in amounts(cpus, count).items() if amount})
    return ClusterSpec(
        groups=(Group((each,) * nodes_, "STRICT_SPREAD" if nodes_ > 1 else "PACK"),), flexible=False
    )


def book(
    world: World, wanted: ClusterSpec, begin: float, length: float, name: str = "demo", **given: Any
) -> None:
    """Book, from so many seconds from now on."""
    bookings.reserve(
        world.store, wanted, begin_s=world.elapsed_s + begin, length_s=length, name=name, **given
    )
    world.turn()


def submit(world: World, name: str, wanted: ClusterSpec | None = None, **given: Any) -> None:
    request = JobRequest(
        argv=("x",),
        submission_id=name,
        spec=wanted,
        cwd="/",
        grace_s=0,
        entry=given.pop("entry", {}),
        **given,
    )
    submitting.submit(world.store, request, environment={})
    world.turn()


def job(world: World, name: str) -> tuple[str, str | None]:
    form = job_ops.get_job(world.store, name)
    return form["status"], form["state_reason"]


def state(world: World, name: str = "demo") -> str:
    return str(cluster_views.get_cluster(world.store, name)["state"])


def pass_(world: World, seconds: float) -> None:
    """Let time pass; processes that are told to stop have gone then."""
    world.sleep(seconds)
    world.turn()
    world.processes.obey()
    world.turn()


def parts(world: World, name: str = "demo") -> list[str]:
    from vctl.store import clusters, rows

    row = clusters.get(world.store, name)
    assert row is not None
    booking = rows.cluster(row).booking
    assert booking is not None
    return [part.node_id for part in booking.parts]


def test_it_opens_and_closes_at_its_times(world: World) -> None:
    book(world, gpus(2, 2), 100, 50)
    submit(world, "long", gpus(1))
    submit(world, "short", gpus(2, 2), time_limit_s=90)
    submit(world, "inside", gpus(2), cluster="demo")
    assert job(world, "short") == ("RUNNING", None)
    assert job(world, "long")[0] == job(world, "inside")[0] == "PENDING"
    assert job(world, "inside")[1] == "BeginTime"
    pass_(world, 91)
    assert job(world, "short") == ("FAILED", "TimeLimit")
    assert (state(world), job(world, "long")[0]) == ("BOOKED", "PENDING")
    pass_(world, 10)
    assert (state(world), job(world, "inside"), job(world, "long")[0]) == (
        "ACTIVE",
        ("RUNNING", None),
        "PENDING",
    )
    pass_(world, 50)
    assert job(world, "inside") == ("STOPPED", "BookingEnded")
    assert job(world, "long") == ("RUNNING", None)
    with pytest.raises(VctlError, match="does not exist"):
        state(world)


@pytest.mark.parametrize("at", [5, 101, 155])
def test_a_scheduler_that_begins_later_goes_on(world: World, at: float) -> None:
    book(world, gpus(2, 2), 100, 50)
    submit(world, "inside", gpus(2), cluster="demo")
    submit(world, "long", gpus(2))
    world.die()
    world.sleep(at)
    world.turn()
    world.processes.obey()
    world.turn()
    expected = {5: ("PENDING", "PENDING"), 101: ("RUNNING", "PENDING"), 155: ("STOPPED", "RUNNING")}
    assert (job(world, "inside")[0], job(world, "long")[0]) == expected[int(at)]


def test_waiting_jobs_end_with_it(world: World) -> None:
    book(world, gpus(2), 10, 20)
    submit(world, "inside", gpus(2), cluster="demo")
    submit(world, "never", gpus(2), cluster="demo")
    submit(world, "held", gpus(2), cluster="demo", hold=True)
    for _ in range(2):
        pass_(world, 16)
    assert {name: job(world, name) for name in ("inside", "never", "held")} == dict.fromkeys(
        ("inside", "never", "held"), ("STOPPED", "BookingEnded")
    )


def test_it_is_cancelled(world: World) -> None:
    book(world, gpus(2, 2), 100, 50)
    submit(world, "long", gpus(2))
    assert job(world, "long") == ("PENDING", "HeadOfLine")
    assert cluster_ops.delete(world.store, "demo")["state"] == "REMOVED"
    world.turn()
    assert job(world, "long") == ("RUNNING", None)


CANNOT = {
    "the same devices twice": (gpus(2, 2), gpus(2), "booked for first (until"),
    "more than there is": (gpus(1), gpus(3), "exceed the capacity of primary"),
    "what a job without a limit holds": (gpus(1), gpus(1, 2), "job ever"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_kept_is_refused(world: World, case: str) -> None:
    first, second, said = CANNOT[case]
    if "limit" in case:
        submit(world, "ever", gpus(2))
    book(world, first, 100, 50, "first") if "limit" not in case else None
    before = world.store.value("SELECT max(seq) FROM changes")
    with pytest.raises((Conflict, Infeasible)) as refused:
        book(world, second, 120, 50)
    assert said in str(refused.value)
    assert world.store.value("SELECT max(seq) FROM changes") == before


def test_it_begins_now(world: World) -> None:
    bookings.reserve(world.store, gpus(2), begin_s=None, length_s=50, name="demo")
    assert state(world) == "ACTIVE", "without a turn of the scheduler"
    world.turn()
    submit(world, "inside", gpus(2), cluster="demo")
    assert job(world, "inside") == ("RUNNING", None)


TAKERS = {
    "whole nodes": lambda store: cluster_ops.create(store, "taker", ClusterChange(replica_sets={"t4": 2})),
    "slices": lambda store: cluster_ops.create(store, "taker", ClusterChange(spec=gpus(2, 2))),
    "a node": lambda store: nodes.remove(store, "n1"),
}


@pytest.mark.parametrize("case", TAKERS)
def test_no_command_takes_what_is_booked(world: World, case: str) -> None:
    book(world, gpus(1, 2), 100, 50)
    with pytest.raises(Conflict):
        TAKERS[case](world.store)
    cluster_ops.create(world.store, "beside", ClusterChange(spec=gpus(1, 2)))
    world.turn()
    pass_(world, 101)
    assert state(world) == "ACTIVE"


def test_whole_nodes_that_are_not_booked_can_be_taken(world: World) -> None:
    book(world, gpus(1), 100, 50)
    (booked,) = parts(world)
    made = cluster_ops.create(world.store, "taker", ClusterChange(replica_sets={"t4": 1}))
    assert booked not in made["node_instances"]


def test_nodes_of_its_parent_that_are_booked_stay(world: World) -> None:
    cluster_ops.create(world.store, "team", ClusterChange(replica_sets={"t4": 2}, divisible=True))
    book(world, gpus(1), 100, 50, parent_id="team")
    (booked,) = parts(world)
    with pytest.raises(Conflict, match="not idle"):
        cluster_ops.remove_nodes(world.store, "team", [booked])
    smaller = cluster_ops.update(world.store, "team", ClusterChange(replica_sets={"t4": 1}))
    assert [*smaller["node_instances"]] == [booked]


def test_it_moves_when_its_node_dies(world: World) -> None:
    book(world, gpus(2), 100, 50)
    (first,) = parts(world)
    nodes.kill(world.store, first)
    world.turn()
    (second,) = parts(world)
    assert second != first
    pass_(world, 101)
    assert state(world) == "ACTIVE"


def test_without_another_place_it_opens_once_there_is_one(world: World) -> None:
    book(world, gpus(2, 2), 100, 500)
    nodes.kill(world.store, "n1")
    world.turn()
    message = cluster_views.get_cluster(world.store, "demo")["message"] or ""
    assert "n1 is DEAD" in message
    pass_(world, 101)
    assert state(world) == "BOOKED"
    nodes.add(world.store, resources=amounts(4, 2), node_id="n3", template="t4")
    world.turn()
    world.turn()
    assert state(world) == "ACTIVE"


def test_a_clock_that_jumps_lets_it_open_late(world: World) -> None:
    """The limit of a job counts on the clock of the machine, which does not jump."""
    book(world, gpus(2, 2), 100, 500)
    submit(world, "short", gpus(1), time_limit_s=90)
    ahead = world.uptime_ns()
    world.uptime_ns = lambda: ahead  # type: ignore[method-assign]
    world.sleep(101)
    world.turn()
    assert (state(world), job(world, "short")[0]) == ("BOOKED", "RUNNING")
    assert "late" in (cluster_views.get_cluster(world.store, "demo")["message"] or "")
    submit(world, "next", gpus(1), time_limit_s=10)
    assert job(world, "next")[0] == "PENDING", "nothing starts on its place any more"
    (run,) = world.processes.running()
    world.processes.end(run, 0)
    world.turn()
    assert state(world) == "ACTIVE"


def test_the_limit_of_a_running_job_is_not_raised_across_it(world: World) -> None:
    book(world, gpus(2, 2), 100, 50)
    submit(world, "short", gpus(1), time_limit_s=50)
    job_edits.edit(world.store, "short", {"time_limit_s": 80.0})
    with pytest.raises(Conflict, match="booked for demo"):
        job_edits.edit(world.store, "short", {"time_limit_s": 120.0})
    assert job_ops.get_job(world.store, "short")["time_limit_s"] == 80


def test_why_proposes_a_limit_that_lets_it_start(world: World) -> None:
    book(world, gpus(2, 2), 2 * 3600, 3600)
    submit(world, "long", gpus(2))
    reported = why.why(world.store, "long")
    assert "demo (4 GPU)" in reported["message"], reported["message"]
    (remedy,) = [one for one in reported["changes"] if one["kind"] == "time_limit"]
    assert remedy["command"] == "vctl job edit long --time-limit 1h59m"
    job_edits.edit(world.store, "long", {"time_limit_s": 119 * 60.0})
    world.turn()
    assert job(world, "long") == ("RUNNING", None)


def test_starts_are_expected_at_begins_and_ends(world: World) -> None:
    book(world, gpus(2, 2), 100, 50)
    submit(world, "long", gpus(2))
    submit(world, "inside", gpus(2), cluster="demo")
    reported = {name: why.why(world.store, name) for name in ("long", "inside")}
    assert reported["inside"]["expected_start_basis"].startswith("when the booking of demo begins at")
    assert reported["long"]["expected_start_basis"].startswith("when the booking of demo ends at")


def test_a_growing_cluster_leaves_it_alone(world: World) -> None:
    cluster_ops.create(
        world.store, "team", ClusterChange(spec=ClusterSpec(flexible_min=amounts(0, 0)), divisible=True)
    )
    book(world, gpus(2, 2), 100, 50)
    submit(world, "grows", gpus(1), cluster="team", time_limit_s=10)
    assert job(world, "grows")[0] == "PENDING"
    pass_(world, 101)
    assert state(world) == "ACTIVE"
    pass_(world, 51)
    assert job(world, "grows")[0] == "RUNNING"


def test_an_array_ends_with_it_member_by_member(world: World) -> None:
    """Most members share a row; one is a job of its own, and runs."""
    book(world, gpus(2), 10, 20)
    submit(world, "many", gpus(2), cluster="demo", array=parse_array("0-40", "--array"))
    submit(world, "after", cluster="primary", after=(parse_dependency("any:many_30", "--after"),))
    for _ in range(3):
        pass_(world, 16)
    sql = "SELECT status || state_reason, sum(members) FROM jobs WHERE array_id = 'many' GROUP BY 1"
    found = dict(world.store.rows(sql))
    assert found == {"STOPPEDBookingEnded": 41}
    assert job(world, "after")[0] == "RUNNING"


def test_a_submit_says_when_its_job_is_stopped(world: World) -> None:
    book(world, gpus(2), 100, 50)
    request = JobRequest(
        argv=("x",), submission_id="long", spec=gpus(1), cluster="demo", cwd="/", time_limit_s=60
    )
    said = submitting.submit(world.store, request, environment={})["message"] or ""
    assert "it is stopped with its cluster if it still runs at" in said
    short = submitting.submit(
        world.store,
        JobRequest(
            argv=("x",), submission_id="short", spec=gpus(1), cluster="demo", cwd="/", time_limit_s=50
        ),
        environment={},
    )
    assert "stopped" not in (short["message"] or "")


def test_detached_tasks_end_with_it(world: World) -> None:
    book(world, gpus(2), 0, 20)
    submit(world, "makes", gpus(2), cluster="demo")
    task_ops.run(world.store, TaskRequest(argv=("x",), job="makes", detach=True, request={}), environment={})
    world.turn()
    for _ in range(2):
        pass_(world, 16)
    assert world.processes.running() == []
    with pytest.raises(VctlError, match="does not exist"):
        state(world)


@pytest.mark.parametrize("limit_s", [None, 60])
def test_nobody_is_preempted_for_a_job_that_the_booking_keeps_off(
    world: World, limit_s: float | None
) -> None:
    cluster_ops.update(world.store, "primary", ClusterChange(queue={"preemption": "requeue"}))
    book(world, gpus(2, 2), 100, 50)
    for name in ("low1", "low2"):
        submit(world, name, gpus(2), time_limit_s=90)
    submit(world, "high", gpus(2), priority=5, time_limit_s=limit_s)
    for _ in range(2):
        pass_(world, 31)
    lows = [job(world, name)[0] for name in ("low1", "low2")]
    assert (job(world, "high")[0], lows.count("RUNNING")) == (
        ("PENDING", 2) if limit_s is None else ("RUNNING", 1)
    )


def test_a_booking_in_a_booking_ends_with_it_at_the_latest(world: World) -> None:
    book(world, gpus(2, 2), 0, 100, "outer")
    with pytest.raises(Conflict, match="outer is itself booked until"):
        book(world, gpus(1), 50, 60, parent_id="outer")
    book(world, gpus(1), 50, 50, "inner", parent_id="outer")
    submit(world, "inside", gpus(1), cluster="inner")
    submit(world, "after", gpus(2))
    assert why.why(world.store, "after")["expected_start_basis"].startswith("when the booking of")
    pass_(world, 51)
    assert (state(world, "inner"), job(world, "inside")[0]) == ("ACTIVE", "RUNNING")
    for _ in range(2):
        pass_(world, 50)
    assert (job(world, "inside"), job(world, "after")[0]) == (("STOPPED", "BookingEnded"), "RUNNING")


def test_what_is_booked_of_a_loan_does_not_go_home_for_a_job(world: World) -> None:
    """The search let it go home, and the commit did not: a job beside it was tried again and again."""
    nodes.kill(world.store, "n2")
    cluster_ops.create(
        world.store, "team", ClusterChange(spec=ClusterSpec(flexible_min=amounts(1)), divisible=True)
    )
    submit(world, "borrows", gpus(0, cpus=2), cluster="team", time_limit_s=500)
    submit(world, "fills", gpus(0, cpus=2))
    first = next(run for run in world.processes.running() if run.startswith("1."))
    world.processes.end(first, 0)
    world.turn()
    book(world, gpus(0, cpus=1), 4, 50, parent_id="team")
    submit(world, "outside", gpus(0, cpus=1))
    assert world.scheduler is not None
    assert (job(world, "outside")[0], world.scheduler.work.refused[1]) == ("RUNNING", 0)
    pass_(world, 5)
    assert state(world) == "ACTIVE"
