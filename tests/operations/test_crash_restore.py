"""A restore and a migration are killed at every write and file operation: the state is the old one or the new one."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.boundaries import ended_at, watched
from tests.specification import spec
from tests.world import World, amounts
from vctl import ops
from vctl.config import load
from vctl.operations import jobs
from vctl.operations.declare import Context
from vctl.ops.backup import restore
from vctl.ops.prove import prove
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store import copies, database
from vctl.store.schema import VERSION
from vctl.store.store import Store

pytestmark = spec("17.migration", "17.durable", "12.daemon-death")

MORE = [
    (f"{VERSION + 1:04}_more", "CREATE TABLE more (a); INSERT INTO more VALUES (1); ALTER TABLE nodes ADD b;")
]


def killed(do: Callable[[], object], at: int) -> None:
    """Do it in a process that is killed at the point of this number."""
    child = os.fork()
    if child == 0:
        try:
            with watched(ended_at(at)):
                do()
        except BaseException:  # noqa: BLE001 - the child must not go on with the tests
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (at, status)


def points(do: Callable[[], object]) -> list[str]:
    passed: list[str] = []
    with watched(passed.append):
        do()
    return passed


def names(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as db:
        return {name for (name,) in db.execute("SELECT submission_id FROM jobs")}


def one_of(path: Path, query: str) -> object:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchone()[0]


def state(home: Path) -> None:
    """A node, a job that runs, and one that waits; copied to a file, and then another job."""
    with World(home) as world:
        context = Context(world.store, load(env={"VCTL_HOME": str(home), "VCTL_LOCAL_NODE": "0"}))
        ops.nodes.add(world.store, resources=amounts(1), count=1, node_id="n")

        def submit(name: str) -> None:
            jobs.submit.run(context, ["true"], submission_id=name, cwd="/", environment={}, num_cpus=1)

        submit("runs")
        submit("waits")
        world.turn()
        with closing(sqlite3.connect(home / "cluster.db")) as db:
            copies.copy_to(db, home.with_name("copy"))
        submit("later")


def copied(folder: Path, name: str) -> Path:
    """A copy of the state, in which somebody has written something."""
    home = folder / name
    shutil.copytree(folder / "base", home)
    (home / "changes").unlink()  # it names the files of the original
    with Store.open(home) as store, store.transaction():
        store.event("state.copied", "state", name)
    return home


def sound(home: Path) -> None:
    with Store.open(home) as store:
        assert prove(store) == []
        assert ops.replay.replay(store, dry_run=True)["changes"] == 0
        assert store.value("PRAGMA integrity_check") == "ok"
        assert store.lost() is None


def test_a_restore_that_is_killed_has_happened_or_not(tmp_path: Path) -> None:
    """Between the replacement and what came after it, the tables seemed to belong to the records of the old ones."""
    old, new = {"runs", "waits", "later"}, {"runs", "waits"}
    state(tmp_path / "base")
    copy = tmp_path / "copy"
    home = copied(tmp_path, "whole")
    passed = points(lambda: restore(home, copy))
    assert "before backup" in passed
    assert names(home / "cluster.db") == new
    begun = passed.index("before truncate")  # until then a file beside the tables is made
    for at in [*range(0, begun, 60), *range(begun - 1, len(passed))]:
        home, name = copied(tmp_path, str(at)), passed[at]
        place = one_of(
            home / "cluster.db", "SELECT coalesce((SELECT value FROM meta WHERE key = 'place'), '')"
        )
        journal = one_of(home / "cluster.db", "SELECT journal FROM head")
        killed(lambda home=home, copy=copy: restore(home, copy), at)
        found = names(home / "cluster.db")
        assert found in (old, new), (at, name, found)
        is_same = (
            one_of(home / "cluster.db", "SELECT coalesce((SELECT value FROM meta WHERE key = 'place'), '')")
            == place,
            one_of(home / "cluster.db", "SELECT journal FROM head") == journal,
        )
        assert is_same == ((found == old,) * 2), (
            at,
            name,
            is_same,
            "runs of the copy would be started again",
        )
        if found == new:
            assert names(home / "cluster.db.before-restore") == old, (at, name)
        sound(home)
        restore(home, copy)
        assert names(home / "cluster.db") == new, (at, name)
        sound(home)
    sys.stdout.write(f"{len(passed)} points of a restore\n")


def test_a_migration_that_is_killed_has_happened_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(tmp_path / "base")
    homes = [copied(tmp_path, str(at)) for at in range(40)]
    monkeypatch.setattr(database, "LATER", MORE)
    monkeypatch.setattr(database, "VERSION", VERSION + 1)
    monkeypatch.setattr("vctl.store.store.VERSION", VERSION + 1)
    monkeypatch.setattr(database.apply_migrations, "__defaults__", (VERSION + 1,))
    passed = points(lambda: database.connect(homes[-1]).close())
    assert "before INSERT INTO more" in passed, passed
    for at, name in enumerate(passed):
        home = homes[at]
        before = names(home / "cluster.db")
        killed(lambda home=home: database.connect(home).close(), at)
        assert one_of(home / "cluster.db", "PRAGMA user_version") in (VERSION, VERSION + 1), (at, name)
        sound(home)
        assert one_of(home / "cluster.db", "PRAGMA user_version") == VERSION + 1, (at, name)
        assert one_of(home / "cluster.db", "SELECT count(*) FROM more") == 1, (at, name)
        assert names(home / "cluster.db") == before
    sys.stdout.write(f"{len(passed)} points of a migration\n")


def test_tables_whose_creation_is_killed_are_created_by_the_next(tmp_path: Path) -> None:
    passed = points(lambda: database.connect(tmp_path / "whole").close())
    step = max(1, len(passed) // 60)
    for at in range(0, len(passed), step):
        home = tmp_path / str(at)
        killed(lambda home=home: database.connect(home).close(), at)
        sound(home)
    sys.stdout.write(f"{len(passed)} points of a creation\n")


def test_a_run_that_a_backup_has_assigned_ahead_is_not_started_under_its_name_again(tmp_path: Path) -> None:
    """A supervisor had recorded it as taken, so the job waited for its end for ever."""
    with World(tmp_path / "state") as world:
        ops.nodes.add(world.store, resources=amounts(1), count=1, node_id="n")
        request = JobRequest(
            argv=("true",), submission_id="a", cwd="/", entry=amounts(1), array=parse_array("1-3"), grace_s=0
        )
        ops.submitting.submit(world.store, request, environment={})
        world.turn()
        world.processes.end(
            world.processes.running()[0], 0
        )  # it was short: another one is to follow the next
        world.turn()
        assert world.store.value("SELECT count(*) FROM runs_ahead") == 1
        with closing(sqlite3.connect(world.home / "cluster.db")) as db:
            copies.copy_to(db, tmp_path / "copy")
        for _ in range(2):  # its supervisor takes the third one as the second one ends
            world.processes.end(world.processes.running()[0], 0)
            world.turn()
        assert set(statuses(world).values()) == {"SUCCEEDED"}
        world.die()
        restore(world.home, tmp_path / "copy")
        world.folding.begin()
        world.turn()
        assert statuses(world) == {"a_1": "SUCCEEDED", "a_2": "FAILED", "a_3": "RUNNING"}
        world.processes.end(world.processes.running()[0], 0)
        world.turn()
        assert statuses(world)["a_3"] == "SUCCEEDED"


def statuses(world: World) -> dict[str, str]:
    return {row[0]: row[1] for row in world.store.rows("SELECT submission_id, status FROM jobs")}
