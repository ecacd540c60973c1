"""File locks of a state directory: one scheduler, one starting scheduler and one migration at a time.

The kernel drops a lock when its last holder dies, so no stale lock ever needs breaking.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vctl.core.values import value
from vctl.errors import Unreachable

SCHEDULER_LOCK = "scheduler.lock"
START_LOCK = "scheduler.start"
FOREGROUND, BACKGROUND = "foreground", "background"
"""Kinds of scheduler."""
_PAUSE_S = (0.0005, 0.004)
"""First and longest pause of a process that waits for a lock."""
_PROBED_S = 0.05
"""A check takes the lock for an instant, so only a refusal that lasts longer than this counts."""


@value(frozen=True, slots=True)
class LockHolder:
    """The holder of the scheduler lock. ``kind`` is empty, and ``pid`` 0, until the holder has written them."""

    kind: str
    pid: int
    since_ns: int


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
    """The right to schedule in a state directory, held for a scheduler's life. The file says who holds it."""

    def __init__(self, home: Path) -> None:
        self.path = home / SCHEDULER_LOCK
        self._fd: int | None = None

    def acquire(self, kind: str) -> bool:
        """Take the lock and write its holder; False if another process holds it."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not taken(fd, _PROBED_S):
                os.close(fd)
                return False
            os.ftruncate(fd, 0)
            said = {"kind": kind, "pid": os.getpid(), "since_ns": time.time_ns()}
            os.pwrite(fd, json.dumps(said).encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock."""
        return self._fd is not None

    def in_place(self) -> bool:
        """Whether the file that this process has locked is still the one that other processes would open."""
        assert self._fd is not None
        return _same_file(self._fd, self.path)

    def release(self) -> None:
        """Release the lock."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


class StartLock:
    """The lock of a starting scheduler: its starter takes it, and the new process inherits it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def take(cls, home: Path) -> StartLock | None:
        """Take the lock; None if another process is starting a scheduler."""
        fd = os.open(home / START_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if taken(fd, _PROBED_S):
            return cls(fd)
        os.close(fd)
        return None

    @classmethod
    def inherited(cls, home: Path, fd: int) -> StartLock | None:
        """The lock that a starter has handed over as this descriptor; None when there is none."""
        return cls(fd) if _same_file(fd, home / START_LOCK) else None

    def release(self) -> None:
        """Close the lock in this process: its part of the start is over."""
        os.close(self.fd)


def holder(home: Path) -> LockHolder | None:
    """The holder of the scheduler lock of a state directory, or None."""
    try:
        fd = os.open(home / SCHEDULER_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not _is_held(fd):
            return None
        said = json.loads(os.pread(fd, 4096, 0))
        return LockHolder(str(said["kind"]), int(said["pid"]), int(said["since_ns"]))
    except (ValueError, KeyError, TypeError):
        return LockHolder("", 0, 0)
    finally:
        os.close(fd)


def scheduler_is_running(home: Path) -> bool:
    """Whether some process holds the scheduler lock."""
    return holder(home) is not None


def scheduler_is_starting(home: Path) -> bool:
    """Whether some process holds the start lock: the new scheduler does not have the scheduler lock yet."""
    try:
        fd = os.open(home / START_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return _is_held(fd)
    finally:
        os.close(fd)


def _is_held(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def taken(fd: int, timeout_s: float) -> bool:
    """Lock a file, trying every few milliseconds; False if another process has it locked all that time."""
    give_up, pause_s = 0.0, _PAUSE_S[0]
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            give_up = give_up or now + timeout_s
            if now > give_up:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])
        else:
            return True


def release(fd: int) -> None:
    """Unlock a file."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def _same_file(fd: int, path: Path) -> bool:
    try:
        ours, theirs = os.fstat(fd), os.stat(path)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
