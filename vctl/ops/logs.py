"""Log files: where the output of a job is, reading it as it is now, removing it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOG_BLOCK = 1 << 16


def log_path(home: str, submission_id: str) -> str:
    """Where the log file of a job is."""
    return f"{home}/logs/{submission_id}.log"


def log_of(home: Path, submission_id: str) -> Path:
    """The log file of a job; stdout and stderr in order."""
    return Path(log_path(str(home), submission_id))


def open_log(path: Path) -> int | None:
    """A descriptor to read a log with; None when there is none. Never what a link points to."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def pieces(fd: int, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(Where it ends, bytes) of each block of a log, without what was given back of its beginning."""
    while (at := max(offset, _beginning(fd))) < end:
        block = os.pread(fd, min(LOG_BLOCK, end - at), at)
        if not block:
            return
        if _beginning(fd) > at:
            continue  # it was given back while it was read
        offset = at + len(block)
        yield offset, block


def read_log(path: Path, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
    """A log as it is now, block by block; nothing when the job has written nothing."""
    if (fd := open_log(path)) is None:
        return
    try:
        end = os.fstat(fd).st_size
        if tail is not None:
            offset = _start_of_tail(fd, offset, end, tail)
        for _, block in pieces(fd, offset, end):
            yield block
    finally:
        os.close(fd)


def new_pieces(path: Path, offset: int) -> Iterator[tuple[int, bytes]]:
    """(Where it ends, bytes) of each block that a log has beyond a position; from its beginning when it was cut."""
    if (fd := open_log(path)) is None:
        return
    try:
        end = os.fstat(fd).st_size
        yield from pieces(fd, offset if offset <= end else 0, end)
    finally:
        os.close(fd)


def _start_of_tail(fd: int, offset: int, end: int, lines: int) -> int:
    """Where the last lines begin, however long they are: looked for from the end."""
    if lines <= 0:
        return end
    first, position, found = max(offset, _beginning(fd)), end, 0
    while position > first:
        start = max(first, position - LOG_BLOCK)
        block = os.pread(fd, position - start, start)
        cut = len(block) - (position == end and block.endswith(b"\n"))
        while (cut := block.rfind(b"\n", 0, cut)) >= 0:
            found += 1
            if found == lines:
                return start + cut + 1
        position = start
    return first


def _beginning(fd: int) -> int:
    """Where a log begins: of one that has grown too large the first blocks are given back."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:
        return 0  # it is empty, or the filesystem cannot tell


def forget_log(home: Path, name: str) -> None:
    """Remove a log, and what an earlier version rotated out of it. The caller holds the lock of writers."""
    path = log_path(os.fspath(home), name)
    for one in (path, f"{path}.1"):
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            os.unlink(one)


def write_out(data: bytes) -> None:
    """All of it to standard output, unbuffered."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
