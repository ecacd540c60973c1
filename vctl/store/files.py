"""The files of the tables, and whether a connection still has those that other processes open.

SQLite finds ``cluster.db-wal`` and ``cluster.db-shm`` by their names. After somebody has removed or replaced one of
these files, two processes write to the tables without knowing of each other, and each overwrites what the other one
has committed. So a connection notes which files it has, looks in each transaction whether they are still those of the
directory, and writes no more once they differ.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path

from vctl.errors import Unreachable, VctlError
from vctl.store import ownership
from vctl.store.announcements import announced, nudge, turn
from vctl.store.known import KnownContents
from vctl.store.ownership import PARTS, TABLES

REMOVED = ".removed-"
"""In the name of a copy of tables that were removed or replaced under a running process."""
Identity = tuple[int, int] | None
_SHARED_BYTES = (0x40000002, 510)
"""The bytes of the database file on which SQLite's readers hold a lock: https://www.sqlite.org/lockingv3.html."""
_PATIENCE_S = 30.0
_LEAVES_S, _PAUSE_S = 2.0, 0.02
"""How long to wait for a process that has removed files open: a scheduler ends at once when it notices."""
_NEAR = 8
COARSEST_NS = 3 * 10**9
"""More than the coarsest step of the times of a file system."""
_shm_fds: dict[str, int] = {}
"""Path -> the descriptor at which it was found: all connections of a process share one."""


class Gone(VctlError):
    """The state that this process works on is no longer the one of its directory."""

    code, exit_code, http_status = "Gone", 1, 503


