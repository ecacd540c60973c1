"""Reads files of tables with suspicion, and tells a read that failed from damage: SQLite calls both malformed.

Where a system call of SQLite reads with EIO, SQLite itself makes SQLITE_CORRUPT of it, with no word about the disk. So
before anybody hears of damage, which asks for a restore, the files are read again.
"""

from __future__ import annotations

import _sqlite3 as sqlite3
import errno
import os
from contextlib import closing, suppress
from pathlib import Path

from vctl.errors import DiskTrouble, disk_trouble, is_malformed

_CHUNK = 1 << 20


def opened(path: Path) -> sqlite3.Connection:
    """Open a file that may come from somebody else, so that SQLite runs no code in it."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA query_only = ON")
    return db


def is_sound(path: Path) -> bool:
    """Whether a copy is whole.

    ``quick_check`` is not used: SQLite 3.40 then reports NULL in the key of a table without rowids if the
    columns of the table have another order than the key.
    """
    try:
        with closing(opened(path)) as db:
            return bool(db.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")
    except sqlite3.DatabaseError:
        return False


def read_error(path: Path) -> OSError | None:
    """Why tables that SQLite calls malformed are perhaps whole: they cannot be read, or are sound; None if damaged."""
    try:
        for part in (str(path), f"{path}-wal"):
            _read(part)
    except FileNotFoundError:
        return None  # somebody puts other tables in place
    except OSError as error:
        return error
    if not is_sound(path):
        return None
    return OSError(errno.EIO, "a read failed, and the tables were sound when they were read again", str(path))


def trouble(path: Path, error: BaseException) -> DiskTrouble | None:
    """The trouble behind an error of SQLite about a file; None for damage, and for another cause."""
    if not is_malformed(error):
        return disk_trouble(error)
    failed = read_error(path)
    return None if failed is None else disk_trouble(failed)


def _read(path: str) -> None:
    """Read a file to its end."""
    fd = own = next(iter(_descriptors(path)), None)
    if fd is None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if path.endswith("-wal"):
                return  # all of it is in the tables
            raise
    try:
        at = 0
        while chunk := os.pread(fd, _CHUNK, at):
            at += len(chunk)
    except OSError as error:
        error.filename = path
        raise
    finally:
        if own is None and _descriptors(path) == {fd}:
            os.close(fd)  # it would drop the locks of a connection of this process, if there were one


def _descriptors(path: str) -> set[int]:
    """The descriptors of this process for a file."""
    real, found = os.path.realpath(path), set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") == real:
                found.add(fd)
    return found
