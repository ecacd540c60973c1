"""Stores that stay open from one use to the next: opening and closing one takes longer than a submit.

One that nobody uses holds no lock that a writer, a checkpoint or a migration waits for.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, get_ident

from vctl.core.values import value
from vctl.store import database
from vctl.store.schema import VERSION
from vctl.store.store import Store

MOST = 8
"""So many stay open at most. Where more threads than that use them at a time, some are opened and closed each time."""
PATIENCE_S = 5.0
"""How long a fork waits for other threads, which may wait for a lock themselves."""
Files = tuple[object, object]
"""The identities of the tables and of their WAL."""


def _files(home: Path) -> Files:
    tables = f"{home}/{database.TABLES}"
    return database.identity(tables), database.identity(f"{tables}-wal")


@value(frozen=True, slots=True)
class _Open:
    store: Store
    files: Files

    def is_current(self) -> bool:
        """Whether its files are those that others would open, with the schema of this version."""
        if self.files != _files(self.store.home):
            return False
        try:
            self.store.reopen_files()
            return bool(self.store.value("PRAGMA user_version") == VERSION)
        except (sqlite3.Error, OSError):  # who opens it anew is told why
            return False


class Kept:
    """The stores of one state directory; those that nobody uses are closed with this object, or at the end."""

    def __init__(self, home: Path, lock_timeout_s: float) -> None:
        self.home = home
        self._lock_timeout_s = lock_timeout_s
        self._unused: list[_Open] = []
        with _users.changed:
            _every.add(self)
        weakref.finalize(self, _close, self._unused)

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """A store that nobody else uses. Who fails may have left something behind in it: it is closed then."""
        with _users.one_more():
            one = self._current() or self._opened()
            try:
                yield one.store
            except BaseException:
                one.store.close()
                raise
            with _users.changed:  # not while a thread forks that did not wait for this one
                if is_kept := len(self._unused) < MOST:
                    self._unused.append(one)
            if not is_kept:
                one.store.close()

    def close(self) -> None:
        """Close all that nobody uses."""
        _close(self._unused)

    def _current(self) -> _Open | None:
        with suppress(IndexError):
            while not (one := self._unused.pop()).is_current():
                one.store.close()
            return one
        return None

    def _opened(self) -> _Open:
        # the identity of before: tables that are replaced while they are opened are not taken for these
        tables, _ = _files(self.home)
        store = Store(self.home, database.connect(self.home, any_thread=True))
        store.wait_at_most(self._lock_timeout_s)
        _, wal = _files(self.home)
        return _Open(store, (tables, wal))


def _close(unused: list[_Open]) -> None:
    with suppress(IndexError):
        while True:
            unused.pop().store.close()


class _Users:
    """The threads that use a store. One that forks waits until the others do not, and then closes those that are open.

    A child must inherit no open tables, not even unused: SQLite would take the locks of its parent for its own, also
    for tables that the child opens itself.
    """

    def __init__(self) -> None:
        self.changed = Condition()  # with a lock that one thread may take twice: a signal handler may fork
        self._threads: list[int] = []
        self._forks = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Use a store."""
        me = get_ident()
        with self.changed:
            while self._forks and me not in self._threads:
                self.changed.wait()
            self._threads.append(me)
        try:
            yield
        finally:
            with self.changed:
                self._threads.remove(me)
                if self._forks:
                    self.changed.notify_all()

    def before_fork(self) -> None:
        """Wait for the other threads, and let none of them use a store until the fork is over."""
        me = get_ident()
        self.changed.acquire()
        self._forks += 1
        self.changed.wait_for(lambda: {*self._threads} <= {me}, PATIENCE_S)
        for kept in list(_every):
            kept.close()

    def after_fork(self) -> None:
        """Go on, in the parent."""
        self._forks -= 1
        self.changed.notify_all()
        self.changed.release()

    def in_child(self) -> None:
        """Go on, in the child: it has no other threads."""
        me = get_ident()
        self._threads = [one for one in self._threads if one == me]
        self._forks = 0
        self.changed = Condition()


_every: weakref.WeakSet[Kept] = weakref.WeakSet()
_users = _Users()
os.register_at_fork(
    before=_users.before_fork, after_in_parent=_users.after_fork, after_in_child=_users.in_child
)
