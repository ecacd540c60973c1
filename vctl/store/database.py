"""The connection to the state database: location, files, migrations, pragmas, and the holder of the write lock."""

from __future__ import annotations

import _sqlite3 as sqlite3
import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vctl import errors
from vctl.errors import Conflict, Damaged, NotPermitted, Unreachable, VctlError, disk_trouble, known
from vctl.store import ownership
from vctl.store.announcements import announced
from vctl.store.entries import NEWEST
from vctl.store.files import (
    REMOVED,
    Gone,
    Identity,
    OpenFiles,
    command_name,
    identity,
    identity_text,
    opened,
    unlink,
)
from vctl.store.ownership import TABLES
from vctl.store.schema import FIRST, LATER, SCHEMA, VERSION

if TYPE_CHECKING:
    from vctl.store.known import KnownContents

BUSY_TIMEOUT_S = 30.0
NETWORK_FILESYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs ncpfs afs 9p ceph glusterfs lustre gpfs beegfs orangefs ocfs2 gfs2 "
    "fuse.sshfs fuse.glusterfs fuse.ceph fuse.s3fs fuse.gcsfuse davfs fuse.rclone".split()
)
_TRIES = 3
"""How often to open tables whose files are replaced meanwhile."""
PLACE = "place"
"""The key in ``meta`` for the name of the records (files beside the tables) that belong to these tables."""
_LEAVES_S = 2.0
"""How long to wait for a process that has removed files open: a scheduler ends at once when it notices."""
_NEAR = 8
_shm_fds: dict[str, int] = {}
"""Path -> the descriptor at which it was found: all connections of a process share one."""
_WAL_WRITE_LOCK_BYTE = 120  # of the -shm file: https://www.sqlite.org/walformat.html#wal_locks


class NotText(ValueError):
    """A text in the tables is not UTF-8: the file was damaged, or edited by hand."""


_SQLITE_NO_FILE = (10, 14)
"""SQLite's primary result codes IOERR and CANTOPEN."""


