"""Log files: where the output of a job is, reading it as it is now, removing it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LOG_BLOCK = 1 << 16


def log_of(home: Path, submission_id: str) -> Path:
    """The log file of a job; stdout and stderr in order."""
    return home / "logs" / f"{submission_id}.log"


def read_log(path: Path, *, offset: int = 0, tail: int | None = None) -> Iterator[bytes]:
    """A log as it is now, block by block; nothing when the job has written nothing."""
    from collections import deque

    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        if tail is not None:
            yield from deque(file, maxlen=max(tail, 0))
            return
        while block := file.read(LOG_BLOCK):
            yield block


def forget_log(home: Path, name: str) -> None:
    """Remove a log, and what was rotated out of it."""
    log = log_of(home, name)
    log.unlink(missing_ok=True)
    log.with_name(f"{log.name}.1").unlink(missing_ok=True)


def write_out(data: bytes) -> None:
    """All of it to standard output, unbuffered."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
