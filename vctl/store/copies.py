"""Backups of the tables: made while others write, checked, restored. A restore takes only rows of a file."""

from __future__ import annotations

import _sqlite3 as sqlite3
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

from vctl.errors import VctlError
from vctl.store import reading
from vctl.store.database import apply_migrations, database_path, open_file
from vctl.store.ownership import TABLES
from vctl.store.schema import FIRST, VERSION

_COUNTED = ("job_counts", "event_counts")
"""Tables that triggers fill."""
_OWN = ("_sqlite_migrations",)
KEPT = f"{TABLES}.before-restore"
"""The copy that a restore makes of what it replaces."""
_AGAIN = "name a file made by `vctl backup`"


def copy_to(db: sqlite3.Connection, path: Path) -> None:
    """Copy all tables to a file, consistent while others write."""
    target = sqlite3.connect(path)
    try:
        db.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it
    finally:
        target.close()


def remove(path: Path) -> None:
    """Remove a copy, and the journal beside it that exists while the copy is written."""
    for name in (path.name, f"{path.name}-journal"):
        path.with_name(name).unlink(missing_ok=True)


def check_copy(path: Path) -> int:
    """The schema version of a whole vctl database. Refuses a file with other tables or with code in it."""
    try:
        with closing(reading.opened(path)) as db:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if not 0 < version <= VERSION:
                raise VctlError(
                    f"{path} is no vctl backup or from a newer vctl (schema {version}, this one knows {VERSION})",
                    fix="name another file made by `vctl backup`",
                )
            if version < FIRST:
                raise VctlError(
                    f"{path} is of a build before the first release (schema {version}, the first is {FIRST})",
                    fix="restore it with that build, or name a newer file made by `vctl backup`",
                )
            _compare(path, db, version)
            sound = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise reading.trouble(path, error) or VctlError(
            f"{path} is not a vctl backup: {error}", fix=_AGAIN
        ) from None
    if sound != "ok":
        raise VctlError(f"{path} is damaged: {' '.join(str(sound).split())}", fix=f"{_AGAIN}, an older one")
    return version


def _compare(path: Path, db: sqlite3.Connection, version: int) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        apply_migrations(fresh, version)
        expected, actual = _objects(fresh), _objects(db)
        if strange := sorted(set(actual) - set(expected)):
            kind, name = strange[0]
            raise VctlError(f"{path} is not a vctl backup: it has a {kind} {name!r}", fix=_AGAIN)
        for kind, name in expected:
            if kind != "table":
                continue
            if (kind, name) not in actual:
                raise VctlError(f"{path} is not a vctl backup: it has no table {name}", fix=_AGAIN)
            if _columns(db, name) != _columns(fresh, name):
                raise VctlError(
                    f"{path} is not a vctl backup: its table {name} has other columns", fix=_AGAIN
                )


def odd_table(db: sqlite3.Connection) -> str | None:
    """The first table whose columns differ from those that the migrations of this version make."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        apply_migrations(fresh, VERSION)
        tables = [name for kind, name in _objects(fresh) if kind == "table"]
        tables.append("sqlite_sequence")  # SQLite's own table, with the number of the newest entry
        return next((name for name in tables if _columns(db, name) != _columns(fresh, name)), None)


def odd_definition(db: sqlite3.Connection) -> str | None:
    """The first index, view or trigger that this version defines otherwise, such as ``index jobs_failed``.

    The check of the pages does not find such damage, and a query that names the index cannot be planned.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        apply_migrations(fresh, VERSION)
        there = _definitions(db)
        return next((name for name, sql in _definitions(fresh).items() if there.get(name) != sql), None)


def _definitions(db: sqlite3.Connection) -> dict[str, bytes]:
    columns = "CAST(type || ' ' || name AS BLOB), CAST(sql AS BLOB)"
    sql = f"SELECT {columns} FROM sqlite_master WHERE type <> 'table' AND sql IS NOT NULL ORDER BY type, name"
    return {name.decode(errors="replace"): made for name, made in db.execute(sql)}


