"""A number as a scheduler sees it: its file, the process that carries out its runs, and their requests."""

from __future__ import annotations

import socket
from collections import deque

from vctl.runtime.records import RecordFile

ANSWER_S = 2.0
"""A process that has not taken a request within this time is suspended, or as good as dead."""


class Seat:
    """One number: its file, the process that has it now as far as we have a line to it, and its run."""

    __slots__ = (
        "answer_s", "due", "file", "line", "outbox", "pid", "place", "queue", "request", "rest", "resumed", "run",
        "runs", "since", "tries", "waits",
    )  # fmt: skip

    def __init__(self, file: RecordFile) -> None:
        self.file = file
        self.line: socket.socket | None = None
        self.outbox = b""
        self.rest = b""
        self.pid = 0
        self.place: int | None = None  # of the supervisor that has it
        self.run = ""  # given to it and not known to be over
        self.request = b""  # until it is known to be taken
        self.queue: deque[tuple[str, bytes]] = deque()  # runs that its process gets after that
        self.since = 0.0
        self.resumed = False  # since it was given its request: somebody may have suspended it
        self.waits = False  # until its line takes more
        self.due: float | None = None  # when to fork another process
        self.answer_s = ANSWER_S
        self.tries = 0
        self.runs = 0
