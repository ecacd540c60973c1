"""What a restore takes over: rows of a sound backup, and nothing else of the file (spec 17)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.benchmarks.crowd import fill
from tests.specification import spec
from vctl.errors import Damaged, VctlError
from vctl.ops import health
from vctl.ops.backup import backup, restore
from vctl.ops.jobs import list_jobs
from vctl.ops.prove import prove
from vctl.store import copies, database, repair
from vctl.store import store as store_module
from vctl.store.schema import FIRST, LATER, VERSION
from vctl.store.store import Store

pytestmark = spec("17.migration")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    fill(tmp_path / "home", queued=40, finished=60)
    return tmp_path / "home"


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    with Store.open(home) as store:
        backup(store, tmp_path / "copy")
    return tmp_path / "copy"


def journal_of(rows_: dict[str, list[tuple[object, ...]]]) -> object:
    """The name of the journal, taken out of the rows."""
    (head,) = rows_.pop("head")
    return head[1]


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as db:
        names = [
            row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
        ]
        return {
            name: sorted(db.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for name in names if name not in ("meta", "_sqlite_migrations")
        }  # fmt: skip


def test_all_rows_come_back(home: Path, copy: Path) -> None:
    before = rows(home / "cluster.db")
    with Store.open(home) as store, store.transaction():
        store.db.execute("DELETE FROM jobs WHERE job_id > 50")
        store.event("a", "job", "x")
    done = restore(home, copy)
    after = rows(home / "cluster.db")
    assert journal_of(after) != journal_of(before)  # another one begins: numbers of events may come again
    assert after == before
    assert Path(done["kept"]).stat().st_mode & 0o777 == 0o600
    assert not (home / "cluster.db.restoring").exists()
    with Store.open(home) as store:
        assert prove(store) == []
        assert store.value("PRAGMA user_version") == VERSION
        assert store.value("PRAGMA journal_mode") == "wal"
        assert list_jobs(store, all=True)[1] == 104


def test_whatever_rows_there_are_a_backup_is_made(home: Path, tmp_path: Path) -> None:
    """While a job waited for another one, a backup was refused as that of damaged tables."""
    with Store.open(home) as store:
        store.db.execute("PRAGMA foreign_keys = OFF")
        tables = store.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        )
        for table in (row["name"] for row in tables):
            kinds = [row["type"] for row in store.rows(f"PRAGMA table_info({table})")]
            values = [1 if kind == "INTEGER" else "1" for kind in kinds]
            store.db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(kinds))})", values)
        assert store.value("SELECT count(*) FROM dependencies") > 0
        assert backup(store, tmp_path / "copy")["bytes"]
    restore(home, tmp_path / "copy")


EVIL = {
    "a trigger": "CREATE TRIGGER evil AFTER INSERT ON events BEGIN DELETE FROM jobs; END",
    "a view": "CREATE VIEW evil AS SELECT 1",
    "a table": "CREATE TABLE evil (a)",
    "an index": "CREATE INDEX evil ON jobs (name)",
    "no table": "DROP TABLE arrays",
    "another column": "ALTER TABLE arrays ADD COLUMN evil",
    "a generated column": "ALTER TABLE arrays ADD COLUMN evil AS (1)",
    "a column less": "ALTER TABLE jobs DROP COLUMN master_port",
    "a view in place of a table": "DROP TABLE arrays; CREATE VIEW arrays AS SELECT 1 AS array_id",
    "a virtual table": "DROP TABLE set_aside; CREATE VIRTUAL TABLE set_aside USING fts5(id, source)",
    "another schema": f"PRAGMA user_version = {VERSION + 1}",
    "no schema": "PRAGMA user_version = 0",
}


@pytest.mark.parametrize("script", EVIL.values(), ids=list(EVIL))
def test_whatever_is_no_backup_is_refused(home: Path, copy: Path, script: str) -> None:
    with closing(sqlite3.connect(copy)) as db:
        db.executescript("DROP VIEW v_jobs;" + script if "DROP COLUMN" in script else script)
    before = rows(home / "cluster.db")
    with pytest.raises(VctlError, match=r"backup|schema") as refused:
        restore(home, copy)
    assert refused.value.fix
    assert rows(home / "cluster.db") == before


def test_code_under_a_known_name_is_not_taken_over(home: Path, copy: Path) -> None:
    """A trigger that is called as ours does nothing: the ones of this program are made anew."""
    with closing(sqlite3.connect(copy)) as db:
        db.executescript(
            "DROP TRIGGER job_inserted;"
            "CREATE TRIGGER job_inserted AFTER INSERT ON jobs BEGIN DELETE FROM nodes; END;"
            "DROP VIEW v_nodes; CREATE VIEW v_nodes AS SELECT 'evil' AS node_id;"
        )
    restore(home, copy)
    with Store.open(home) as store:
        assert store.value("SELECT count(*) FROM nodes") == 1
        assert store.value("SELECT node_id FROM v_nodes") != "evil"
        assert "nodes" not in store.value("SELECT sql FROM sqlite_master WHERE name = 'job_inserted'")
        assert prove(store) == []


def test_a_backup_of_an_older_schema(
    home: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A released one is brought forward as its tables are; one from before the first release is refused."""
    monkeypatch.setattr(database, "LATER", [*LATER, ("9998_more", "CREATE TABLE more (a);")])
    for module in (database, copies, store_module):
        monkeypatch.setattr(module, "VERSION", VERSION + 1)
    monkeypatch.setattr(database.apply_migrations, "__defaults__", (VERSION + 1,))
    restore(tmp_path / "other", copy)
    with Store.open(tmp_path / "other") as store:
        assert store.value("PRAGMA user_version") == VERSION + 1
        assert store.column("SELECT a FROM more") == []
        assert store.value("SELECT count(*) FROM nodes") == 1
        assert store.value("SELECT count(*) FROM _sqlite_migrations") == 2 + len(LATER)
    with closing(sqlite3.connect(copy)) as db:
        db.execute(f"PRAGMA user_version = {FIRST - 1}")
    with pytest.raises(VctlError, match="before the first release") as refused:
        restore(home, copy)
    assert "that build" in (refused.value.fix or "")


