"""The scheduler's and the server's end of the line to the keeper, root's process of a shared service.

The messages are described in ``vctl/privileged/keeper.py``.
"""

import json
import os
import select
import socket

from vctl.runtime import frames
from vctl.runtime.protocol import RuntimeUnavailable

_WAIT_MS = 2000


class KeeperLine:
    """A line to the keeper. Requests may come from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._line = socket.socket(fileno=descriptor)
        self._line.set_inheritable(False)
        self._line.settimeout(_WAIT_MS / 1000)

    def fileno(self) -> int:
        """Hung up when the keeper has ended."""
        return self._line.fileno()

    def is_gone(self) -> bool:
        """Whether the keeper has ended: then this process ends, too."""
        poll = select.poll()
        poll.register(self._line, 0)
        return bool(poll.poll(0))

    def launcher(self, channel: socket.socket) -> None:
        """Have a launcher started that reads from a channel; one that cannot be started closes it."""
        self._ask(["launcher"], channel.fileno())

    def remove_log(self, name: str) -> None:
        """Have a file in the directory of the logs removed, and wait until it is."""
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                self._ask(["remove log", name], theirs)
            finally:
                os.close(theirs)
            poll = select.poll()
            poll.register(ours, 0)
            poll.poll(_WAIT_MS)  # the keeper closes the other end when it is done
        finally:
            os.close(ours)

    def _ask(self, words: list[str], descriptor: int) -> None:
        try:
            frames.send(self._line, json.dumps(words).encode(), [descriptor], waits=True)
        except OSError as error:
            raise RuntimeUnavailable(
                f"the keeper of the service does not answer: {error.strerror or error}",
                fix="start it with `vctl daemon --shared`",
            ) from error
