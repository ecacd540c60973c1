"""Rules: a state, what happened and the time give the changes that follow; nothing else is asked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.core.jobs import Preemption, RunningJob
from vctl.core.ledger import Ledger
from vctl.core.resources import Allocation
from vctl.core.tasks import PENDING_ARGS, Task
from vctl.engine import changes as ch
from vctl.engine.apply import apply
from vctl.engine.rules import preemption
from vctl.engine.rules.objects import KnownObjects, settle
from vctl.engine.state import SchedulerState
from vctl.scheduler.nominations import Nomination

pytestmark = spec("8.preemption", "10.objects")

NOW = 9


def state_with(*tasks: Task, runs: bool = True) -> SchedulerState:
    """A state with one job, which runs or is over, and tasks of it."""
    state = SchedulerState(Ledger(), {}, 0)
    if runs:
        state.running.put(RunningJob(1, "p", "p##j", "", "me", None, "j", attempt=1))
    for task in tasks:
        apply(state, ch.TaskSubmitted(NOW, task))
    return state


def task(number: int, *, inputs: str = "", outputs: str = "") -> Task:
    """A task of that job; objects are named by letters."""
    waits = {"state": PENDING_ARGS} if inputs else {}
    return Task(
        f"task-{number}",
        number,
        1,
        "p##j",
        "j",
        {},
        1.0,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        **waits,
    )


def follows(state: SchedulerState, names: str) -> list[ch.Change]:
    """The changes that follow for objects of these names, each applied when it comes."""
    found = []
    for change in settle(KnownObjects(state, 1), names, NOW):
        apply(state, change)
        found.append(change)
    return found


def test_a_task_is_ready_when_all_of_its_inputs_are_there() -> None:
    state = state_with(task(1, outputs="a"), task(2, inputs="ab"))
    waits = "waits for a from task-1 and b, which no task produces yet"
    assert follows(state, "a") == [ch.TaskAwaits("task-2", 1, "p##j", waits)]
    assert follows(state, "a") == []
    apply(state, ch.ObjectCreated(NOW, 1, "a", "n1", "p##j", 5, "task-1"))
    apply(state, ch.ObjectCreated(NOW, 1, "b", "n1", "p##j", 7))
    assert follows(state, "b") == [ch.TaskReady("task-2", 1, "p##j")]
    assert state.tasks.is_queued("task-2")


def test_a_task_fails_with_the_task_that_was_to_make_its_input_and_others_with_it() -> None:
    state = state_with(task(1, outputs="a"), task(2, inputs="a", outputs="b"), task(3, inputs="b"))
    apply(state, ch.TaskEnded(NOW, "task-1", 1, "p##j", "fail", "NonZeroExit", None, 1))
    failed = "input {} cannot be produced: {} FAILED ({})"
    assert follows(state, "a") == [
        ch.TaskEnded(
            NOW, "task-2", 1, "p##j", "cancel", "InputFailed", failed.format("a", "task-1", "NonZeroExit")
        ),
        ch.TaskEnded(
            NOW, "task-3", 1, "p##j", "cancel", "InputFailed", failed.format("b", "task-2", "InputFailed")
        ),
    ]
    assert state.tasks.unfinished == {}


def test_nobody_makes_an_object_once_the_job_is_over() -> None:
    (ended,) = follows(state_with(task(1, inputs="a"), runs=False), "a")
    assert isinstance(ended, ch.TaskEnded)
    assert ended.message == "no task produces input a, and the job has ended"


def test_a_copy_counts_for_the_nearest_node_of_tasks_that_wait_already() -> None:
    """A task that waits for a place knows of copies that came and went since."""
    state = state_with(task(1, inputs="a"))
    apply(state, ch.ObjectCreated(NOW, 1, "a", "n1", "p##j", 5))
    follows(state, "a")
    state.tasks.put_copy(1, "a", "n2", 5, None, "p##j")
    queue = state.tasks.queues["p##j"]
    assert queue.tasks["task-1"].inputs_at == {"n1": 5, "n2": 5}
    apply(state, ch.ObjectLost(1, "a", "n1", "p##j", silent=True))
    assert queue.tasks["task-1"].inputs_at == {"n2": 5}
    assert list(queue.sub_queues.values()) == [queue.tasks]


def test_a_job_is_spared_unless_another_nomination_awaits_it_or_it_was_told_to_end() -> None:
    state = state_with()
    piece = ("p/0", Allocation({"CPU": 1}))
    for job_id, awaited in ((7, {1, 2, 3}), (8, {2})):
        apply(
            state,
            preemption.nominated(Nomination(job_id, f"w{job_id}", 5, "p", (piece,), frozenset(awaited))),
        )
    for victim_id in (1, 2, 3):
        state.running.put(RunningJob(victim_id, "p", f"p##{victim_id}", "", "me", None, f"v{victim_id}"))
        begun = Preemption(victim_id, f"v{victim_id}", 1, 7, "w7", "requeue", True, 99)
        apply(state, ch.JobPreempting(begun, "p##j", "soon"))
    apply(state, ch.PreemptionMoved(3, "end"))
    found = []
    for change in preemption.give_up(state, 7, "it has started"):
        apply(state, change)
        found.append(change)
    assert found == [ch.NominationDropped(7), ch.JobSpared(1, "v1", "w7", "it has started")]
    assert (state.running.leaving, list(state.nominations)) == ({2, 3}, [8])
    assert list(preemption.over(state, 2)) == [
        ch.PreemptionOver(2),
        preemption.nominated(Nomination(8, "w8", 5, "p", (piece,))),
    ]


def test_a_job_that_was_told_to_stop_meanwhile_is_leaving_although_it_is_spared() -> None:
    state = state_with()
    apply(state, ch.JobPreempting(Preemption(1, "j", 1, 7, "w", "stop", False, 99), "p##j", "soon"))
    apply(state, ch.StopAsked(NOW, 1, "j", "StoppedByUser", None, None))
    apply(state, ch.JobSpared(1, "j", "w", "it is not waiting any more"))
    assert state.running.leaving == {1}


RULES = sorted((Path(__file__).parents[2] / "vctl/engine").glob("rules/*.py"))
DERIVED = [RULES[0].parents[1] / f"{name}.py" for name in ("effects", "turn")]
CHANGING = {
    "add", "append", "clear", "discard", "dequeue", "drop", "enqueue", "leave", "pop", "popitem", "put", "put_pending",
    "remove", "setdefault", "sort", "update", "charge", "discharge", "assign", "release", "resize", "rearrange",
}  # fmt: skip
TAKES = {
    "effects": ["state.changed.runs"],
    "turn": ["state.changed.nodes.clear"],
}
"""What was to be looked at is forgotten when it was."""


def root_of(node: ast.expr) -> str:
    """The name with which a chain of attributes, items and calls begins."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def changes_of_state(path: Path) -> list[str]:
    """Where a module changes the state of the scheduler itself."""
    found: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                each = [part for one in targets for part in getattr(one, "elts", [one])]
                found += [one for one in each if not isinstance(one, ast.Name)]
            case ast.AugAssign(target=ast.Attribute() | ast.Subscript() as target):
                found.append(target)
            case ast.Call(func=ast.Attribute(attr=name)) if name in CHANGING:
                found.append(node.func)
    named = [(root_of(one), ast.unparse(one)) for one in found]
    return [
        text.removeprefix("self.")
        for root, text in named
        if root in ("state", "ledger", "queue") or text.startswith("self.state.")
    ]


