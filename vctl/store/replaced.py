"""What processes do about tables that were removed or replaced while they had them open.

A connection whose files are no longer those of the directory saves what only it can read, and closes without touching
the files of others. Until it has done so, others do not open what lies there. Few processes ever load this module.
"""

from __future__ import annotations

import _sqlite3 as sqlite3
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from vctl.errors import Unreachable
from vctl.store import files
from vctl.store.announcements import nudge, turn
from vctl.store.files import REMOVED, Identity, OpenFiles, identity
from vctl.store.ownership import PARTS, TABLES

_SHARED_BYTES = (0x40000002, 510)
"""The bytes of the database file on which SQLite's readers hold a lock: https://www.sqlite.org/lockingv3.html."""
_PATIENCE_S = 30.0
_PAUSE_S = 0.02


def leave(db: sqlite3.Connection, own: OpenFiles) -> None:
    """Save what only this connection can read, and close without touching files of others.

    The close of the last connection writes the WAL into the tables and removes it. Here both might be those of
    other processes, which have committed since.
    """
    assert own.identities is not None
    with pinned(own.home, own.identities[0]):
        try:
            if identity(own.home) == own.folder:
                with turn(own.home, _PATIENCE_S):
                    _save(db, own, own.identities)
        finally:
            own.identities = None
            files.opened.discard(own)
            sqlite3.Connection.close(db)


def _save(db: sqlite3.Connection, own: OpenFiles, ours: tuple[Identity, ...]) -> None:
    present, path = own.present(), f"{own.home}/{TABLES}"
    if db.in_transaction:
        db.execute("ROLLBACK")
    if present[0] == ours[0] and present[1] != ours[1] and not _has_content(f"{path}-wal"):
        # the WAL is gone, and with it, for all others, what was committed since it began
        db.execute("PRAGMA wal_checkpoint(FULL)")
        files.unlink(f"{path}-shm")  # who has opened the tables meanwhile must read them again
        files.unlink(f"{path}-wal")
    elif present[0] != ours[0] and ours[0] is not None:
        for part, now, then in zip(PARTS[1:], present[1:], ours[1:], strict=True):
            if now == then:  # it belongs to the tables that were removed
                files.unlink(path + part)
        with suppress(FileExistsError):  # another process has kept the same tables
            copy_path = f"{path}{REMOVED}{ours[0][1]}"
            os.close(os.open(copy_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with closing(sqlite3.connect(copy_path)) as copy:
                db.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it


@contextmanager
def pinned(home: str, tables: Identity) -> Iterator[None]:
    """Keep SQLite from taking this connection for the last one: another lock of a reader is on the tables."""
    held = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            is_ours = os.readlink(f"/proc/self/fd/{fd}").startswith(f"{os.path.realpath(home)}/{TABLES}")
            info = os.fstat(fd)
            if (info.st_dev, info.st_ino) == tables or (tables is None and is_ours):
                held.append(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC))
    for fd in held:
        _lock(fd, fcntl.F_RDLCK)
    try:
        yield
    finally:
        for fd in held:
            _lock(fd, fcntl.F_UNLCK)
            if not files.opened:  # closing it would drop the locks of other connections of this process
                os.close(fd)


def _lock(fd: int, kind: int) -> None:
    start, length = _SHARED_BYTES
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def check_left(home: Path, what: str, *, wait_s: float = 0.0) -> bool:
    """Raise Unreachable if processes have files of the tables open that are no longer in the directory.

    True if there were such processes, and they have left within ``wait_s``.
    """
    give_up, had_to_wait = time.monotonic() + wait_s, False
    while processes := holders(home):
        nudge(home)
        if time.monotonic() >= give_up:
            raise Unreachable(
                f"{what}, and {', '.join(processes)} still has what was there",
                fix="try again in a second; if this stays, end that process: it puts back what it has",
            )
        time.sleep(_PAUSE_S)
        had_to_wait = True
    return had_to_wait


def holders(home: Path) -> list[str]:
    """The processes that have files of the tables open which are no longer those of the directory."""
    base, me = f"{os.path.realpath(home)}/{TABLES}", os.getpid()
    processes = []
    if any(mine.replaced() for mine in list(files.opened) if mine.home == str(home)):
        processes.append("this process")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == me:
            continue
        with suppress(OSError):  # it has ended, or belongs to somebody else
            held = {}
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    link = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if link.startswith(base):
                        held[link] = identity(f"/proc/{pid}/fd/{fd}")
            is_removed = any(link in held for link in (f"{base}{part} (deleted)" for part in PARTS))
            if is_removed or (f"{base}-shm" in held and identity(base) not in held.values()):
                processes.append(f"pid {pid} ({files.command_name(int(pid))})")
    return processes
