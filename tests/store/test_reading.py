"""A read that failed is not taken for damage."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tests.specification import spec
from vctl.errors import Damaged, DiskTrouble, VctlError, known
from vctl.store import copies, reading
from vctl.store.store import Store

pytestmark = spec("17.durable")


def malformed() -> sqlite3.DatabaseError:
    """What SQLite raises for damage, and for a read that fails with EIO."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = 11
    return error


def of_tables(home: Path) -> set[str]:
    """The descriptors of this process for files of a state directory."""
    every = Path("/proc/self/fd")
    return {fd for fd in os.listdir(every) if os.path.realpath(every / fd).startswith(str(home))}


def test_tables_that_are_sound_are_not_called_damaged(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.write_heartbeat({})
        before = of_tables(tmp_path)
        found = known(malformed())
        assert before <= of_tables(tmp_path), "no descriptor of SQLite is closed"
        assert isinstance(found, DiskTrouble) and "a read failed" in found.problem
        assert "restore" not in found.fix
    found = known(malformed())  # as the command line asks, which has closed them
    assert isinstance(found, DiskTrouble)


def test_tables_that_cannot_be_read_are_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "cluster.db").symlink_to("/proc/self/mem")  # to read its beginning is an I/O error
    found = reading.trouble(tmp_path / "cluster.db", malformed())
    assert found is not None
    assert "the disk reports an error" in found.problem and "cluster.db" in found.problem


def test_a_file_that_cannot_be_read_is_not_called_no_backup(tmp_path: Path) -> None:
    with pytest.raises(DiskTrouble, match="the disk reports an error"):
        copies.check_copy(Path("/proc/self/mem"))
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(VctlError, match="not a vctl backup: file is not a database"):
        copies.check_copy(tmp_path / "text")


def test_damaged_tables_are_called_so(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        page = store.value("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'")
        size = store.value("PRAGMA page_size")
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (tmp_path / "cluster.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with Store.open(tmp_path) as store:
        with pytest.raises(sqlite3.DatabaseError) as caught:
            store.rows("SELECT * FROM jobs")
        found = known(caught.value)
    assert isinstance(found, Damaged) and "malformed" in found.problem
