"""Copies logs of runs on other machines into the state directory: each byte once, even after a crash.

One process writes the logs of all runs. Before it writes a part of a log, it notes which part that is and
where it goes. After a crash the next process requests that part again, and writes it to the same place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from vctl.runtime.logfile import Bounded, open_for_writing

_MAX_FILES = 64


class Copies:
    """Copies the logs of runs, and knows how much of each log was copied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: dict[str, tuple[int, int, int]] = {}
        """Run -> the last part: its offset in the run's log, its offset in the copy, and its length."""
        self.ends: dict[str, int] = {}
        self.unsure: set[str] = set()
        """Runs whose last part may not be completely written."""
        self.files: dict[str, int] = {}

    def load(self, logs: Mapping[str, str]) -> None:
        """Read the notes of an earlier process. ``logs``: run -> the path of its copy."""
        for run_id, log in logs.items():
            with contextlib.suppress(OSError, ValueError):
                log_at, copy_at, count = map(int, (self.folder / run_id).read_text().split())
                self.notes[run_id] = log_at, copy_at, count
                self.unsure.add(run_id)
                self.ends[log] = max(self.ends.get(log, 0), copy_at + count)

    def copied(self, run_id: str) -> int:
        """The number of bytes of a run's log that were certainly copied."""
        log_at, _, count = self.notes.get(run_id, (0, 0, 0))
        return log_at if run_id in self.unsure else log_at + count

    def write(self, run_id: str, log: str, log_at: int, chunk: bytes, limit_bytes: int) -> None:
        """Copy a part of a log. Raises OSError; then the caller has to request that part again."""
        before, copy_at, count = self.notes.get(run_id, (0, 0, 0))
        if run_id in self.unsure and log_at == before and len(chunk) >= count:
            _write(self._file(log), chunk[:count], copy_at)
            self.unsure.discard(run_id)
        if log_at < before + count:
            chunk, log_at = chunk[before + count - log_at :], before + count  # this part was sent twice
        if not chunk:
            return
        file = self._file(log)
        copy_at = max(os.fstat(file).st_size, self.ends.get(log, 0))
        self._note(run_id, log_at, copy_at, len(chunk))
        self.ends[log] = copy_at + len(chunk)
        self.unsure.add(run_id)
        _write(file, chunk, copy_at)
        self.unsure.discard(run_id)
        if limit_bytes:
            bounded = Bounded(os.fsencode(log), limit_bytes)
            bounded.trim()
            bounded.close()

    def _note(self, run_id: str, log_at: int, copy_at: int, count: int) -> None:
        file = os.open(self.folder / run_id, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _write(file, b"%20d %20d %20d\n" % (log_at, copy_at, count), 0)
        finally:
            os.close(file)
        self.notes[run_id] = log_at, copy_at, count

    def _file(self, log: str) -> int:
        file = self.files.get(log)
        if file is None:
            if len(self.files) >= _MAX_FILES:
                self.close()
            appending = open_for_writing(os.fsencode(log))
            try:
                file = self.files[log] = os.open(f"/proc/self/fd/{appending}", os.O_WRONLY | os.O_CLOEXEC)
            finally:
                os.close(appending)
        return file

    def forget(self, run_id: str) -> None:
        """Remove the note of a run that is over."""
        self.notes.pop(run_id, None)
        self.unsure.discard(run_id)
        (self.folder / run_id).unlink(missing_ok=True)
        if not self.notes:
            self.ends.clear()
            self.close()

    def close(self) -> None:
        """Close the log files."""
        for file in self.files.values():
            os.close(file)
        self.files.clear()


def _write(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
