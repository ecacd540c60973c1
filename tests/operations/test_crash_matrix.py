"""Every verb is killed at every write and commit: the state is as before or as after, never between (spec 12, 17).

The matrix is the table of operations times the points that a verb passes (``tests/boundaries.py``). A new verb is in
it by its declaration: parameters that it shares with others are filled from ``KNOWN``, others need a line in ``CASES``.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.boundaries import ended_at, watched
from tests.operations.test_declared import DECLARED
from tests.specification import spec
from tests.world import World, amounts
from vctl import ops
from vctl.config import load
from vctl.core.identity import Identity
from vctl.errors import NotFound
from vctl.operations import clusters, jobs, limits, nodes, tasks, tokens
from vctl.operations.declare import Context, Operation
from vctl.ops.prove import prove
from vctl.runtime import objects
from vctl.store.store import Store

pytestmark = spec("12.daemon-death", "12.doctor", "17.durable")

NOW = 2_000_000_000_000
"""The time at which the verbs are carried out; the world stood still before."""
CHANGING = [verb for verb in DECLARED if verb.method != "GET"]
READING = [verb for verb in DECLARED if verb.method == "GET"]
KNOWN: dict[str, Any] = {
    "ref": "waits", "node_id": "n-03", "cluster_id": "shared", "entrypoint": ["true"], "kind": "jobs", "name": "file",
    "vnode_id": "n-00",
}  # fmt: skip
"""Values of required parameters, by their names."""
TREE = [
    {"id": "lab", "divisible": True, "replica_sets": {"4c8g": 1}},
    {"id": "new", "replica_sets": {"4c8g": 1}},
]
GANG = {
    "fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}] * 2, "scheduling_policy": "STRICT_SPREAD"}]
}
INSIDE = {"VCTL_SUBMISSION_ID": "runs", "VCTL_NODE_ID": "n-00", "VCTL_CLUSTER_ID": "kPrimaryClusterID##runs"}
SUBMIT = {"entrypoint": ["true"], "submission_id": "fresh", "cwd": "/", "environment": {"PATH": "/bin"}}
CASES: Mapping[str, list[dict[str, Any]]] = {
    "job submit": [
        SUBMIT, {**SUBMIT, "virtual_cluster": GANG}, {**SUBMIT, "array": "0-9%2"}, {**SUBMIT, "cluster": "shared"},
        {**SUBMIT, "after": ["ok:waits"], "hold": True, "max_retries": 3, "env": {"A": "b"}},
        {**SUBMIT, "after": ["ok:failed"]},
    ],
    "job submit-many": [{"jobs": [
        {"entrypoint": ["true"], "submission_id": "first", "cwd": "/", "after": ["ok:waits"]},
        {"entrypoint": ["true"], "submission_id": "second", "cwd": "/", "array": "0-3%2", "after": ["any:first"]},
        {"entrypoint": ["true"], "submission_id": "third", "cwd": "/", "after": ["ok:failed"], "num_cpus": 2},
    ], "environment": {"PATH": "/bin"}}],
    "job dry-run": [{**SUBMIT, "submission_id": None}],
    "job delete": [{"ref": "ended"}, {"ref": "over"}],
    "job delete-all": [{"jobs": ["ended", "failed"]}],
    "job stop": [{"ref": "waits"}, {"ref": "runs"}, {"ref": "some"}, {"ref": "runs", "grace_s": 0}],
    "job rerun": [
        {"ref": "ended"}, {"ref": "over"}, {"ref": "failed", "failed": True, "priority": 4, "env": {"A": "b"}},
        {"ref": "failed", "failed": True, "after": ["ok:waits"], "cluster": "shared", "time_limit_s": 9},
    ],
    "job hold": [{"ref": "waits"}],
    "job release": [{"ref": "held"}, {"ref": "some"}],
    "job edit": [
        {"ref": "waits", "priority": 7, "name": "x", "time_limit_s": 9}, {"ref": "some", "priority": 2},
        {"ref": "waits", "cluster": "shared", "env": {"A": "b"}, "after": ["ok:held"], "nodes": None, "num_cpus": None},
        {"ref": "some", "max_running": 3, "num_cpus": 1, "notify": "./tell"}, {"ref": "runs", "time_limit_s": 60},
    ],
    "vc create": [
        {"cluster_id": "made"}, {"cluster_id": "made", "replica_sets": {"4c8g": 1}, "divisible": True},
        {"cluster_id": "made", "parent": "lab", "spec": {"flexible_resource_min": {"CPU": 1}}},
    ],
    "vc update": [
        {"cluster_id": "shared", "replica_sets": {}}, {"cluster_id": "lab", "queue": {"order": "fifo"}},
        {"cluster_id": "slices", "spec": {"flexible_resource_min": {"CPU": 2}}},
    ],
    "vc delete": [{"cluster_id": "shared"}, {"cluster_id": "lab", "drain": True}, {"cluster_id": "lab", "force": True}],
    "reserve": [
        {"num_cpus": 1, "length_s": 60}, {"num_cpus": 1, "length_s": 60, "at": 4e9, "name": "made", "cluster": "lab"},
    ],
    "vc remove-nodes": [{"cluster_id": "shared", "node_ids": ["n-01"]}],
    "vc resume": [{"cluster_id": "stopped"}],
    "vc plan": [{"clusters": TREE}],
    "vc apply": [{"clusters": TREE}, {"clusters": TREE[1:], "prune": False}],
    "limit set": [{"user": "*", "running_jobs": 2, "cpus": "4"}, {"cluster": "lab", "gpus": None, "memory": "8GiB"},
        {"user": "*", "gpu_hours": 24, "per": "day"},
    ],
    "limit clear": [{"every": True}],
    "node add": [{"resources": {"CPU": 2}, "node_id": "m", "count": 3}],
    "node update": [{"node_id": "n-03", "resources": {"CPU": 6}, "labels": {"zone": "a"}}],
    "node remove": [{"node_id": "n-08"}],
    "node drain": [{"node_id": "n-03", "reason": "disk"}, {"node_id": "n-00"}],
    "node undrain": [{"node_id": "n-04"}],
    "node kill": [{"node_id": "n-00"}, {"node_id": "n-01", "reason": "smoke"}],
    "node heartbeat": [{"node_id": "n-03", "timeout_s": 60}],
    "node ignore": [{"node_id": "n-03", "pid": os.getpid()}],
    "task run": [{"entrypoint": ["true"], "job": "runs", "environment": INSIDE, "cwd": "/", "outputs": ["later"]}],
    "task run-many": [{"tasks": [
        {"entrypoint": ["true"], "job": "runs", "outputs": ["first"]}, {"entrypoint": ["true"], "job": "runs"},
        {"entrypoint": ["true"], "job": "runs", "inputs": ["first"], "env": {"A": "b"}},
        {"entrypoint": ["true"], "job": "runs", "inputs": ["never"]},
    ], "environment": INSIDE, "cwd": "/"}],
    "task cancel": [{"ref": "last"}],
    "task put": [{"name": "file", "inside": INSIDE}],
    "prune": [{"older_than_s": 0}],
    "token revoke": [{"tokens": ["1"]}],
    "simulate": [{"model": {"jobs": 5}}],
}  # fmt: skip
"""The calls of each verb; what a verb does not find here it gets from ``KNOWN``."""
SILENT = {"job dry-run", "vc plan", "simulate", "repair", "replay"}
"""What changes nothing in a state that is sound."""
ANA = Identity(20001, "ana")


def calls(verb: Operation[..., Any]) -> list[dict[str, Any]]:
    found = CASES.get(verb.name)
    if found is not None:
        return found
    required = [param.name for param in verb.params if param.required]
    missing = [name for name in required if name not in KNOWN]
    assert not missing, f"{verb.name} asks for {missing}: add a call of it to CASES"
    return [{name: KNOWN[name] for name in required}]


CELLS = [(verb, call) for verb in CHANGING for call in calls(verb)]


IDS = [f"{verb.name.replace(' ', '-')}-{calls(verb).index(call)}" for verb, call in CELLS]


@dataclass(frozen=True)
class Base:
    """A state directory to begin with."""

    home: Path

    def copy(self, name: str) -> Path:
        target = self.home.with_name(name)
        shutil.rmtree(target, ignore_errors=True)
        return Path(shutil.copytree(self.home, target))


def carry_out(home: Path, verb: Operation[..., Any], call: Mapping[str, Any]) -> None:
    """As a command does it: open, carry out, close. Time and chance stand still, so that two times give one state."""
    config = load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"})
    with Store.open(home) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", bytes)
        store.clock = lambda: NOW
        if verb.right == "sign":  # only users of a shared service have tokens
            store.identity = ANA
        store.db.execute("PRAGMA synchronous = OFF")  # no machine dies here, only processes
        verb.run(Context(store, config), **call)


def picture(home: Path) -> str:
    """All rows of all tables, as one word; the mark that contents were deleted is a random number."""
    with closing(sqlite3.connect(home / "cluster.db")) as db:
        columns: dict[str, list[str]] = {}
        for table, column in db.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' ORDER BY 1"
        ):
            if (table, column) != ("head", "contents") and table != "_sqlite_migrations":
                columns.setdefault(table, []).append(f'"{column}"')
        rows = [
            (table, db.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1, 2").fetchall())
            for table, names in columns.items()
        ]
    return hashlib.sha1(repr(rows).encode()).hexdigest()


def remains(home: Path) -> set[str]:
    """The files that belong to the state."""
    beside = {"cluster.db", "cluster.db-wal", "cluster.db-shm", "changes", "scheduler.beat", "scheduler.lock"}
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()} - beside


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """Nodes, clusters and jobs in every state that a verb can be asked about."""
    home = tmp_path_factory.mktemp("matrix") / "base"
    with World(home) as world:
        store = world.store
        context = Context(store, load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"}))

        def do(verb: Operation[..., Any], **call: Any) -> Any:
            return verb.run(context, **call)

        ops.nodes.add(store, resources=amounts(4), count=9, template="4c8g", node_id="n")
        do(nodes.drain, node_id="n-04")
        do(clusters.create, cluster_id="lab", divisible=True, replica_sets={"4c8g": 1})
        do(clusters.create, cluster_id="shared", replica_sets={"4c8g": 1})
        do(clusters.create, cluster_id="slices", spec={"flexible_resource_min": {"CPU": 1}}, parent="primary")
        do(clusters.create, cluster_id="stopped")
        do(limits.set_limits, cluster="lab", gpus=4)
        store.identity = ANA
        do(tokens.login)
        store.identity = None
        do(clusters.stop, cluster_id="stopped")
        for name in ("ended", "failed", "runs", "late"):
            do(jobs.submit, **{**SUBMIT, "submission_id": name})
        do(jobs.submit, **{**SUBMIT, "submission_id": "over", "array": "0-2"})
        do(jobs.submit, **{**SUBMIT, "submission_id": "inner", "cluster": "lab"})
        world.turn()
        for run_id in world.processes.running():
            row = store.row(
                "SELECT submission_id FROM runs JOIN jobs USING (job_id) WHERE run_id = ?", run_id
            )
            assert row is not None
            if row[0] not in ("runs", "late", "inner"):
                world.processes.end(run_id, int(row[0] == "failed"))
        world.turn()
        do(jobs.submit, **{**SUBMIT, "submission_id": "waits", "num_cpus": 4, "nodes": 5})
        do(jobs.submit, **{**SUBMIT, "submission_id": "held", "hold": True})
        do(
            jobs.submit,
            **{
                **SUBMIT,
                "submission_id": "some",
                "array": "0-4%1",
                "num_cpus": 4,
                "priority": -1,
                "hold": True,
            },
        )
        do(tasks.run, entrypoint=["true"], job="runs", environment=INSIDE, cwd="/", outputs=("made",))
        do(tasks.run, entrypoint=["true"], job="runs", environment=INSIDE, cwd="/", inputs=("made",))
        world.turn()
        for name in ("ended", "failed", "runs"):
            log = ops.logs.log_of(home, name)
            log.parent.mkdir(exist_ok=True)
            log.write_text("x\n")
        number = store.value("SELECT job_id FROM jobs WHERE submission_id = 'runs'")
        folder = objects.folder_path(home, number, 1, "n-00")
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")
    with closing(sqlite3.connect(home / "cluster.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Base(home)


def killed(home: Path, verb: Operation[..., Any], call: Mapping[str, Any], at: int) -> None:
    """Carry a verb out in a process of its own that is killed at a point of this number."""
    child = os.fork()
    if child == 0:
        try:
            with watched(ended_at(at)):
                carry_out(home, verb, call)
        except BaseException:  # noqa: BLE001 - the child must not go on with the tests
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (verb.name, call, at, status)


def points(home: Path, verb: Operation[..., Any], call: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The points that a verb passes when nobody kills it, and the state after each of its commits."""
    passed: list[str] = []
    states = [picture(home)]

    def note(name: str) -> None:
        passed.append(name)
        if name.startswith("after COMMIT"):
            states.append(picture(home))

    with watched(note):
        carry_out(home, verb, call)
    return passed, states


