"""spec 10: many tasks at once are the tasks of one start after the other, and all or none of them are queued."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.specification import spec
from tests.world import World
from vctl.core.clusters import ClusterSpec
from vctl.core.resources import CPU, SCALE
from vctl.errors import Conflict, VctlError
from vctl.ops import nodes, submitting, tasks
from vctl.ops.prove import prove
from vctl.spec.job_request import JobRequest
from vctl.spec.task_request import TaskRequest

pytestmark = spec("10.life", "10.objects", "13.batch")

TABLES = ("tasks", "commands", "environments", "task_inputs", "promises", "objects")
AROUND = {"PATH": "/bin", "VCTL_SUBMISSION_ID": "j", "VCTL_RUN_ID": "not handed on"}


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[tuple[World, World]]:
    """Two equal states: two running jobs, one that waits, and one whose id is like that of a task."""
    with World(tmp_path / "one") as one, World(tmp_path / "other") as other:
        for world in (one, other):
            nodes.add(world.store, resources={CPU: 8 * SCALE}, count=2, template="t", node_id="n")
            for name, cpus in (("j", 2), ("k", 2), ("task-3", 4), ("waits", 99)):
                wanted = ClusterSpec(flexible_min={CPU: min(cpus, 16) * SCALE})
                request = JobRequest(
                    argv=("x",), submission_id=name, spec=wanted, cwd="/", hold=name == "waits"
                )
                submitting.queue(world.store, request, {"PATH": "/bin"})
            world.turn()
        yield one, other


def requests(dice: random.Random, count: int) -> list[TaskRequest]:
    """Tasks of both jobs: with objects of earlier and of later ones, of nobody, and on nodes."""
    found = []
    for number in range(count):
        fields: dict[str, Any] = {"job": dice.choice((None, "j", "k"))}
        if dice.random() < 0.4:
            fields["outputs"] = (f"made-{number}",)
        if dice.random() < 0.4:
            fields["inputs"] = (f"made-{dice.choice([n for n in range(count) if n != number] or [99])}",)
        if dice.random() < 0.3:
            fields |= {"env": {"N": str(number)}, "max_retries": 2, "name": f"n{number}"}
        if dice.random() < 0.3:
            fields["strategy"] = dice.choice(("SPREAD", "NODE:nowhere:soft"))
        found.append(TaskRequest(argv=("true",), cwd="/", detach=dice.random() < 0.2, **fields))
    return found


def content(world: World) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of tasks without the times, which differ."""
    times = {"created_at", "ended_at"}
    found = {}
    for table in TABLES:
        shown = list(world.store.column("SELECT name FROM pragma_table_info(?)", table))
        listed = ", ".join(name for name in shown if name not in times)
        found[table] = sorted(map(tuple, world.store.rows(f"SELECT {listed} FROM {table}")), key=str)
    return found


@pytest.mark.parametrize("seed", range(25))
def test_a_batch_leaves_the_rows_of_single_starts(worlds: tuple[World, World], seed: int) -> None:
    dice = random.Random(seed)
    one, other = worlds
    asked = requests(dice, dice.randint(1, 30))
    ids = tasks.run_many(one.store, [(request, AROUND) for request in asked])
    assert ids == [tasks.run(other.store, request, environment=AROUND)["task_id"] for request in asked]
    assert "task-3" not in ids
    assert content(one) == content(other), seed
    assert "/bin" in str(content(one))
    assert "not handed on" not in str(content(one))
    for world in worlds:
        world.turn()
    assert content(one) == content(other), seed
    assert prove(one.store) == []


def test_all_or_none(worlds: tuple[World, World]) -> None:
    """One bad line anywhere changes nothing, and the error names it."""
    one, _ = worlds
    asked = [TaskRequest(argv=("true",), job="j", cwd="/", outputs=(f"o{n}",)) for n in range(4)]
    before = content(one), one.store.rows("SELECT * FROM events")
    for bad, problem in (
        (TaskRequest(argv=("true",), job="nobody", cwd="/"), "there is no job"),
        (TaskRequest(argv=("true",), job="waits", cwd="/"), "takes no tasks"),
        (TaskRequest(argv=("true",), job="j", cwd="/", strategy="NODE:nowhere"), "no node nowhere"),
    ):
        for position in range(len(asked) + 1):
            lines = [*asked[:position], bad, *asked[position:]]
            with pytest.raises(VctlError, match=f"^line {position + 1}: .*{problem}") as refused:
                tasks.run_many(one.store, [(request, {}) for request in lines])
            assert refused.value.details["line"] == position + 1
            assert (content(one), one.store.rows("SELECT * FROM events")) == before


def test_two_lines_cannot_make_the_same_object(worlds: tuple[World, World]) -> None:
    one, _ = worlds
    twice = TaskRequest(argv=("true",), job="j", cwd="/", outputs=("same",))
    with pytest.raises(Conflict, match=r"^line 2: task-1 produces same already"):
        tasks.run_many(one.store, [(twice, {}), (twice, {})])
    of_others = TaskRequest(argv=("true",), job="k", cwd="/", outputs=("same",))
    assert tasks.run_many(one.store, [(twice, {}), (of_others, {})]) == ["task-1", "task-2"]


def test_tasks_without_objects_are_written_at_once(worlds: tuple[World, World]) -> None:
    """The number of statements does not grow with the tasks."""
    one, _ = worlds
    task = TaskRequest(argv=("true",), job="j", cwd="/")

    def statements(count: int) -> int:
        seen: list[str] = []
        one.store.db.set_trace_callback(seen.append)
        tasks.run_many(one.store, [(task, AROUND)] * count)
        one.store.db.set_trace_callback(None)
        return sum(not word.startswith("INSERT") for word in seen)

    statements(3)  # one of these would have the id of a job
    assert statements(5) == statements(200)
