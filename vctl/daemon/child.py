"""A process of its own beside a scheduler, which ends when the scheduler does."""

import os
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from vctl.ops.background import small_environment


class Child:
    """Runs a module for a state directory, one process at a time. The process ends when its standard input closes."""

    def __init__(
        self, module: str, home: Path, *more_words: str, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """``more``: variables beside those that every such process gets."""
        self._words = [sys.executable, "-P", "-m", module, os.fspath(home), *more_words]
        self._more = more
        self._pid = 0
        self._handle = self._life = -1

    def start(self, *files: tuple[int, int, int]) -> None:
        """Start the process, with more files as ``os.posix_spawn`` takes them; none runs."""
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            *files,
        ]
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                self._words,
                {**small_environment(os.environ), **self._more},
                file_actions=actions,
                setsid=True,
            )
        except OSError:
            os.close(ours)  # too many processes: it is tried again later
            return
        finally:
            os.close(theirs)
        self._life, self._handle = ours, os.pidfd_open(self._pid)

    def ended(self, within_ms: int = 0) -> int | None:
        """The exit code of the process, asked once, or 0 without a process; None while it runs."""
        if not self._pid:
            return 0
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        if not poll.poll(within_ms):
            return None
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:
            status = 0
        self._forget()
        return os.waitstatus_to_exitcode(status)

    def end(self, within_ms: int = 0) -> None:
        """Let the process end, and wait for it; one that is suspended ends when it is resumed."""
        if self._pid:
            os.close(self._life)
            self._life = -1
            if self.ended(within_ms) is None:
                self._forget()

    def _forget(self) -> None:
        for end in {self._handle, self._life} - {-1}:
            os.close(end)
        self._pid, self._handle, self._life = 0, -1, -1
