"""Transactions, revisions, epochs, the beat, locks: what everything else relies on."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.specification import spec
from tests.store.conftest import Clock
from vctl.errors import Conflict, DiskTrouble, NotPermitted, Unreachable, VctlError, known
from vctl.store import database, feed, locks
from vctl.store import store as store_module
from vctl.store.schema import FIRST, LATER, VERSION
from vctl.store.store import Fenced, Store

pytestmark = spec("17.durable", "17.one-daemon", "7.revision")


def count(store: Store) -> int:
    found: int = store.value("SELECT count(*) FROM events")
    return found


def test_a_transaction_is_whole_or_nothing(store: Store) -> None:
    def fail() -> None:
        with store.transaction():
            store.event("a", "job", "1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert count(store) == 0
    with store.transaction():
        store.event("a", "job", "1")
        store.event("b", "job", "1")
    assert count(store) == 2


def test_a_full_disk_is_named_and_the_connection_goes_on(store: Store) -> None:
    store.db.execute(f"PRAGMA max_page_count = {store.value('PRAGMA page_count') + 5}")

    def fill() -> None:
        with store.transaction():
            for _ in range(1000):
                store.event("a", "job", "x" * 4000)

    with pytest.raises(DiskTrouble, match="full"):
        fill()
    with store.transaction():
        store.event("a", "job", "1")
    assert count(store) == 1


def test_a_file_that_may_not_grow_is_no_error_of_the_disk(tmp_path: Path) -> None:
    """`ulimit -f`: the fix names the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, hard))
    try:
        with pytest.raises(sqlite3.OperationalError) as sqlite:
            Store.open(tmp_path / "state")
        with pytest.raises(OSError, match="File too large") as system, (tmp_path / "file").open("wb") as file:
            file.write(bytes(200 << 10))
        reported = [known(one.value) for one in (sqlite, system)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for one in reported:
        assert isinstance(one, DiskTrouble)
        assert "102400 bytes" in one.problem
        assert "ulimit -f" in one.fix


def test_what_was_committed_is_there_for_others(store: Store) -> None:
    with store.transaction():
        store.event("a", "job", "1")
    with Store.open(store.home) as other:
        assert count(other) == 1
    assert store.value("PRAGMA synchronous") == 2  # FULL
    assert store.value("PRAGMA journal_mode") == "wal"
    assert store.value("PRAGMA foreign_keys") == 1


def test_a_snapshot_sees_one_moment(store: Store) -> None:
    with Store.open(store.home) as reader, reader.snapshot():
        assert count(reader) == 0
        with store.transaction():
            store.event("a", "job", "1")
        with reader.snapshot():  # joins the outer one
            assert count(reader) == 0
    with Store.open(store.home) as reader:
        assert count(reader) == 1


def test_revisions_increase_whatever_the_clock_does(store: Store, clock: Clock) -> None:
    seen = []
    for step in (0, 0, 1, -10_000, 0, 5):
        clock.now += step
        with store.transaction():
            seen.append(store.next_revision())
    assert seen == sorted(set(seen))
    assert seen[0] == 1_700_000_000_000_000_000
    with Store.open(store.home) as other, other.transaction():
        other.clock = clock
        assert other.next_revision() > seen[-1]


def test_a_newer_reign_fences_the_older_one(store: Store) -> None:
    with Store.open(store.home) as old, Store.open(store.home) as new:
        old.begin_term("foreground")
        with old.transaction():
            old.event("a", "job", "1")
        new.begin_term("background")
        with pytest.raises(Fenced), old.transaction():
            old.event("never", "job", "1")
        with new.transaction():
            new.event("b", "job", "1")
        term = store.row("SELECT kind, ended_at FROM terms ORDER BY epoch DESC LIMIT 1")
        assert term is not None
        assert (term["kind"], term["ended_at"]) == ("background", None)
        new.end_term()
        with store.transaction():  # whoever rules not at all may write: submits
            store.event("c", "job", "1")
    assert [row["kind"] for row in store.rows("SELECT kind FROM events ORDER BY seq")] == ["a", "b", "c"]


def test_old_reigns_are_forgotten(store: Store) -> None:
    for _ in range(130):
        store.begin_term("background")
        store.end_term()
    assert store.value("SELECT count(*) FROM terms") <= 101


def test_the_beat_is_read_whole_or_not_at_all(store: Store) -> None:
    assert store.read_heartbeat() is None
    store.write_heartbeat({"pid": 1, "note": "x" * 100})
    store.write_heartbeat({"pid": 2})
    with Store.open(store.home) as other:
        assert other.read_heartbeat() == {"pid": 2}
    (store.home / "scheduler.beat").write_text('{"pid": ')
    assert store.read_heartbeat() is None


@pytest.mark.not_fast("sleeps until the lock is free or the time is over")
def test_who_holds_the_write_lock_is_named(store: Store) -> None:
    with Store.open(store.home) as holder, Store.open(store.home, lock_timeout_s=0.05) as waiter:
        with holder.transaction():
            holder.event("a", "job", "1")
            with pytest.raises(Unreachable, match=str(os.getpid())), waiter.transaction():
                pass
        with waiter.transaction():
            waiter.event("b", "job", "1")


@pytest.mark.not_fast("sleeps until the lock is free")
def test_writers_of_several_threads_wait_for_each_other(store: Store) -> None:
    def write() -> None:
        with Store.open(store.home) as own:
            for _ in range(20):
                with own.transaction():
                    own.event("a", "job", "1")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(store) == 80


@pytest.mark.not_fast("sleeps, beside a thread that writes")
def test_a_writer_comes_in_between_those_of_one_that_hardly_pauses(store: Store) -> None:
    """Spec 17: whoever prunes lets a submit through. SQLite's own waiting misses about every second pause."""
    written, over, missed = 0, threading.Event(), 0

    def write_much() -> None:
        nonlocal written
        with Store.open(store.home) as own:
            while not over.is_set():
                with own.transaction():
                    written += 1
                    time.sleep(0.06)
                time.sleep(0.02)

    thread = threading.Thread(target=write_much)
    thread.start()
    try:
        for _ in range(15):
            time.sleep(0.01)
            before = written
            with store.transaction():
                missed += written - before
    finally:
        over.set()
        thread.join()
    assert missed <= 5


@pytest.mark.not_fast("sleeps until the lock is free or the time is over")
def test_the_scheduler_lock_is_for_one(store: Store) -> None:
    first, second = locks.SchedulerLock(store.home), locks.SchedulerLock(store.home)
    assert not locks.scheduler_is_running(store.home)
    assert first.acquire(locks.FOREGROUND)
    assert locks.scheduler_is_running(store.home)
    assert not second.acquire(locks.BACKGROUND)
    first.release()
    assert second.acquire(locks.BACKGROUND)
    second.release()
    assert not locks.scheduler_is_running(store.home)


def test_a_fresh_directory_is_private(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    Store.open(home).close()
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "cluster.db").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_all_users_share_is_no_state_directory(tmp_path: Path) -> None:
    """As root, `VCTL_HOME=/tmp` closed /tmp to everybody else."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(NotPermitted, match="for other things and other users too") as refused:
        database.prepare_home(shared)
    assert str(shared / "vctl") in refused.value.fix
    assert shared.stat().st_mode & 0o7777 == 0o1777
    with pytest.raises(NotPermitted):
        database.prepare_home(Path("/"))


@pytest.mark.not_fast("starts a process")
def test_a_read_only_filesystem_is_named(tmp_path: Path) -> None:
    """It cannot be read either, and who only reads was told that the tables cannot be written."""
    home = tmp_path / "state"
    Store.open(home).close()
    command = (
        f"mount --bind {home} {home} && mount -o remount,bind,ro {home} || exit 77;"
        f" VCTL_HOME={home} {sys.executable} -m vctl ps"
    )
    ran = subprocess.run(["unshare", "-rm", "sh", "-c", command], capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 8):
        pytest.skip(f"no mounts here: {ran.stderr}")
    assert ran.returncode == 8
    assert ran.stderr.startswith(
        f"Error: the state directory {home} is on a read-only filesystem, where it cannot"
    )
    assert "set VCTL_HOME to the copy" in ran.stderr


def test_places_that_cannot_hold_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VctlError, match="is a file"):
        Store.open(tmp_path / "file")
    with pytest.raises(VctlError, match="no vctl state"):
        Store.open(tmp_path / "none", create=False)
    for kind in ("nfs4", "fuse.sshfs", "lustre"):
        monkeypatch.setattr(database, "filesystem_of", lambda _, kind=kind: kind)
        with pytest.raises(VctlError, match=f"network filesystem \\({kind}\\)"):
            Store.open(tmp_path / kind)
    assert database.filesystem_of(tmp_path) == "lustre"


def test_the_filesystem_of_a_path() -> None:
    assert database.filesystem_of(Path("/proc/self")) == "proc"
    assert database.filesystem_of(Path("/")) != ""


@spec("17.migration")
@pytest.mark.parametrize("version", [1, FIRST - 1])
def test_a_schema_from_before_the_first_release_is_refused(store: Store, version: int) -> None:
    """Nothing of such tables is read or changed; the error says what to do with the work in them."""
    store.db.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(Conflict, match=f"before the first release.*schema {version}") as refused:
        Store.open(store.home)
    assert "that build" in (refused.value.fix or "")
    assert store.value("PRAGMA user_version") == version


@spec("17.migration")
def test_a_released_schema_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later schema brings the tables forward, its rows kept, with a copy of what was there beside it."""
    home = tmp_path / "state"
    with Store.open(home) as store, store.transaction():
        store.db.execute("INSERT INTO meta VALUES ('kept', 1)")
    later = [
        *LATER,
        ("9998_more", "CREATE TABLE more (a); INSERT INTO more VALUES ('a;b');"),
        ("9999_x", "DROP VIEW v_objects;"),
    ]
    monkeypatch.setattr(database, "LATER", later)
    for module in (database, store_module):
        monkeypatch.setattr(module, "VERSION", VERSION + 2)
    monkeypatch.setattr(database.apply_migrations, "__defaults__", (VERSION + 2,))
    with Store.open(home) as store:
        assert store.value("PRAGMA user_version") == VERSION + 2
        assert store.value("SELECT value FROM meta WHERE key = 'kept'") == 1
        assert store.column("SELECT a FROM more") == ["a;b"]
        assert (home / f"cluster.db.schema-{VERSION}.bak").stat().st_mode & 0o777 == 0o600
        with store.transaction():
            store.event("node.heartbeat", "node", "n")
    with Store.open(home) as store:  # once
        assert store.column("SELECT a FROM more") == ["a;b"]


def test_a_newer_schema_is_not_touched(store: Store) -> None:
    store.db.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(Conflict, match="newer vctl"):
        Store.open(store.home)


def test_no_migration_under_a_running_scheduler(store: Store) -> None:
    lock = locks.SchedulerLock(store.home)
    assert lock.acquire(locks.FOREGROUND)
    store.db.execute("PRAGMA user_version = -1")
    try:
        with pytest.raises(Conflict, match="an older scheduler is running"):
            Store.open(store.home)
    finally:
        lock.release()


def test_a_script_is_split_where_statements_end() -> None:
    script = "CREATE TABLE a (b);\nINSERT INTO a VALUES (';');CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END;\n"
    assert [part.split()[0] for part in database._statements(script)] == ["CREATE", "INSERT", "CREATE"]


def test_the_views_for_people(store: Store) -> None:
    for view in ("v_jobs", "v_nodes", "v_clusters", "v_vnodes", "v_events"):
        assert store.rows(f"SELECT * FROM {view}") == []


def test_commands_are_named(tmp_path: Path) -> None:
    assert "python" in database.command_name(os.getpid())
    assert database.command_name(2**22 + 1) == "gone"


def test_the_feed(store: Store) -> None:
    assert feed.last(store) == 0
    for number in range(5):
        with store.transaction():
            store.event("job.x", "job", f"j{number}", data={"n": number})
    assert [row["object_id"] for row in feed.matching(store, "seq > ?", [2], 1, first=True)] == ["j2"]
    assert [row["object_id"] for row in feed.matching(store, "1", [], 2)] == ["j3", "j4"]
    feed.delete_until(store, 4)
    assert [row["object_id"] for row in feed.matching(store, "1", [], 9)] == ["j4"]
    with store.transaction():
        store.event("job.x", "job", "j5")
    assert feed.last(store) == 6


def test_who_wrote_last_knows_it(tmp_path: Path) -> None:
    """spec 11: a scheduler that is woken by what it wrote itself reads no journal for it."""
    with Store.open(tmp_path) as one, Store.open(tmp_path) as other:
        for writer, reader in ((one, other), (other, one)):
            with writer.transaction():
                writer.event("node.added", "node", "n")
            assert (writer.wrote_last(), reader.wrote_last()) == (True, False)
        other.wake()
        assert not other.wrote_last(), "whoever is woken has to look"