def _objects(db: sqlite3.Connection) -> list[tuple[str, str]]:
    columns = "CAST(type AS BLOB), CAST(name AS BLOB)"
    sql = f"SELECT {columns} FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    objects = [
        (kind.decode(errors="replace"), name.decode(errors="replace")) for kind, name in db.execute(sql)
    ]
    return sorted((kind, name) for kind, name in objects if name not in _OWN)


def _columns(db: sqlite3.Connection, table: str) -> list[tuple[bytes, bytes, int, int]]:
    """Each column: name, type, place in the key, and 0 for an ordinary column of an ordinary table.

    Generated columns and virtual tables have other numbers, because they are code. Names and types are bytes,
    because in a damaged file they may not be text.
    """
    sql = "SELECT coalesce(max(sql LIKE 'CREATE VIRTUAL%'), 0) FROM sqlite_master WHERE name = ?"
    virtual = db.execute(sql, (table,)).fetchone()[0]
    columns = "SELECT CAST(name AS BLOB), CAST(type AS BLOB), pk, hidden FROM pragma_table_xinfo(?)"
    return [
        (name, kind, pk, hidden + 10 * virtual) for name, kind, pk, hidden in db.execute(columns, (table,))
    ]


@contextmanager
def taken_over(home: Path, source: Path, version: int) -> Iterator[Path]:
    """A file beside the tables with the rows of a checked copy; all else in it is of this version."""
    fresh = home / f"{TABLES}.restoring"
    try:
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(fresh.absolute().as_uri(), uri=True, isolation_level=None)) as copy:
            _take_rows(copy, source, version)
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)


def replace_by(home: Path, fresh: Path) -> Path | None:
    """Replace the tables by those of a file; returns the file in which the old tables are kept.

    The caller has the turn of the writers, so nothing is committed between the copy and the replacement.
    """
    path = database_path(home)
    copy_path = _keep(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(fresh)) as copy, closing(open_file(path)) as target:
        copy.backup(target)  # page by page under SQLite's own lock: readers see the old state or the new one
        target.execute("PRAGMA journal_mode = WAL")
    return copy_path


def _keep(path: Path) -> Path | None:
    """Copy the tables. A copy of an earlier restore stays: it may be the only place of what was confirmed before it."""
    if not path.exists():
        return None
    kept = path.with_name(KEPT)
    if kept.exists():
        number = next(n for n in count(1) if not path.with_name(f"{KEPT}.{n}").exists())
        kept.rename(path.with_name(f"{KEPT}.{number}"))
    os.close(os.open(kept, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(open_file(path)) as old:
            copy_to(old, kept)
    except sqlite3.DatabaseError as error:
        if (trouble := reading.trouble(path, error)) is not None:
            kept.unlink()
            raise trouble from None
        # damaged: keep the bytes as they are, and remove the damaged files
        shutil.copyfile(path, kept)
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{path}{suffix}")
    return kept


def _take_rows(copy: sqlite3.Connection, source: Path, version: int) -> None:
    apply_migrations(copy, version)
    copy.execute("PRAGMA trusted_schema = OFF")
    copy.execute("PRAGMA foreign_keys = OFF")
    copy.execute("PRAGMA synchronous = OFF")  # the file is thrown away
    copy.execute("ATTACH ? AS old", (f"{source.absolute().as_uri()}?mode=ro",))
    copy.execute("BEGIN")
    for kind, name in _objects(copy):
        if kind == "table" and name not in _COUNTED:
            columns = ", ".join(
                column.decode() for column, _, _, hidden in _columns(copy, name) if not hidden
            )
            copy.execute(f"DELETE FROM main.{name}")
            copy.execute(f"INSERT INTO main.{name} ({columns}) SELECT {columns} FROM old.{name}")
    copy.execute("DELETE FROM main.sqlite_sequence")
    copy.execute("INSERT INTO main.sqlite_sequence (name, seq) SELECT name, seq FROM old.sqlite_sequence")
    copy.execute("COMMIT")
    copy.execute("DETACH old")
