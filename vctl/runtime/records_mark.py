"""The mark of a state directory: a file in ``records/`` that says which tables the records there belong to.

The mark contains its own inode number, which a copy of the directory does not have: copied records say
nothing about processes on this machine.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from vctl.core.values import value

MARK = ".place"
RECORDS = "records"
_MOVED = (RECORDS, "stops")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@value(frozen=True, slots=True)
class RecordsMark:
    """The content of the mark; ``copied``: the file is a copy."""

    name: str
    copied: bool


def read(home: Path) -> RecordsMark | None:
    """The mark of a state directory; None if there is none, or if it cannot be read."""
    try:
        fd = os.open(home / RECORDS / MARK, _READ)
    except OSError:
        return None
    try:
        words = os.read(fd, 200).decode(errors="replace").split()
        return RecordsMark(words[0], words[1:] != [str(os.fstat(fd).st_ino)]) if words else None
    except OSError:
        return None
    finally:
        os.close(fd)


def write(home: Path, name: str) -> None:
    """Mark the records as those of the tables that have this name."""
    # A job can write here too: with a name that nobody knows, nothing that it made is in the way.
    staged = home / RECORDS / f"{MARK}.{os.urandom(8).hex()}"
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(fd, f"{name} {os.fstat(fd).st_ino}\n".encode())
        os.fsync(fd)  # the tables that have the name are synced, too
    finally:
        os.close(fd)
    mark = home / RECORDS / MARK
    try:
        os.rename(staged, mark)
    except IsADirectoryError:
        os.rename(mark, home / RECORDS / f"{MARK}.aside-{os.urandom(8).hex()}")
        os.rename(staged, mark)


def asides(home: Path) -> list[Path]:
    """Paths that were moved aside: what blocked a log, and the records of a copied directory."""
    return sorted((*home.glob("logs/.*.aside-*"), *home.glob("copied-*")))


def of_earlier_builds(home: Path) -> list[str]:
    """The folders of records that builds before the first release left; nothing here reads or removes them."""
    return [name for name in ("runs", "exits") if (home / name).is_dir()]


def set_aside(home: Path) -> Path:
    """Move copied records into a new directory, and start without records; returns that directory."""
    aside = home / f"copied-{time.time_ns()}"
    aside.mkdir(mode=0o700)
    for name in _MOVED:
        with contextlib.suppress(FileNotFoundError):
            os.rename(home / name, aside / name)
    for name in _MOVED:
        (home / name).mkdir(mode=0o700)
    return aside
