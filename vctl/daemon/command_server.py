"""Runs the process that answers commands for a scheduler, so that they need not import everything each time.

The process starts beside the scheduler and ends with it. Without it, commands work as well, only slower. So
the scheduler goes on if it cannot be started or is killed, and starts a new one a minute later.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair

from vctl import SOCKET
from vctl.ops import handing
from vctl.ops.background import small_environment

MODULE = "vctl.cli.command_server"
FIRST_S = 1.0
"""The time until the first start, so that the first job comes first."""
AGAIN_S = 60.0
END_MS = 2_000


class CommandServer:
    """One server at a time for a state directory whose scheduler lock is held."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._due = time.monotonic() + FIRST_S
        self._handle: int | None = None
        self._pid = 0
        self._life = -1
        self._ours, self._theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)

    def fileno(self) -> int:
        """Readable when a command has handed a job over."""
        return self._ours.fileno()

    def handed(self) -> list[handing.Handed]:
        """The jobs that commands have handed over."""
        return handing.received(self._ours)

    def due_s(self) -> float:
        """Seconds until the next call of ``maintain`` is due."""
        return max(0.0, self._due - time.monotonic())

    def maintain(self) -> None:
        """Start a server if none runs; checks this every ``AGAIN_S``."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + AGAIN_S
        if self._handle is None or self._has_ended(0):
            self._start()

    def close(self) -> None:
        """End the server, and wait for its end."""
        self._ours.close()
        self._theirs.close()
        if self._handle is None:
            return
        os.close(self._life)
        if not self._has_ended(END_MS):
            os.close(self._handle)  # it is suspended, and ends when it is resumed
        with contextlib.suppress(OSError):
            os.unlink(self._home / SOCKET)
        self._handle = None

    def _start(self) -> None:
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        files = [
            (os.POSIX_SPAWN_DUP2, theirs, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, self._theirs.fileno(), handing.LINE),
        ]  # fmt: skip
        words = [sys.executable, "-P", "-m", MODULE, os.fspath(self._home)]
        try:
            self._pid = os.posix_spawn(
                sys.executable, words, small_environment(os.environ), file_actions=files, setsid=True
            )
        except OSError:
            os.close(ours)  # too many processes: it is tried again later
            return
        finally:
            os.close(theirs)
        self._life, self._handle = ours, os.pidfd_open(self._pid)

    def _has_ended(self, within_ms: int) -> bool:
        assert self._handle is not None
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        if not poll.poll(within_ms):
            return False
        os.close(self._handle)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        return True
