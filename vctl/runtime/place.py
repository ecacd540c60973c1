"""The mark of a state directory: a file in ``records/`` that says whose records lie there, and that they are no copies.

A copy of the directory has another inode; records that are copies say nothing of processes here.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

MARK = ".place"
RECORDS, OLD_RECORDS = "records", "runs"
_MOVED = (RECORDS, OLD_RECORDS, "exits", "stops")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Place:
    """The content of the mark; ``copied``: it was written elsewhere."""

    name: str
    copied: bool


def read(home: Path, folder: str = RECORDS) -> Place | None:
    """The mark of a state directory; None when there is none that can be read."""
    try:
        fd = os.open(home / folder / MARK, _READ)
    except OSError:
        return None
    try:
        words = os.read(fd, 200).decode(errors="replace").split()
        return Place(words[0], words[1:] != [str(os.fstat(fd).st_ino)]) if words else None
    except OSError:
        return None
    finally:
        os.close(fd)


def write(home: Path, name: str) -> None:
    """Mark the records as those of the tables that know this name."""
    staged = home / RECORDS / f"{MARK}.new"
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, f"{name} {os.fstat(fd).st_ino}\n".encode())
        os.fsync(fd)  # the tables that know the name are synced, too
    finally:
        os.close(fd)
    os.rename(staged, home / RECORDS / MARK)


def asides(home: Path) -> list[Path]:
    """Files and folders that stood in the way of a record or a log, and records of a copied directory."""
    found = (*home.glob("exits/.aside-*"), *home.glob("logs/.*.aside-*"), *home.glob("copied-*"))
    return sorted(found)


def set_aside(home: Path) -> Path:
    """Move records that were copied out of the way and begin with none; where they are now."""
    aside = home / f"copied-{time.time_ns()}"
    aside.mkdir(mode=0o700)
    for name in _MOVED:
        with contextlib.suppress(FileNotFoundError):
            os.rename(home / name, aside / name)
    for name in (RECORDS, "stops"):
        (home / name).mkdir(mode=0o700)
    return aside
