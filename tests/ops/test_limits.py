"""``vctl limit``: set, listed, cleared; what it keeps back waits, says so, and starts when it may."""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World, amounts
from vctl.core.clusters import ClusterSpec
from vctl.core.limits import days_of
from vctl.core.wording import timestamp
from vctl.errors import BadSpec, NotFound
from vctl.ops import clusters, jobs, limits, submitting, why
from vctl.ops import nodes as node_ops
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest

pytestmark = spec("19.accounting", "8.reasons")

CPU = 10_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path / "state") as made:
        node_ops.add(made.store, resources=amounts(8, 2), template="t")
        yield made


@pytest.fixture
def submit(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def submit(
        name: str,
        user: str = "ana",
        cpus: float = 1,
        cluster: str | None = None,
        gpus: int = 0,
        **more: Any,
    ) -> None:
        monkeypatch.setattr(node_ops, "author", lambda *_: user)
        argv = ("sleep", "9")
        request = JobRequest(
            argv=argv,
            submission_id=name,
            cluster=cluster,
            entry={"CPU": int(cpus * CPU), "GPU": gpus * CPU},
            **more,
        )
        submitting.submit(world.store, request, environment={"PATH": "/bin"})
        monkeypatch.setattr(node_ops, "author", lambda *_: "root")

    return submit


def given(world: World, who: str, **amounts: int | None) -> None:
    kind, _, name = who.partition(":")
    names = {"cpus": "CPU", "gpus": "GPU"}
    user, cluster = (name, None) if kind == "user" else (None, name)
    wanted = {names.get(key, key): amount for key, amount in amounts.items()}
    limits.set_limits(world.store, user=user, cluster=cluster, amounts=wanted)


def states(world: World) -> dict[str, str]:
    return {
        job["submission_id"]: str(job["state_reason"] or job["status"])
        for job in reversed(jobs.list_jobs(world.store)[0])
    }


def test_a_limit_of_running_jobs_keeps_back_one_user_and_nobody_else(
    world: World, submit: Callable[..., None]
) -> None:
    for name, user in (("a1", "ana"), ("a2", "ana"), ("b1", "bob"), ("b2", "bob")):
        submit(name, user)
    given(world, "user:ana", running_jobs=1)
    world.turn()
    assert states(world) == {"a1": "RUNNING", "a2": "UserLimit", "b1": "RUNNING", "b2": "RUNNING"}
    answer = why.why(world.store, "a2")
    assert answer["message"] == "1 job runs; at most 1 job of ana may run at a time (a limit set by root)"
    raised = next(change for change in answer["changes"] if change["kind"] == "limit")
    assert raised["command"] == "vctl limit set --user ana --running-jobs 2"
    given(world, "user:ana", running_jobs=2)
    world.turn()
    assert states(world)["a2"] == "RUNNING"


def test_a_limit_of_each_user_gives_way_to_a_limit_of_one(world: World, submit: Callable[..., None]) -> None:
    for name, user in (("a1", "ana"), ("a2", "ana"), ("b1", "bob"), ("b2", "bob")):
        submit(name, user)
    given(world, "user:*", running_jobs=1)
    given(world, "user:ana", running_jobs=2)
    world.turn()
    assert states(world) == {"a1": "RUNNING", "a2": "RUNNING", "b1": "RUNNING", "b2": "UserLimit"}
    assert "(a limit of each user set by root)" in why.why(world.store, "b2")["message"]
    limits.clear(world.store, user="*", cluster=None)
    world.turn()
    assert states(world)["b2"] == "RUNNING"


def test_a_smaller_job_goes_before_one_that_would_exceed_a_limit(
    world: World, submit: Callable[..., None]
) -> None:
    given(world, "user:*", cpus=4 * CPU)
    for name, cpus in (("three", 3), ("two", 2), ("one", 1), ("half", 0.5)):
        submit(name, cpus=cpus)
    submit("of-bob", "bob", 4)
    world.turn()
    assert states(world) == {
        "three": "RUNNING", "two": "UserLimit", "one": "RUNNING", "half": "UserLimit", "of-bob": "RUNNING",
    }  # fmt: skip
    assert why.why(world.store, "two")["message"] == (
        "4 CPU held, and it asks for 2 CPU; jobs of ana may hold at most 4 CPU at a time"
        " (a limit of each user set by root)"
    )


def test_a_limit_of_a_cluster_holds_for_all_below_it(world: World, submit: Callable[..., None]) -> None:
    for cluster_id, parent in (("lab", None), ("inner", "lab"), ("other", None)):
        room = ClusterSpec(flexible_min={"CPU": (4 if cluster_id == "lab" else 2) * CPU})
        clusters.create(world.store, cluster_id, ClusterChange(divisible=True, spec=room), parent_id=parent)
    given(world, "cluster:lab", cpus=CPU)
    submit("in", "ana", 1, "inner")
    world.turn()
    submit("out", "bob", 1, "lab")
    submit("beside", "bob", 1, "other")
    world.turn()
    assert states(world) == {"in": "RUNNING", "out": "CapReached", "beside": "RUNNING"}
    assert "jobs in lab may hold at most 1 CPU" in why.why(world.store, "out")["message"]
    clusters.delete(world.store, "inner", force=True)
    world.turn()
    assert [one["used"] for one in limits.list_limits(world.store)] == [1.0]
    given(world, "cluster:lab", cpus=None)
    assert limits.list_limits(world.store) == []


def test_the_limits_of_a_deleted_cluster_are_gone(world: World) -> None:
    clusters.create(world.store, "lab", ClusterChange(divisible=True, spec=ClusterSpec({})))
    given(world, "cluster:lab", cpus=CPU)
    world.turn()
    clusters.delete(world.store, "lab")
    world.turn()  # compares the state with the tables
    assert limits.list_limits(world.store) == []


def test_what_is_asked_wrongly_is_told(world: World) -> None:
    for user, cluster, problem in (
        (None, None, "no user and no cluster is named"),
        ("root", "lab", "a limit is of a user or of a cluster"),
        ("rooot", None, "there is no user 'rooot'"),
    ):
        with pytest.raises(BadSpec, match=problem):
            limits.set_limits(world.store, user=user, cluster=cluster, amounts={"CPU": 1})
    with pytest.raises(BadSpec, match="nothing to limit"):
        limits.set_limits(world.store, user="root", cluster=None, amounts={})
    with pytest.raises(NotFound):
        limits.set_limits(world.store, user=None, cluster="nowhere", amounts={"CPU": 1})
    with pytest.raises(NotFound, match="user root has no limit"):
        limits.clear(world.store, user="root", cluster=None)


def test_the_expected_start_of_what_a_limit_keeps_back(world: World, submit: Callable[..., None]) -> None:
    clusters.create(world.store, "lab", ClusterChange(divisible=True, spec=ClusterSpec({"CPU": 2 * CPU})))
    submit("first", time_limit_s=60.0)
    given(world, "user:ana", running_jobs=1)
    world.turn()
    submit("second", cluster="lab", time_limit_s=60.0)
    submit("third")
    world.turn()

    def expected(name: str) -> tuple[str | None, str]:
        form = jobs.get_job(world.store, name)
        return form["expected_start"], str(form["expected_start_basis"])

    assert expected("second")[0] == timestamp(world.now() + 60 * 10**9)
    assert expected("third")[0] == timestamp(world.now() + 120 * 10**9)
    given(world, "user:ana", running_jobs=0)
    world.turn()
    assert expected("second")[0] is None
    given(world, "user:ana", running_jobs=1)
    world.sleep(61)
    world.turn()
    world.processes.obey()
    world.turn()
    world.sleep(61)
    world.turn()
    world.processes.obey()
    world.turn()
    submit("fourth", cluster="lab")
    world.turn()
    assert expected("fourth") == (None, "unknown: third has no time limit")
    given(world, "user:ana", cpus=CPU)
    submit("too-large", cpus=2)
    world.turn()
    too_large = "it asks for 2 CPU; jobs of ana may hold at most 1 CPU at a time (a limit set by root)"
    assert expected("too-large") == (None, f"unknown: {too_large}")


H = 3_600


def test_gpu_hours_of_a_day_hold_back_starts_until_the_next_day(
    world: World, submit: Callable[..., None]
) -> None:
    world.sleep(19_800 * 86_400 + 20 * H - world.elapsed_s)  # at 20:00

    def gpu(name: str, user: str = "ana", gpus: int = 1) -> None:
        submit(name, user, gpus=gpus)
        world.turn()

    def end(name: str) -> None:
        (run,) = world.store.column(
            "SELECT run_id FROM runs JOIN jobs USING (job_id) WHERE submission_id = ?", name
        )
        world.processes.end(run, 0)
        world.turn()

    gpu("before")
    world.sleep(H)
    end("before")
    per_day(world, "user:ana", 2)  # what was used before it was set counts
    world.turn()
    assert [one["used"] for one in limits.list_limits(world.store)] == [1.0]
    gpu("second")
    world.sleep(1.5 * H)
    gpu("third")
    assert states(world) == {"second": "RUNNING", "third": "UserLimit"}
    answer = why.why(world.store, "third")
    assert answer["message"] == (
        "2.5 GPU hours used; ana may use 2 GPU hours a day (a limit set by root);"
        f" it begins anew at {timestamp(19_801 * 86_400 * 10**9)}"
    )
    raised = next(change for change in answer["changes"] if change["kind"] == "limit")
    assert raised["command"] == "vctl limit set --user ana --gpu-hours 3 --per day"
    submit("cpu", "ana")
    gpu("of-bob", "bob")
    assert (states(world)["cpu"], states(world)["of-bob"]) == ("RUNNING", "RUNNING")
    end("of-bob")
    world.die()
    world.turn()  # a new scheduler reads from the tables what was spent
    assert states(world)["third"] == "UserLimit"
    jobs.prune(world.store, 0)
    world.die()
    world.turn()
    assert states(world)["third"] == "UserLimit"
    assert [one["used"] for one in limits.list_limits(world.store)] == [2.5]
    world.sleep(1.5 * H)  # midnight
    world.turn()
    assert states(world)["third"] == "RUNNING"
    limits.set_limits(world.store, user="ana", cluster=None, amounts={"gpu_hours": None}, period="day")
    assert limits.list_limits(world.store) == []


def per_day(world: World, who: str, hours: int) -> None:
    kind, _, name = who.partition(":")
    limits.set_limits(
        world.store, user=name if kind == "user" else None, cluster=name if kind == "cluster" else None,
        amounts={"gpu_hours": hours * 10_000}, period="day",
    )  # fmt: skip


def test_gpu_hours_need_a_period(world: World) -> None:
    for amounts_, period, problem in (
        ({"gpu_hours": 1}, "", "are of a period"),
        ({"CPU": 1}, "day", "belongs to gpu_hours"),
    ):
        with pytest.raises(BadSpec, match=problem):
            limits.set_limits(world.store, user="root", cluster=None, amounts=amounts_, period=period)


@pytest.mark.parametrize(
    "date", ["1970-01-01", "2024-02-29", "2026-11-27", "2026-12-31", "2027-03-01", "2100-02-28"]
)
def test_periods_are_those_of_the_calendar(date: str) -> None:
    there = datetime.date.fromisoformat(date)
    day = (there - datetime.date(1970, 1, 1)).days
    now = day * 86_400 * 10**9 + 5
    assert days_of("day", now) == range(day, day + 1)
    assert days_of("week", now) == range(day - there.weekday(), day - there.weekday() + 7)
    first = day - there.day + 1
    assert days_of("month", now) == range(first, first + calendar.monthrange(there.year, there.month)[1])