@pytest.mark.parametrize("path", [*RULES, *DERIVED], ids=lambda path: path.stem)
def test_a_rule_changes_nothing_itself(path: Path) -> None:
    """What it gives is applied by whoever asked: the same state and stimuli give the same changes again."""
    assert changes_of_state(path) == TAKES.get(path.stem, [])


BESIDE = {
    "state.changed": "what is to be looked at",
    "state.displaced": "runs ahead that found no place and may have started",
    "state.trial": "starts of a plan that is not committed: any change takes them back",
    "state.ledger.templates": "a setting",
    "state.lease_terms": "a setting",
    "state.machine_terms": "a setting",
    "state.assign": "gives numbers",
    "queue.emptied": "reasons to wait that are to be forgotten in the tables",
}
"""What the daemon changes beside ``apply``: what is to be looked at, and settings. No row is in it."""


def test_beside_apply_the_daemon_changes_only_what_is_to_be_looked_at() -> None:
    """``FollowedState`` loads the rest from the tables."""
    modules = [path for path in (RULES[0].parents[2] / "daemon").glob("*.py") if path.stem != "following"]
    found = {f"{path.stem}: {one}" for path in modules for one in changes_of_state(path)}
    assert len(modules) > 15
    assert sorted(one for one in found if not one.partition(": ")[2].startswith(tuple(BESIDE))) == []
