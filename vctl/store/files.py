"""The files of the tables, and whether a connection still has those that other processes open.

SQLite finds ``cluster.db-wal`` and ``cluster.db-shm`` by their names. After somebody has removed or replaced one of
these files, two processes write to the tables without knowing of each other, and each overwrites what the other one
has committed. So a connection notes which files it has, looks in each transaction whether they are still those of the
directory, and writes no more once they differ; ``replaced`` has what it does then.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from vctl.errors import VctlError, disk_trouble
from vctl.store.ownership import PARTS, TABLES

REMOVED = ".removed-"
"""In the name of a copy of tables that were removed or replaced under a running process."""
Identity = tuple[int, int] | None
COARSEST_NS = 3 * 10**9
"""More than the coarsest step of the times of a file system."""
FINE_NS, TICK_NS = 10**6, 10**8
"""A time with a part below ``FINE_NS`` comes from a clock with finer steps; ``TICK_NS`` is more than one of them."""


class Gone(VctlError):
    """The state that this process works on is no longer the one of its directory."""

    code, exit_code, http_status = "Gone", 1, 503


def identity(path: str | Path) -> Identity:
    """The device and the inode of the file or directory at a path; None if there is none.

    Raises OSError if that is not known, for want of memory or because the disk fails: nothing may be concluded then.
    """
    try:
        info = os.stat(path)
    except OSError as error:
        if disk_trouble(error) is not None:
            raise
        return None
    return info.st_dev, info.st_ino


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_ctime_ns


def is_past(ctime_ns: int, now_ns: int) -> bool:
    """Whether the next change in a directory gets another ctime than its last one."""
    return now_ns - ctime_ns > (TICK_NS if ctime_ns % FINE_NS else COARSEST_NS)


def identity_text(file: Identity) -> str:
    """An identity as a commit announces it; empty for no file."""
    return "" if file is None else f"{file[0]}:{file[1]}"


class OpenFiles:
    """The files that one connection has open, and whether they are still those of the directory."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.identities: tuple[Identity, ...] | None = None
        """Those of the tables, the WAL and the shared memory; None: not known yet, or no longer."""
        self.folder: Identity = None
        """That of the directory, when its files were opened."""
        self._unchanged: tuple[int, int, int] | None = None
        """Identity and ctime of the directory when the files in it were compared."""

    def present(self) -> tuple[Identity, ...]:
        """The identities of the files that the directory has now."""
        path = f"{self.home}/{TABLES}"
        return identity(path), identity(f"{path}-wal"), identity(f"{path}-shm")

    def replaced(self) -> str | None:
        """The name of the first file that is no longer the one of the directory; None if all are in place.

        While nothing was added to the directory, removed or renamed there, its ctime stays, which nobody can set: one
        look at it is enough then. A ctime of just now says nothing, as the next change may get the same one.
        """
        if self.identities is None:
            return None
        folder = _stamp(self.home)
        if folder is not None and folder == self._unchanged:
            return None
        present = self.present()
        if present == self.identities:
            if folder is not None and is_past(folder[2], time.time_ns()):
                self._unchanged = folder
            return None
        return next(
            TABLES + part
            for part, *both in zip(PARTS, present, self.identities, strict=True)
            if len({*both}) > 1
        )


opened: set[OpenFiles] = set()
"""Those of the connections of this process. The connections stay out of it: one that is forgotten must be closed."""


def unlink(path: str) -> None:
    """Remove a file, if it is there and may be removed."""
    with suppress(OSError):
        os.unlink(path)


def command_name(pid: int) -> str:
    """The command line of a process, shortened; ``gone`` when it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return " ".join(word.decode(errors="replace") for word in words if word)[:120] or "gone"
