"""The client's side of ``relay``: a socket in the state directory to which a job's main process connects."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
from pathlib import Path

from vctl.runtime.relay import address

FOLDER = "attach"


class AttachSocket:
    """The listening socket for one job, in a directory that other users cannot enter. A context manager."""

    def __init__(self, home: Path) -> None:
        folder = home / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / secrets.token_hex(8)
        self.listening = socket.socket(socket.AF_UNIX)
        held, name = address(os.fspath(self.path))
        try:
            self.listening.bind(name)
        finally:
            os.close(held)
        self.listening.listen()

    def __enter__(self) -> AttachSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.listening.close()
        self.path.unlink(missing_ok=True)

    def hand_over_stdin(self) -> None:
        """Send the standard input (its descriptor) to the job as soon as the job connects, in a thread."""

        def wait() -> None:
            with contextlib.suppress(OSError):  # closed: the job is over
                line, _ = self.listening.accept()
                with line:
                    socket.send_fds(line, [b"."], [0])

        threading.Thread(target=wait, daemon=True).start()

    def hand_over_files(self, line: socket.socket) -> None:
        """Send the three standard files to a command beside a job."""
        socket.send_fds(line, [b"."], [0, 1, 2])

    def opened(self, within_s: float) -> socket.socket | None:
        """The connection to the job; None if the job has not connected in time."""
        if not select.select([self.listening], [], [], within_s)[0]:
            return None
        return self.listening.accept()[0]
