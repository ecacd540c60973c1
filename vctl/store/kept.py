"""Stores that stay open from one use to the next: opening and closing one takes longer than a submit.

An unused store holds no lock that a writer, a checkpoint or a migration waits for.
"""

from __future__ import annotations

import _sqlite3 as sqlite3
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, get_ident

from vctl.store import database, replaced  # noqa: F401 - nothing can be imported while Python shuts down
from vctl.store.files import Gone
from vctl.store.schema import VERSION
from vctl.store.store import Store

MOST = 8
"""The most unused stores that stay open. If more threads use stores at once, some stores open each time."""
PATIENCE_S = 5.0
"""How long a fork waits for other threads, which may wait for a lock themselves."""


def _is_current(store: Store) -> bool:
    """Whether its files are still those of the state directory, with the schema of this version."""
    try:
        store.db.check()
        store.reopen_files()
        return bool(store.value("PRAGMA user_version") == VERSION)
    except (Gone, sqlite3.Error, OSError):  # opening the state again raises the error with its reason
        return False


class OpenStores:
    """The open stores of one state directory. Unused stores are closed with this object, or at exit."""

    def __init__(self, home: Path, lock_timeout_s: float) -> None:
        self.home = home
        self._lock_timeout_s = lock_timeout_s
        self._unused: list[Store] = []
        with _users.changed:
            _every.add(self)
        weakref.finalize(self, _close, self._unused)

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """A store for one user. After an exception it is closed: the user may have left something behind."""
        with _users.one_more():
            store = self._current() or self._opened()
            try:
                yield store
            except BaseException:
                store.close()
                raise
            with _users.changed:  # not while another thread forks without having waited for this one
                if is_kept := len(self._unused) < MOST:
                    self._unused.append(store)
            if not is_kept:
                store.close()

    def close(self) -> None:
        """Close all unused stores."""
        _close(self._unused)

    def _current(self) -> Store | None:
        with suppress(IndexError):
            while not _is_current(store := self._unused.pop()):
                store.close()
            store.begin_anew()
            return store
        return None

    def _opened(self) -> Store:
        for stores in list(_every):
            if stores.home == self.home:
                stores.close_replaced()  # while one of this process stays open, nobody opens the new files
        store = Store(self.home, database.connect(self.home, any_thread=True))
        store.wait_at_most(self._lock_timeout_s)
        return store

    def close_replaced(self) -> None:
        """Close the unused stores whose files were removed or replaced."""
        for _ in range(len(self._unused)):
            with suppress(IndexError):  # another thread may take one meanwhile
                store = self._unused.pop(0)
                store.close() if store.db.files.replaced() else self._unused.append(store)


def _close(unused: list[Store]) -> None:
    with suppress(IndexError):
        while True:
            unused.pop().close()


class _Users:
    """The threads that use a store. A thread that forks waits for the others, then closes the unused stores.

    A child must inherit no open tables, not even unused ones: SQLite would take the locks of the parent for
    its own, also for tables that the child opens itself.
    """

    def __init__(self) -> None:
        self.changed = Condition()  # with a reentrant lock: a signal handler may fork
        self._threads: list[int] = []
        self._forks = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Register this thread as a user; waits while another thread forks."""
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
        """Wait for the other threads, and keep them from using a store until the fork is over."""
        me = get_ident()
        self.changed.acquire()
        self._forks += 1
        self.changed.wait_for(lambda: {*self._threads} <= {me}, PATIENCE_S)
        for kept in list(_every):
            kept.close()

    def after_fork(self) -> None:
        """Let the threads of the parent go on."""
        self._forks -= 1
        self.changed.notify_all()
        self.changed.release()

    def in_child(self) -> None:
        """Start afresh in the child, which has no other threads."""
        me = get_ident()
        self._threads = [thread for thread in self._threads if thread == me]
        self._forks = 0
        self.changed = Condition()


_every: weakref.WeakSet[OpenStores] = weakref.WeakSet()
_users = _Users()
os.register_at_fork(
    before=_users.before_fork, after_in_parent=_users.after_fork, after_in_child=_users.in_child
)
