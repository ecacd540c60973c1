"""Changes: as text and back, written only from the phases of their lifecycle, applied twice like once."""

from __future__ import annotations

import ast
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.contents import JOURNAL
from tests.daemon.conftest import Life
from tests.specification import spec
from vctl.core.clusters import Cluster, ClusterSpec, FixedNode, Group, VNode
from vctl.core.fitting import fits
from vctl.core.jobs import PendingJob, Preemption, Run, RunningJob
from vctl.core.labels import Condition
from vctl.core.leases import Lease
from vctl.core.ledger import Ledger
from vctl.core.limits import Limit
from vctl.core.nodes import Fence, Node, NodeRequest
from vctl.core.queue_policy import QueuePolicy
from vctl.core.resources import Allocation
from vctl.core.tasks import Task
from vctl.core.values import replace
from vctl.daemon.following import FollowedState
from vctl.engine import changes as ch
from vctl.engine.changes.change import Change, PublicEvent, change
from vctl.engine.codec import decode, encode
from vctl.engine.lifecycle import GONE, JOB, LIFECYCLES, RUN, IllegalTransition
from vctl.engine.state import SchedulerState
from vctl.ops import submitting
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store import repair, write
from vctl.store.write.table import writes

pytestmark = spec("17.durable", "12.odd-rows")

