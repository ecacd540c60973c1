"""The near side of ``relay``: a socket below the state directory at which the main process of a job knocks."""

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


class Door:
    """One socket for one job; nobody else can reach its directory. It ends with the process that made it."""

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

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.listening.close()
        self.path.unlink(missing_ok=True)

    def hand_over_stdin(self) -> None:
        """Give the standard input to the job as soon as it starts, while this process goes on."""

        def wait() -> None:
            with contextlib.suppress(OSError):  # closed: the job is over
                line, _ = self.listening.accept()
                with line:
                    socket.send_fds(line, [b"."], [0])

        threading.Thread(target=wait, daemon=True).start()

    def opened(self, within_s: float) -> socket.socket | None:
        """The line to the job once it has started."""
        if not select.select([self.listening], [], [], within_s)[0]:
            return None
        return self.listening.accept()[0]
