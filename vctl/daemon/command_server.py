"""Runs the process that answers commands for a scheduler, so that they need not import everything each time.

The process starts beside the scheduler and ends with it. Without it, commands work as well, only slower. So
the scheduler goes on if it cannot be started or is killed, and starts a new one a minute later.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socket, socketpair
from types import MappingProxyType

from vctl import SOCKET
from vctl.daemon.child import Child
from vctl.ops import handing

MODULE = "vctl.cli.command_server"
FIRST_S = 1.0
"""The time until the first start, so that the first job comes first."""
AGAIN_S = 60.0
END_MS = 2_000
WORDS = 4
"""The descriptor of the socket for words, in the command server of a shared service."""


class CommandServer:
    """One server at a time for a state directory whose scheduler lock is held."""

    def __init__(
        self,
        home: Path,
        words: socket | None = None,
        address: str = "",
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``words``: of a shared service, the socket at which it takes words, with its address and settings."""
        self._home = home
        self._due = time.monotonic() + FIRST_S
        self._words = words
        self._child = Child(MODULE, home, *([address] if words is not None else []), more=settings)
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
            files = [(os.POSIX_SPAWN_DUP2, self._theirs.fileno(), handing.LINE)]
            if self._words is not None:
                files.append((os.POSIX_SPAWN_DUP2, self._words.fileno(), WORDS))
            self._child.start(*files)

    def close(self) -> None:
        """End the server, and wait for its end."""
        self._ours.close()
        self._theirs.close()
        self._child.end(END_MS)
        with contextlib.suppress(OSError):
            os.unlink(self._home / SOCKET)