def check(home: Path) -> None:
    """What a scheduler or a person finds after the kill."""
    with Store.open(home) as store:
        assert prove(store) == []
        assert ops.replay.replay(store, dry_run=True)["changes"] == 0
        assert store.value("PRAGMA integrity_check") == "ok"


def cells(base: Base, verb: Operation[..., Any], call: Mapping[str, Any], chosen: int | None) -> list[str]:
    passed, states = points(base.copy("whole"), verb, call)
    assert (len(set(states)) > 1) == (verb.name not in SILENT), passed
    numbers = range(len(passed))
    if chosen is not None and len(passed) > chosen:  # the two around each commit, and some of the others
        commits = [n for n in numbers if " COMMIT" in passed[n]][:chosen]
        others = [n for n in numbers if n not in commits]
        numbers = sorted(commits + random.Random(verb.name).sample(others, max(0, chosen - len(commits))))  # type: ignore[assignment]
    for number in numbers:
        home = base.copy("killed")
        killed(home, verb, call, number)
        commits = sum(name.startswith("after COMMIT") for name in passed[: number + 1])
        where = f"{verb.name} {call}: killed {passed[number]} ({number} of {len(passed)})"
        assert picture(home) == states[commits], where
        check(home)
    return [passed[n] for n in numbers]


