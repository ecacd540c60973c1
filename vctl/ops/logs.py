"""Log files of jobs and tasks: their paths, reading and removing them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

LOG_BLOCK = 1 << 16


def log_path(home: str, submission_id: str) -> str:
    """The path of the log file of a job or a task, as text."""
    return f"{home}/logs/{submission_id}.log"


def log_of(home: Path, submission_id: str) -> Path:
    """The path of the log file of a job or a task, which has stdout and stderr in their order."""
    return Path(log_path(str(home), submission_id))


def open_log(path: Path) -> int | None:
    """A descriptor for reading a log; None when there is no log. Links are not followed."""
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
    """(End position, bytes) of each block of a log; a beginning that was cut off is skipped."""
    while (at := max(offset, _beginning(fd))) < end:
        block = os.pread(fd, min(LOG_BLOCK, end - at), at)
        if not block:
            return
        if _beginning(fd) > at:
            continue  # the block was cut off while it was read
        offset = at + len(block)
        yield offset, block


def read_log(path: Path, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
    """The present content of a log, block by block; nothing when there is no log."""
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


class Log:
    """The output of a job or a task."""

    is_one_file = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = path.parent

    def read(self, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
        """The present output."""
        return read_log(self.path, offset=offset, tail=tail)

    def growing(self, offset: int = 0) -> Growing:
        """The output as it is written."""
        return Growing(self.path, offset)


class Growing:
    """A log that is being written, read part by part. It begins again if the log is cut to less than was read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self.read_to = offset
        self._fd: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether there was a log so far."""
        return self._fd is not None

    def new(self) -> Iterator[bytes]:
        """The blocks that were written since the last call."""
        if self._fd is None and (fd := open_log(self._path)) is not None:
            self._fd = fd
        if self._fd is None:
            return
        end = os.fstat(self._fd).st_size
        if end < self.read_to:
            self.read_to = 0
        for read_to, block in pieces(self._fd, self.read_to, end):
            self.read_to = read_to
            yield block

    def rest(self) -> Iterator[bytes]:
        """What was kept back of the blocks; asked for when nothing more is written."""
        return iter(())

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def _start_of_tail(fd: int, offset: int, end: int, lines: int) -> int:
    """The position at which the last lines of a log begin; searched from the end of the log."""
    if lines <= 0:
        return end
    first, position, count = max(offset, _beginning(fd)), end, 0
    while position > first:
        start = max(first, position - LOG_BLOCK)
        block = os.pread(fd, position - start, start)
        cut = len(block) - (position == end and block.endswith(b"\n"))
        while (cut := block.rfind(b"\n", 0, cut)) >= 0:
            count += 1
            if count == lines:
                return start + cut + 1
        position = start
    return first


def _beginning(fd: int) -> int:
    """The position of the first kept byte: the first blocks of a log that grew too large are cut off."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:
        return 0  # the log is empty, or the filesystem does not support SEEK_DATA


def names(home: Path) -> set[str]:
    """The jobs and tasks that have a log, or a rotated part of one."""
    with suppress(FileNotFoundError):
        files = os.listdir(os.path.dirname(log_path(os.fspath(home), "")))
        return {name.removesuffix(".1").removesuffix(".log") for name in files}
    return set()


remove_for_us: Callable[[str], None] | None = None
"""In a shared service: removes a file from the directory of the logs, which belongs to root."""


def forget_log(home: Path, name: str) -> None:
    """Remove a log. The caller holds the write lock."""
    path = log_path(os.fspath(home), name)
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        try:
            os.unlink(path)
        except PermissionError:  # there is one, and its directory belongs to root
            if remove_for_us is None:
                raise
            remove_for_us(os.path.basename(path))


def write_out(data: bytes) -> None:
    """Write all bytes to standard output, without a buffer."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