VCTL = Path(__file__).parents[2] / "vctl"
HOLDING = Allocation({"CPU": 15000, "GPU": 10000}, {"GPU": {3: 10000}}, (0, 7))
NODE = FixedNode({"CPU": 1}, {"a": "b"}, (Condition("k", "In", ("v", "w")),))
SPEC = ClusterSpec({"CPU": 1}, {"CPU": 2}, (Group((NODE,), "SPREAD"),))
NODE_OF = Node("n", "4c", HOLDING, "host", {"zone": "a"}, "simulated", "ALIVE", "boot", shrunk=True)
RUN_OF = Run("1.1.0.aa", 1, 1, 0, "p##j", "p##j/0", "n", HOLDING)
LEASE = Lease(7, "c", "p", {"CPU": 5000}, 3, job_id=1)
REQUEST = NodeRequest("ab", "command", "up", "4c", {"CPU": 40000}, {"zone": "ü"}, ("n-1",), 5)
SAMPLES: list[ch.Change] = [
    ch.JobStarted(
        5, RunningJob(1, "p", "p##j", "r", "me", None, "j", outcome=("FAILED", None, 1, "x"), held={"CPU": 15000}),
        ("n",), (RUN_OF,), Cluster("p##j", "p", "job", SPEC, job="1"),
        (VNode("p##j/0", "p##j", "n", "n", "flexible", HOLDING, {"zone": "ü"}),),
    ),
    ch.JobPreempting(Preemption(1, "j", 2, 3, "w", "requeue", True, 9, told=True), "p##j", "2026-01-01"),
    ch.PreemptionMoved(1, "tell"),
    ch.JobSpared(1, "j", "w", "it has started"),
    ch.PreemptionOver(1),
    ch.JobPreempted(1, "j", "p", {"winner": None, "lost_s": 0.5}),
    ch.JobNominated(3, "w", 5, "p", (("p/0", HOLDING), ("p/1", HOLDING)), (1, 2), "preempts j"),
    ch.NominationDropped(3),
    ch.MachinesAsked(REQUEST),
    ch.MachinesFailed(replace(REQUEST, attempts=2, message="up: no answer")),
    ch.MachinesDone(REQUEST, ("n-1", "n-2")),
    ch.TaskSubmitted(6, Task("task-1", 1, 1, "p##j", "j", {"CPU": 1}, 0.5, (Condition("k", "In", ("v",)),), "SPREAD",
                             "p##j/0", ("a",), ("b",), 2, True, True, "name", "PENDING_ARGS_AVAIL")),
    ch.TaskAwaits("task-1", 1, "p##j", "waits for a"),
    ch.TaskReady("task-1", 1, "p##j"),
    ch.TaskBound("task-1", 1, "p##j/0", "n"),
    ch.TaskStarted(6, "task-1", RUN_OF, (ch.Copy("a", 7, "task-0"),)),
    ch.TaskRetried("task-1", 1, "p##j", "exited with code 1"),
    ch.TaskStopAsked(6, "task-1", 1, "p##j", 0.5, "OwnerEnded"),
    ch.TaskEnded(6, "task-1", 1, "p##j", "finish", None, None, 0),
    ch.ObjectCreated(6, 1, "a", "n", "p##j", 7, "task-1"),
    ch.ObjectLost(1, "a", "n", "p##j", silent=True),
    ch.ObjectsDropped(1, 2),
    ch.RowSetAside(9, "usage", ("c", "c##j", "me", "CPU"), "ValueError: ü"),
    ch.RunStripped("1.1.0.aa"),
    ch.ClusterRepaired("c"),
    ch.LimitSet(Limit("user", "ana", "gpu_hours", 15000, "day", "ü", 3), (("c", "ana", 7, 1 << 50),)),
    ch.LimitCleared(Limit("cluster", "c", "running_jobs", 3), "me"),
    ch.RunAssignedAhead("2.1.0.x", 2, "1.1.0.x", 7, 11),
    ch.RunTakenBack("2.1.0.x", 2),
    ch.RunSeen("1.1.0.aa", ch.StartedProcess(7, 8, "boot", 9)),
    ch.RunStopping("1.1.0.aa", "TimeLimit"),
    ch.RunWarned("1.1.0.aa", 99, 1, "j", "p##j", "USR1", 4.5),
    ch.RunEnded(9, "1.1.0.aa", None, "lost", ch.StartedProcess(7, 8, "boot", 9)),
    ch.JobEnding(1, ("SUCCEEDED", None, 0, None)),
    ch.ClusterRemoved("p##j##s", (1, 2), (3,), "p##j"),
    ch.ClusterAdded(4, Cluster("c", "p", "logical", SPEC, revision=3, borrow_limit={"CPU": 1}), "me"),
    ch.ClusterChanged(5, Cluster("c", "p", "logical", SPEC, False, 4, queue=QueuePolicy("fair", weight=2))),
    ch.ClusterMoved(6, "c", "stop", "STOPPED", {"by": "me", "message": "ü"}),
    ch.QueueChanged("c", QueuePolicy("fair", ageing_ns=7)),
    ch.ClusterDetached("p##j"),
    ch.AccessChanged("lab", {"admins": ["@profs"]}),
    ch.VNodesChanged(("c/1",), (VNode("c/0", "c", "n", "n", "fixed", HOLDING, whole=True),), node_id="n"),
    ch.NodeReplaced("c", "n", None),
    ch.NodesPublished("p##j", ("n", "m"), 1),
    ch.LeaseGranted(LEASE),
    ch.LeaseCalled(replace(LEASE, state="CALLED", expires_at=9)),
    ch.LeaseSpared(LEASE),
    ch.LeaseReturned(replace(LEASE, amounts={})),
    ch.JobEnded(9, 1, "j", "a", "p##j", "end", "SUCCEEDED", None, None, 0, ch.ClusterRemoved("p##j", silent=True)),
    ch.NodeAdded(9, NODE_OF, 3.5, '{"GPU":[]}'),
    ch.NodeMoved(9, "n", "drain", "DRAINING", "fan", "me"),
    ch.NodeChanged(NODE_OF, settled=True),
    ch.DeviceFenced(9, NODE_OF, "GPU", 1, Fence("GPU", 1, "foreign", (42,), "ana", 1 << 30, 9)),
    ch.DeviceFenced(9, NODE_OF, "GPU", 1),
    ch.NodeRemoved("n"),
    ch.StopAsked(9, 1, "j", "StoppedByUser", 0.5, "words"),
    ch.NoticeSent(3, "j", 1, "end", "exit code 1"),
    ch.JobsStopped(9, "a", 1, 9, ((1, 4), (6, 6)), ("a_3",), "StoppedByUser", "words"),
    ch.JobSubmitted(
        PendingJob(2, "k", "p", "s", SPEC, {"CPU": 1}, waits_for=1),
        ch.SubmitDetails("n", '{"a":"\\udc80"}', 1.5, "{}", 1), (("ok", "j"),), ch.Launch("env SECRET=1"),
    ),
    ch.ArraySubmitted(
        PendingJob(3, "a", "p", "s", SPEC, {"CPU": 1}, 7, begin_at_ns=5, user="me"),
        ch.SubmitDetails(None, "{}", None, "{}", None), ((0, 10, 3), (20, 21, 1)), "0-9:3,20%2", 2, 3,
    ),
    ch.JobsRerun(
        ch.Members("a", 3, 6, is_array=True),
        PendingJob(3, "a_0", "p", "s", SPEC, {"CPU": 1}, 7, array_id="a", closed=True, user="me"),
        ch.SubmitDetails(None, "{}", 1.5, "{}", None), ((3, "a_0", 2, 1, 1), (5, "a_6", 0, 4, 3)), 2, (("any", "j"),),
        ch.Launch("env SECRET=1"),
    ),
    ch.JobForgotten(2, "k"),
    ch.ArrayForgotten("a", 3, 6, ((3, 4), (6, 6))),
    ch.JobsPruned(((1, 4), (6, 6))),
    ch.ArraysEmptied(("a",)),
    ch.JobsHeld(ch.Members("a", 1, 9, is_array=True), ((1, 4), (6, 6)), True, closed=True),
    ch.JobsEdited(
        ch.Members("j", 1, 1, "p"), ((1, 1),), PendingJob(1, "j", "p", "s", SPEC, {"CPU": 1}, 2), ("priority",),
        {"name": None, "time_limit_s": 1.5}, {"priority": 2}, (("ok", "k"),), ch.Launch("env SECRET=1"),
    ),
    ch.ArrayLimited("a", 1, 9, 2, "1-9%2", ((3, 9),), ()),
    ch.MembersAdmitted("a", ((5, 5),)),
    ch.MembersUnfolded("a", 5, 9, ((6, 7), (9, 9))),
    ch.BeginTimesPassed(((1, 2),)),
    ch.DependencyMet(2, "k", "p", "ok", "j", 0),
    ch.JobRequeued(PendingJob(1, "j", "p", "s", SPEC, {"CPU": 1}), "Backoff", "m", {"cause": "ExitCode"}, 9),
]  # fmt: skip


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    there = Life(tmp_path / "state")
    yield there
    there.close()


