"""What is seen of processes: ends of short runs are taken together (spec 18: what a job costs)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon.conftest import Life
from tests.specification import spec
from tests.world import World, amounts
from vctl.core.jobs import Run
from vctl.daemon.clock import Clock
from vctl.daemon.durations import MAX_AHEAD, PAUSES_S, RunDurations
from vctl.ops import jobs, nodes, tasks
from vctl.ops.submitting import submit
from vctl.runtime import objects
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.spec.task_request import TaskRequest
from vctl.store.ahead import FOLDER, withdraw

pytestmark = spec("18.budgets", "17.durable")


class News:
    """Tells of one run after the other, as a runtime does."""

    def __init__(self, *names: str) -> None:
        self.left = list(names)

    def changes(self) -> set[str]:
        """The next one."""
        return {self.left.pop(0)} if self.left else set()


def paced(took_s: float) -> RunDurations:
    """A durations of runs that took so long."""
    durations = RunDurations(Clock())
    for number in range(20):
        durations.launched(f"r{number}")
        durations._launched[f"r{number}"] -= took_s
        durations.over(f"r{number}")
    return durations


def test_an_end_waits_for_that_of_another_short_run() -> None:
    durations = paced(0.002)
    for name in ("a", "b"):
        durations.launched(name)
        durations._launched[name] += 60  # however long this machine takes for the next line
    assert durations.changes(News("a", "b")) == {"a", "b"}


def test_an_end_waits_for_nobody_where_runs_are_long_or_no_other_is_due() -> None:
    alone, long = paced(0.002), paced(5.0)
    alone.launched("a")
    assert alone.changes(News("a", "b")) == {"a"}
    for name in ("a", "b"):
        long.launched(name)
    assert long.changes(News("a", "b")) == {"a"}
    other = paced(0.002)
    other.launched("b")
    other._launched["b"] -= 10  # a long one beside short ones
    other.launched("a")
    assert other.changes(News("a", "b")) == {"a"}


def test_the_first_end_waits_for_nobody() -> None:
    durations = RunDurations(Clock())
    durations.launched("a")
    durations.launched("b")
    assert durations.changes(News("a", "b")) == {"a"}
    assert PAUSES_S[1] <= 0.005


def test_all_jobs_of_a_short_array_end(life: Life) -> None:
    life.nodes(1, "t", cpus=4)
    life.submit("a", argv=("true",), array=parse_array("1-40"))
    life.until(lambda: not jobs.list_jobs(life.store, limit=1)[1])
    found, _ = jobs.list_jobs(life.store, all=True)
    assert [job["status"] for job in found] == ["SUCCEEDED"] * 40


def test_runs_that_follow_others_tell_how_short_runs_are() -> None:
    """They are not launched: what their processes took counts, and so deep may the next ones be assigned ahead."""
    durations = paced(0.09)
    assert durations.depth == 1
    for number in range(40):
        durations.over(f"f{number}", 0.002)
    assert durations.depth == MAX_AHEAD
    for number in range(40):
        durations.over(f"l{number}", 2.0)
    assert durations.depth == 0


def test_ends_gather_while_no_slot_waits() -> None:
    assert paced(0.002).changes(News("a", "b"), ahead=1) == {"a", "b"}
    assert paced(5.0).changes(News("a", "b"), ahead=1) == {"a"}


@pytest.mark.parametrize(("heard", "pause_s"), [(1, 0.0075), (11, 0.005), (30, 0.001), (40, 0.001)])
def test_the_more_ends_were_heard_the_sooner_others_follow(
    heard: int, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs that are left last until the turn has assigned more: no slot runs dry."""
    durations, slept = paced(0.001), list[float]()
    durations._typical_s = 0.001
    monkeypatch.setattr(durations.clock, "sleep", slept.append)
    together = News()
    monkeypatch.setattr(together, "changes", lambda: {str(number) for number in range(heard)})
    durations.changes(together, ahead=31)
    assert slept == [pytest.approx(pause_s)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One node of one CPU, on a hand-cranked clock."""
    with World(tmp_path / "state", window=16) as made:
        nodes.add(made.store, resources=amounts(1), node_id="n", template="t")
        yield made


def test_a_launch_of_which_nothing_is_heard_is_repeated(world: World) -> None:
    """Launches are repeated until they are seen to have happened, also while the scheduler lives."""
    world.processes.loses_launches = 1
    submit(world.store, JobRequest(argv=("x",), submission_id="a", cwd="/", entry=amounts(1)), environment={})
    scheduler = world.start()
    scheduler.turn()
    assert world.processes.running() == []
    world.turn()
    assert len(world.processes.running()) == 1


@spec("10.objects")
def test_a_launch_that_is_repeated_leaves_what_the_process_has_made(world: World) -> None:
    """A slow supervisor starts the run although it was given up: the second request removed the output of the first.

    Only the first request of a run removes what an earlier try has left.
    """
    submit(world.store, JobRequest(argv=("x",), submission_id="j", cwd="/", entry={}), environment={})
    world.turn()
    (job_run,) = world.processes.running()
    request = TaskRequest(argv=("x",), job="j", cwd="/", request=amounts(1), outputs=("o",), max_retries=1)
    tasks.run(world.store, request, environment={})
    world.processes.loses_launches = 1
    assert world.scheduler is not None
    for _ in range(5):
        if world.processes.loses_launches:
            world.scheduler.turn()
    assert world.processes.running() == [job_run]
    row = world.store.row("SELECT node_id FROM runs WHERE task_id = 'task-1'")
    assert row is not None
    output = objects.folder_path(world.home, 1, 1, row["node_id"]) / "o"
    output.write_text("made")
    world.turn()
    (run,) = set(world.processes.running()) - {job_run}
    assert output.read_text() == "made"
    world.processes.end(run, 1)
    world.turn()
    assert len(world.processes.running()) == 2, "it is tried again"
    assert not output.exists()


def assigned_ahead(world: World, indices: str) -> list[Run]:
    """Submit an array and end its first member: the runs that are assigned ahead then."""
    members = JobRequest(
        argv=("x",), submission_id="a", cwd="/", entry=amounts(1), array=parse_array(indices)
    )
    submit(world.store, members, environment={})
    world.turn()
    assert world.scheduler is not None and world.scheduler.state is not None
    world.processes.end("1.1.0." + world.processes.running()[0].rpartition(".")[2], 0)
    world.turn()
    return [one.run for one in world.scheduler.state.ahead.runs.values()]


def test_who_was_to_follow_a_run_that_was_declined_waits_again(world: World) -> None:
    """Also where a refused command had withdrawn its offer: nobody can start it any more."""
    chain = [one.run_id for one in assigned_ahead(world, "1-6")]
    assert world.scheduler is not None and world.scheduler.state is not None
    assert len(chain) > 1
    with suppress(InterruptedError), world.store.transaction():
        raise InterruptedError
    world.processes.declined.add(chain[0])
    world.processes.news.add(chain[0])
    world.scheduler.turn()
    assert not {*chain} & {*world.scheduler.state.ahead.runs}
    world.check()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_command_that_changes_nothing_keeps_nobody_behind_a_long_run(world: World, is_killed: bool) -> None:
    """It is refused, or killed before its commit: the offers are gone, and who was to follow is taken back in time."""
    chain = assigned_ahead(world, "1-6")
    assert chain
    if is_killed:
        assert all(withdraw(world.home, one.run_id) for one in chain)
    else:
        with suppress(InterruptedError), world.store.transaction():
            raise InterruptedError
    world.sleep(1.0)
    world.turn()
    assert world.store.value("SELECT count(*) FROM runs_ahead") == 0
    assert os.listdir(world.home / FOLDER) == []
    jobs.stop(world.store, f"a_{chain[0].job_id}", grace_s=0)


@spec("10.objects")
def test_the_directory_of_a_job_that_is_about_to_start_is_nobody_elses(world: World) -> None:
    """Its process finds it, though the tables say that the job waits."""
    ahead = assigned_ahead(world, "1-9")
    assert world.scheduler is not None
    assert ahead
    world.scheduler.observer.processes_at = world.scheduler.carrier.objects._next = 0
    world.scheduler.turn()
    places = [objects.folder_path(world.home, run.job_id, run.attempt, run.node_id) for run in ahead]
    assert [place.is_dir() for place in places] == [True] * len(ahead)
    assert not {*objects._known_below(f"{world.home}/objects").spares} & {*map(str, places)}
