"""The file ``changes``: writers take turns at it, and each commit is announced in it, which wakes all who watch it.

It holds the number of the newest entry of the journal and the identities of the files that have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vctl.errors import Unreachable, disk_trouble
from vctl.store import locks

CHANGES = "changes"
_NUMBER = b"%20d"


class Announcements:
    """The file of one state directory, as one connection has it open."""

    def __init__(self, home: Path) -> None:
        self.path = home / CHANGES
        self._fd: int | None = None

    def file(self) -> int | None:
        """The open file; None while the disk is full."""
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if disk_trouble(error) is None:
                    raise
        return self._fd

    def release(self) -> None:
        """Unlock the file, at which writers take turns."""
        assert self._fd is not None
        try:
            locks.release(self._fd)
        except OSError:
            self.close()  # which unlocks it, too

    def write(self, entry: int, mark: bytes) -> None:
        """Announce an entry, after the commit: who watched the WAL would wake before it can read the commit."""
        try:
            if (file := self.file()) is not None:
                os.pwrite(file, _NUMBER % entry + mark, 0)
        except OSError as error:
            if disk_trouble(error) is None:  # the commit stands, even if others learn of it a little later
                raise

    def is_newest(self, entry: int) -> bool:
        """Whether this entry was announced last."""
        file = self.file()
        return file is not None and os.pread(file, len(_NUMBER % 0), 0) == _NUMBER % entry

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def close_if_removed(self) -> None:
        """Close a file that somebody has removed."""
        if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
            self.close()


def announced(home: str | Path) -> tuple[int, list[str]]:
    """The newest announced entry, and the identities of the files that have it. Raises OSError, ValueError."""
    fd = os.open(f"{home}/{CHANGES}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.pread(fd, 100, 0).decode(errors="replace")
    finally:
        os.close(fd)
    length = len(_NUMBER % 0)
    return int(text[:length] or -1), text[length:].split()


@contextmanager
def turn(home: str | Path, timeout_s: float) -> Iterator[None]:
    """The turn of a writer for work that is no transaction. Raises Unreachable when others keep it for too long."""
    fd = os.open(f"{home}/{CHANGES}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locks.taken(fd, timeout_s):
            raise Unreachable(
                f"other processes have written to {home} for more than {timeout_s:g} s", fix="try again"
            )
        yield
    finally:
        os.close(fd)


def nudge(home: Path) -> None:
    """Wake all who watch, without an announcement: the first byte is a space anyway."""
    with suppress(OSError):
        fd = os.open(home / CHANGES, os.O_WRONLY | os.O_CLOEXEC)
        os.pwrite(fd, b" ", 0)
        os.close(fd)