def fetched(db: sqlite3.Connection | sqlite3.Cursor, sql: str, values: tuple[object, ...]) -> list[Any]:
    """All rows of a query."""
    try:
        return db.execute(sql, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" in str(error):
            raise NotText(str(error)[:200]) from None
        raise


@contextmanager
def raw_text(db: sqlite3.Connection) -> Iterator[None]:
    """Inside, text that is not UTF-8 is read as bytes."""
    db.text_factory = _raw
    try:
        yield
    finally:
        db.text_factory = str


def _raw(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


class Tables(sqlite3.Connection):
    """A connection that knows which files it has open."""

    files = OpenFiles("")
    _near = 3
    mark = b""
    """The identities of the tables and of the WAL, as a commit announces them."""

    @cached_property
    def known(self) -> KnownContents:
        """The numbers of contents that were looked up."""
        from vctl.store.known import KnownContents  # only who writes looks any up

        return KnownContents()

    def place(self, path: Path, near: int) -> None:
        """Say where the tables lie, and after which descriptor SQLite has opened them."""
        self.files, self._near = OpenFiles(str(path.parent)), near
        opened.add(self.files)

    def settle(self, expected: Identity) -> bool:
        """Note the open files. False if one of them is not the one of the directory: it was replaced meanwhile."""
        present = self.files.present()
        missing = set(present)
        if None in missing or (expected is not None and present[0] != expected):
            return False
        for fd in self._candidates():
            with suppress(OSError):
                info = os.fstat(fd)
                file_id = info.st_dev, info.st_ino
                missing.discard(file_id)
                if file_id == present[2]:
                    _shm_fds[self.files.home] = fd
                if not missing:
                    break
        if missing:
            return False
        self.files.folder = identity(self.files.home)
        self.files.identities, self.mark = (
            present,
            f" {identity_text(present[0])} {identity_text(present[1])}\n".encode(),
        )
        return True

    def _candidates(self) -> Iterator[int]:
        """Descriptors of this process, first those that SQLite most likely got."""
        yield from range(self._near, self._near + _NEAR)
        yield _shm_fds.get(self.files.home, self._near)
        yield from map(int, os.listdir("/proc/self/fd"))

    def check(self) -> None:
        """Raise Gone if one of the files is no longer the one of the directory."""
        if name := self.files.replaced():
            fix = "run it again: it opens the files that are there now"
            if name == TABLES:
                fix += f"; what was there is kept beside it as {name}{REMOVED}*"
            raise Gone(
                f"{self.files.home}/{name} was removed or replaced while this process had it open", fix=fix
            )

    def check_commit(self) -> None:
        """Like ``check``, directly after a commit: what others are about to write might hide it."""
        if name := self.files.replaced():
            assert self.files.identities is not None
            # who has opened the new file reads it again, with this commit
            if self.files.present()[:2] == self.files.identities[:2]:
                unlink(f"{self.files.home}/{TABLES}-shm")
            raise Gone(
                f"{self.files.home}/{name} was removed or replaced while this process wrote",
                fix="see whether the change is there, and run it again if not",
            )

    def close(self) -> None:
        """Close the connection."""
        if self._seems_replaced():
            self._leave()
        self.files.identities = None
        opened.discard(self.files)
        super().close()

    def abandon(self) -> None:
        """Close a connection whose files could not be told; nobody has written through it."""
        from vctl.store import replaced

        opened.discard(self.files)
        with replaced.pinned(self.files.home, None):
            super().close()

    def __del__(self) -> None:
        """SQLite would close a forgotten connection as well, and do harm if its files are others now."""
        if self._seems_replaced():
            self._leave()
        opened.discard(self.files)

    def _seems_replaced(self) -> bool:
        """Whether a file was replaced; one that cannot be looked at counts as the one of the directory."""
        try:
            return bool(self.files.replaced())
        except OSError:
            return False

    def _leave(self) -> None:
        from vctl.store import replaced

        replaced.leave(self, self.files)


def database_path(home: Path) -> Path:
    """The path of the tables of a state directory."""
    return home / TABLES


def prepare_home(home: Path) -> None:
    """Make the state directory (mode 0700), refusing a network filesystem and files of others."""
    try:
        home.mkdir(parents=True, mode=0o700, exist_ok=True)
    except FileExistsError:
        raise VctlError(f"{home} is a file", fix="point VCTL_HOME at a directory") from None
    except OSError as error:
        raise disk_trouble(error) or NotPermitted(
            f"cannot make the state directory {home}: {error.strerror}",
            fix="set VCTL_HOME to a directory you can write",
        ) from None
    info = home.stat()
    if info.st_mode & stat.S_ISVTX or home.samefile("/"):
        raise NotPermitted(
            f"the directory {home} is for other things and other users too, a state directory is closed to them",
            fix=f"set VCTL_HOME to a directory of its own, such as {home / 'vctl'}",
        )
    ownership.check(home)
    if info.st_mode & 0o077:
        home.chmod(0o700)
    ownership.check_all(home)  # also what others may have put there before
    kind = filesystem_of(home)
    if kind in NETWORK_FILESYSTEMS:
        raise VctlError(
            f"the state directory {home} is on a network filesystem ({kind}), where file locks do not protect it",
            fix="set VCTL_HOME to a directory on a local disk",
        )


def filesystem_of(path: Path) -> str:
    """Type of the filesystem that holds a path, from the mount table; empty if the table cannot be read."""
    target = os.path.realpath(path)
    best, kind = -1, ""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4].encode().decode("unicode_escape")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, kind = len(mount), right.split()[0]
    return kind


def check_files(home: Path) -> Identity:
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
    is_other = bool(marked) and tables is not None and identity_text(tables) != marked[0]
    missing = None
    if is_other or (tables is None and (wal or shm)):
        missing = path
    elif shm and not wal:
        missing = f"{path}-wal"
    if missing:
        from vctl.store import replaced

        if replaced.check_left(home, f"{missing} was removed or replaced", wait_s=_LEAVES_S):
            return check_files(home)
    if is_other and identity_text(wal) == marked[-1] and _came_later(*infos[:2]):
        raise Gone(
            f"{path} was replaced, and {path}-wal belongs to the database that was there before",
            fix=f"put that database back; or remove {path}-wal and {path}-shm, and with them its last changes",
        )
    return tables


def _came_later(tables: os.stat_result | None, wal: os.stat_result | None) -> bool:
    """Whether the tables came here after the last change of the WAL; in a copy of a directory they did not."""
    return tables is not None and wal is not None and tables.st_ctime_ns > wal.st_ctime_ns


def connect(home: Path, *, create: bool = True, any_thread: bool = False) -> Tables:
    """Open the tables, making or migrating them when needed. Never migrates under a running scheduler.

    ``any_thread``: one thread after the other may use the connection, never two at a time.
    """
    path = database_path(home)
    errors.read_error = partial(_read_error, path)
    for _ in range(_TRIES):
        tables = check_files(home)
        if tables is None:
            if not create:
                raise VctlError(
                    f"there is no vctl state in {home}", fix="submit a job first, or set VCTL_HOME"
                )
            prepare_home(home)
            _migrate(home, path)
        try:
            with _closed_on_error(open_file(path, any_thread=any_thread)) as db:
                version = db.execute("PRAGMA user_version").fetchone()[0]
        except (
            sqlite3.DatabaseError,
            UnicodeDecodeError,
        ) as error:  # SQLite's message may quote damaged text
            raise _unreadable(path, error) from None
        if 0 < version < FIRST:
            db.close()
            raise Conflict(
                f"{path} was written by a build before the first release (schema {version}, the first is {FIRST})",
                fix="let its jobs end with that build, then set VCTL_HOME to a new directory",
            )
        if version > VERSION:
            db.close()
            raise Conflict(
                f"{path} was written by a newer vctl (schema {version}, this one knows {VERSION})",
                fix="use the newer vctl, or another VCTL_HOME",
            )
        if version < VERSION:
            db.close()
            _migrate(home, path)
        elif db.settle(tables):
            return db
        else:
            is_wal = db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
            db.abandon()
            if not is_wal:  # a backup, which is one file, was put in place by hand
                _migrate(home, path)
    raise Unreachable(
        f"the files of {path} are removed or replaced all the time", fix="find out what does it"
    )


def _read_error(path: Path) -> OSError | None:
    from vctl.store import reading  # few processes ever meet such an error

    return reading.read_error(path)


def open_file(path: Path, *, any_thread: bool = False) -> Tables:
    """Open a database file with the pragmas that every connection has."""
    os.close(near := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    try:
        db = sqlite3.connect(
            path,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            cached_statements=256,
            check_same_thread=not any_thread,
            factory=Tables,
        )
    except sqlite3.OperationalError as error:
        raise disk_trouble(error) or NotPermitted(
            f"cannot open {path}: {error}", fix="check owner and mode of the state directory"
        ) from None
    db.place(path, near)
    with _closed_on_error(db):
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA temp_store = MEMORY")  # statements with triggers keep a journal of their own
    return db


@contextmanager
def _closed_on_error(db: Tables) -> Iterator[Tables]:
    try:
        yield db
    except BaseException:
        db.close()
        raise


def _unreadable(path: Path, error: Exception) -> VctlError:
    if "locked" in str(error):
        return Unreachable(
            f"{path} is locked by {write_lock_holder(path)}", fix="try again, or end that process"
        )
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_NO_FILE and is_full(path.parent):
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # SQLite does not report the cause
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        return NotPermitted(
            f"the state directory {path.parent} is on a read-only filesystem, where it cannot be read either:"
            " each reader writes a mark into its files",
            fix="mount it writable; or copy the directory, and set VCTL_HOME to the copy",
        )
    if (reason := known(error)) is not None and not isinstance(reason, Damaged):
        return reason
    return VctlError(f"{path} cannot be read: {error}", fix="restore a backup with `vctl restore FILE`")


def is_full(folder: Path) -> bool:
    """Whether a filesystem has no block or no inode left."""
    space = os.statvfs(folder)
    return not space.f_bavail or bool(space.f_files and not space.f_favail)


def _migrate(home: Path, path: Path) -> None:
    """Bring the tables to this code's schema, one process at a time, with a backup before a change."""
    from vctl.store.locks import exclusive, scheduler_is_running

    with exclusive(home / "migrate.lock"):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        os.chmod(path, 0o600)
        with closing(open_file(path)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == VERSION:
                db.execute("PRAGMA journal_mode = WAL")
                return
            if version and scheduler_is_running(home):
                raise Conflict(
                    f"{path} needs a migration from schema {version} to {VERSION}, but an older scheduler is running",
                    fix="stop the running `vctl daemon`, then try again",
                )
            if version:
                _backup_before_migration(db, path, version)
            db.execute("PRAGMA journal_mode = WAL")
            apply_migrations(db)


def apply_migrations(db: sqlite3.Connection, version: int = VERSION) -> None:
    """Bring a database, empty or not, to a schema version."""
    import sqlite_utils
    from sqlite_utils.migrations import Migrations

    migrations = Migrations("vctl")
    for name, script in [(f"{FIRST:04}_first", SCHEMA), *LATER[: version - FIRST]]:
        migrations(name=name)(_step(script))
    target = sqlite_utils.Database(db)
    migrations.apply(target)
    db.execute("UPDATE head SET format = ?", (version,))
    db.execute(f"PRAGMA user_version = {version}")


def _step(script: str):  # type: ignore[no-untyped-def]  # sqlite_utils wants a plain function of its Database
    def step(target):  # type: ignore[no-untyped-def]
        for statement in _statements(script):
            target.conn.execute(statement)

    return step


def _statements(script: str) -> list[str]:
    """Split a script at semicolons that end a statement (``executescript`` would commit in between)."""
    statements, part = [], ""
    for piece in script.split(";"):
        part += piece + ";"
        if sqlite3.complete_statement(part):
            if part.strip(" \n;"):
                statements.append(part)
            part = ""
    return statements


def _backup_before_migration(db: sqlite3.Connection, path: Path, version: int) -> None:
    target = path.with_name(f"cluster.db.schema-{version}.bak")
    os.close(os.open(target, os.O_RDWR | os.O_CREAT, 0o600))
    with closing(sqlite3.connect(target)) as copy:
        db.backup(copy)


def write_lock_holder(path: Path) -> str:
    """The holder of SQLite's write lock, from the kernel's lock table: ``pid 123 (python)`` or ``another process``."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "another process"
    for line in lines:
        fields = line.split()
        if "->" in fields or len(fields) < 8 or not fields[5].endswith(f":{inode}"):
            continue
        first, last = int(fields[6]), float("inf") if fields[7] == "EOF" else int(fields[7])
        if fields[3] == "WRITE" and first <= _WAL_WRITE_LOCK_BYTE <= last:
            return f"pid {fields[4]} ({command_name(int(fields[4]))})"
    return "another process"


def disown(path: Path) -> None:
    """Separate the tables in a file from all records of processes, as they come from another place or time."""
    with closing(open_file(path)) as db:
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (PLACE, json.dumps(os.urandom(8).hex())))
        db.execute(
            f"UPDATE head SET journal = ?, base = {NEWEST}, contents = random()", (os.urandom(8).hex(),)
        )  # another one begins
