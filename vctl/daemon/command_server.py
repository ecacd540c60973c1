"""Runs the process that answers commands for a scheduler, so that they need not import everything each time.

The process starts beside the scheduler and ends with it. Without it, commands work as well, only slower. So
the scheduler goes on if it cannot be started or is killed, and starts a new one a minute later.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair

from vctl import SOCKET
from vctl.daemon.child import Child
from vctl.ops import handing

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
        self._child = Child(MODULE, home)
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
        if self._child.ended() is not None:
            self._child.start((os.POSIX_SPAWN_DUP2, self._theirs.fileno(), handing.LINE))

    def close(self) -> None:
        """End the server, and wait for its end."""
        self._ours.close()
        self._theirs.close()
        self._child.end(END_MS)
        with contextlib.suppress(OSError):
            os.unlink(self._home / SOCKET)
