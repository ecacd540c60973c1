"""A connection notices that its files are no longer those of the directory, at the price of one look (spec 17)."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.store import files
from vctl.store.files import Gone
from vctl.store.store import Store

pytestmark = [spec("17.durable"), pytest.mark.not_fast("waits until the directory is at rest")]
PARTS = ("cluster.db", "cluster.db-wal", "cluster.db-shm")


def write(store: Store) -> None:
    with store.transaction():
        store.event("node.heartbeat", "node", "n")


def count_looks(store: Store, monkeypatch: pytest.MonkeyPatch) -> int:
    looks: list[object] = []
    with monkeypatch.context() as patch:
        real = os.stat
        patch.setattr(files.os, "stat", lambda path, **more: looks.append(path) or real(path, **more))
        write(store)
    return len(looks)


@pytest.fixture
def at_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in a directory in which nothing has changed for longer than the times of its file system are coarse."""
    monkeypatch.setattr(files, "TICK_NS", 20 * 10**6)
    store = Store.open(tmp_path / "state")
    write(store)
    time.sleep(0.05)
    write(store)
    return store


def test_a_transaction_looks_twice_where_nothing_has_changed(
    at_rest: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it writes, and after the commit: it looked six times, 14 µs of a submit."""
    assert count_looks(at_rest, monkeypatch) == 2
    (at_rest.home / "beside").touch()
    assert count_looks(at_rest, monkeypatch) == 8  # the next change may get the same time
    time.sleep(0.05)
    assert count_looks(at_rest, monkeypatch) == 5
    assert count_looks(at_rest, monkeypatch) == 2
    at_rest.close()


@pytest.mark.parametrize(
    ("ctime_ns", "age_ns", "is_trusted"),
    [
        (10**18, 2 * 10**9, False),
        (10**18 + 990 * 10**6, 2 * 10**9, False),
        (10**18, 4 * 10**9, True),
        (10**18 + 4_000_001, 50 * 10**6, False),
        (10**18 + 4_000_001, 200 * 10**6, True),
    ],
    ids=["whole seconds, young", "tenths, young", "whole seconds, old", "fine, young", "fine, old"],
)
def test_a_ctime_is_trusted_once_the_next_change_gets_another_one(
    ctime_ns: int, age_ns: int, is_trusted: bool
) -> None:
    """A coarse file system shows by its round times that two changes within seconds may get the same one."""
    assert files.is_past(ctime_ns, ctime_ns + age_ns) == is_trusted


@pytest.mark.parametrize("how", ["removed", "replaced", "replaced, and the directory looks as before"])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("rests", [True, False])
def test_each_file_that_is_removed_or_replaced_is_noticed(
    at_rest: Store, part: str, how: str, rests: bool
) -> None:
    if not rests:
        (at_rest.home / "beside").touch()
        write(at_rest)
    path, before = at_rest.home / part, at_rest.home.stat()
    if how == "removed":
        path.unlink()
    else:
        shutil.copy(path, path.with_name("copy"))
        path.with_name("copy").rename(path)
    if how.endswith("before"):
        os.utime(at_rest.home, ns=(before.st_atime_ns, before.st_mtime_ns))  # as rsync and tar do
    with pytest.raises(Gone, match=part):
        write(at_rest)


def test_a_directory_that_is_replaced_is_noticed(at_rest: Store, tmp_path: Path) -> None:
    """Also by a copy of it, in which each file has another identity."""
    at_rest.home.rename(tmp_path / "away")
    shutil.copytree(tmp_path / "away", at_rest.home)
    with pytest.raises(Gone):
        write(at_rest)


def test_a_file_that_is_removed_during_a_transaction_is_noticed(at_rest: Store) -> None:
    at_rest.before_commit = lambda store: (store.home / "cluster.db-wal").unlink()
    with pytest.raises(Gone, match="while this process wrote"):
        write(at_rest)
