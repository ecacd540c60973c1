"""Stores whose every statement is a place where a process can die, fail, or be overtaken by others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.simulation.kernel import Violation
from tests.world import Killed
from vctl.store import database
from vctl.store.store import Store

FULL, IOERR = 13, 10
WRITES = ("INSERT", "UPDATE", "DELETE", "REPLAC")


class Actor:
    """A process that uses the tables: a scheduler or a command. What is dead does nothing any more."""

    def __init__(self, name: str, *, is_daemon: bool = False) -> None:
        self.name, self.is_daemon = name, is_daemon
        self.dead = False
        self.fuse: int | None = None
        """At how many boundaries from now it is killed."""


class Faults(Protocol):
    """What a store asks at each boundary."""

    writer: Actor | None
    spare: list[sqlite3.Connection]
    """Connections of processes that have ended."""

    def boundary(self, actor: Actor, where: str) -> None: ...
    def announced(self, actor: Actor) -> None: ...
    def committed(self) -> None: ...
    def write_error(self, actor: Actor) -> int | None: ...
    def commit_error(self, actor: Actor) -> str | None: ...


def disk_error(code: int) -> sqlite3.OperationalError:
    """As SQLite raises it."""
    error = sqlite3.OperationalError("database or disk is full" if code == FULL else "disk I/O error")
    error.sqlite_errorcode = code
    return error


class Connection:
    """A connection to the tables of a process that may die."""

    def __init__(self, db: sqlite3.Connection, faults: Faults, actor: Actor) -> None:
        self._db, self._faults, self._actor = db, faults, actor
        self.store: SimulatedStore | None = None
        self._changes = 0
        self._closed = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if self._actor.dead:
            raise Killed
        if self._faults.writer is not self._actor:
            self._faults.boundary(self._actor, "read")
            return self._db.execute(sql, *values)
        word = sql[:6].upper()
        if word == "COMMIT":
            return self._commit()
        self._faults.boundary(self._actor, word)
        if word == "BEGIN ":
            self._changes = self._db.total_changes
        elif word in WRITES:
            self._may_fail()
        return self._db.execute(sql, *values)

    def executemany(self, sql: str, values: Any) -> sqlite3.Cursor:
        self._faults.boundary(self._actor, sql[:6])
        self._may_fail()
        return self._db.executemany(sql, values)

    def _may_fail(self) -> None:
        code = self._faults.write_error(self._actor)
        if code is not None:
            if code == FULL:
                self._db.execute("ROLLBACK")  # SQLite has taken everything back
            raise disk_error(code)

    def _commit(self) -> sqlite3.Cursor:
        assert self.store is not None
        self._faults.boundary(self._actor, "COMMIT")
        wrote = self._db.total_changes != self._changes
        error = self._faults.commit_error(self._actor) if wrote else None
        if error == "lost":
            self._db.execute("ROLLBACK")
            raise disk_error(IOERR)
        if wrote and self.store.epoch is not None:
            term = self._db.execute("SELECT term FROM head").fetchone()[0]
            if term != self.store.epoch:
                raise Violation(f"scheduler {self.store.epoch} writes in the term of {term}")
        done = self._db.execute("COMMIT")
        if wrote:
            self._faults.committed()
        if error == "kept":  # it is in the journal, though syncing it failed
            raise disk_error(IOERR)
        self._faults.boundary(self._actor, "committed")
        return done

    def close(self) -> None:
        """Leave it to the next process: opening one, and its statements, cost more than most commands."""
        if self._closed:
            return
        self._closed = True
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._faults.spare.append(self._db)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class SimulatedStore(Store):
    """The store of a process that may die."""

    faults: Faults
    actor: Actor

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._joins:
            yield
            return
        self.faults.boundary(self.actor, "transaction")
        before, self.faults.writer = self.faults.writer, self.actor
        try:
            with super().transaction():
                yield
        finally:
            self.faults.writer = before

    def _announce(self, entry: int = -1) -> None:
        self.faults.boundary(self.actor, "announce")
        super()._announce(entry)
        self.faults.announced(self.actor)

    def write_heartbeat(self, heartbeat: Mapping[str, object]) -> None:
        """Nobody reads it here."""


def opened(home: Path, faults: Faults, actor: Actor) -> SimulatedStore:
    """A store of one process."""
    store = SimulatedStore(home, faults.spare.pop() if faults.spare else database.connect(home))
    store._db.execute("PRAGMA synchronous = OFF")  # what a machine loses is decided by the simulation
    store.faults, store.actor = faults, actor
    connection = Connection(store._db, faults, actor)
    connection.store = store
    store._db = connection  # type: ignore[assignment]
    return store
