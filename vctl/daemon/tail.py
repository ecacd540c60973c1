"""What a waiting command shows: a growing log on stdout, byte for byte, and lines about it on stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from vctl.runtime.watch import MODIFY, Watch


class Tail:
    """Copies a growing file to stdout, byte for byte."""

    def __init__(self, path: Path, watch: Watch) -> None:
        self.path = path
        self.watch = watch
        self._fd: int | None = None

    def __enter__(self) -> Tail:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def copy(self) -> None:
        """Write what is new."""
        if self._fd is None:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            self.watch.add(self.path, MODIFY)
        if os.fstat(self._fd).st_size < os.lseek(self._fd, 0, os.SEEK_CUR):
            os.lseek(self._fd, 0, os.SEEK_SET)  # the log was rotated
        while chunk := os.read(self._fd, 1 << 16):
            write_all(chunk)


def tell(message: str) -> None:
    """One line on stderr."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def write_all(data: bytes) -> None:
    """All of it to stdout, unbuffered."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