def test_every_change_has_a_sample() -> None:
    assert {type(one) for one in SAMPLES} == set(ch.CHANGES.values())


def test_every_change_is_applied_and_written() -> None:
    """A change that lacks one of both would be refused when it is first made."""
    for kind in ch.CHANGES.values():
        assert write.writer_of(kind) is write.WRITERS[kind]
    own = {kind for kind in ch.CHANGES.values() if {"apply", "public_event"} <= vars(kind).keys()}
    assert own == set(ch.CHANGES.values())


def test_no_change_has_two_writers() -> None:
    """The second one would take the place of the first, which nobody would call any more."""
    with pytest.raises(ValueError, match="declared twice: JobsHeld"):
        writes(ch.JobsHeld)


@pytest.mark.parametrize("change", SAMPLES, ids=lambda one: type(one).__name__)
def test_a_change_is_the_same_after_the_journal(change: ch.Change) -> None:
    text = encode(change)
    assert decode(text) == change
    assert json.loads(text)["type"] == type(change).__name__


@pytest.mark.parametrize(
    "odd",
    [
        '"\\ \x00\x1f\x7f é 😀',
        "\udcff",
        "",
        True,
        1 << 80,
        -1,
        0.1,
        float("inf"),
        {"ä": ['"']},
        [None, ("x",)],
    ],
    ids=ascii,
)
def test_whatever_a_field_has_is_written_as_json_has_it(odd: Any) -> None:
    """A row that was changed by hand may give a value content that its field does not declare."""
    sample = ch.JobEnded(5, 1, "j", None, "p##j", "end", "FAILED", odd, odd, 1)
    plain = json.loads(json.dumps(odd))
    written = json.loads(encode(sample))
    assert (written["reason"], written["message"]) == (plain, plain)
    assert encode(sample).isascii()