def identity(path: str | Path) -> Identity:
    """The device and the inode of the file or directory at a path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


_open: weakref.WeakSet[Tables] = weakref.WeakSet()
"""The connections of this process."""


def _text(one: Identity) -> str:
    return "" if one is None else f"{one[0]}:{one[1]}"


class Tables(sqlite3.Connection):
    """A connection that knows which files it has open."""

    _home = ""
    _near = 3
    _folder: Identity = None
    _ours: tuple[Identity, ...] | None = None
    _unchanged: tuple[int, int, int] | None = None
    """Identity and ctime of the directory when the files in it were compared."""
    mark = b""
    """The identities of the tables and of the WAL, as a commit announces them."""

    @cached_property
    def known(self) -> KnownContents:
        """The numbers of contents that were looked up."""
        return KnownContents()

    def place(self, path: Path, near: int) -> None:
        """Say where the tables lie, and after which descriptor SQLite has opened them."""
        self._home, self._near = str(path.parent), near
        _open.add(self)

    def is_of(self, home: Path) -> bool:
        """Whether its tables are, or were, those of this directory."""
        return self._home == str(home)

    def settle(self, expected: Identity) -> bool:
        """Note the open files. False if one of them is not the one of the directory: it was replaced meanwhile."""
        found = self._found()
        left = set(found)
        if None in left or (expected is not None and found[0] != expected):
            return False
        for fd in self._candidates():
            with suppress(OSError):
                info = os.fstat(fd)
                one = info.st_dev, info.st_ino
                left.discard(one)
                if one == found[2]:
                    _shm_fds[self._home] = fd
                if not left:
                    break
        if left:
            return False
        self._folder = identity(self._home)
        self._ours, self.mark = found, f" {_text(found[0])} {_text(found[1])}\n".encode()
        return True

    def _found(self) -> tuple[Identity, ...]:
        path = f"{self._home}/{TABLES}"
        return identity(path), identity(f"{path}-wal"), identity(f"{path}-shm")

    def _candidates(self) -> Iterator[int]:
        """Descriptors of this process, first those that SQLite most likely got."""
        yield from range(self._near, self._near + _NEAR)
        yield _shm_fds.get(self._home, self._near)
        yield from map(int, os.listdir("/proc/self/fd"))

    def replaced(self) -> str | None:
        """The name of the first file that is no longer the one of the directory; None if all are in place.

        While nothing was added to the directory, removed or renamed there, its ctime stays, which nobody can set: one
        look at it is enough then. A ctime of just now says nothing, as the next change may get the same one.
        """
        if self._ours is None:
            return None
        folder = _stamp(self._home)
        if folder is not None and folder == self._unchanged:
            return None
        found = self._found()
        if found == self._ours:
            if folder is not None and time.time_ns() - folder[2] > COARSEST_NS:
                self._unchanged = folder
            return None
        return next(
            TABLES + part for part, *both in zip(PARTS, found, self._ours, strict=True) if len({*both}) > 1
        )

    def check(self) -> None:
        """Raise Gone if one of the files is no longer the one of the directory."""
        if name := self.replaced():
            fix = "run it again: it opens the files that are there now"
            if name == TABLES:
                fix += f"; what was there is kept beside it as {name}{REMOVED}*"
            raise Gone(f"{self._home}/{name} was removed or replaced while this process had it open", fix=fix)

    def check_commit(self) -> None:
        """Like ``check``, directly after a commit: what others are about to write might hide it."""
        if name := self.replaced():
            assert self._ours is not None
            if (
                self._found()[:2] == self._ours[:2]
            ):  # who has opened the new file reads it again, with this commit
                _unlink(f"{self._home}/{TABLES}-shm")
            raise Gone(
                f"{self._home}/{name} was removed or replaced while this process wrote",
                fix="see whether the change is there, and run it again if not",
            )

    def close(self) -> None:
        """Close the connection."""
        if self.replaced():
            self._leave()
        self._ours = None
        _open.discard(self)
        super().close()

    def abandon(self) -> None:
        """Close a connection whose files could not be told; nobody has written through it."""
        _open.discard(self)
        with self._pinned(None):
            super().close()

    def __del__(self) -> None:
        """SQLite would close a forgotten connection as well, and do harm if its files are others now."""
        if self.replaced():
            self._leave()

    def _leave(self) -> None:
        """Save what only this connection can read, and close without touching files of others.

        The close of the last connection writes the WAL into the tables and removes it. Here both might be those of
        other processes, which have committed since.
        """
        assert self._ours is not None
        with self._pinned(self._ours[0]):
            try:
                if identity(self._home) == self._folder:
                    with turn(self._home, _PATIENCE_S):
                        self._save(self._ours)
            finally:
                self._ours = None
                _open.discard(self)
                super().close()

    def _save(self, ours: tuple[Identity, ...]) -> None:
        found, path = self._found(), f"{self._home}/{TABLES}"
        if self.in_transaction:
            self.execute("ROLLBACK")
        if found[0] == ours[0] and found[1] != ours[1] and not _has_content(f"{path}-wal"):
            # the WAL is gone, and with it, for all others, what was committed since it began
            self.execute("PRAGMA wal_checkpoint(FULL)")
            _unlink(f"{path}-shm")  # who has opened the tables meanwhile must read them again
            _unlink(f"{path}-wal")
        elif found[0] != ours[0] and ours[0] is not None:
            for part, now, then in zip(PARTS[1:], found[1:], ours[1:], strict=True):
                if now == then:  # it belongs to the tables that were removed
                    _unlink(path + part)
            with suppress(FileExistsError):  # another process has kept the same tables
                kept = f"{path}{REMOVED}{ours[0][1]}"
                os.close(os.open(kept, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                with closing(sqlite3.connect(kept)) as copy:
                    self.backup(copy)
                    copy.execute("PRAGMA journal_mode = DELETE")  # one file, nothing beside it

    @contextmanager
    def _pinned(self, tables: Identity) -> Iterator[None]:
        """Keep SQLite from taking this connection for the last one: another lock of a reader is on the tables."""
        held = []
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                is_ours = os.readlink(f"/proc/self/fd/{fd}").startswith(
                    f"{os.path.realpath(self._home)}/{TABLES}"
                )
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
                if not _open:  # closing it would drop the locks of other connections of this process
                    os.close(fd)


def _lock(fd: int, kind: int) -> None:
    import struct  # few processes close tables that were replaced

    start, length = _SHARED_BYTES
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


# ---- before the tables are opened ----


def check(home: Path) -> Identity:
    """The identity of the tables, None if there are none. Raises if opening them would do harm, or is not allowed.

    Files of one directory may belong to different tables: of those that were removed, a running process has the rest
    open, and puts back what it has committed as soon as it notices.
    """
    path = f"{home}/{TABLES}"
    infos = ownership.check(home)
    tables, wal, shm = (info and (info.st_dev, info.st_ino) for info in infos)
    try:
        marked = announced(home)[1]
    except (OSError, ValueError):
        marked = []
    is_other = bool(marked) and tables is not None and _text(tables) != marked[0]
    missing = None
    if is_other or (tables is None and (wal or shm)):
        missing = path
    elif shm and not wal:
        missing = f"{path}-wal"
    if missing and check_left(home, f"{missing} was removed or replaced", wait_s=_LEAVES_S):
        return check(home)
    if is_other and _text(wal) == marked[-1] and _came_later(*infos[:2]):
        raise Gone(
            f"{path} was replaced, and {path}-wal belongs to the database that was there before",
            fix=f"put that database back; or remove {path}-wal and {path}-shm, and with them its last changes",
        )
    return tables


def _came_later(tables: os.stat_result | None, wal: os.stat_result | None) -> bool:
    """Whether the tables came here after the last change of the WAL; in a copy of a directory they did not."""
    return tables is not None and wal is not None and tables.st_ctime_ns > wal.st_ctime_ns


def check_left(home: Path, what: str, *, wait_s: float = 0.0) -> bool:
    """Raise Unreachable if processes have files of the tables open that are no longer in the directory.

    True if there were such processes, and they have left within ``wait_s``.
    """
    give_up, had_to_wait = time.monotonic() + wait_s, False
    while found := left(home):
        nudge(home)
        if time.monotonic() >= give_up:
            raise Unreachable(
                f"{what}, and {', '.join(found)} still has what was there",
                fix="try again in a second; if this stays, end that process: it puts back what it has",
            )
        time.sleep(_PAUSE_S)
        had_to_wait = True
    return had_to_wait


def left(home: Path) -> list[str]:
    """The processes that have files of the tables open which are no longer those of the directory."""
    base, me = f"{os.path.realpath(home)}/{TABLES}", os.getpid()
    found = []
    if any(one.replaced() for one in list(_open) if one.is_of(home)):
        found.append("this process")
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
                found.append(f"pid {pid} ({command_name(int(pid))})")
    return found


def command_name(pid: int) -> str:
    """The command line of a process, shortened; ``gone`` when it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return " ".join(word.decode(errors="replace") for word in words if word)[:120] or "gone"