@pytest.mark.parametrize(("verb", "call"), CELLS, ids=IDS)
def test_a_verb_that_is_killed_has_happened_or_not(
    base: Base, verb: Operation[..., Any], call: dict[str, Any]
) -> None:
    cells(base, verb, call, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "call"), CELLS, ids=IDS)
def test_at_every_point(base: Base, verb: Operation[..., Any], call: dict[str, Any]) -> None:
    sys.stdout.write(f"{len(cells(base, verb, call, None))} cells: {verb.name}\n")


def test_what_only_reads_writes_nothing(base: Base) -> None:
    """No lock, no row, no file: reading works on a directory that nobody may write (spec 11, 17)."""
    home = base.copy("read")
    before, files = picture(home), remains(home)
    more = {
        "vnode": {"vnode_id": "kPrimaryClusterID##runs/0"},
        "object get": {"ref": "file"},
        "job get": {"ref": "runs"},
    }
    for verb in READING:
        given = more.get(verb.name) or {p.name: KNOWN[p.name] for p in verb.params if p.required}
        if "task" in verb.path:
            given = dict.fromkeys(given, "last")
        passed: list[str] = []
        with watched(passed.append):
            with suppress(NotFound) if verb.name == "object get" else nullcontext():
                carry_out(home, verb, given)
        assert [name for name in passed if "mkdir" not in name] == [], (
            verb.name
        )  # doctor tries control groups
    assert (picture(home), remains(home)) == (before, files)