@pytest.mark.parametrize("change", SAMPLES, ids=lambda one: type(one).__name__)
def test_a_change_has_the_types_that_it_declares(change: ch.Change) -> None:
    """Rows are compared with their types in the same way: what fits is never set aside."""
    assert fits(change, type(change))


WRONG = {
    "an amount": replace(NODE_OF, total=replace(HOLDING, amounts={"CPU": "x"})),
    "amounts": replace(NODE_OF, total=replace(HOLDING, amounts=[])),
    "a name": replace(NODE_OF, hostname=None),
    "a part of a tuple": replace(NODE_OF, total=replace(HOLDING, cores=(0, "1"))),
    "no moment": replace(RUN_OF, started_at="x"),
    "an endless number": Task("t", 1, 1, "c", "j", {}, float("inf")),
}


@pytest.mark.parametrize("value", WRONG.values(), ids=list(WRONG))
def test_a_value_with_another_type_in_it_does_not_fit(value: object) -> None:
    assert not fits(value, type(value))


def test_what_is_launched_stays_outside_of_the_journal(life: Life) -> None:
    """Spec 17: command, environment and directory may hold secrets."""
    life.nodes(1, "4c")
    request = {"argv": ("echo", "hidden-word"), "env": {"KEY": "hidden-word"}, "cwd": "/hidden-word"}
    for array in (None, parse_array("0-3")):
        submitting.submit(life.store, JobRequest(array=array, **request), environment={"PATH": "hidden-word"})  # type: ignore[arg-type]
    told = [" ".join(map(str, row)) for row in life.store.rows(f"SELECT * FROM {JOURNAL}")]
    assert [text for text in told if "Submitted" in text]
    assert not [text for text in told if "hidden-word" in text]
    assert "SECRET" not in repr(SAMPLES)


def test_a_move_that_the_lifecycle_does_not_have_tells_the_story(life: Life) -> None:
    life.nodes(1, "4c")
    life.submit("j", argv=("true",))
    with pytest.raises(IllegalTransition) as refused, life.store.transaction():
        life.store.emit(ch.JobEnded(1, 1, "j", None, None, "end", "SUCCEEDED", None, None, 0))
    assert life.job("j")["status"] == "PENDING"
    assert refused.value.lifecycle is JOB
    assert "job 1 is PENDING" in refused.value.problem
    assert "job.submitted" in refused.value.problem


def test_of_many_that_move_together_the_one_that_cannot_is_named(life: Life) -> None:
    """Equal changes are one statement; none of them is made where one is impossible."""
    life.nodes(1, "4c")
    for number in range(1, 13):
        life.submit(f"j{number}", argv=("true",))
    over = [
        ch.JobEnded(
            1, number, f"j{number}", None, None, "end" if number == 9 else "stop", "STOPPED", None, None, 143
        )
        for number in range(1, 13)
    ]

    def emit(changes: list[ch.JobEnded]) -> None:
        with life.store.transaction():
            for one in changes:
                life.store.emit(one)

    with pytest.raises(IllegalTransition, match="job 9 is PENDING"):
        emit(over)
    possible = [*over[:8], *over[9:]]
    with pytest.raises(IllegalTransition, match="job 3 is STOPPED"):
        emit([*possible, over[2]])
    assert {life.job(f"j{number}")["status"] for number in range(1, 13)} == {"PENDING"}
    emit(possible)
    assert [number for number in range(1, 13) if life.job(f"j{number}")["status"] != "STOPPED"] == [9]


