"""Files of the tables that are removed or replaced under a running scheduler: noticed, and no confirmed job is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from tests.integration.conftest import Place, eventually
from tests.specification import spec
from vctl.errors import Unreachable
from vctl.store import database
from vctl.store.files import Gone
from vctl.store.store import Store

pytestmark = spec("17.durable", "17.one-daemon", "12.doctor")

REMOVED = {
    "shm": ("-shm",),
    "wal": ("-wal",),
    "wal and shm": ("-wal", "-shm"),
    "database": ("",),
    "all three": ("", "-wal", "-shm"),
    "replaced": (),
}


def strike(place: Place, parts: tuple[str, ...], copy: str) -> None:
    for part in parts:
        os.unlink(f"{place.home}/cluster.db{part}")
    if not parts:
        shutil.copy(copy, f"{copy}.new")
        os.rename(f"{copy}.new", place.home / "cluster.db")


def names(path: object) -> set[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return {name for (name,) in db.execute("SELECT submission_id FROM jobs")}


@pytest.mark.parametrize("parts", REMOVED.values(), ids=list(REMOVED))
def test_a_scheduler_ends_and_every_confirmed_job_is_kept(one: Place, parts: tuple[str, ...]) -> None:
    """``rm cluster.db-shm``: six jobs that had been confirmed afterwards were gone, and doctor said ok."""
    copy = str(one.folder / "copy")
    one.ok("backup", copy)
    daemon = one.daemon()
    confirmed, is_over = [], threading.Event()

    def submit(who: int) -> None:
        for number in range(1000):
            name = f"j{who}-{number}"
            if is_over.is_set():
                return
            if one.run("run", "-d", "--submission-id", name, "--", "true").code == 0:
                confirmed.append(name)

    users = [threading.Thread(target=submit, args=(who,)) for who in range(2)]
    for user in users:
        user.start()
    eventually(lambda: len(confirmed) >= 8, "some jobs")
    strike(one, parts, copy)
    ended = one.finish(daemon)
    before = len(confirmed)
    if "" not in parts:  # else there is no node any more
        eventually(lambda: len(confirmed) >= before + 4, "jobs after it")
    is_over.set()
    for user in users:
        user.join()
    assert ended.code == 1
    log = (one.folder / "daemon.log").read_text()
    assert "was removed or replaced while this process" in log
    assert "Traceback" not in log
    one.ok("daemon", "--stop")
    one.ok("status")  # who opens them last writes all that was committed into the tables
    kept = one.home.glob("cluster.db.removed-*")
    assert set(confirmed) <= names(one.home / "cluster.db").union(*map(names, kept))
    if "" not in parts and parts:
        said = one.run("doctor", "--prove")
        assert said.code == 0, said
        assert not list(one.home.glob("cluster.db.removed-*"))


def test_what_was_removed_is_put_back(one: Place) -> None:
    one.submit("--submission-id", "j", "--hold", "--", "true")
    daemon = one.daemon()
    (one.home / "cluster.db").unlink()
    assert one.finish(daemon).code == 1
    (kept,) = one.home.glob("cluster.db.removed-*")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert f"vctl restore {kept}" in one.run("doctor").out
    one.ok("restore", str(kept))
    kept.unlink()
    assert one.ok("ps", "-o", "name").split() == ["j"]
    assert one.run("doctor", "--prove").code == 0


def test_doctor_names_the_process(one: Place) -> None:
    one.submit("--submission-id", "j", "--hold", "--", "true")
    with Store.open(one.home) as store:
        (one.home / "cluster.db-shm").unlink()
        said = one.run("doctor")
        assert said.code == 1
        assert f"pid {os.getpid()} (" in said.out
        assert "works on files of the tables that were removed or replaced" in said.out
        with pytest.raises(Gone), store.transaction():
            store.event("a", "job", "x")
    assert one.run("doctor").code == 0


def test_a_command_that_waits_goes_on_with_the_files_that_are_there(one: Place) -> None:
    one.submit("--submission-id", "j", "--", "sleep", "3")
    waits = one.start("job", "wait", "j")
    one.reach("j", "RUNNING")
    (one.home / "cluster.db-shm").unlink()
    assert one.finish(waits).code == 0
    assert one.job("j")["status"] == "SUCCEEDED"


def event_and_removal(store: Store, place: Place) -> None:
    store.event("a", "job", "x")
    (place.home / "cluster.db-shm").unlink()
    place.run("status")  # makes another one, in which the commit that comes is not


def test_a_file_that_is_removed_between_commit_and_answer(one: Place) -> None:
    """The commit stands in the WAL, where who has opened the tables meanwhile would write over it."""
    with Store.open(one.home) as store, Store.open(one.home) as other:
        with pytest.raises(Gone, match="while this process wrote"), store.transaction():
            event_and_removal(store, one)
        with pytest.raises(Gone), other.transaction():
            pass
    with Store.open(one.home) as store:
        assert store.value("SELECT count(*) FROM events WHERE kind = 'a'") == 1


def test_what_only_one_process_can_still_read_is_waited_for(
    one: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LEAVES_S", 0.1)
    with Store.open(one.home) as store:
        with store.transaction():
            store.event("a", "job", "x")
        (one.home / "cluster.db-wal").unlink()
        with pytest.raises(Unreachable, match="this process still has what was there"):
            Store.open(one.home)
        began = time.monotonic()
        refused = one.run("status")
        assert refused.code == 6
        assert f"pid {os.getpid()} (" in refused.err
        assert time.monotonic() - began < 10
    with Store.open(one.home) as store:
        assert store.value("SELECT count(*) FROM events WHERE kind = 'a'") == 1


def test_a_wal_of_a_database_that_is_gone_is_not_mixed_with_another_one(one: Place) -> None:
    """The scheduler was killed, and then somebody put a backup in place by hand, beside the WAL of the old one."""
    copy = str(one.folder / "copy")
    one.ok("backup", copy)
    daemon = one.daemon()
    one.submit("--submission-id", "j", "--hold", "--", "true")
    one.kill(daemon)
    strike(one, (), copy)
    refused = one.run("ps")
    assert refused.code == 1
    assert "belongs to the database that was there before" in refused.err
    for part in ("-wal", "-shm"):
        os.unlink(f"{one.home}/cluster.db{part}")
    assert one.ok("ps", "-o", "name") == ""
