"""Restores while others submit: each confirmed job is in the tables after it, or in the copy of those before it."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.conftest import Place, eventually
from tests.specification import spec
from vctl.ops.backup import restore
from vctl.store import copies

pytestmark = spec("17.migration", "17.durable")

RESTORES, USERS = 6, 3


def names(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [name for (name,) in db.execute("SELECT submission_id FROM jobs")]


def test_each_confirmed_job_is_in_one_known_place(one: Place) -> None:
    """Of 60 jobs that were confirmed during a restore, 3 were in neither copy."""
    copy = one.folder / "copy"
    one.ok("backup", str(copy))
    confirmed: list[str] = []
    is_over = threading.Event()

    def submit(who: int) -> None:
        for number in range(1000):
            if is_over.is_set():
                return
            name = f"j{who}-{number}"
            words = ("run", "-d", "--submission-id", name, "--", "true")
            if one.run(*words, VCTL_AUTOSTART="0").code == 0:
                confirmed.append(name)

    users = [threading.Thread(target=submit, args=(who,)) for who in range(USERS)]
    for user in users:
        user.start()
    for turn in range(RESTORES):
        eventually(lambda turn=turn: len(confirmed) >= 6 * turn + 3, "some jobs")
        done = one.run("restore", str(copy))
        assert done.code == 0, done
    is_over.set()
    for user in users:
        user.join()
    kept = list(one.home.glob("cluster.db.before-restore*"))
    assert len(kept) == RESTORES
    found = [name for path in (one.home / "cluster.db", *kept) for name in names(path)]
    assert sorted(found) == sorted(confirmed)
    assert one.run("doctor", "--prove").code == 0


def test_nobody_commits_between_the_copy_and_the_replacement(
    one: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, copied = one.folder / "copy", copies.copy_to
    one.ok("backup", str(copy))
    refused = []

    def slowly(db: sqlite3.Connection, path: Path) -> None:
        copied(db, path)
        refused.append(one.run("run", "-d", "--", "true", VCTL_LOCK_TIMEOUT="0.3"))

    monkeypatch.setattr(copies, "copy_to", slowly)
    restore(one.home, copy)
    assert [done.code for done in refused] == [6]
    assert names(one.home / "cluster.db") == []


def test_a_restore_is_undone_by_the_copy_that_it_has_made(one: Place) -> None:
    """The copy was overwritten by the state after the restore, before it was read."""
    copy = one.folder / "copy"
    one.ok("backup", str(copy))
    one.submit("--submission-id", "j", "--", "true")
    one.ok("restore", str(copy))
    assert one.jobs() == {}
    one.ok("restore", str(one.home / "cluster.db.before-restore"))
    assert list(one.jobs()) == ["j"]
