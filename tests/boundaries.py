"""Ends a process at one point of its work: before and after every write, commit, and effect outside of the tables.

``sqlite3.connect`` gives connections that count, and the functions of ``os`` and ``socket`` that change something
outside are counted too. The code under test is as it is.
"""

from __future__ import annotations

import _signal
import _sqlite3
import json
import os
import re
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vctl.store.database import Tables

WRITES = re.compile(
    r"\s*(BEGIN IMMEDIATE|COMMIT|INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP)\b", re.IGNORECASE
)
OUTSIDE = ((os, "unlink"), (os, "remove"), (os, "rename"), (os, "replace"), (os, "mkdir"), (os, "rmdir"), (os, "kill"),
           (os, "posix_spawn"), (os, "truncate"), (os, "ftruncate"), (_signal, "pidfd_send_signal"))  # fmt: skip
"""What changes something that is not in the tables."""


def _nothing(name: str) -> None:
    """Nobody watches."""


_passed: Callable[[str], None] = _nothing


class Counted(sqlite3.Connection):
    """A connection whose writes are points at which a process can end."""

    reads = False
    """Inside a transaction that only reads: its end is no point."""
    changes: set[str] = set()
    """The types of change in the open transaction."""

    def _around(self, do: Callable[..., Any], sql: str, *values: Any) -> Any:
        words = sql.split()
        if words[0] == "BEGIN":
            self.reads, self.changes = len(words) == 1, set()
        if WRITES.match(sql) is None or (self.reads and words[0] == "COMMIT"):
            return do(sql, *values)
        name = " ".join(words[: 3 if words[0].upper() in ("INSERT", "DELETE") else 2])[:40]
        if sql.startswith("INSERT INTO changes"):
            self.changes |= {json.loads(one)["type"] for one in values[0] if str(one).startswith('{"type"')}
        told = f" {' '.join(sorted(self.changes))}" if name == "COMMIT" else ""
        _passed(f"before {name}{told}")
        result = do(sql, *values)
        if name == "COMMIT":
            _passed(f"after COMMIT{told}")
        return result

    def execute(self, sql: str, *values: Any) -> Any:  # type: ignore[override]
        return self._around(super().execute, sql, *values)

    def executemany(self, sql: str, *values: Any) -> Any:  # type: ignore[override]
        return self._around(super().executemany, sql, *values)

    def backup(self, *args: Any, **kwargs: Any) -> None:
        _passed("before backup")
        super().backup(*args, **kwargs)
        _passed("after backup")


class CountedTables(Counted, Tables):
    """The connection of a store, counted."""


def _counted(do: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        _passed(f"before {name}")
        result = do(*args, **kwargs)
        _passed(f"after {name}")
        return result

    return call


@contextmanager
def watched(passed: Callable[[str], None]) -> Iterator[None]:
    """Call a function at every such point of what is done inside."""
    global _passed
    connect = _sqlite3.connect
    kept = [(where, name, getattr(where, name)) for where, name in OUTSIDE]
    send = socket.socket.send

    def counting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        factory = CountedTables if kwargs.get("factory") is Tables else Counted
        return connect(*args, **{**kwargs, "factory": factory})

    sqlite3.connect = _sqlite3.connect = counting  # type: ignore[assignment]
    for where, name, do in kept:
        setattr(where, name, _counted(do, name))
    for name in ("send", "sendall", "sendmsg"):
        setattr(socket.socket, name, _counted(getattr(socket.socket, name), name))
    _passed = passed
    try:
        yield
    finally:
        _passed = _nothing
        sqlite3.connect = _sqlite3.connect = connect
        for where, name, do in kept:
            setattr(where, name, do)
        for name in ("send", "sendall", "sendmsg"):
            delattr(socket.socket, name)
    assert socket.socket.send is send


def ended_when(name: str, nth: int = 1, sig: int = signal.SIGKILL) -> Callable[[str], None]:
    """End this process when it passes a point of this name so often."""
    left, kill, own = nth, os.kill, os.getpid

    def passed(found: str) -> None:
        nonlocal left
        left -= found == name
        if left == 0 and found == name:
            kill(own(), sig)

    return passed


def ended_at(number: int, sig: int = signal.SIGKILL) -> Callable[[str], None]:
    """End this process at the point of this number (from 0)."""
    left, kill, own = number, os.kill, os.getpid

    def passed(name: str) -> None:
        nonlocal left
        if left == 0:
            kill(own(), sig)
        left -= 1

    return passed
