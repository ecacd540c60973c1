"""One open state directory: transactions, events, revisions, the scheduler's term and heartbeat."""

from __future__ import annotations

import _sqlite3 as sqlite3
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vctl import engine
from vctl.core.caller import Caller
from vctl.core.values import replace
from vctl.errors import Conflict, Unreachable, VctlError, disk_trouble
from vctl.store import ahead, database, locks
from vctl.store.announcements import Announcements, announced
from vctl.store.database import BUSY_TIMEOUT_S, Tables
from vctl.store.entries import NEWEST, Emitted, Entry, Event, Head
from vctl.store.rows import dumps
from vctl.store.schema import VERSION

if TYPE_CHECKING:
    from vctl.core.identity import Identity
    from vctl.engine.changes import Change

Row = sqlite3.Row
HEARTBEAT = "scheduler.beat"
HEARTBEAT_BYTES = 512
HEARTBEAT_EVERY_S = 5.0
_HEAD = f"SELECT {NEWEST}, term, format, revision, capacity, contents FROM head"


class Fenced(VctlError):
    """A newer scheduler has taken over this state directory; the old one must not write any more."""

    code, exit_code = "Fenced", 5


class Store:
    """A connection to the tables of one state directory. Not shared between threads."""

    def __init__(self, home: Path, db: Tables, clock: Callable[[], int] = time.time_ns) -> None:
        self.home = home
        self._db = db
        self.clock = clock
        self.epoch: int | None = None
        self.lock_timeout_s = BUSY_TIMEOUT_S
        self.caller: Caller | None = None
        """The job that uses this connection; ``vctl.ops.rights`` decides what it may change."""
        self.identity: Identity | None = None
        """The user who uses this connection of a shared service; None in personal mode."""
        self.address = ""
        """The address of a shared service, which its jobs use; empty in personal mode, whose jobs have VCTL_HOME."""
        self.local_node = False
        """Whether this machine may become a node when a command submits through this connection."""
        self.before_commit: Callable[[Store], None] | None = None
        """Called inside every transaction, after all its changes and before the commit."""
        self.could_make: Callable[[object], list[dict[str, Any]]] = lambda _: []
        """The nodes that a provider could make; used if a scheduler announced none, or nothing yet (None)."""
        self.progress: Callable[[str], None] = lambda _: None
        """Called by work that takes long: with a line after each step of it, with '' at its end."""
        self._heartbeat_fd: int | None = None
        self._changes = Announcements(home)
        self._joins = False
        self.head: Head | None = None
        """The head of the journal, inside a transaction."""
        self.last_entry = 0
        """Number of the newest entry of the journal when this connection wrote last."""
        self.took_effect = False
        """Whether its present user has committed something through this connection."""
        self.being_started: dict[int, int] = {}
        """In a command: a waiting job that a supervisor starts now -> the ended job whose place it takes."""
        self.submitted = ""
        """The id of the job that its present user has submitted last through this connection."""
        self.takes_back = True
        """Whether a transaction begins by taking back all runs that were assigned ahead."""
        self.withdrawn: list[str] = []
        """Runs assigned ahead whose offers the open transaction has withdrawn."""
        self._unwritten: list[Entry] = []
        """Entries of the open transaction that are not in the tables yet; the property ``db`` writes them."""

    @cached_property
    def job_files(self) -> Path:
        """Where jobs find their objects, notices and lists of gang members: the state directory itself, which no job
        of a shared service can enter; that has a directory beside it."""
        beside = self.home / "jobs"
        return beside.resolve() if beside.is_symlink() else self.home

    @classmethod
    def open(cls, home: Path, *, create: bool = True, lock_timeout_s: float = BUSY_TIMEOUT_S) -> Store:
        """Open the state of a directory, or create it. ``lock_timeout_s``: the longest wait for a writer."""
        store = cls(home, database.connect(home, create=create))
        store.wait_at_most(lock_timeout_s)
        return store

    def wait_at_most(self, lock_timeout_s: float) -> None:
        """Set how long to wait for a writer."""
        self.lock_timeout_s = lock_timeout_s
        self.db.execute(f"PRAGMA busy_timeout = {int(lock_timeout_s * 1000)}")

    def close(self) -> None:
        """Close the connection."""
        self.db.close()
        self._changes.close()
        if self._heartbeat_fd is not None:
            os.close(self._heartbeat_fd)
        self._heartbeat_fd = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def db(self) -> Tables:
        """The connection. Everything that was emitted before is written to the tables first."""
        if self._unwritten:
            self._write()
        return self._db

    settled = staticmethod(ahead.settled)

    @property
    def effect(self) -> str:
        """What its present user has done through this connection, for an error after it; empty for nothing."""
        if self.submitted:
            return f"job {self.submitted} was submitted"
        return "the command took effect" if self.took_effect else ""

    def begin_anew(self) -> None:
        """Another user has this connection now: what the one before has done is not its effect."""
        self.submitted, self.took_effect = "", False

    # ---- reading ----

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query."""
        return database.fetched(self.db, sql, values)

    def row(self, sql: str, *values: object) -> sqlite3.Row | None:
        """The first row of a query, or None."""
        found: sqlite3.Row | None = self.db.execute(sql, values).fetchone()
        return found

    def value(self, sql: str, *values: object) -> Any:
        """The first column of the first row, or None."""
        row = self.db.execute(sql, values).fetchone()
        return None if row is None else row[0]

    def column(self, sql: str, *values: object) -> list[Any]:
        """The first column of all rows."""
        return [row[0] for row in self.rows(sql, *values)]

    def mapping(self, sql: str, *values: object) -> dict[Any, Any]:
        """The first column of all rows -> the second one."""
        return {row[0]: row[1] for row in self.rows(sql, *values)}

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Several reads of one moment. Nested uses join the outer one."""
        if self.db.in_transaction:
            yield
            return
        self.db.execute("BEGIN")
        try:
            yield
        finally:
            if self._db.in_transaction:  # SQLite has ended it when memory or the disk has failed
                self.db.execute("COMMIT")

    def lost(self) -> tuple[int, int] | None:
        """The first and the last journal entry that were committed and are lost: the end of the WAL was damaged.

        ``changes`` is written after each commit, so without damage it never names an entry that does not exist.
        """
        try:
            newest_known = announced(self.home)[0]
        except (OSError, ValueError):
            return None
        newest = self.value(f"SELECT {NEWEST}")
        return (newest + 1, newest_known) if newest_known > newest else None

    # ---- writing ----

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One decision: all of it is on disk when this returns, or none of it is."""
        if self._joins:
            yield
            return
        turn = self._changes.file()
        commits = False
        try:
            self._begin(turn)
            self._db.check()
            self.head = self._read_head()
            self._note_lost()
            if self.takes_back:
                ahead.take_back(self)
            yield
            if self.before_commit is not None:
                self.before_commit(self)
            self._write_head()
            db, commits = self.db, True
            db.execute("COMMIT")
            self._db.check_commit()
            self.last_entry, self.took_effect = self._head().seq, True
            # before another process can write, so that the last announcement is that of the last commit
            self._announce(self.last_entry)
            if self.withdrawn:
                ahead.forget(self)
        except BaseException as error:
            self._unwritten.clear()
            self._db.known.clear()
            self.withdrawn.clear()
            if self.db.in_transaction:  # on a full disk SQLite has rolled back already
                with suppress(sqlite3.OperationalError):
                    self.db.execute("ROLLBACK")
                commits = False
            self._note_effect(tried=commits)
            if isinstance(error, sqlite3.Error) and (trouble := disk_trouble(error)) is not None:
                raise trouble from error
            raise
        finally:
            self.head = None
            if turn is not None:
                self._changes.release()

    def _note_effect(self, *, tried: bool) -> None:
        """After an error in a transaction: note whether its commit, if it was tried, has succeeded all the same."""
        entry = self.head.seq if self.head is not None else 0
        with suppress(sqlite3.Error, MemoryError):
            if tried and entry and self.value(f"SELECT {NEWEST}") >= entry:
                self.last_entry, self.took_effect = entry, True
                return
        self.submitted = ""

    def _begin(self, turn: int | None) -> None:
        """Begin a write transaction as soon as no other process has one.

        While SQLite waits for its own lock, it sleeps for up to 100 ms at a time, and other writers get the
        lock again and again. So writers first wait for a file lock, which they try more often.
        """
        try:
            if turn is not None and not locks.taken(turn, self.lock_timeout_s):
                raise sqlite3.OperationalError("the file that writers take turns at is locked")
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            holder = database.write_lock_holder(database.database_path(self.home))
            raise Unreachable(
                f"the state has been locked by {holder} for more than {self.lock_timeout_s:g} s",
                fix="try again, or end that process",
            ) from None

    @contextmanager
    def checkpoints_aside(self) -> Iterator[None]:
        """No commit here copies the WAL into the tables, for which others would wait; ``checkpoint`` does."""
        before = self.value("PRAGMA wal_autocheckpoint")
        self.db.execute("PRAGMA wal_autocheckpoint = 0")
        try:
            yield
        finally:
            self.db.execute(f"PRAGMA wal_autocheckpoint = {int(before)}")

    def checkpoint(self) -> None:
        """Copy what others do not read any more from the WAL into the tables; writers go on meanwhile."""
        self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several decisions in one commit: the transactions inside are on disk when this returns, or none is."""
        with self.transaction():
            self._joins = True
            try:
                yield
            finally:
                self._joins = False

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part of a transaction: an exception inside rolls back this part alone."""
        self.db.execute("SAVEPOINT part")
        before = replace(self._head())
        try:
            yield
        except BaseException:
            self._unwritten.clear()
            self._db.known.clear()
            self.db.execute("ROLLBACK TO part")
            self.head = before
            raise
        finally:
            self.db.execute("RELEASE part")

    def wake(self) -> None:
        """Wake the processes that watch for changes, without a change. Any thread may call this."""
        self._announce()

    def wrote_last(self) -> bool:
        """Whether this connection made the last announced change, so that there is no new journal to read."""
        return self._changes.is_newest(self.last_entry)

    def _announce(self, entry: int = -1) -> None:
        """Wake the processes that watch ``changes``; called after the commit."""
        self._changes.write(entry, self._db.mark)

    def reopen_tables(self) -> None:
        """Open the tables anew if somebody has removed or replaced them; reads went on with what was there before."""
        if self._db.files.replaced():
            self._db.close()
            self._db = database.connect(self.home, create=False)
            self.wait_at_most(self.lock_timeout_s)

    def reopen_files(self) -> None:
        """Close the files beside the tables that somebody has removed; the next use opens new ones."""
        self._changes.close_if_removed()
        if self._heartbeat_fd is not None and os.fstat(self._heartbeat_fd).st_nlink == 0:
            os.close(self._heartbeat_fd)
            self._heartbeat_fd = None

    def watched(self) -> Path:
        """The file that is written after every commit; created if it is missing."""
        self._changes.path.touch(mode=0o600)
        return self._changes.path

    def event(
        self, kind: str, object_: str, object_id: str, *, data: Mapping[str, object] | None = None
    ) -> None:
        """Add an entry without a change to the journal, inside a transaction. ``kind`` reads ``node.heartbeat``."""
        head = self._head()
        head.seq += 1
        if object_ in ("node", "cluster"):  # the capacity has changed: earlier verdicts no longer hold
            head.capacity = head.seq
        self._unwritten.append(Event(self.clock(), kind, object_, object_id, data or {}))

    def _note_lost(self) -> None:
        """Record lost entries as an event, in the first transaction of a connection."""
        if not self.last_entry and (lost := self.lost()):
            from vctl.store import replaced

            replaced.check_left(self.home, "the end of cluster.db-wal was removed")
            self.event("state.lost", "state", str(self.home), data={"first": lost[0], "last": lost[1]})

    def emit(self, change: Change) -> None:
        """Emit a change in the open transaction, which writes it together with its event."""
        if self.being_started:
            ahead.check(self, change)
        head = self._head()
        head.seq += 1
        if isinstance(change, engine.changes.OF_CAPACITY) and not getattr(change, "silent", False):
            head.capacity = head.seq
        self._unwritten.append(Emitted(self.clock(), change))

    def next_revision(self) -> int:
        """A nanosecond stamp greater than every one before it; inside a transaction."""
        head = self._head()
        head.revision = max(self.clock(), head.revision + 1)
        return head.revision

    def next_lease(self) -> int:
        """The number of one more lease; inside a transaction."""
        head = self._head()
        if head.lease is None:
            head.lease = self.value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'leases'")
        head.lease += 1
        return head.lease

    # ---- the head of the journal ----

    def _head(self) -> Head:
        assert self.head is not None, "outside of a transaction"
        return self.head

    def _read_head(self) -> Head:
        """Read the head, and check that this process may change the tables: a transaction's first step."""
        head = Head(*self._db.execute(_HEAD).fetchone())
        self._check_term(head.term)
        if head.format != VERSION:
            raise Conflict(
                f"the tables have schema {head.format} now, this vctl knows {VERSION}",
                fix="start this command again, with the newer vctl",
            )
        self._db.known.hold_at(head.contents)
        head.read = (head.revision, head.capacity, head.term)
        return head

    def _write_head(self) -> None:
        head = self._head()
        changed = (head.revision, head.capacity, head.term)
        if changed != head.read:
            self._db.execute("UPDATE head SET revision = ?, capacity = ?, term = ?", changed)

    def _write(self) -> None:
        from vctl.store.write import write  # imports all changes: a process that only reads needs none

        entries, self._unwritten = self._unwritten, []
        with ahead.reported_as_start():
            write(self._db, entries, self._head().seq)

    def recall(self, key: str) -> Any:
        """The value in ``meta`` under a name, or None."""
        text = self.value("SELECT value FROM meta WHERE key = ?", key)
        return None if text is None else json.loads(text)

    # ---- the scheduler's term ----

    def check_term(self) -> None:
        """Raise Fenced if a newer scheduler has taken over. Called before effects that no rollback undoes."""
        self._check_term(self.value("SELECT term FROM head"))

    def _check_term(self, term: int) -> None:
        if self.epoch is not None and term != self.epoch:
            raise Fenced(
                f"scheduler {term} has taken over from {self.epoch}",
                fix="no action is needed: the newer scheduler is in charge",
            )

    def begin_term(self, kind: str) -> int:
        """Begin a term: writes of earlier schedulers are refused now. ``kind``: foreground or background."""
        with self.transaction():
            cursor = self.db.execute(
                "INSERT INTO terms (pid, kind, started_at) VALUES (?, ?, ?)",
                (os.getpid(), kind, self.clock()),
            )
            assert cursor.lastrowid is not None
            self._head().term = cursor.lastrowid
            self.db.execute("DELETE FROM terms WHERE epoch < ? - 100", (cursor.lastrowid,))
        self.epoch = cursor.lastrowid
        return self.epoch

    def end_term(self) -> None:
        """End the term of this scheduler in an orderly way."""
        if self.epoch is None:
            return
        with self.transaction():
            self.db.execute("UPDATE terms SET ended_at = ? WHERE epoch = ?", (self.clock(), self.epoch))
        self.epoch = None

    # ---- the scheduler's heartbeat: a file, because it must not cost a commit ----

    def write_heartbeat(self, heartbeat: Mapping[str, object]) -> None:
        """Write the heartbeat: one write of fixed size, in place, so that no reader sees half of it."""
        try:
            if self._heartbeat_fd is None:
                self._heartbeat_fd = os.open(self.home / HEARTBEAT, os.O_RDWR | os.O_CREAT, 0o600)
            os.pwrite(self._heartbeat_fd, dumps(heartbeat).encode().ljust(HEARTBEAT_BYTES), 0)
        except OSError as error:
            if disk_trouble(error) is None:
                raise

    def read_heartbeat(self) -> dict[str, Any] | None:
        """The last heartbeat of a scheduler, or None if there is none that can be read."""
        try:
            heartbeat: dict[str, Any] = json.loads((self.home / HEARTBEAT).read_text())
        except (OSError, ValueError):
            return None
        return heartbeat
