"""File locks of a state directory: one scheduler at a time, one migration at a time.

The kernel drops a lock when its holder dies, so no stale lock ever needs breaking.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vctl.errors import Unreachable

if TYPE_CHECKING:
    from filelock import FileLock

SCHEDULER_LOCK = "scheduler.lock"
DAEMON_WANTED = "daemon.wanted"
"""A starting daemon makes this file, again and again; an embedded scheduler that sees it leaves at once."""
ASKED_FOR_S = 3.0


@contextmanager
def exclusive(path: Path, timeout_s: float = 30.0) -> Iterator[None]:
    """Hold a lock for a short piece of work."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(path, timeout=timeout_s, mode=0o600):
            yield
    except Timeout:
        raise Unreachable(
            f"{path} stayed locked for {timeout_s:g} s", fix="see who holds it: lsof " + str(path)
        ) from None


class SchedulerLock:
    """The right to schedule in a state directory, held for a scheduler's life."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock: FileLock | None = None

    def acquire(self) -> bool:
        """Try once; True when this process schedules from now on."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.home / SCHEDULER_LOCK, mode=0o600)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        self._lock = lock
        return True

    def release(self) -> None:
        """Give the right up."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def scheduler_is_running(home: Path) -> bool:
    """Whether some process holds the scheduler lock; asks without taking it for longer than the question."""
    import fcntl

    try:
        fd = os.open(home / SCHEDULER_LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def ask_for_the_lock(home: Path) -> None:
    """Tell an embedded scheduler that a daemon wants to take over."""
    path = home / DAEMON_WANTED
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    os.utime(path)


def lock_is_wanted(home: Path) -> bool:
    """Whether a daemon is waiting for the lock, now: one that was killed while it waited asks no more."""
    try:
        asked_at = os.stat(home / DAEMON_WANTED).st_mtime
    except FileNotFoundError:
        return False
    return abs(time.time() - asked_at) < ASKED_FOR_S


def stop_asking(home: Path) -> None:
    """The daemon has the lock, or has given up."""
    (home / DAEMON_WANTED).unlink(missing_ok=True)