@pytest.mark.not_fast("starts a scheduler with its fork server")
def test_an_object_that_cannot_move_is_set_aside_and_the_others_go_on(life: Life) -> None:
    life.nodes(1, "4c", cpus=4)
    life.submit("odd", argv=("true",), entry={"CPU": 10000})
    life.submit("even", argv=("true",), entry={"CPU": 10000})
    life.start()
    with life.store.transaction():  # by hand, and nobody is told: the scheduler decides on the row of before
        life.store.db.execute("UPDATE jobs SET status = 'RUNNING' WHERE submission_id = 'odd'")
    assert life.scheduler is not None
    life.until(lambda: life.job("even")["status"] == "SUCCEEDED")
    (aside,) = repair.set_aside_rows(life.store)
    assert (aside["source"], aside["row_key"]) == ("jobs", "1")
    assert "the move 'start' is impossible" in aside["problem"]


def test_every_move_leads_from_and_to_phases_that_have_a_way_in() -> None:
    for one in LIFECYCLES:
        reached = {*one.begins, *(phase for _, targets in one.moves.values() for phase in targets)}
        assert {phase for sources, _ in one.moves.values() for phase in sources} <= reached, one.name
    assert "end" in RUN.moves_from("ASSIGNED")
    assert "end" not in RUN.moves_from(GONE)


def test_no_rule_changes_the_tree_or_the_leases_beside_apply() -> None:
    """``engine.apply`` alone does; the search takes back what it tries."""
    moves = {
        name for name in vars(Ledger) if name.startswith(("put_", "remove_", "assign", "resize", "release"))
    }
    moves |= {"charge", "discharge", "rearrange", "set_primary_queue"}
    found = []
    for path in sorted([*(VCTL / "daemon").glob("*.py"), *(VCTL / "engine" / "rules").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="ledger"), attr=name)) if (
                    name in moves
                ):
                    found.append(f"{path.name}:{node.lineno} ledger.{name}")
                case ast.Subscript(value=ast.Attribute(attr="leases"), ctx=ast.Store() | ast.Del()):
                    found.append(f"{path.name}:{node.lineno} leases[]")
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="leases"), attr="pop" | "update")):
                    found.append(f"{path.name}:{node.lineno} leases")
    assert moves >= {"assign", "release", "remove_cluster", "put_node"}
    assert found == []


@change
class NodeRacked(Change):
    """A change that vctl does not have."""

    node_id: str
    rack: str

    def public_event(self) -> PublicEvent:
        return PublicEvent("node.racked", "node", self.node_id, None, None, {"rack": self.rack})

    def apply(self, state: SchedulerState) -> None:
        node = state.ledger.nodes[self.node_id]
        state.ledger.put_node(replace(node, labels={**node.labels, "rack": self.rack}))


def write_racks(db: sqlite3.Connection, racked: Sequence[NodeRacked]) -> None:
    rows = [(one.rack, one.node_id) for one in racked]
    db.executemany("UPDATE nodes SET labels = json_set(labels, '$.rack', ?) WHERE node_id = ?", rows)


@pytest.mark.not_fast("starts a scheduler with its fork server")
def test_a_new_change_is_a_dataclass_and_a_function_that_writes_it(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/checklists.md: who makes it emits it; journal, public event and whoever follows come of that."""
    new: Any = NodeRacked
    tables: list[tuple[Any, object, object]] = [
        (ch.CHANGES, "NodeRacked", new),
        (write.WRITERS, new, write_racks),
    ]
    for table, key, case in tables:
        monkeypatch.setitem(table, key, case)
    made = life.nodes(2, "4c")
    life.turn()
    with life.store.transaction():
        for number, node_id in enumerate(made):
            life.store.emit(new(node_id, f"r{number}"))
    life.turn()
    assert life.scheduler is not None and life.scheduler.state is not None
    for state in (life.scheduler.state, FollowedState.load(life.store)):
        assert [state.ledger.nodes[node_id].labels["rack"] for node_id in made] == ["r0", "r1"]
    assert life.events("node.racked") == made
    change_of = life.store.value(f"SELECT change FROM {JOURNAL} WHERE kind = 'node.racked'")
    assert decode(change_of) == new(made[0], "r0")
