"""Reports changes of files: inotify through ctypes. Knows nothing of the content of the files.

A watch reports that something happened, not the present state: the caller that it wakes reads the files.
Imports nothing of vctl: the parents of raylets load it as a script does.
"""

import ctypes
import errno
import os
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

MODIFY, MOVED_TO, CREATE, DELETE = 0x2, 0x80, 0x100, 0x200
DELETE_SELF, OVERFLOW, IGNORED = 0x400, 0x4000, 0x8000

_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_BUFFER_BYTES = 1 << 16
_EVERY_NS = 100_000_000
"""How often a watch without inotify wakes, in nanoseconds."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)


class FileChange(NamedTuple):
    """A change at a watched path; `name` is the entry if the path is a directory, else empty.

    With OVERFLOW in the mask, changes were dropped and `path` is None: check all watched files.
    """

    path: Path | None
    name: str
    mask: int


class Watch:
    """An inotify instance. Never blocks: `fileno` is readable when there is something to read."""

    def __init__(self) -> None:
        """Open inotify; if the user has no instance left (of often 128), a timer reports OVERFLOW instead."""
        self._paths: dict[int, Path] = {}
        self._is_timer = False
        try:
            self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify")
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            self._fd, self._is_timer = _timer(), True

    def add(self, path: Path, mask: int) -> None:
        """Watch a file or directory; a second call replaces the mask. Raises OSError if it is not there."""
        if self._is_timer:
            path.stat()
            return
        watch = _checked(_libc.inotify_add_watch(self._fd, os.fsencode(path), mask), os.fspath(path))
        self._paths[watch] = path

    def remove(self, path: Path) -> None:
        """Stop watching a path; does nothing if the path is not watched, for example because it is gone."""
        for watch in [number for number, known in self._paths.items() if known == path]:
            _libc.inotify_rm_watch(self._fd, watch)
            del self._paths[watch]

    def fileno(self) -> int:
        """The descriptor to wait on, with select, poll or epoll."""
        return self._fd

    def read(self) -> list[FileChange]:
        """All changes since the last read, oldest first."""
        changes: list[FileChange] = []
        if self._is_timer:
            return [FileChange(None, "", OVERFLOW)] if self._read_some() else changes
        while data := self._read_some():
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
                offset += length
                path = self._paths.pop(watch, None) if mask & IGNORED else self._paths.get(watch)
                if path is not None or mask & OVERFLOW:
                    changes.append(FileChange(path, name, mask))
            if len(data) <= _BUFFER_BYTES // 2:
                break  # all there was
        return changes

    def _read_some(self) -> bytes:
        try:
            return os.read(self._fd, _BUFFER_BYTES)  # an interrupted call is repeated by Python (PEP 475)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """End all watches; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _timer() -> int:
    """A descriptor that becomes readable every ``_EVERY_NS``."""
    timer = _checked(_libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC), "timerfd")
    _checked(_libc.timerfd_settime(timer, 0, struct.pack("4l", 0, _EVERY_NS, 0, _EVERY_NS), None), "timerfd")
    return timer
