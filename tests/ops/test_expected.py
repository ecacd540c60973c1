"""Expected starts out of the tables, with a scheduler under a clock that is cranked by hand (spec 13)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import ShortRuns, World
from vctl.core.resources import CPU, SCALE
from vctl.daemon.ahead import LONGEST_S, NextRuns
from vctl.ops import clusters, expected, forms, job_edits, jobs, nodes, overview, submitting, why
from vctl.simulate.forecast import TOO_MANY
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.cluster_spec import parse_cluster_spec
from vctl.spec.job_request import JobRequest, shortcut_spec
from vctl.spec.options import parse_array, parse_dependency

BEGIN_S = 1000
"""The time at which a world begins."""
pytestmark = spec("13.expected")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    here = World(tmp_path / "state")
    nodes.add(here.store, resources={CPU: 4 * SCALE}, count=2, template="4c", node_id="n")
    yield here
    here.close()


def submit(world: World, name: str, cpus: int, limit_s: float | None = None, **more: Any) -> None:
    wanted = shortcut_spec(str(cpus), None, None, 1, units=frozenset(), beside_spec=False)
    request = JobRequest(
        argv=("true",), submission_id=name, spec=wanted, cwd="/", time_limit_s=limit_s, **more
    )
    submitting.submit(world.store, request, environment={})


def at(second: int) -> str:
    """A moment after the beginning of the world, in which nothing has passed yet."""
    return forms.timestamp((BEGIN_S + second) * 10**9)


def said(world: World) -> dict[str, tuple[str | None, str | None]]:
    found, _ = jobs.list_jobs(world.store)
    return {
        one["submission_id"]: (one["expected_start"], one["expected_start_basis"])
        for one in found
        if one["status"] == "PENDING"
    }


def play(world: World) -> None:
    """Let every run go on for exactly its time limit, until nothing waits or runs any more."""
    while True:
        running = [
            one for one in jobs.list_jobs(world.store, forecast=False)[0] if one["status"] == "RUNNING"
        ]
        if not running:
            return
        ends = {
            one["submission_id"]: _ns(one["started_at"]) + int(one["time_limit_s"] * 1e9) for one in running
        }
        now = min(ends.values())
        if (due := due_in(world)) is not None and due < now:
            world.elapsed_s = due / 1e9 + 1e-6
            world.turn()
            continue
        world.elapsed_s = max(world.elapsed_s, now / 1e9)
        end(world, {name for name, at in ends.items() if at <= now})


def due_in(world: World) -> int | None:
    """When the scheduler has to do something next, although nothing ends: when a loan goes home, say."""
    assert world.scheduler is not None
    return min((at for at in world.scheduler.work.memo.due if at > world.now()), default=None)


def end(world: World, names: Collection[str]) -> None:
    """Let these jobs end now. A job that is assigned to follow another one waits for it no longer than in earnest."""
    rows = world.store.rows(
        "SELECT run_id, submission_id FROM runs JOIN jobs USING (job_id) WHERE state <> 'ENDED'"
    )
    for row in rows:
        if row["submission_id"] in names:
            world.processes.end(row["run_id"], 0)
    world.turn()
    if world.store.value("SELECT count(*) FROM runs_ahead"):
        world.elapsed_s += LONGEST_S
        world.turn()


def _ns(stamp: str | None) -> int:
    from vctl.store.filters import moment

    assert stamp is not None
    return int(moment(stamp))


def policy(world: World, discipline: str, *names: str) -> None:
    for name in ("primary", *names):
        clusters.update(world.store, name, ClusterChange(queue={"discipline": discipline}))


FLAT, TREE, LENDING = "one queue", "a tree", "a tree that lends"


@pytest.mark.parametrize("shape", [FLAT, TREE, LENDING])
@pytest.mark.parametrize("discipline", ["strict", "backfill"])
@pytest.mark.parametrize("seed", [*range(12), 31])
def test_jobs_start_when_the_tables_say_that_they_are_expected_to(
    world: World, seed: int, discipline: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where jobs are assigned to follow others, and come back since these are no short ones.

    In the tree of seed 31 a lender calls home what it has lent.
    """
    if seed % 3 == 0 or seed == 31:
        monkeypatch.setattr(ShortRuns, "depth", 0)
    dice = random.Random(seed)
    world.turn()
    names = () if shape == FLAT else ("a", "b")
    least = 2 if shape == LENDING else 1
    for name in names:
        spec_ = parse_cluster_spec({"flexible_resource_min": {"CPU": least}}, units=frozenset(), logical=True)
        clusters.create(
            world.store,
            name,
            ClusterChange(
                spec=spec_, divisible=True, lending_limit={CPU: least * SCALE} if shape == LENDING else None
            ),
        )
    policy(world, discipline, *names)
    for number in range(10):
        more = {"cluster": dice.choice(names)} if names else {}
        submit(world, f"j{number}", dice.choice((1, 2, 4)), dice.randint(5, 90), **more)
    world.turn()
    found = said(world)
    assert found
    play(world)
    for name, (start, basis) in found.items():
        began = jobs.get_job(world.store, name)["started_at"]
        assert start is not None, (name, basis)
        assert abs(_ns(start) - _ns(began)) <= 1e9, (name, start, began, basis)


