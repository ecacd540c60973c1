"""The state stays open between the calls of a client, and nobody notices but by the time that a call takes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import vctl
from tests.specification import spec
from vctl.errors import Conflict, NotFound
from vctl.store import database, kept
from vctl.store.announcements import CHANGES, announced
from vctl.store.schema import VERSION

pytestmark = spec("15.client", "17.durable")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory in which nobody schedules."""
    for name, value in {"VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "state"


@pytest.fixture
def client(home: Path) -> vctl.Client:
    """A client that has a store open."""
    client = vctl.connect(home)
    client.physical_nodes.add(resources={"CPU": 4})
    client.jobs.list()  # tables that were made by the call before are not taken for those of the directory
    return client


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which tables are opened from now on."""
    found: list[Path] = []
    connect = database.connect

    def noted(home: Path, *, create: bool = True, any_thread: bool = False) -> sqlite3.Connection:
        found.append(home)
        return connect(home, create=create, any_thread=any_thread)

    monkeypatch.setattr(database, "connect", noted)
    return found


def files_below(folder: Path) -> list[str]:
    """The files of a folder that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list
            found.append(Path(os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)")))
    return [path.name for path in found if folder in path.parents]


def by_another(home: Path, *words: str) -> str:
    """What a command says, with a process of its own."""
    command = [sys.executable, "-m", "vctl", *words, "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return done.stdout


def ids(client: vctl.Client) -> set[str]:
    return {one["submission_id"] for one in client.jobs.list()}


def in_child(do: Callable[[], object]) -> int:
    """Do something in a fork of this process; its exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_many_calls_open_the_tables_once(client: vctl.Client, opened: list[Path]) -> None:
    jobs = [client.submit("true") for _ in range(5)]
    assert [job.status() for job in jobs] == ["PENDING"] * 5
    assert opened == []


def test_who_calls_is_known_at_each_call(client: vctl.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may enter the cluster of a job, and leave it."""
    monkeypatch.setenv("VCTL_JOB_ID", "7")
    monkeypatch.setenv("VCTL_SUBMISSION_ID", "job-7")
    with client.backend.opened() as store:  # type: ignore[attr-defined]
        assert store.caller.job_id == 7
    monkeypatch.delenv("VCTL_JOB_ID")
    with client.backend.opened() as store:  # type: ignore[attr-defined]
        assert store.caller is None


def test_threads_share_a_client(client: vctl.Client, home: Path) -> None:
    """Each call has a store to itself; more than some do not stay open."""
    count, each = kept.MOST + 4, 5
    failed: list[Exception] = []

    def submit(number: int) -> None:
        try:
            for index in range(each):
                client.submit("true", submission_id=f"job-{number}-{index}")
        except Exception as error:  # noqa: BLE001  # any
            failed.append(error)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(ids(client)) == count * each
    assert 0 < sum(len(one._unused) for one in kept._every if one.home == home) <= kept.MOST


def test_a_call_inside_of_a_call_has_another_store(client: vctl.Client) -> None:
    with client.backend.opened() as outer, client.backend.opened() as inner:  # type: ignore[attr-defined]
        assert inner is not outer


def test_a_fork_inherits_no_open_tables(client: vctl.Client, home: Path) -> None:
    """SQLite would take the locks of the parent for those of the child, and the last one to close removes the WAL."""
    first = client.submit("true").submission_id
    assert files_below(home)

    def child() -> None:
        assert not files_below(home)
        assert ids(client) == {first}
        client.submit("true", submission_id="of-the-child")
        assert files_below(home)

    assert in_child(child) == 0
    client.submit("true", submission_id="of-the-parent")
    wanted = {first, "of-the-child", "of-the-parent"}
    assert ids(client) == wanted == ids(vctl.connect(home))


def test_a_fork_waits_for_the_calls_of_other_threads(client: vctl.Client) -> None:
    """In the child a transaction of another thread would never end, and lock the tables."""
    inside = threading.Event()

    def call() -> None:
        with client.backend.opened() as store, store.transaction():  # type: ignore[attr-defined]
            inside.set()
            time.sleep(0.3)

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait()
    began = time.monotonic()
    assert in_child(lambda: client.submit("true", submission_id="of-the-child")) == 0
    assert time.monotonic() - began < kept.PATIENCE_S
    thread.join()
    assert ids(client) == {"of-the-child"}


def test_a_thread_may_fork_within_a_call(client: vctl.Client) -> None:
    with client.backend.opened():  # type: ignore[attr-defined]
        began = time.monotonic()
        assert in_child(lambda: None) == 0
    assert time.monotonic() - began < kept.PATIENCE_S


def test_a_store_that_comes_back_during_a_fork_is_not_inherited(
    client: vctl.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread ends a long call while this one forks: its store is put back when the fork is over."""
    inside, may_end, close = threading.Event(), threading.Event(), kept._close

    def call() -> None:
        with client.backend.opened():  # type: ignore[attr-defined]
            inside.set()
            may_end.wait()

    def close_slowly(unused: Any) -> None:
        close(unused)
        may_end.set()
        time.sleep(0.2)

    def child() -> None:
        assert not any(one._unused for one in kept._every)

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait()
    monkeypatch.setattr(kept, "_close", close_slowly)
    monkeypatch.setattr(kept, "PATIENCE_S", 0.1)
    assert in_child(child) == 0
    thread.join()
    assert client.jobs.list() == []


def test_tables_that_were_replaced_are_noticed(client: vctl.Client, home: Path) -> None:
    client.submit("true")
    os.rename(home, home.with_name("old"))
    vctl.connect(home).physical_nodes.add(resources={"CPU": 4})
    assert client.jobs.list() == []
    assert not files_below(home.with_name("old"))
    job = client.submit("true")
    assert ids(vctl.connect(home)) == {job.submission_id}
    shutil.rmtree(home.with_name("old"))


def test_a_state_directory_that_was_deleted_is_made_again(client: vctl.Client, home: Path) -> None:
    client.submit("true")
    shutil.rmtree(home)
    assert client.jobs.list() == [] == vctl.connect(home).jobs.list()
    assert all((home / name).exists() for name in files_below(home))


def test_a_deleted_file_of_changes_is_made_again(client: vctl.Client, home: Path) -> None:
    """Writers take turns at it, and schedulers wait for its changes."""
    client.submit("true")
    (home / CHANGES).unlink()
    client.submit("true")
    assert announced(home)[0] > 0


def test_tables_of_a_newer_vctl_are_refused(client: vctl.Client, home: Path) -> None:
    def become(version: int) -> None:
        with closing(sqlite3.connect(home / "cluster.db")) as db:
            db.execute(f"PRAGMA user_version = {version}")

    become(VERSION + 1)
    with pytest.raises(Conflict, match="newer vctl"):
        client.jobs.list()
    become(VERSION)
    assert client.jobs.list() == []


def test_a_restored_backup_is_read(client: vctl.Client, home: Path, tmp_path: Path) -> None:
    before = client.submit("true").submission_id
    client.backup(tmp_path / "copy.db")
    client.submit("true", submission_id="after-it")
    by_another(home, "restore", str(tmp_path / "copy.db"))
    assert ids(client) == {before}
    client.submit("true", submission_id="later")
    assert ids(vctl.connect(home)) == {before, "later"}


def test_nothing_is_locked_between_calls(client: vctl.Client, home: Path) -> None:
    client.submit("true")
    client.jobs.list()
    assert "cluster.db-wal" in files_below(home)
    with closing(sqlite3.connect(home / "cluster.db", timeout=0, isolation_level=None)) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        other.execute("BEGIN EXCLUSIVE")
        other.execute("COMMIT")
    with (home / CHANGES).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_call_that_fails_leaves_nothing_behind(client: vctl.Client, home: Path, opened: list[Path]) -> None:
    with pytest.raises(NotFound):
        client.jobs.get("nobody")
    assert not files_below(home)
    assert client.jobs.list() == []
    assert len(opened) == 1


def test_a_program_that_reads_the_tables_itself_loses_no_job(client: vctl.Client, home: Path) -> None:
    """To close the file drops the locks of this process on it, and another process takes itself for the last one then:
    it removes the WAL, in which a job that is submitted here would be lost.
    """
    first = client.submit("true").submission_id
    assert (home / "cluster.db").read_bytes()
    assert first in by_another(home, "job", "list", "-a", "-o", "json")
    job = client.submit("true")
    assert job.submission_id in by_another(home, "job", "list", "-a", "-o", "json")


def test_nothing_stays_open_when_the_client_is_gone(home: Path) -> None:
    client = vctl.connect(home)
    client.physical_nodes.add(resources={"CPU": 4})
    job = client.submit("true")
    del client
    assert job.status() == "PENDING"  # a job of it keeps what it needs
    del job
    assert not files_below(home)
    assert not (home / "cluster.db-wal").exists()
    assert vctl.list_jobs() is not None


def test_a_program_that_ends_closes_what_it_has_open(home: Path) -> None:
    """Also where the client is in a cycle, and without a warning."""
    program = "import vctl; c = vctl.connect(); c.me = c; c.jobs.list(); print(c.jobs.list())"
    env = {**os.environ, "VCTL_HOME": str(home)}
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert (home / "cluster.db").exists()
    assert not (home / "cluster.db-wal").exists()


def test_a_client_that_rests_keeps_no_other_one_from_a_state_that_was_replaced(
    home: Path, client: vctl.Client, tmp_path: Path
) -> None:
    """Its store would have stayed open until it is used again, and until then nobody opens the new files."""
    shutil.copytree(home, tmp_path / "copy")
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "copy", home)
    began = time.monotonic()
    assert len(vctl.connect(home).physical_nodes.list()) == 1
    assert time.monotonic() - began < 1.5
    assert len(client.physical_nodes.list()) == 1