def spoil(path: Path, table: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        size = db.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xde\xad" * (size // 2))


@pytest.mark.parametrize("table", ["jobs", "nodes", "clusters", "events", "job_counts"])
def test_damaged_pages_are_named_and_a_backup_mends_them(home: Path, copy: Path, table: str) -> None:
    """spec 12: what is damaged, and how to go on."""
    spoil(home / "cluster.db", table)
    with Store.open(home) as store:
        found = health.doctor(store)
        assert not found["ok"]
        assert any(f"table {table} is damaged" in finding for finding in found["findings"])
        assert "vctl restore" in found["notes"][0]
        assert repair.integrity(store, indexes=False)
        with pytest.raises(Damaged, match="damaged"):
            backup(store, home / "another")
        assert not (home / "another").exists()
    restore(home, copy)
    with Store.open(home) as store:
        assert health.doctor(store)["findings"] == []
        assert list_jobs(store, all=True)[1] == 104


def test_a_file_that_is_no_database_any_more(home: Path, copy: Path) -> None:
    (home / "cluster.db").write_bytes(b"garbage" * 1000)
    for name in ("cluster.db-wal", "cluster.db-shm"):
        (home / name).unlink(missing_ok=True)
    with pytest.raises(VctlError, match="cannot be read") as refused:
        Store.open(home)
    assert "vctl restore" in refused.value.fix
    opened = {os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()}
    assert str(home / "cluster.db") not in opened, "what cannot be read is closed again"
    kept = restore(home, copy)["kept"]
    assert Path(kept).read_bytes().startswith(b"garbage")
    with Store.open(home) as store:
        assert prove(store) == []


def test_a_damaged_backup_is_refused(home: Path, copy: Path) -> None:
    spoil(copy, "jobs")
    before = rows(home / "cluster.db")
    with pytest.raises(VctlError, match=r"damaged|not a vctl backup"):
        restore(home, copy)
    assert rows(home / "cluster.db") == before