def test_a_job_that_comes_back_from_a_run_which_it_was_to_follow_keeps_its_turn(world: World) -> None:
    """Others got reservations while it was away; with these they must not pass it."""
    world.turn()
    policy(world, "backfill")
    for name, limit_s in (("long", 300), ("zero", 5), ("first", 30), ("second", 10), ("third", 20)):
        submit(world, name, 4, limit_s)
    world.turn()
    world.elapsed_s += 5
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(NextRuns, "turn", lambda *_: None)
        end(world, ["zero"])
        assert world.store.value("SELECT job_id FROM runs_ahead") == 4
    world.turn()
    assert world.store.value("SELECT count(*) FROM runs_ahead") == 0
    assert [said(world)[name][0] for name in ("second", "third")] == [at(35), at(45)]
    play(world)
    began = [
        forms.timestamp(_ns(jobs.get_job(world.store, one)["started_at"])) for one in ("second", "third")
    ]
    assert began == [at(35), at(45)]


@pytest.mark.parametrize("discipline", ["strict", "backfill"])
def test_while_a_job_is_to_follow_another_one_none_of_another_shape_passes_it(
    world: World, discipline: str
) -> None:
    """A run that is thought to be short may be a long one: then the other has taken its place elsewhere."""
    world.turn()
    policy(world, discipline)
    submit(world, "half", 2, 100)
    for name, limit_s in (("zero", 5), ("first", 300), ("second", 10)):
        submit(world, name, 4, limit_s)
    world.turn()
    assert said(world)["second"][0] == at(100)
    world.elapsed_s += 5
    submit(world, "small", 1, 400)
    submit(world, "third", 4, 20)
    end(world, ["zero"])
    assert jobs.get_job(world.store, "first")["status"] == "RUNNING"
    assert jobs.get_job(world.store, "small")["status"] == "PENDING"
    play(world)
    assert jobs.get_job(world.store, "second")["started_at"] == at(100)


def test_gates_open_after_expected_ends(world: World) -> None:
    submit(world, "train", 4, 60)
    submit(world, "other", 4)
    submit(world, "eval", 1, 10, after=(parse_dependency("train"),))
    submit(world, "later", 1, 10, after=(parse_dependency("any:eval"),))
    submit(world, "never", 1, 10, after=(parse_dependency("notok:train"),))
    submit(world, "sweep", 1, 20, after=(parse_dependency("train"),), array=parse_array("1-3%1"))
    submit(world, "kept", 1, hold=True)
    world.turn()
    end = at(60)
    found = said(world)
    basis = f"when train ends by its time limit at {end}, if no job behind it goes first, if train succeeds"
    assert found["eval"] == (end, basis)
    assert found["later"][0] == at(70)
    assert [found[f"sweep_{n}"][0] for n in (1, 2, 3)] == [at(n) for n in (60, 80, 100)]
    assert found["never"] == (None, "unknown: it waits for train to fail")
    assert found["kept"] == (None, "unknown: it is held")
    assert jobs.get_job(world.store, "sweep")["expected_start"] == end


def test_a_job_that_is_being_stopped_has_gone_after_its_grace(world: World) -> None:
    for name in ("one", "two"):
        submit(world, name, 4)
    submit(world, "next", 4)
    world.turn()
    assert said(world)["next"] == (None, "unknown: one has no time limit")
    jobs.stop(world.store, "one", grace_s=30)
    start, basis = said(world)["next"]
    assert start == at(30)
    assert basis == f"when one, which is being ended, has gone at {start}"


def test_drained_nodes_are_what_is_missing(world: World) -> None:
    for name in ("one", "two"):
        submit(world, name, 4, 60)
    submit(world, "next", 4)
    world.turn()
    for node_id in ("n-00", "n-01"):
        nodes.drain(world.store, node_id)
    world.turn()
    assert said(world)["next"] == (None, "unknown: it needs nodes that are draining (n-00, n-01)")


def starts(form: Any) -> dict[str, str | None]:
    return {name: form[name] for name in ("expected_start", "expected_start_basis")}


def test_every_view_says_the_same(world: World) -> None:
    for name in ("one", "two", "next"):
        submit(world, name, 4, 60)
    world.turn()
    both = {"expected_start": at(60), "expected_start_basis": said(world)["next"][1]}
    assert starts(jobs.get_job(world.store, "next")) == both
    assert starts(why.why(world.store, "next")) == both
    assert starts(overview.status(world.store)["queue"]["head"][0]) == both
    nothing = {"expected_start": None, "expected_start_basis": None}
    assert starts(jobs.get_job(world.store, "one")) == nothing
    assert starts(jobs.get_job(world.store, "next", forecast=False)) == nothing
    job_edits.edit(world.store, "next", {"priority": 3})
    assert both["expected_start"] == jobs.get_job(world.store, "next")["expected_start"]


def test_behind_too_many_jobs_nothing_is_known_and_little_is_read(world: World) -> None:
    submit(world, "sweep", 4, 60, array=parse_array("1-1000"))
    submit(world, "behind", 4, 60)
    world.turn()
    with world.store.snapshot():
        backlog = expected.load(world.store, ["kPrimaryClusterID"])
    assert backlog is not None
    assert len(backlog.situation.pending) == expected.MAX_READ
    assert sum(backlog.unread.values()) + expected.MAX_READ == 999
    found = said(world)
    assert found["behind"] == (None, TOO_MANY)
    assert found["sweep_3"][0] == at(60)
